/**
 * Encodes rows of f32 to the bytes that layers store, and decodes them, by dtype
 * (docs/formats/layer.md). f32 keeps every bit. f16 and bf16 round to nearest, ties to even, keep
 * infinities and NaN, and refuse finite values that would become infinite. i8 takes finite values
 * only.
 */
import { CubeError } from './errors.ts';
import { bf16ToF32Bits, f16ToF32Bits, f32BitsToBf16, f32BitsToF16 } from './half-floats.ts';
import { keyToBigint } from './keys.ts';
import type { TableDtype } from './manifest.ts';
import { type QuantizationSearch, RowQuantizer } from './quantized-rows.ts';

/** A dtype of rows that have elements. */
export type RowDtype = Exclude<TableDtype, 'bytes'>;

/** Difference between stored and given rows, over all finite elements. */
export interface RowErrors {
  readonly elements: number;
  readonly meanAbsolute: number;
  readonly maxAbsolute: number;
  readonly meanSquared: number;
}

export interface EncodedRows {
  /** count · rowBytes; padding bytes are zero. */
  readonly rows: Uint8Array;
  readonly errors: RowErrors;
}

export interface EncodeOptions {
  /** For i8. Default: `range`. */
  readonly search?: QuantizationSearch;
  /** 2n words; errors then name a row by its key. */
  readonly keys?: Uint32Array;
}

export const NO_ROW_ERRORS: RowErrors = {
  elements: 0,
  meanAbsolute: 0,
  maxAbsolute: 0,
  meanSquared: 0,
};

/** Combines the errors of two batches. */
export function mergeRowErrors(a: RowErrors, b: RowErrors): RowErrors {
  const elements = a.elements + b.elements;
  if (elements === 0) return NO_ROW_ERRORS;
  const mean = (x: number, y: number): number => (x * a.elements + y * b.elements) / elements;
  return {
    elements,
    meanAbsolute: mean(a.meanAbsolute, b.meanAbsolute),
    maxAbsolute: Math.max(a.maxAbsolute, b.maxAbsolute),
    meanSquared: mean(a.meanSquared, b.meanSquared),
  };
}

/** Bytes of a stored row: a multiple of 4; 0 for dtype bytes, whose values have any length. */
export function computeRowBytes(dtype: TableDtype, dim: number): number {
  switch (dtype) {
    case 'f32':
      return 4 * dim;
    case 'f16':
    case 'bf16':
      return 4 * Math.ceil(dim / 2);
    case 'i8':
      return 4 + 4 * Math.ceil(dim / 4);
    case 'bytes':
      return 0;
  }
}

function viewBits(rows: Float32Array): Uint32Array {
  return new Uint32Array(rows.buffer, rows.byteOffset, rows.length);
}

/**
 * @param rows count · dim
 * @throws CubeError INVALID_ARGUMENT naming the key (or the row) that the dtype cannot store
 */
export function encodeRows(
  dtype: RowDtype,
  rows: Float32Array,
  dim: number,
  options: EncodeOptions = {},
): EncodedRows {
  const count = rows.length / dim;
  const bytes = new Uint8Array(count * computeRowBytes(dtype, dim));
  if (dtype === 'f32') new Uint32Array(bytes.buffer).set(viewBits(rows));
  else if (dtype === 'i8') quantizeRows(rows, dim, bytes, options);
  else encodeHalfRows(dtype, viewBits(rows), dim, new Uint16Array(bytes.buffer));
  return { rows: bytes, errors: measureErrors(dtype, rows, dim, bytes, options.keys) };
}

function encodeHalfRows(
  dtype: 'f16' | 'bf16',
  bits: Uint32Array,
  dim: number,
  halves: Uint16Array,
): void {
  const stride = computeRowBytes(dtype, dim) / 2;
  const half = dtype === 'f16' ? f32BitsToF16 : f32BitsToBf16;
  for (let from = 0, to = 0; from < bits.length; from += dim, to += stride) {
    for (let i = 0; i < dim; i++) halves[to + i] = half(bits[from + i]!);
  }
}

