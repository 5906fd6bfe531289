/**
 * Parses lines of tab-separated columns, in the form of Criteo's data sets, to the columns of a
 * request.
 *
 * Invariants:
 * - Every error names row and column, counted from 1.
 * - A missing dense value (an empty column) takes the feature's `missing` value. A result that f32
 *   cannot hold is refused, so that no infinity or NaN reaches a graph.
 * - A missing categorical value (an empty column) is the empty string, a feature like any other; in
 *   a slot with pooling, no value.
 * - The feature strings are the only objects made per value.
 */
import { CubeError } from './errors.ts';
import {
  checkRowCount,
  FeatureBagBuilder,
  type LabelledFeatureRows,
  LINE_CHARS_MAX,
  NO_DENSE_FEATURES,
  type RowShape,
  scaleDense,
} from './feature-rows.ts';
import type { DenseFeature } from './slots.ts';

const TAB = 9;
const NEWLINE = 10;
const CARRIAGE_RETURN = 13;

/**
 * A plain decimal number. Other forms that Number() accepts (hex, blanks, "Infinity") are refused.
 */
const DECIMAL = /^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$/;
/** Any integer of this many digits is exact as a double. */
const FAST_DIGITS_MAX = 15;

/**
 * Parses lines: [label,] dense features, categorical features. The last line break is optional.
 * @throws CubeError INVALID_ARGUMENT naming row and column, TOO_LARGE over `rowsMax`
 */
export function parseTsvRows(text: string, shape: RowShape, rowsMax: number): LabelledFeatureRows {
  const rowCount = countLines(text);
  if (rowCount === 0) throw new CubeError('INVALID_ARGUMENT', 'no rows: the text is empty');
  checkRowCount(rowCount, rowsMax);
  const parser = new TsvParser(text, shape, rowCount);
  for (let row = 0; row < rowCount; row++) parser.parseLine(row);
  return parser.columns();
}

/** Reads lines of one text into columns of a known number of rows. */
class TsvParser {
  readonly #text: string;
  readonly #shape: RowShape;
  readonly #rowCount: number;
  readonly #denseFeatures: readonly DenseFeature[];
  readonly #rawDense: Float64Array;
  readonly #labels: Float32Array;
  readonly #bags: FeatureBagBuilder<string>;
  #position = 0;

  constructor(text: string, shape: RowShape, rowCount: number) {
    this.#text = text;
    this.#shape = shape;
    this.#rowCount = rowCount;
    this.#denseFeatures = shape.dense?.features ?? NO_DENSE_FEATURES;
    this.#rawDense = new Float64Array(rowCount * this.#denseFeatures.length);
    this.#labels = new Float32Array(rowCount).fill(Number.NaN);
    this.#bags = new FeatureBagBuilder(shape.slots, rowCount);
  }

  columns(): LabelledFeatureRows {
    const { values: features, ends } = this.#bags;
    return {
      rowCount: this.#rowCount,
      dense: scaleDense(this.#rawDense, this.#rowCount, this.#denseFeatures),
      rawDense: this.#rawDense,
      features,
      ...(ends === undefined ? {} : { ends }),
      labels: this.#labels,
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
      const stop = findColumnEnd(text, at, end);
      this.#labels[row] = readLabel(text, at, stop, row);
      at = stop + 1;
    }
    at = this.#parseDense(row, at, end, columns - unlabelled);
    for (const { pooling } of this.#shape.slots) {
      const stop = findColumnEnd(text, at, end);
      if (pooling === undefined) this.#bags.add(text.slice(at, stop));
      else if (stop > at) this.#addValues(text.slice(at, stop));
      this.#bags.endBag();
      at = stop + 1;
    }
  }

  #addValues(column: string): void {
    const { separator } = this.#shape;
    if (separator === undefined) this.#bags.add(column);
    else for (const value of column.split(separator)) this.#bags.add(value);
  }

  #parseDense(row: number, from: number, end: number, columnsBefore: number): number {
    const text = this.#text;
    const features = this.#denseFeatures;
    let at = from;
    for (let i = 0; i < features.length; i++) {
      const stop = findColumnEnd(text, at, end);
      const raw = readDecimal(text, at, stop);
      if (raw === undefined) {
        const column = `column ${columnsBefore + i + 1} (${features[i]!.name})`;
        fail(
          row,
          `expected a number or nothing, got ${quoteShortened(text.slice(at, stop))}`,
          column,
        );
      }
      this.#rawDense[row * features.length + i] = raw;
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
      `expected ${total + 1} tab-separated columns (label, ${dense} dense, ` +
        `${categorical} categorical) or ${total} without label, got ${columns}`,
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

function findColumnEnd(text: string, from: number, lineEnd: number): number {
  let at = from;
  while (at < lineEnd && text.charCodeAt(at) !== TAB) at++;
  return at;
}

function readLabel(text: string, from: number, to: number, row: number): number {
  const code = text.charCodeAt(from) - 48;
  if (to - from === 1 && (code === 0 || code === 1)) return code;
  fail(row, `expected 0 or 1, got ${quoteShortened(text.slice(from, to))}`, 'column 1 (label)');
}

/**
 * Reads a decimal number. @returns NaN for an empty column, undefined for an invalid number. Short
 * integers are read without a string.
 */
export function readDecimal(text: string, from: number, to: number): number | undefined {
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

function quoteShortened(value: string): string {
  return JSON.stringify(value.length > 40 ? `${value.slice(0, 37)}...` : value);
}

function fail(row: number, what: string, column?: string): never {
  const place = column === undefined ? '' : `, ${column}`;
  throw new CubeError('INVALID_ARGUMENT', `row ${row + 1}${place}: ${what}`);
}
