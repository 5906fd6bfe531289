/**
 * Collects records into one batch of columns: rows of floats, or values of any length. The first record says how wide
 * the rows are; every other one is held to it.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { DIM_MAX } from '../../../lib/core/layer-format.ts';
import { f16Bits } from './f16-table.ts';
import {
  BATCH_BYTES_MAX,
  BATCH_ROWS_MAX,
  type RowBatch,
  type ValueBatch,
  type ValueFormat,
} from './row-source.ts';

/** A value of any length must be shorter than this. */
export const VALUE_BYTES_MAX: number = 64 << 20;

/** Bytes of a record before and for each element. */
const WIDTHS = {
  f32: { head: 0, item: 4 },
  f16: { head: 0, item: 2 },
  bf16: { head: 0, item: 2 },
  'cube-i8': { head: 8, item: 1 },
} as const;

export interface BatchOptions {
  readonly valueFormat: ValueFormat;
  /** Floats of a row; 0: as the first record says. */
  readonly dim: number;
  readonly rowsMax?: number;
}

export class BatchBuilder {
  /** Where the reader is, for errors; the reader sets it. */
  place: () => string = () => 'the input';
  count = 0;
  /** 0: not known yet, or values of any length. */
  dim = 0;
  readonly valueFormat: ValueFormat;
  /** The row at r begins at r · dim; both are the same memory. */
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

  get full(): boolean {
    if (this.#deleted.length >= 2 * this.#rowsMax) return true;
    if (this.dim === 0 && this.valueFormat !== 'bytes') return false;
    return this.count >= this.#capacity || this.#valueBytes >= BATCH_BYTES_MAX;
  }

  get empty(): boolean {
    return this.count === 0 && this.#deleted.length === 0;
  }

  /** @returns the element where the caller writes the row's `dim` floats */
  addRow(low: number, high: number, dim: number): number {
    if (dim !== this.dim || dim === 0) this.#expectDim(dim);
    this.#addKey(low, high);
    return (this.count - 1) * dim;
  }

  /** A record's bytes, decoded as `valueFormat` says. */
  addValue(low: number, high: number, view: DataView, start: number, length: number): void {
    const { valueFormat } = this;
    if (valueFormat === 'bytes') {
      this.#addBytes(low, high, view, start, length);
      return;
    }
    const at = this.addRow(low, high, this.#dimOf(valueFormat, length));
    const { rows, rowWords, dim } = this;
    if (valueFormat === 'f32') copyF32(view, start, dim, rowWords, at);
    else if (valueFormat === 'f16') decodeF16(view, start, dim, rowWords, at);
    else if (valueFormat === 'bf16') decodeBf16(view, start, dim, rowWords, at);
    else decodeCubeI8(view, start, dim, rows, at);
  }

  /** Whether a row of this key must wait for the next batch: deletes come after a batch's rows. */
  mustWait(low: number, high: number): boolean {
    return this.#deletedSet.size > 0 && this.#deletedSet.has(`${low},${high}`);
  }

  addDeleted(low: number, high: number): void {
    this.#deleted.push(low, high);
    this.#deletedSet.add(`${low},${high}`);
  }

  /** The batch so far; valid until the next record is added. */
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
    throw new CubeError('CORRUPT', `${this.place()}: ${what}`);
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
      this.fail(`a value of ${length} bytes; it must be shorter than ${VALUE_BYTES_MAX}`);
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

  #dimOf(format: keyof typeof WIDTHS, length: number): number {
    const { head, item } = WIDTHS[format];
    const dim = (length - head) / item;
    if (dim < 1 || !Number.isInteger(dim)) {
      this.fail(`a value of ${length} bytes is not a row of ${format}`);
    }
    return dim;
  }

  #expectDim(dim: number): void {
    if (this.dim !== 0) {
      this.fail(`a row of ${dim} numbers, where rows of ${this.dim} came before or were asked for`);
    }
    if (dim < 1 || dim > DIM_MAX)
      this.fail(`a row of ${dim} numbers; it must have 1 to ${DIM_MAX}`);
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
  const bits = f16Bits();
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

/** Cube's 8-bit rows: min f32, max f32, then q: x = min + q · (max − min) / 256. */
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
