/**
 * Parses JSON rows to the columns of a request. A row has one of three forms:
 * - by position, `{"label"?, "dense": [...], "categorical": [...]}`, with null for a missing value;
 * - by name, `{"label"?, "I1": 5, "C1": "68fd1e64"}`, where an omitted name is missing;
 * - keys, `{"label"?, "scaled": [...], "keys": [...]}`.
 * Rows by position and keys may have the time `at` that recordings give them; predictions do not
 * depend on it.
 * A slot with pooling takes an array of values. Features that all rows share (of the user, for many
 * candidates) may be given once, by name; the rows then contain the others.
 *
 * Invariants:
 * - Every error names the location in the document. A number that JSON has rounded is refused.
 * - Plain values are read without a JsonReader; one is created only for an error message.
 */
import {
  checkRowCount,
  FeatureBagBuilder,
  type LabelledFeatureRows,
  type LabelledKeyedRows,
  LINE_CHARS_MAX,
  NO_DENSE_FEATURES,
  type RowShape,
  type SharedFeatures,
  scaleDense,
} from './feature-rows.ts';
import type { JsonReader } from './json.ts';
import { runAtOnce, type SlicedWork } from './json-slices.ts';
import type { DenseFeature, Slot } from './slots.ts';

type JsonObject = Readonly<Record<string, unknown>>;

/** Rows of a slice: some 0.5 ms. */
const SLICE_ROWS = 256;
const POSITIONAL: ReadonlySet<string> = new Set(['label', 'dense', 'categorical', 'at']);
const KEYED: ReadonlySet<string> = new Set(['label', 'scaled', 'keys', 'at']);

/**
 * @param rows array of rows
 * @param shared object of the features, by name, that all rows share and none repeats
 * @throws CubeError INVALID_ARGUMENT naming the location, TOO_LARGE over `rowsMax`
 */
export function parseJsonRows(
  rows: JsonReader,
  shape: RowShape,
  rowsMax: number,
  shared?: JsonReader,
): LabelledFeatureRows | LabelledKeyedRows {
  return runAtOnce(parseJsonRowsInSlices(rows, shape, rowsMax, shared));
}

/** As `parseJsonRows`, in slices of rows. */
export function* parseJsonRowsInSlices(
  rows: JsonReader,
  shape: RowShape,
  rowsMax: number,
  shared?: JsonReader,
): SlicedWork<LabelledFeatureRows | LabelledKeyedRows> {
  if (Array.isArray(rows.value)) checkRowCount(rows.value.length, rowsMax);
  const values = rows.list({ min: 1 });
  const hasKeys = isObject(values[0]) && Object.hasOwn(values[0], 'keys');
  if (hasKeys && !shape.slots.some(({ name }) => name === 'keys')) {
    if (shared !== undefined && !shared.isMissing)
      shared.fail('no shared features with rows of keys');
    return yield* new KeyRowReader(rows, shape, values.length).read(values);
  }
  const reader = new JsonRowReader(rows, shape, values.length);
  if (shared !== undefined && !shared.isMissing) reader.readShared(shared);
  return yield* reader.read(values);
}

/** Reads rows of features. */
class JsonRowReader {
  readonly #rows: JsonReader;
  readonly #rowCount: number;
  readonly #features: readonly DenseFeature[];
  readonly #allSlots: readonly Slot[];
  readonly #allNames: ReadonlySet<string>;
  readonly #raw: Float64Array;
  readonly #labels: Float32Array;
  /** The fields of each row, without the shared ones: indexes of dense features, and slots. */
  #dense: readonly number[];
  #slots: readonly Slot[];
  #names: ReadonlySet<string>;
  #shared: SharedFeatures | undefined;

  constructor(rows: JsonReader, { slots, dense }: RowShape, rowCount: number) {
    this.#rows = rows;
    this.#rowCount = rowCount;
    this.#features = dense?.features ?? NO_DENSE_FEATURES;
    this.#allSlots = slots;
    this.#raw = new Float64Array(rowCount * this.#features.length);
    this.#labels = new Float32Array(rowCount).fill(Number.NaN);
    this.#dense = this.#features.map((_, i) => i);
    this.#slots = slots;
    this.#names = this.#ownNames();
    this.#allNames = this.#names;
  }

