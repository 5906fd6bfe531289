/**
 * Rows as users send them, to columns as the pipeline wants them: Criteo-format lines or JSON rows become scaled dense
 * values and feature strings, row-major, in the order of the model's feature spec.
 *
 * Invariants
 * - Every error names row and column, as people count: from 1.
 * - A missing dense value (an empty column, null, NaN) takes the feature's `missing` value; scaling is done in double
 *   precision and rounded once, at the end, to f32. A result that f32 cannot hold is refused, so no infinity or NaN enters a
 *   graph from here.
 * - A missing categorical value (an empty column, null) is the empty string: a feature like any other.
 * - The TSV path makes no object a value but the feature strings themselves.
 */
import { CubeError } from './errors.ts';
import type { JsonReader } from './json.ts';
import type { DenseFeature, FeatureSpec } from './slots.ts';

/** What a row consists of. */
export type RowShape = Pick<FeatureSpec, 'slots' | 'dense'>;

export interface RowColumns {
  readonly rowCount: number;
  /** rowCount × dense features, scaled. */
  readonly dense: Float32Array;
  /** rowCount × slots. */
  readonly features: readonly string[];
  /** One a row, NaN where a row has none. */
  readonly labels: Float32Array;
}

/** A longer line or feature is a mistake (a wrong file, a lost line break), not data. */
export const LINE_CHARS_MAX: number = 64 << 10;

const TAB = 9;
const NEWLINE = 10;
const CARRIAGE_RETURN = 13;
const NO_DENSE: readonly DenseFeature[] = [];

/** A plain decimal number; what Number() also takes (hex, blanks, "Infinity") is refused. */
const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
/** Digits that a double holds exactly whatever they are. */
const FAST_DIGITS_MAX = 15;

/**
 * Parses lines of tab-separated columns: [label,] dense features, categorical features; the last line may end in a line
 * break.
 * @throws CubeError INVALID_ARGUMENT naming row and column, TOO_LARGE over `rowsMax`
 */
export function parseTsvRows(text: string, shape: RowShape, rowsMax: number): RowColumns {
  const rowCount = countLines(text);
  if (rowCount === 0) throw new CubeError('INVALID_ARGUMENT', 'no rows: the text is empty');
  checkRowCount(rowCount, rowsMax);
  const parser = new TsvParser(text, shape, rowCount);
  for (let row = 0; row < rowCount; row++) parser.parseLine(row);
  return parser.columns;
}

/**
 * Parses JSON rows: `{"label"?, "dense": [...], "categorical": [...]}` with null for a missing value, or features by
 * name: `{"label"?, "I1": 5, "C1": "68fd1e64"}`, where a name left out is missing.
 * @param rows the array of rows @throws CubeError INVALID_ARGUMENT naming the place, TOO_LARGE over `rowsMax`
 */
export function parseJsonRows(rows: JsonReader, shape: RowShape, rowsMax: number): RowColumns {
  if (Array.isArray(rows.value)) checkRowCount(rows.value.length, rowsMax);
  const items = rows.items({ min: 1, max: rowsMax });
  const denseFeatures = shape.dense?.features ?? NO_DENSE;
  const denseNames = denseFeatures.map(({ name }) => name);
  const slotNames = shape.slots.map(({ name }) => name);
  const known = new Set(['label', ...denseNames, ...slotNames]);
  const raw = new Float64Array(items.length * denseNames.length);
  const features: string[] = [];
  const labels = new Float32Array(items.length).fill(Number.NaN);
  items.forEach((item, row) => {
    const label = item.optional('label', (field) => field.integer(0, 1));
    if (label !== undefined) labels[row] = label;
    const byPosition = !item.field('dense').missing || !item.field('categorical').missing;
    if (!byPosition) refuseUnknownNames(item, known);
    const dense = byPosition ? positional(item, 'dense', denseNames.length) : undefined;
    denseNames.forEach((name, i) => {
      const value = dense === undefined ? namedValue(item, name) : dense[i];
      raw[row * denseNames.length + i] =
        readDense(value) ?? placeOf(item, dense ? 'dense' : name, dense && i).number();
    });
    const categorical = byPosition ? positional(item, 'categorical', slotNames.length) : undefined;
    slotNames.forEach((name, i) => {
      const value = categorical === undefined ? namedValue(item, name) : categorical[i];
      features.push(
        readFeature(value) ??
          failFeature(placeOf(item, categorical ? 'categorical' : name, categorical && i)),
      );
    });
  });
  const dense = scaleDense(raw, items.length, denseFeatures);
  return { rowCount: items.length, dense, features, labels };
}

