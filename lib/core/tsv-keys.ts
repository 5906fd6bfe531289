/**
 * Lines of tab-separated columns straight to keys: the bytes of a body become hash input without a string a feature. For
 * what is plain: slots of one value, a hash scheme, well-formed lines. Everything else, mistakes included, is read again
 * by tsv-rows.ts, so both paths give the same keys and the same errors.
 */
import {
  checkRowCount,
  type KeyColumns,
  LINE_CHARS_MAX,
  NO_DENSE,
  type RowColumns,
  scaleDense,
} from './feature-rows.ts';
import { slotPrefixes } from './hash.ts';
import { type HashScratch, scratchOf, TEXT_BYTES, TEXTS_MAX } from './hash-scratch.ts';
import type { FeatureSpec } from './slots.ts';
import { FAST_DIGITS_MAX, parseTsvRows, readDecimal } from './tsv-rows.ts';

const TAB = 9;
const NEWLINE = 10;
const CARRIAGE_RETURN = 13;
const MINUS = 45;
const ZERO = 48;
const NOT_PLAIN = -1;

/** A byte order mark is a character like any other, as everywhere else. */
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const encoder = new TextEncoder();
const parsers = new WeakMap<FeatureSpec, TsvKeyParser>();

/**
 * @param bytes UTF-8 lines: [label,] dense features, categorical features
 * @throws CubeError INVALID_ARGUMENT naming row and column, TOO_LARGE over `rowsMax`
 */
export function parseTsvKeys(
  bytes: Uint8Array,
  spec: FeatureSpec,
  rowsMax: number,
): KeyColumns | RowColumns {
  const isPlain = spec.hash.scheme !== 'raw' && spec.slots.every((slot) => !slot.pooling);
  if (isPlain) {
    let parser = parsers.get(spec);
    if (parser === undefined) {
      parser = new TsvKeyParser(spec);
      parsers.set(spec, parser);
    }
    const columns = parser.parse(bytes, rowsMax);
    if (columns !== undefined) return columns;
  }
  return parseTsvRows(decoder.decode(bytes), spec, rowsMax);
}

/** A line without its break, from some column on. */
interface Line {
  readonly bytes: Uint8Array;
  readonly from: number;
  readonly end: number;
}

class TsvKeyParser {
  readonly #spec: FeatureSpec;
  readonly #denseNum: number;
  readonly #prefixes: readonly Uint8Array[];
  readonly #prefixBytes: number;
  readonly #scratch: HashScratch;
  /** Where the next text goes in the scratch, and how many are in it. */
  #position = 0;
  #texts = 0;

  constructor(spec: FeatureSpec) {
    this.#spec = spec;
    this.#denseNum = spec.dense?.features.length ?? 0;
    this.#prefixes = slotPrefixes(spec.hash, spec.slots);
    this.#prefixBytes = this.#prefixes.reduce((sum, { length }) => sum + length, 0);
    this.#scratch = scratchOf(undefined);
  }

