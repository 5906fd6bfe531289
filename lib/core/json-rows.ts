/**
 * JSON rows to columns of a request. A row gives its features by position, `{"label"?, "dense": [...], "categorical": [...]}` with
 * null for a missing value; or by name, `{"label"?, "I1": 5, "C1": "68fd1e64"}`, where a name left out is missing; or the keys
 * that its features hash to, `{"label"?, "scaled": [...], "keys": [...]}`. A slot that pools takes an array of values.
 *
 * What all rows share (a user's features beside many candidates) may stand apart, by name; rows then have the rest.
 *
 * Invariants
 * - Every error names the place in the document. A number that JSON has rounded is refused.
 * - Plain values are read as they are: a reader of one is made only when there is something to complain about.
 */
import { FeatureBags } from './feature-bags.ts';
import {
  checkRowCount,
  type KeyColumns,
  LINE_CHARS_MAX,
  NO_DENSE,
  type RowColumns,
  type RowShape,
  type SharedFeatures,
  scaleDense,
} from './feature-rows.ts';
import type { JsonReader } from './json.ts';
import type { DenseFeature, Slot } from './slots.ts';

type JsonObject = Readonly<Record<string, unknown>>;

const POSITIONAL: ReadonlySet<string> = new Set(['label', 'dense', 'categorical']);

/**
 * @param rows the array of rows
 * @param shared an object of the features, by name, that all rows have and none repeats
 * @throws CubeError INVALID_ARGUMENT naming the place, TOO_LARGE over `rowsMax`
 */