function quantizeRows(
  rows: Float32Array,
  dim: number,
  bytes: Uint8Array,
  { search = 'range', keys }: EncodeOptions,
): void {
  const quantizer = new RowQuantizer(search);
  const rowBytes = computeRowBytes('i8', dim);
  for (let row = 0; row * dim < rows.length; row++) {
    if (quantizer.encode(rows, row * dim, dim, bytes, row * rowBytes)) continue;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${describeRow(row, keys)} has an element that is not finite or beyond ±65504, ` +
        'which dtype i8 cannot hold',
    );
  }
}

function describeRow(row: number, keys: Uint32Array | undefined): string {
  return keys === undefined ? `row ${row}` : `the row of key ${keyToBigint(keys, row)}`;
}

/** Number of rows that are decoded and compared at a time. */
const CHECKED_ROWS = 1024;

/** @throws CubeError INVALID_ARGUMENT when a finite element was stored as an infinity */
function measureErrors(
  dtype: RowDtype,
  rows: Float32Array,
  dim: number,
  bytes: Uint8Array,
  keys: Uint32Array | undefined,
): RowErrors {
  if (dtype === 'f32') return { ...NO_ROW_ERRORS, elements: rows.length };
  const rowBytes = computeRowBytes(dtype, dim);
  let elements = 0;
  let absolute = 0;
  let squared = 0;
  let maxAbsolute = 0;
  for (let start = 0; start < rows.length; start += CHECKED_ROWS * dim) {
    const count = Math.min(CHECKED_ROWS, (rows.length - start) / dim);
    const from = (start / dim) * rowBytes;
    const decoded = decodeRows(dtype, bytes.subarray(from, from + count * rowBytes), dim, count);
    for (let i = 0; i < decoded.length; i++) {
      const value = rows[start + i]!;
      if (!Number.isFinite(value)) continue;
      const error = Math.abs(value - decoded[i]!);
      if (error === Number.POSITIVE_INFINITY) {
        const name = describeRow(Math.floor((start + i) / dim), keys);
        throw new CubeError(
          'INVALID_ARGUMENT',
          `${name} has the element ${value}, which dtype ${dtype} would make infinite`,
        );
      }
      elements += 1;
      absolute += error;
      squared += error * error;
      if (error > maxAbsolute) maxAbsolute = error;
    }
  }
  const over = Math.max(1, elements);
  return { elements, meanAbsolute: absolute / over, maxAbsolute, meanSquared: squared / over };
}

/**
 * @param bytes count · rowBytes
 * @returns count · dim
 */
export function decodeRows(
  dtype: RowDtype,
  bytes: Uint8Array,
  dim: number,
  count: number,
): Float32Array {
  const rows = new Float32Array(count * dim);
  const rowBytes = computeRowBytes(dtype, dim);
  const decoder = new RowDecoder(dtype, dim, rows);
  const view = new DataView(bytes.buffer, bytes.byteOffset, count * rowBytes);
  for (let row = 0; row < count; row++) decoder.decode(view, row * rowBytes, row);
  return rows;
}

/** Decodes stored rows of one dtype into one array. */
export class RowDecoder {
  readonly #dtype: RowDtype;
  readonly #dim: number;
  readonly #rows: Float32Array;
  readonly #bits: Uint32Array;

  /** @param rows out: n · dim */
  constructor(dtype: RowDtype, dim: number, rows: Float32Array) {
    this.#dtype = dtype;
    this.#dim = dim;
    this.#rows = rows;
    this.#bits = viewBits(rows);
  }

  /** Decodes the stored row at byte `from` to row number `row`. */
  decode(view: DataView, from: number, row: number): void {
    const dim = this.#dim;
    const to = row * dim;
    const bits = this.#bits;
    if (this.#dtype === 'i8') decodeLevels(view, from, this.#rows, to, dim);
    else if (this.#dtype === 'f32') {
      for (let i = 0; i < dim; i++) bits[to + i] = view.getUint32(from + 4 * i, true);
    } else {
      const whole = this.#dtype === 'f16' ? f16ToF32Bits : bf16ToF32Bits;
      for (let i = 0; i < dim; i++) bits[to + i] = whole(view.getUint16(from + 2 * i, true));
    }
  }
}

const scaling = new Float32Array(2);
const scalingBits = viewBits(scaling);

function decodeLevels(
  view: DataView,
  from: number,
  rows: Float32Array,
  to: number,
  dim: number,
): void {
  scalingBits[0] = f16ToF32Bits(view.getUint16(from, true));
  scalingBits[1] = f16ToF32Bits(view.getUint16(from + 2, true));
  const scale = scaling[0]!;
  const offset = scaling[1]!;
  for (let i = 0; i < dim; i++) rows[to + i] = offset + view.getUint8(from + 4 + i) * scale;
}

/**
 * Finds what no encoder writes: padding that is not zero, an i8 row without a finite range.
 * @returns a description, or undefined
 */
export function findStoredRowDefect(
  dtype: RowDtype,
  bytes: Uint8Array,
  dim: number,
  count: number,
): string | undefined {
  if (dtype === 'f32') return undefined;
  const rowBytes = computeRowBytes(dtype, dim);
  const used = dtype === 'i8' ? 4 + dim : 2 * dim;
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < count * rowBytes; at += rowBytes) {
    for (let i = used; i < rowBytes; i++) {
      if (bytes[at + i] !== 0) return 'the padding of a row is not zero';
    }
    if (dtype !== 'i8') continue;
    const finite = (half: number): boolean => (half & 0x7c00) !== 0x7c00;
    if (!finite(view.getUint16(at, true)) || !finite(view.getUint16(at + 2, true))) {
      return 'a row of dtype i8 has a scale or an offset that is not finite';
    }
  }
  return undefined;
}