  /** @returns undefined for what is better read as text */
  parse(bytes: Uint8Array, rowsMax: number): KeyColumns | undefined {
    const rowCount = countLines(bytes);
    if (rowCount === 0) return undefined;
    checkRowCount(rowCount, rowsMax);
    const { slots, dense, hash } = this.#spec;
    const raw = new Float64Array(rowCount * this.#denseNum);
    const labels = new Float32Array(rowCount).fill(Number.NaN);
    const keys = new Uint32Array(2 * rowCount * slots.length);
    const unlabelled = this.#denseNum + slots.length;
    const isLabelled = countTabs(bytes, 0, lineEnd(bytes, 0)) === unlabelled;
    this.#scratch.use(hash);
    this.#position = 0;
    this.#texts = 0;
    for (let row = 0, at = 0; row < rowCount; row++) {
      const next = lineEnd(bytes, at);
      const end = next > at && bytes[next - 1] === CARRIAGE_RETURN ? next - 1 : next;
      const from = isLabelled ? parseLabel(bytes, at, labels, row) : at;
      const line = { bytes, from, end };
      const features = parseDense(line, this.#denseNum, raw, row * this.#denseNum);
      if (end - at > LINE_CHARS_MAX || features < 0) return undefined;
      if (!this.#makeRoom(end - features, row, keys)) return undefined;
      if (!this.#packFeatures(bytes, features, end)) return undefined;
      at = next + 1;
    }
    this.#hash(rowCount, keys);
    const scaled = scaleDense(raw, rowCount, dense?.features ?? NO_DENSE);
    return { rowCount, keys, dense: scaled, labels };
  }

  /** Hashes what is packed when another line might not fit. @returns false when it never does */
  #makeRoom(lineBytes: number, rowsDone: number, keys: Uint32Array): boolean {
    const { length } = this.#prefixes;
    // A byte that is no UTF-8 becomes a replacement character of three.
    const bytesMax = 3 * lineBytes + this.#prefixBytes;
    if (length > TEXTS_MAX || bytesMax > TEXT_BYTES) return false;
    const fits = this.#texts + length <= TEXTS_MAX && this.#position + bytesMax <= TEXT_BYTES;
    if (!fits) this.#hash(rowsDone, keys);
    return true;
  }

  /** @param rowsDone rows of which the last ones are packed */
  #hash(rowsDone: number, keys: Uint32Array): void {
    const count = this.#texts;
    this.#scratch.hash(count);
    const to = 2 * (rowsDone * this.#prefixes.length - count);
    keys.set(this.#scratch.keys.subarray(0, 2 * count), to);
    this.#texts = 0;
    this.#position = 0;
  }

  /** @returns false when the line does not have as many columns as there are slots */
  #packFeatures(bytes: Uint8Array, from: number, end: number): boolean {
    const { text, ends } = this.#scratch;
    const prefixes = this.#prefixes;
    let position = this.#position;
    let texts = this.#texts;
    let at = from;
    for (let slot = 0; slot < prefixes.length; slot++) {
      const prefix = prefixes[slot]!;
      for (let i = 0; i < prefix.length; i++) text[position++] = prefix[i]!;
      const start = at;
      let seen = 0;
      for (; at < end; at++) {
        const byte = bytes[at]!;
        if (byte === TAB) break;
        seen |= byte;
        text[position++] = byte;
      }
      if (seen >= 0x80) {
        const feature = decoder.decode(bytes.subarray(start, at));
        position -= at - start;
        position += encoder.encodeInto(feature, text.subarray(position)).written;
      }
      ends[texts++] = position;
      at++;
      if (at > end && slot + 1 < prefixes.length) return false;
    }
    this.#position = position;
    this.#texts = texts;
    return at === end + 1;
  }
}

/** @returns where the dense columns begin, or NOT_PLAIN */
function parseLabel(bytes: Uint8Array, at: number, labels: Float32Array, row: number): number {
  const label = bytes[at]! - ZERO;
  if ((label !== 0 && label !== 1) || bytes[at + 1] !== TAB) return NOT_PLAIN;
  labels[row] = label;
  return at + 2;
}

/**
 * Reads the dense columns of a line, each with the tab behind it, into `raw` from `to` on.
 * @returns where the next column begins, or NOT_PLAIN
 */
function parseDense(line: Line, count: number, raw: Float64Array, to: number): number {
  const { bytes, end } = line;
  let { from: at } = line;
  if (at < 0) return NOT_PLAIN;
  for (let i = 0; i < count; i++) {
    const start = at;
    const isNegative = bytes[at] === MINUS;
    if (isNegative) at++;
    const digitsFrom = at;
    let value = 0;
    for (; at < end; at++) {
      const digit = bytes[at]! - ZERO;
      if (digit < 0 || digit > 9) break;
      value = value * 10 + digit;
    }
    const digits = at - digitsFrom;
    const isShort = digits > 0 && digits <= FAST_DIGITS_MAX && bytes[at] === TAB;
    if (isShort) value = isNegative ? -value : value;
    else {
      while (at < end && bytes[at] !== TAB) at++;
      const number = readDecimal(decoder.decode(bytes.subarray(start, at)), 0, at - start);
      if (number === undefined) return NOT_PLAIN;
      value = number;
    }
    if (at >= end) return NOT_PLAIN;
    raw[to + i] = value;
    at++;
  }
  return at;
}

function countLines(bytes: Uint8Array): number {
  let lines = 0;
  for (let at = 0; at < bytes.length; at = lineEnd(bytes, at) + 1) lines++;
  return lines;
}

function lineEnd(bytes: Uint8Array, from: number): number {
  const newline = bytes.indexOf(NEWLINE, from);
  return newline < 0 ? bytes.length : newline;
}

function countTabs(bytes: Uint8Array, from: number, end: number): number {
  let tabs = 0;
  for (let i = from; i < end; i++) if (bytes[i] === TAB) tabs++;
  return tabs;
}