export function parseJsonRows(
  rows: JsonReader,
  shape: RowShape,
  rowsMax: number,
  shared?: JsonReader,
): RowColumns | KeyColumns {
  if (Array.isArray(rows.value)) checkRowCount(rows.value.length, rowsMax);
  const values = rows.list({ min: 1 });
  const hasKeys = isObject(values[0]) && Object.hasOwn(values[0], 'keys');
  if (hasKeys && !shape.slots.some(({ name }) => name === 'keys')) {
    if (shared !== undefined && !shared.missing) shared.fail('nothing beside rows of keys');
    return new KeyRowReader(rows, shape, values.length).read(values);
  }
  const reader = new JsonRowReader(rows, shape, values.length);
  if (shared !== undefined && !shared.missing) reader.readShared(shared);
  return reader.read(values);
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
  /** What each row has of its own: positions among the dense features, and slots. */
  #dense: readonly number[];
  #slots: readonly Slot[];
  #names: ReadonlySet<string>;
  #shared: SharedFeatures | undefined;

  constructor(rows: JsonReader, { slots, dense }: RowShape, rowCount: number) {
    this.#rows = rows;
    this.#rowCount = rowCount;
    this.#features = dense?.features ?? NO_DENSE;
    this.#allSlots = slots;
    this.#raw = new Float64Array(rowCount * this.#features.length);
    this.#labels = new Float32Array(rowCount).fill(Number.NaN);
    this.#dense = this.#features.map((_, i) => i);
    this.#slots = slots;
    this.#names = this.#ownNames();
    this.#allNames = this.#names;
  }

  /** Takes the features that the object names out of what the rows have. */
  readShared(shared: JsonReader): void {
    const given = new Set(shared.entries().map(([name]) => name));
    refuseUnknownNames(shared, this.#names);
    if (given.has('label')) shared.field('label').fail('a label in each row');
    const width = this.#features.length;
    for (const i of this.#dense.filter((at) => given.has(this.#features[at]!.name))) {
      const field = shared.field(this.#features[i]!.name);
      const value = denseValue(field.value) ?? field.number();
      for (let row = 0; row < this.#rowCount; row++) this.#raw[row * width + i] = value;
    }
    const positions = this.#slots.flatMap(({ name }, i) => (given.has(name) ? [i] : []));
    const slots = positions.map((position) => this.#slots[position]!);
    const bags = new FeatureBags<string>(slots, 1);
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

  read(values: readonly unknown[]): RowColumns {
    const bags = new FeatureBags<string>(this.#slots, this.#rowCount);
    for (const [row, value] of values.entries()) {
      if (!isObject(value)) return this.#place(row).fail('an object');
      this.#labels[row] = readLabel(value) ?? this.#place(row).field('label').integer(0, 1);
      if (isByName(value)) this.#readNamed(value, row, bags);
      else this.#readPositional(value, row, bags);
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

  #readNamed(value: JsonObject, row: number, bags: FeatureBags<string>): void {
    for (const name in value) {
      if (!this.#names.has(name)) refuseUnknownNames(this.#place(row), this.#names);
    }
    const at = row * this.#features.length;
    for (const i of this.#dense) {
      const { name } = this.#features[i]!;
      this.#raw[at + i] =
        denseValue(ownValue(value, name)) ?? this.#place(row).field(name).number();
    }
    for (const slot of this.#slots) {
      if (!addFeatures(bags, slot, ownValue(value, slot.name))) {
        failFeatures(slot, this.#place(row).field(slot.name));
      }
      bags.endBag();
    }
  }

  #readPositional(value: JsonObject, row: number, bags: FeatureBags<string>): void {
    for (const name in value) {
      if (POSITIONAL.has(name) || !this.#allNames.has(name)) continue;
      this.#place(row).field(name).fail('nothing: the row gives its features by position');
    }
    const dense = this.#array(value, row, 'dense', this.#dense.length);
    const at = row * this.#features.length;
    this.#dense.forEach((feature, i) => {
      this.#raw[at + feature] =
        denseValue(dense[i]) ?? this.#place(row).field('dense').items()[i]!.number();
    });
    const categorical = this.#array(value, row, 'categorical', this.#slots.length);
    this.#slots.forEach((slot, i) => {
      if (!addFeatures(bags, slot, categorical[i])) {
        failFeatures(slot, this.#place(row).field('categorical').items()[i]!);
      }
      bags.endBag();
    });
  }

  #array(value: JsonObject, row: number, name: string, length: number): readonly unknown[] {
    return arrayField(value[name], length) ?? this.#place(row).field(name).fail(arrayOf(length));
  }

  #ownNames(): ReadonlySet<string> {
    const dense = this.#dense.map((i) => this.#features[i]!.name);
    return new Set(['label', ...dense, ...this.#slots.map(({ name }) => name)]);
  }

  #place(row: number): JsonReader {
    return this.#rows.items()[row]!;
  }
}

/** Reads rows that the caller has hashed and scaled. */
class KeyRowReader {
  readonly #rows: JsonReader;
  readonly #slots: readonly Slot[];
  readonly #denseNum: number;
  readonly #dense: Float32Array;
  readonly #labels: Float32Array;
  readonly #bags: FeatureBags<bigint>;

  constructor(rows: JsonReader, { slots, dense }: RowShape, rowCount: number) {
    this.#rows = rows;
    this.#slots = slots;
    this.#denseNum = dense?.features.length ?? 0;
    this.#dense = new Float32Array(rowCount * this.#denseNum);
    this.#labels = new Float32Array(rowCount).fill(Number.NaN);
    this.#bags = new FeatureBags(slots, rowCount);
  }

  read(values: readonly unknown[]): KeyColumns {
    for (const [row, value] of values.entries()) {
      if (!isObject(value)) return this.#place(row).fail('an object');
      this.#labels[row] = readLabel(value) ?? this.#place(row).field('label').integer(0, 1);
      this.#readScaled(value, row);
      this.#readKeys(value, row);
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
      this.#place(row).field('scaled').fail(arrayOf(this.#denseNum));
    for (let i = 0; i < this.#denseNum; i++) {
      const x = scaled[i];
      const at = row * this.#denseNum + i;
      if (typeof x === 'number') this.#dense[at] = x;
      if (typeof x !== 'number' || !Number.isFinite(this.#dense[at])) {
        this.#place(row).field('scaled').items()[i]!.fail('a number that a 32-bit float holds');
      }
    }
  }

  #readKeys(value: JsonObject, row: number): void {
    const field = (): JsonReader => this.#place(row).field('keys');
    const keys =
      arrayField(value['keys'], this.#slots.length) ?? field().fail(arrayOf(this.#slots.length));
    this.#slots.forEach(({ pooling }, i) => {
      const one = keys[i];
      if (pooling !== undefined && Array.isArray(one)) {
        one.forEach((key, k) => {
          this.#bags.add(u64(key) ?? field().items()[i]!.items()[k]!.u64());
        });
      } else {
        this.#bags.add(u64(one) ?? field().items()[i]!.u64());
      }
      this.#bags.endBag();
    });
  }

  #place(row: number): JsonReader {
    return this.#rows.items()[row]!;
  }
}

function isObject(value: unknown): value is JsonObject {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function isByName({ dense, categorical }: JsonObject): boolean {
  return (dense ?? categorical ?? null) === null;
}

function ownValue(row: JsonObject, name: string): unknown {
  return Object.hasOwn(row, name) ? row[name] : undefined;
}

/** NaN for none, undefined for what is no label. */
function readLabel({ label }: JsonObject): number | undefined {
  if (label === undefined || label === null) return Number.NaN;
  return label === 0 || label === 1 ? label : undefined;
}

/** No field at all stands for an empty array. */
function arrayField(value: unknown, length: number): readonly unknown[] | undefined {
  if ((value === undefined || value === null) && length === 0) return [];
  return Array.isArray(value) && value.length === length ? value : undefined;
}

function arrayOf(length: number): string {
  return `an array of ${length} items`;
}

function refuseUnknownNames(row: JsonReader, names: ReadonlySet<string>): void {
  for (const [name, field] of row.entries()) {
    if (!names.has(name)) {
      field.fail('no such field: the model has no feature of this name, or it is shared');
    }
  }
}

/** NaN when missing, undefined for what is no number. */
function denseValue(value: unknown): number | undefined {
  if (value === undefined || value === null) return Number.NaN;
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

/** Adds the values of one slot. @returns false when they are none */
function addFeatures(bags: FeatureBags<string>, { pooling }: Slot, value: unknown): boolean {
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

/** A feature as a string; ids may come as integers, but not as ones that JSON has rounded already. */
function readFeature(value: unknown): string | undefined {
  if (typeof value === 'string') return value.length <= LINE_CHARS_MAX ? value : undefined;
  return Number.isSafeInteger(value) ? String(value) : undefined;
}

function failFeatures({ pooling }: Slot, field: JsonReader): never {
  const one = `a string of at most ${LINE_CHARS_MAX} characters, null, or an integer up to 2^53`;
  field.fail(pooling === undefined ? one : `${one}, or an array of such strings and integers`);
}

function u64(value: unknown): bigint | undefined {
  if (typeof value !== 'string' || !/^\d{1,20}$/.test(value)) return undefined;
  const key = BigInt(value);
  return key < 1n << 64n ? key : undefined;
}
