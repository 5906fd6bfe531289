/**
 * A table from one array of rows, and perhaps one of keys beside it (without: the key of a row is its number). Used for
 * .npy, .npz, safetensors and what prune-model wrote.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { DIM_MAX } from '../../../lib/core/layer-format.ts';
import type { ByteReader } from './byte-reader.ts';
import { f16Bits } from './f16-table.ts';
import {
  BATCH_BYTES_MAX,
  BATCH_ROWS_MAX,
  type RowBatch,
  type RowSource,
  type SourceFile,
  sourceFiles,
} from './row-source.ts';

export type RowType = 'f2' | 'bf16' | 'f4' | 'f8';
export type KeyType = 'i8' | 'u8';
export type ElementType = RowType | KeyType;

const ITEM_BYTES: Readonly<Record<ElementType, number>> = {
  f2: 2,
  bf16: 2,
  f4: 4,
  f8: 8,
  i8: 8,
  u8: 8,
};

/** An array in a file, its elements little-endian and row-major. */
export interface ArrayPart {
  /** What to call it in errors. */
  readonly label: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** A reader of its elements alone; the caller closes it. */
  readonly open: () => Promise<ByteReader>;
}

export interface TableArrays {
  readonly name: string;
  readonly rows: ArrayPart;
  readonly keys: ArrayPart | undefined;
  readonly files: readonly SourceFile[];
}

export function isRowType(type: ElementType): type is RowType {
  return type !== 'i8' && type !== 'u8';
}

/** @throws CubeError when shapes or types do not make a table */
export function arraySource({ name, rows, keys, files }: TableArrays, wantedDim = 0): RowSource {
  const { shape, label } = rows;
  const [count = 0, dim = 1] = shape;
  if (shape.length < 1 || shape.length > 2 || dim < 1 || dim > DIM_MAX || !isRowType(rows.type)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${label}: ${shapeText(rows)} is no table; expected floats of shape (rows, 1 … ${DIM_MAX})`,
    );
  }
  const bytes = count * dim * ITEM_BYTES[rows.type];
  if (!Number.isSafeInteger(bytes)) {
    throw new CubeError('TOO_LARGE', `${label}: ${shapeText(rows)} cannot be true`);
  }
  if (wantedDim > 0 && dim !== wantedDim) {
    throw new CubeError('INVALID_ARGUMENT', `${label}: rows of ${dim}, not of ${wantedDim}`);
  }
  if (keys !== undefined) checkKeys(keys, count);
  return {
    name,
    dim,
    rows: count,
    bytes: bytes + (keys === undefined ? 0 : 8 * count),
    files: sourceFiles(files),
    batches: () => readBatches(rows, keys, count, dim),
  };
}

function checkKeys(keys: ArrayPart, count: number): void {
  if (isRowType(keys.type)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${keys.label}: keys of ${shapeText(keys)}; expected 64-bit integers`,
    );
  }
  const isColumn = keys.shape.length === 2 && keys.shape[1] === 1;
  if (keys.shape[0] !== count || (keys.shape.length !== 1 && !isColumn)) {
    throw new CubeError(
      'CORRUPT',
      `${keys.label}: keys of shape (${keys.shape.join(', ')}) for ${count} rows`,
    );
  }
}

function shapeText({ type, shape }: ArrayPart): string {
  return `${type} of shape (${shape.join(', ')})`;
}

async function* readBatches(
  rows: ArrayPart,
  keys: ArrayPart | undefined,
  count: number,
  dim: number,
): AsyncGenerator<RowBatch> {
  const rowReader = await rows.open();
  const keyReader = await keys?.open();
  try {
    const fitting = Math.floor(BATCH_BYTES_MAX / (4 * dim + 8));
    const capacity = Math.max(1, Math.min(BATCH_ROWS_MAX, fitting, count));
    const columns = new Columns(rows.type as RowType, capacity, dim);
    for (let first = 0; first < count; first += capacity) {
      const size = Math.min(capacity, count - first);
      await rowReader.readInto(columns.rowBytes(size));
      if (keyReader === undefined) numberKeys(columns.keys, first, size);
      else await keyReader.readInto(new Uint8Array(columns.keys.buffer, 0, 8 * size));
      yield columns.batch(size);
    }
    await rowReader.expectEnd();
    await keyReader?.expectEnd();
  } finally {
    await rowReader.close();
    await keyReader?.close();
  }
}

/** The keys of rows first … first + count - 1 are their numbers. */
function numberKeys(keys: Uint32Array, first: number, count: number): void {
  let low = first % 0x1_0000_0000;
  let high = Math.floor(first / 0x1_0000_0000);
  for (let i = 0; i < count; i++) {
    keys[2 * i] = low;
    keys[2 * i + 1] = high;
    low += 1;
    if (low === 0x1_0000_0000) {
      low = 0;
      high += 1;
    }
  }
}

/** One batch's memory: elements as they are stored, and as f32. */
class Columns {
  readonly keys: Uint32Array;
  readonly #rows: Float32Array;
  readonly #stored: Uint8Array;
  readonly #type: RowType;
  readonly #dim: number;

  constructor(type: RowType, capacity: number, dim: number) {
    this.#type = type;
    this.#dim = dim;
    this.keys = new Uint32Array(2 * capacity);
    this.#rows = new Float32Array(capacity * dim);
    this.#stored =
      type === 'f4'
        ? new Uint8Array(this.#rows.buffer)
        : new Uint8Array(capacity * dim * ITEM_BYTES[type]);
  }

  rowBytes(count: number): Uint8Array {
    return this.#stored.subarray(0, count * this.#dim * ITEM_BYTES[this.#type]);
  }

  batch(count: number): RowBatch {
    const elements = count * this.#dim;
    const words = new Uint32Array(this.#rows.buffer);
    const { buffer } = this.#stored;
    if (this.#type === 'f2') {
      const bits = f16Bits();
      const halves = new Uint16Array(buffer);
      for (let i = 0; i < elements; i++) words[i] = bits[halves[i]!]!;
    } else if (this.#type === 'bf16') {
      const halves = new Uint16Array(buffer);
      for (let i = 0; i < elements; i++) words[i] = halves[i]! << 16;
    } else if (this.#type === 'f8') {
      this.#rows.set(new Float64Array(buffer, 0, elements));
    }
    return {
      count,
      keys: this.keys.subarray(0, 2 * count),
      rows: this.#rows.subarray(0, elements),
    };
  }
}