/**
 * Scales raw dense values (NaN = missing), rowCount × features.
 * @throws CubeError INVALID_ARGUMENT naming row and feature of a value that f32 cannot hold
 */
export function scaleDense(
  raw: Float64Array | Float32Array,
  rowCount: number,
  features: readonly DenseFeature[],
): Float32Array {
  const scaled = new Float32Array(rowCount * features.length);
  for (let row = 0, at = 0; row < rowCount; row++) {
    for (let i = 0; i < features.length; i++, at++) {
      scaled[at] = scaleValue(raw[at]!, features[i]!);
      if (!Number.isFinite(scaled[at]!)) failScaled(row, features[i]!.name, raw[at]!);
    }
  }
  return scaled;
}

/** One dense value as the model was trained on it, in double precision. @param raw NaN = missing */
function scaleValue(raw: number, feature: DenseFeature): number {
  let value = Number.isNaN(raw) ? feature.missing : raw;
  if (feature.log) value = Math.log1p(Math.max(value, 0));
  return (value - feature.shift) * feature.scale;
}

function failScaled(row: number, name: string, raw: number): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `row ${row + 1} (${name}): ${raw} is beyond what a 32-bit float holds after scaling`,
  );
}

function checkRowCount(rowCount: number, rowsMax: number): void {
  if (rowCount <= rowsMax) return;
  throw new CubeError(
    'TOO_LARGE',
    `${rowCount} rows in one request, the limit is ${rowsMax}: send them in several requests`,
  );
}

/** Reads lines of one text into columns of a known number of rows. */
class TsvParser {
  readonly columns: RowColumns;
  readonly #text: string;
  readonly #shape: RowShape;
  readonly #denseFeatures: readonly DenseFeature[];
  readonly #features: string[] = [];
  #position = 0;

  constructor(text: string, shape: RowShape, rowCount: number) {
    this.#text = text;
    this.#shape = shape;
    this.#denseFeatures = shape.dense?.features ?? NO_DENSE;
    this.columns = {
      rowCount,
      dense: new Float32Array(rowCount * this.#denseFeatures.length),
      features: this.#features,
      labels: new Float32Array(rowCount).fill(Number.NaN),
    };
  }

  parseLine(row: number): void {
    const text = this.#text;
    const start = this.#position;
    const newline = text.indexOf('\n', start);
    let end = newline < 0 ? text.length : newline;
    this.#position = end + 1;
    if (end > start && text.charCodeAt(end - 1) === CARRIAGE_RETURN) end--;
    if (end - start > LINE_CHARS_MAX) {
      const limit = `the limit is ${LINE_CHARS_MAX}`;
      fail(row, `a line of ${end - start} characters, ${limit}; is it the right file?`);
    }
    const columns = countTabs(text, start, end) + 1;
    const unlabelled = this.#denseFeatures.length + this.#shape.slots.length;
    if (columns !== unlabelled && columns !== unlabelled + 1) this.#failColumns(row, columns);
    let at = start;
    if (columns > unlabelled) {
      const stop = columnEnd(text, at, end);
      this.columns.labels[row] = readLabel(text, at, stop, row);
      at = stop + 1;
    }
    at = this.#parseDense(row, at, end, columns - unlabelled);
    for (let slot = 0; slot < this.#shape.slots.length; slot++) {
      const stop = columnEnd(text, at, end);
      this.#features.push(text.slice(at, stop));
      at = stop + 1;
    }
  }

  #parseDense(row: number, from: number, end: number, columnsBefore: number): number {
    const text = this.#text;
    const { dense } = this.columns;
    const features = this.#denseFeatures;
    let at = from;
    for (let i = 0; i < features.length; i++) {
      const stop = columnEnd(text, at, end);
      const raw = readDecimal(text, at, stop);
      if (raw === undefined) {
        const column = `column ${columnsBefore + i + 1} (${features[i]!.name})`;
        fail(row, `expected a number or nothing, got ${shown(text.slice(at, stop))}`, column);
      }
      const index = row * features.length + i;
      dense[index] = scaleValue(raw, features[i]!);
      if (!Number.isFinite(dense[index]!)) failScaled(row, features[i]!.name, raw);
      at = stop + 1;
    }
    return at;
  }

