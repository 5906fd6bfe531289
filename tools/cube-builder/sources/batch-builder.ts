/**
 * Collects records into a batch of columns: rows of floats, or values of any length. The first
 * record determines the width of all rows, unless the width is given.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { f16ToF32Bits } from '../../../lib/core/half-floats.ts';
import { DIM_MAX } from '../../../lib/core/layer-format.ts';
import {
  BATCH_BYTES_MAX,
  BATCH_ROWS_MAX,
  type RowBatch,
  type ValueBatch,
  type ValueFormat,
} from './row-source.ts';

/** Values of any length must be shorter than this. */
export const VALUE_BYTES_MAX: number = 64 << 20;

/** Bytes of a row before its elements, and per element. */
const WIDTHS = {
  f32: { head: 0, item: 4 },
  f16: { head: 0, item: 2 },
  bf16: { head: 0, item: 2 },
  'cube-i8': { head: 8, item: 1 },
} as const;

export interface BatchOptions {
  readonly valueFormat: ValueFormat;
  /** Floats per row; 0: the width of the first record. */
  readonly dim: number;
  readonly rowsMax?: number;
}

export class BatchBuilder {
  /** Returns the position in the input for errors; set by the reader. */
  describePosition: () => string = () => 'the input';
  count = 0;
  /** Floats per row; 0 if not known yet, and for values of any length. */
  dim = 0;
  readonly valueFormat: ValueFormat;
  /** Row r begins at r · dim. `rowWords` is a view of the same memory. */
  rows: Float32Array = new Float32Array(0);
  rowWords: Uint32Array = new Uint32Array(0);
  readonly #rowsMax: number;
  #capacity = 0;
  #keys = new Uint32Array(0);
  #values: Uint8Array = new Uint8Array(0);
  #ends = new Uint32Array(0);
  #deleted: number[] = [];
  #deletedSet = new Set<string>();

  constructor({ valueFormat, dim, rowsMax = BATCH_ROWS_MAX }: BatchOptions) {
    this.valueFormat = valueFormat;
    this.#rowsMax = rowsMax;
    if (valueFormat === 'bytes') this.#allocate(0);
    else if (dim > 0) this.#setDim(dim);
  }