  /** Reads the shared features and removes them from the fields that rows must have. */
  readShared(shared: JsonReader): void {
    const given = new Set(shared.entries().map(([name]) => name));
    shared.rejectUnknownFields(this.#names);
    if (given.has('label')) shared.field('label').fail('a label in each row');
    const width = this.#features.length;
    for (const i of this.#dense.filter((at) => given.has(this.#features[at]!.name))) {
      const field = shared.field(this.#features[i]!.name);
      const value = toDenseValue(field.value) ?? field.number();
      for (let row = 0; row < this.#rowCount; row++) this.#raw[row * width + i] = value;
    }
    const positions = this.#slots.flatMap(({ name }, i) => (given.has(name) ? [i] : []));
    const slots = positions.map((position) => this.#slots[position]!);
    const bags = new FeatureBagBuilder<string>(slots, 1);
    for (const slot of slots) {
      const field = shared.field(slot.name);
      if (!addFeatures(bags, slot, field.value)) failFeatures(slot, field);
      bags.endBag();
    }
    const { values: features, ends } = bags;
    if (slots.length > 0) {
      this.#shared = {
        slots: Int32Array.from(positions),
        features,
        ...(ends === undefined ? {} : { ends }),
      };
    }
    this.#dense = this.#dense.filter((at) => !given.has(this.#features[at]!.name));
    this.#slots = this.#allSlots.filter(({ name }) => !given.has(name));
    this.#names = this.#ownNames();
  }

  *read(values: readonly unknown[]): SlicedWork<LabelledFeatureRows> {
    const bags = new FeatureBagBuilder<string>(this.#slots, this.#rowCount);
    for (const [row, value] of values.entries()) {
      if (!isObject(value)) return this.#place(row).fail('an object');
      this.#labels[row] = readLabel(value) ?? this.#place(row).field('label').integer(0, 1);
      if (isNamedRow(value)) this.#readNamed(value, row, bags);
      else this.#readPositional(value, row, bags);
      if (row % SLICE_ROWS === SLICE_ROWS - 1) yield;
    }
    const { values: features, ends } = bags;
    return {
      rowCount: this.#rowCount,
      dense: scaleDense(this.#raw, this.#rowCount, this.#features),
      rawDense: this.#raw,
      features,
      ...(ends === undefined ? {} : { ends }),
      ...(this.#shared === undefined ? {} : { shared: this.#shared }),
      labels: this.#labels,
    };
  }

  #readNamed(value: JsonObject, row: number, bags: FeatureBagBuilder<string>): void {
    for (const name in value) {
      if (this.#names.has(name)) continue;
      failUnknownNames(this.#place(row), this.#names, this.#allNames);
    }
    const at = row * this.#features.length;
    for (const i of this.#dense) {
      const { name } = this.#features[i]!;
      this.#raw[at + i] =
        toDenseValue(getOwnValue(value, name)) ?? this.#place(row).field(name).number();
    }
    for (const slot of this.#slots) {
      if (!addFeatures(bags, slot, getOwnValue(value, slot.name))) {
        failFeatures(slot, this.#place(row).field(slot.name));
      }
      bags.endBag();
    }
  }

  #readPositional(value: JsonObject, row: number, bags: FeatureBagBuilder<string>): void {
    for (const name in value) {
      if (!POSITIONAL.has(name)) failPositional(this.#place(row), name, this.#allNames);
    }
    checkTime(value, () => this.#place(row));
    const dense = this.#array(value, row, 'dense', this.#dense.length);
    const at = row * this.#features.length;
    this.#dense.forEach((feature, i) => {
      this.#raw[at + feature] =
        toDenseValue(dense[i]) ?? this.#place(row).field('dense').item(i).number();
    });
    const categorical = this.#array(value, row, 'categorical', this.#slots.length);
    this.#slots.forEach((slot, i) => {
      if (!addFeatures(bags, slot, categorical[i])) {
        failFeatures(slot, this.#place(row).field('categorical').item(i));
      }
      bags.endBag();
    });
  }

  #array(value: JsonObject, row: number, name: string, length: number): readonly unknown[] {
    return (
      arrayField(value[name], length) ?? this.#place(row).field(name).fail(describeArray(length))
    );
  }

  #ownNames(): ReadonlySet<string> {
    const dense = this.#dense.map((i) => this.#features[i]!.name);
    return new Set(['label', ...dense, ...this.#slots.map(({ name }) => name)]);
  }

  #place(row: number): JsonReader {
    return this.#rows.item(row);
  }
}

/** Reads rows that the caller hashed and scaled. */
class KeyRowReader {
  readonly #rows: JsonReader;
  readonly #slots: readonly Slot[];
  readonly #denseNum: number;
  readonly #dense: Float32Array;
  readonly #labels: Float32Array;
  readonly #bags: FeatureBagBuilder<bigint>;

  constructor(rows: JsonReader, { slots, dense }: RowShape, rowCount: number) {
    this.#rows = rows;
    this.#slots = slots;
    this.#denseNum = dense?.features.length ?? 0;
    this.#dense = new Float32Array(rowCount * this.#denseNum);
    this.#labels = new Float32Array(rowCount).fill(Number.NaN);
    this.#bags = new FeatureBagBuilder(slots, rowCount);
  }

  *read(values: readonly unknown[]): SlicedWork<LabelledKeyedRows> {
    for (const [row, value] of values.entries()) {
      if (!isObject(value)) return this.#place(row).fail('an object');
      for (const name in value) {
        if (!KEYED.has(name)) this.#place(row).rejectUnknownFields(KEYED);
      }
      checkTime(value, () => this.#place(row));
      this.#labels[row] = readLabel(value) ?? this.#place(row).field('label').integer(0, 1);
      this.#readScaled(value, row);
      this.#readKeys(value, row);
      if (row % SLICE_ROWS === SLICE_ROWS - 1) yield;
    }
    const { values: keys, ends } = this.#bags;
    return {
      rowCount: values.length,
      keys: new Uint32Array(BigUint64Array.from(keys).buffer),
      dense: this.#dense,
      ...(ends === undefined ? {} : { ends }),
      labels: this.#labels,
    };
  }

  #readScaled(value: JsonObject, row: number): void {
    const scaled =
      arrayField(value['scaled'], this.#denseNum) ??
      this.#place(row).field('scaled').fail(describeArray(this.#denseNum));
    for (let i = 0; i < this.#denseNum; i++) {
      const x = scaled[i];
      const at = row * this.#denseNum + i;
      if (typeof x === 'number') this.#dense[at] = x;
      if (typeof x !== 'number' || !Number.isFinite(this.#dense[at])) {
        this.#place(row).field('scaled').item(i).fail('a number that a 32-bit float holds');
      }
    }
  }

  #readKeys(value: JsonObject, row: number): void {
    const field = (): JsonReader => this.#place(row).field('keys');
    const keys =
      arrayField(value['keys'], this.#slots.length) ??
      field().fail(describeArray(this.#slots.length));
    this.#slots.forEach(({ pooling }, i) => {
      const item = keys[i];
      if (pooling !== undefined && Array.isArray(item)) {
        item.forEach((key, k) => {
          this.#bags.add(parseU64(key) ?? field().item(i).item(k).u64());
        });
      } else {
        this.#bags.add(parseU64(item) ?? field().item(i).u64());
      }
      this.#bags.endBag();
    });
  }

  #place(row: number): JsonReader {
    return this.#rows.item(row);
  }
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isNamedRow({ dense, categorical }: JsonObject): boolean {
  return (dense ?? categorical ?? null) === null;
}

function getOwnValue(row: JsonObject, name: string): unknown {
  return Object.hasOwn(row, name) ? row[name] : undefined;
}

/** @returns NaN without a label, undefined for an invalid one */
function readLabel({ label }: JsonObject): number | undefined {
  if (label === undefined || label === null) return Number.NaN;
  return label === 0 || label === 1 ? label : undefined;
}

/** @throws CubeError when the row has a time that is no number */
function checkTime({ at }: JsonObject, place: () => JsonReader): void {
  if (at !== undefined && typeof at !== 'number') place().field('at').number();
}

/** A missing field counts as an empty array. */
function arrayField(value: unknown, length: number): readonly unknown[] | undefined {
  if ((value === undefined || value === null) && length === 0) return [];
  return Array.isArray(value) && value.length === length ? value : undefined;
}

function describeArray(length: number): string {
  return `an array of ${length} items`;
}

/** A row by position may be meant by name, or have a misspelled field. */
function failPositional(row: JsonReader, name: string, features: ReadonlySet<string>): void {
  if (features.has(name)) {
    row.field(name).fail('no named feature: the row gives its features by position');
  }
  row.rejectUnknownFields(POSITIONAL);
}

/** @param names of the fields that a row may have; `all` includes those that all rows share */
function failUnknownNames(
  row: JsonReader,
  names: ReadonlySet<string>,
  all: ReadonlySet<string>,
): void {
  for (const [name, field] of row.entries()) {
    if (all.has(name) && !names.has(name)) field.fail('no feature that "shared" has too');
  }
  row.rejectUnknownFields(names);
}

/** @returns NaN when missing (absent, null or NaN), undefined for an invalid number */
function toDenseValue(value: unknown): number | undefined {
  if (value === undefined || value === null) return Number.NaN;
  return typeof value === 'number' && Math.abs(value) !== Number.POSITIVE_INFINITY
    ? value
    : undefined;
}

/** Adds the values of one slot. @returns false when one of them is invalid */
function addFeatures(bags: FeatureBagBuilder<string>, { pooling }: Slot, value: unknown): boolean {
  if (pooling === undefined) {
    const feature = readFeature(value ?? '');
    if (feature !== undefined) bags.add(feature);
    return feature !== undefined;
  }
  for (const one of Array.isArray(value) ? value : [value ?? []].flat()) {
    const feature = readFeature(one);
    if (feature === undefined) return false;
    bags.add(feature);
  }
  return true;
}

/** A feature as a string. Ids may be integers, unless JSON has rounded them already. */
function readFeature(value: unknown): string | undefined {
  if (typeof value === 'string') return value.length <= LINE_CHARS_MAX ? value : undefined;
  return Number.isSafeInteger(value) ? String(value) : undefined;
}

function failFeatures({ pooling }: Slot, field: JsonReader): never {
  const one = `a string of at most ${LINE_CHARS_MAX} characters, null, or an integer up to 2^53`;
  field.fail(pooling === undefined ? one : `${one}, or an array of such strings and integers`);
}

function parseU64(value: unknown): bigint | undefined {
  if (typeof value !== 'string' || !/^\d{1,20}$/.test(value)) return undefined;
  const key = BigInt(value);
  return key < 1n << 64n ? key : undefined;
}