  #failColumns(row: number, columns: number): never {
    const dense = this.#denseFeatures.length;
    const categorical = this.#shape.slots.length;
    const total = dense + categorical;
    fail(
      row,
      `expected ${total + 1} tab-separated columns (label, ${dense} dense, ${categorical} categorical) ` +
        `or ${total} without label, got ${columns}`,
    );
  }
}

function countLines(text: string): number {
  let lines = 0;
  let at = text.indexOf('\n');
  while (at >= 0) {
    lines++;
    at = text.indexOf('\n', at + 1);
  }
  const endsInBreak = text.charCodeAt(text.length - 1) === NEWLINE;
  return text.length === 0 || endsInBreak ? lines : lines + 1;
}

function countTabs(text: string, start: number, end: number): number {
  let tabs = 0;
  for (let i = start; i < end; i++) if (text.charCodeAt(i) === TAB) tabs++;
  return tabs;
}

function columnEnd(text: string, from: number, lineEnd: number): number {
  let at = from;
  while (at < lineEnd && text.charCodeAt(at) !== TAB) at++;
  return at;
}

function readLabel(text: string, from: number, to: number, row: number): number {
  const code = text.charCodeAt(from) - 48;
  if (to - from === 1 && (code === 0 || code === 1)) return code;
  fail(row, `expected 0 or 1, got ${shown(text.slice(from, to))}`, 'column 1 (label)');
}

/** A decimal number, NaN for an empty column, undefined for anything else. Short integers never become a string. */
function readDecimal(text: string, from: number, to: number): number | undefined {
  if (from === to) return Number.NaN;
  const negative = text.charCodeAt(from) === 45;
  const digitsFrom = negative ? from + 1 : from;
  let value = 0;
  let at = digitsFrom;
  for (; at < to; at++) {
    const digit = text.charCodeAt(at) - 48;
    if (digit < 0 || digit > 9) break;
    value = value * 10 + digit;
  }
  const digits = at - digitsFrom;
  if (at === to && digits > 0 && digits <= FAST_DIGITS_MAX) return negative ? -value : value;
  const column = text.slice(from, to);
  return DECIMAL.test(column) ? Number(column) : undefined;
}

function shown(value: string): string {
  return JSON.stringify(value.length > 40 ? `${value.slice(0, 37)}...` : value);
}

function fail(row: number, what: string, column?: string): never {
  const place = column === undefined ? '' : `, ${column}`;
  throw new CubeError('INVALID_ARGUMENT', `row ${row + 1}${place}: ${what}`);
}

/** The values of an array field: plain, because a reader for each of a large request's values is slow. */
function positional(row: JsonReader, name: string, length: number): readonly unknown[] {
  const field = row.field(name);
  if (field.missing && length === 0) return [];
  const { value } = field;
  if (Array.isArray(value) && value.length === length) return value;
  return field.fail(`an array of ${length} items`);
}

function namedValue(row: JsonReader, name: string): unknown {
  const value = row.value as Record<string, unknown>;
  return Object.hasOwn(value, name) ? value[name] : undefined;
}

/** The reader of one value: made only when there is something to complain about. */
function placeOf(row: JsonReader, name: string, index: number | undefined): JsonReader {
  return index === undefined ? row.field(name) : row.field(name).items()[index]!;
}

function refuseUnknownNames(row: JsonReader, names: ReadonlySet<string>): void {
  for (const name of Object.keys(row.value as object)) {
    if (!names.has(name)) {
      row.field(name).fail('no such field: the model has no feature of this name');
    }
  }
}

function readDense(value: unknown): number | undefined {
  if (value === undefined || value === null) return Number.NaN;
  return typeof value === 'number' && Number.isFinite(value) ? value : undefined;
}

/** A feature as a string; ids may come as integers, but not as ones that JSON has rounded already. */
function readFeature(value: unknown): string | undefined {
  if (value === undefined || value === null) return '';
  if (typeof value === 'string') return value.length <= LINE_CHARS_MAX ? value : undefined;
  return Number.isSafeInteger(value) ? String(value) : undefined;
}

function failFeature(field: JsonReader): never {
  field.fail(`a string of at most ${LINE_CHARS_MAX} characters, null, or an integer up to 2^53`);
}