  get isFull(): boolean {
    if (this.#deleted.length >= 2 * this.#rowsMax) return true;
    if (this.dim === 0 && this.valueFormat !== 'bytes') return false;
    return this.count >= this.#capacity || this.#valueBytes >= BATCH_BYTES_MAX;
  }

  get isEmpty(): boolean {
    return this.count === 0 && this.#deleted.length === 0;
  }

  /** Adds a row. @returns the index in `rows` at which the caller writes its `dim` floats */
  addRow(low: number, high: number, dim: number): number {
    if (dim !== this.dim || dim === 0) this.#checkDim(dim);
    this.#addKey(low, high);
    return (this.count - 1) * dim;
  }

  /** Adds a value, decoded according to `valueFormat`. */
  addValue(low: number, high: number, view: DataView, start: number, length: number): void {
    const { valueFormat } = this;
    if (valueFormat === 'bytes') {
      this.#addBytes(low, high, view, start, length);
      return;
    }
    const at = this.addRow(low, high, this.#computeDim(valueFormat, length));
    const { rows, rowWords, dim } = this;
    if (valueFormat === 'f32') copyF32(view, start, dim, rowWords, at);
    else if (valueFormat === 'f16') decodeF16(view, start, dim, rowWords, at);
    else if (valueFormat === 'bf16') decodeBf16(view, start, dim, rowWords, at);
    else decodeCubeI8(view, start, dim, rows, at);
  }

  /** A row of such a key belongs in the next batch, because deletions follow a batch's rows. */
  isDeletedInBatch(low: number, high: number): boolean {
    return this.#deletedSet.size > 0 && this.#deletedSet.has(`${low},${high}`);
  }

  addDeleted(low: number, high: number): void {
    this.#deleted.push(low, high);
    this.#deletedSet.add(`${low},${high}`);
  }

  /** Returns the batch and starts a new one. Valid until the next record is added. */
  take(): RowBatch | ValueBatch {
    const { count, dim } = this;
    const keys = this.#keys.subarray(0, 2 * count);
    const deletedKeys =
      this.#deleted.length > 0 ? { deletedKeys: Uint32Array.from(this.#deleted) } : {};
    const values = this.#values.subarray(0, this.#valueBytes);
    const ends = this.#ends.subarray(0, count);
    this.count = 0;
    this.#deleted = [];
    this.#deletedSet = new Set();
    if (this.valueFormat === 'bytes') return { count, keys, values, ends, ...deletedKeys };
    return { count, keys, rows: this.rows.subarray(0, count * dim), ...deletedKeys };
  }

  fail(what: string): never {
    throw new CubeError('CORRUPT', `${this.describePosition()}: ${what}`);
  }

  get #valueBytes(): number {
    return this.count === 0 ? 0 : (this.#ends[this.count - 1] ?? 0);
  }

  #addKey(low: number, high: number): void {
    this.#keys[2 * this.count] = low;
    this.#keys[2 * this.count + 1] = high;
    this.count += 1;
  }

  #addBytes(low: number, high: number, view: DataView, start: number, length: number): void {
    if (length >= VALUE_BYTES_MAX) {
      this.fail(`a value of ${length} bytes; values must be shorter than ${VALUE_BYTES_MAX} bytes`);
    }
    const at = this.#valueBytes;
    if (at + length > this.#values.length) {
      const grown = new Uint8Array(Math.max(2 * this.#values.length, at + length, 64 << 10));
      grown.set(this.#values.subarray(0, at));
      this.#values = grown;
    }
    this.#values.set(new Uint8Array(view.buffer, view.byteOffset + start, length), at);
    this.#addKey(low, high);
    this.#ends[this.count - 1] = at + length;
  }

  #computeDim(format: keyof typeof WIDTHS, length: number): number {
    const { head, item } = WIDTHS[format];
    const dim = (length - head) / item;
    if (dim < 1 || !Number.isInteger(dim)) {
      this.fail(`a value of ${length} bytes is not a row of ${format}`);
    }
    return dim;
  }

  #checkDim(dim: number): void {
    if (this.dim !== 0) {
      this.fail(`a row of ${dim} numbers; expected ${this.dim} as in the first row or --dim`);
    }
    if (dim < 1 || dim > DIM_MAX) this.fail(`a row of ${dim} numbers; expected 1 to ${DIM_MAX}`);
    this.#setDim(dim);
  }

  #setDim(dim: number): void {
    this.dim = dim;
    this.#allocate(dim);
    this.rows = new Float32Array(this.#capacity * dim);
    this.rowWords = new Uint32Array(this.rows.buffer);
  }

  #allocate(dim: number): void {
    const fitting = Math.floor(BATCH_BYTES_MAX / (4 * dim + 8));
    this.#capacity = Math.max(1, Math.min(this.#rowsMax, fitting));
    this.#keys = new Uint32Array(2 * this.#capacity);
    if (dim === 0) this.#ends = new Uint32Array(this.#capacity);
  }
}

function copyF32(
  view: DataView,
  start: number,
  dim: number,
  words: Uint32Array,
  target: number,
): void {
  for (let j = 0; j < dim; j++) words[target + j] = view.getInt32(start + 4 * j, true);
}

function decodeF16(
  view: DataView,
  start: number,
  dim: number,
  words: Uint32Array,
  target: number,
): void {
  const bits = getF16Table();
  for (let j = 0; j < dim; j++) words[target + j] = bits[view.getUint16(start + 2 * j, true)]!;
}

function decodeBf16(
  view: DataView,
  start: number,
  dim: number,
  words: Uint32Array,
  target: number,
): void {
  for (let j = 0; j < dim; j++) words[target + j] = view.getUint16(start + 2 * j, true) << 16;
}

/** Decodes 8-bit rows of Cube: min f32, max f32, then q, with x = min + q · (max − min) / 256. */
function decodeCubeI8(
  view: DataView,
  start: number,
  dim: number,
  rows: Float32Array,
  target: number,
): void {
  const min = view.getFloat32(start, true);
  const step = (view.getFloat32(start + 4, true) - min) / 256;
  for (let j = 0; j < dim; j++) rows[target + j] = min + view.getUint8(start + 8 + j) * step;
}

let f16Table: Uint32Array | undefined;

/** The f32 bits of every f16: one read converts one element. */
export function getF16Table(): Uint32Array {
  f16Table ??= Uint32Array.from({ length: 1 << 16 }, (_, half) => f16ToF32Bits(half));
  return f16Table;
}
