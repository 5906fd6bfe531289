/**
 * Parses lines of tab-separated columns straight to keys, with a kernel over the body's bytes and
 * without a string per feature. It handles the plain case: slots of one value, a hash scheme, one
 * modulo, well-formed lines. All other input, mistakes included, goes to tsv-rows.ts, so that both
 * paths give the same keys and the same errors.
 */
import {
  checkRowCount,
  type LabelledFeatureRows,
  type LabelledKeyedRows,
  NO_DENSE_FEATURES,
  scaleDense,
} from './feature-rows.ts';
import { encodeSlotPrefixes, hasPlainSlots } from './hash.ts';
import type { KernelKind } from './kernels/kernels.ts';
import type { FeatureSpec } from './slots.ts';
import { parseTsvRows, readDecimal } from './tsv-rows.ts';
import {
  CHUNK_BYTES,
  getTsvScratch,
  type TsvLineFormat,
  type TsvScratch,
  VALUES_MAX,
} from './tsv-scratch.ts';
import { allocateWords } from './word-slab.ts';

const TAB = 9;
const NEWLINE = 10;

/** A byte order mark is a character like any other, as in the other parsers. */
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const strictDecoder = new TextDecoder('utf-8', { fatal: true });
const parsers = new WeakMap<FeatureSpec, TsvKeyParser>();

/**
 * @param bytes UTF-8 lines: [label,] dense features, categorical features
 * @param kind for tests and benchmarks; default: the fastest that the runtime supports
 * @throws CubeError INVALID_ARGUMENT naming row and column, TOO_LARGE over `rowsMax`
 */
export function parseTsvKeys(
  bytes: Uint8Array,
  spec: FeatureSpec,
  rowsMax: number,
  kind?: KernelKind,
): LabelledKeyedRows | LabelledFeatureRows {
  const { hash, slots } = spec;
  const isPlain =
    hash.scheme !== 'raw' && slots.every((slot) => !slot.pooling) && hasPlainSlots(hash, slots);
  const columns = isPlain ? getParser(spec, kind).parse(bytes, rowsMax) : undefined;
  return columns ?? parseTsvRows(decoder.decode(bytes), spec, rowsMax);
}

function getParser(spec: FeatureSpec, kind: KernelKind | undefined): TsvKeyParser {
  let parser = kind === undefined ? parsers.get(spec) : undefined;
  if (parser === undefined) {
    parser = new TsvKeyParser(spec, kind);
    if (kind === undefined) parsers.set(spec, parser);
  }
  return parser;
}

class TsvKeyParser {
  readonly #spec: FeatureSpec;
  readonly #lines: TsvLineFormat;
  readonly #scratch: TsvScratch;

  constructor(spec: FeatureSpec, kind?: KernelKind) {
    const prefixes = encodeSlotPrefixes(spec.hash, spec.slots);
    this.#spec = spec;
    this.#lines = { hash: spec.hash, denseNum: spec.dense?.features.length ?? 0, prefixes };
    this.#scratch = getTsvScratch(kind);
  }

  /** @returns undefined for input that must be parsed as text */
  parse(bytes: Uint8Array, rowsMax: number): LabelledKeyedRows | undefined {
    const { denseNum, prefixes } = this.#lines;
    const slotNum = prefixes.length;
    if (denseNum > VALUES_MAX || slotNum > VALUES_MAX) return undefined;
    const chunks = splitLines(bytes);
    if (chunks === undefined) return undefined;
    const scratch = this.#scratch;
    const rowCounts = chunks.map((chunk) => scratch.load(chunk));
    const rowCount = rowCounts.reduce((sum, rows) => sum + rows, 0);
    if (rowCount === 0) return undefined;
    checkRowCount(rowCount, rowsMax);
    const isLabelled = countTabs(bytes) === denseNum + slotNum;
    const keys = allocateWords(2 * rowCount * slotNum);
    const dense = takeRawDense(rowCount * denseNum);
    const labels = new Float32Array(rowCount).fill(Number.NaN);
    let row = 0;
    for (const [i, chunk] of chunks.entries()) {
      if (chunks.length > 1) scratch.load(chunk);
      // Views of short arrays cost more than parsing a row.
      const isFirst = row === 0;
      const columns = {
        keys: isFirst ? keys : keys.subarray(2 * row * slotNum),
        dense: isFirst ? dense : dense.subarray(row * denseNum),
        labels: isFirst ? labels : labels.subarray(row),
      };
      const readOdd = (from: number, to: number): number | undefined =>
        readDecimal(decoder.decode(chunk.subarray(from, to)), 0, to - from);
      if (!scratch.read(this.#lines, isLabelled, columns, readOdd)) return undefined;
      if (scratch.hasNonAscii && !isUtf8(chunk)) return undefined;
      row += rowCounts[i]!;
    }
    const scaled = scaleDense(dense, rowCount, this.#spec.dense?.features ?? NO_DENSE_FEATURES);
    return { rowCount, keys, dense: scaled, labels };
  }
}

/** Unscaled values of the lines being parsed; the next parse overwrites them. */
let rawDense = new Float64Array(0);
/** More values are not kept: one huge body must not hold memory for ever. */
const KEPT_VALUES_MAX = 128 << 10;

function takeRawDense(length: number): Float64Array {
  if (length > KEPT_VALUES_MAX) return new Float64Array(length);
  if (length > rawDense.length) rawDense = new Float64Array(length);
  return rawDense.subarray(0, length);
}

/** Splits into chunks of whole lines. @returns undefined when a line exceeds a chunk */
function splitLines(bytes: Uint8Array): Uint8Array[] | undefined {
  const chunks: Uint8Array[] = [];
  let start = 0;
  while (bytes.length - start > CHUNK_BYTES) {
    const end = bytes.lastIndexOf(NEWLINE, start + CHUNK_BYTES - 1) + 1;
    if (end <= start) return undefined;
    chunks.push(bytes.subarray(start, end));
    start = end;
  }
  if (start < bytes.length) chunks.push(bytes.subarray(start));
  return chunks;
}

/** False when text decoding would insert replacement characters. */
function isUtf8(bytes: Uint8Array): boolean {
  try {
    strictDecoder.decode(bytes);
    return true;
  } catch {
    return false;
  }
}

/** Tabs of the first line. */
function countTabs(bytes: Uint8Array): number {
  let tabs = 0;
  for (let i = 0; i < bytes.length && bytes[i] !== NEWLINE; i++) if (bytes[i] === TAB) tabs++;
  return tabs;
}
