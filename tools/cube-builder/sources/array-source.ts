/**
 * A table from an array of rows and an optional array of keys; without keys, the key of a row is
 * its number. Used for .npy, .npz, safetensors and the output of prune-model.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { DIM_MAX } from '../../../lib/core/layer-format.ts';
import { getF16Table } from './batch-builder.ts';
import type { ByteReader } from './byte-reader.ts';
import {
  BATCH_BYTES_MAX,
  BATCH_ROWS_MAX,
  type RowBatch,
  type RowSource,
  type SourceFile,
  toSourceFiles,
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

/** An array in a file; its elements are little-endian and row-major. */
export interface ArrayPart {
  /** Name of the array in errors. */
  readonly label: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
  /** Opens a reader of the elements, without the header. The caller closes it. */
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

/** @throws CubeError if shapes or types do not form a table */
export function createArraySource(
  { name, rows, keys, files }: TableArrays,
  requestedDim = 0,
): RowSource {
  const { shape, label } = rows;
  const [count = 0, dim = 1] = shape;
  if (shape.length < 1 || shape.length > 2 || dim < 1 || dim > DIM_MAX || !isRowType(rows.type)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${label}: ${describeArray(rows)} is not a table; expected floats of shape ` +
        `(rows, 1 … ${DIM_MAX})`,
    );
  }
  const bytes = count * dim * ITEM_BYTES[rows.type];
  if (!Number.isSafeInteger(bytes)) {
    throw new CubeError('TOO_LARGE', `${label}: ${describeArray(rows)} is larger than any file`);
  }
  if (requestedDim > 0 && dim !== requestedDim) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${label}: rows have ${dim} numbers, but --dim is ${requestedDim}`,
    );
  }
  if (keys !== undefined) checkKeys(keys, count);
  return {
    name,
    dim,
    rows: count,
    bytes: bytes + (keys === undefined ? 0 : 8 * count),
    files: toSourceFiles(files),
    batches: () => readBatches(rows, keys, count, dim),
  };
}

function checkKeys(keys: ArrayPart, count: number): void {
  if (isRowType(keys.type)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${keys.label}: keys are ${describeArray(keys)}; expected 64-bit integers`,
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

function describeArray({ type, shape }: ArrayPart): string {
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
    const columns = new BatchColumns(rows.type as RowType, capacity, dim);
    for (let first = 0; first < count; first += capacity) {
      const size = Math.min(capacity, count - first);
      await rowReader.readInto(columns.getRowBytes(size));
      if (keyReader === undefined) fillRowNumbers(columns.keys, first, size);
      else await keyReader.readInto(new Uint8Array(columns.keys.buffer, 0, 8 * size));
      yield columns.decodeBatch(size);
    }
    await rowReader.expectEnd();
    await keyReader?.expectEnd();
  } finally {
    await rowReader.close();
    await keyReader?.close();
  }
}

/** Sets the keys of rows first … first + count - 1 to their numbers. */
function fillRowNumbers(keys: Uint32Array, first: number, count: number): void {
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

/** Memory of one batch: the elements as stored, and as f32. */
class BatchColumns {
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

  getRowBytes(count: number): Uint8Array {
    return this.#stored.subarray(0, count * this.#dim * ITEM_BYTES[this.#type]);
  }

  decodeBatch(count: number): RowBatch {
    const elements = count * this.#dim;
    const words = new Uint32Array(this.#rows.buffer);
    const { buffer } = this.#stored;
    if (this.#type === 'f2') {
      const bits = getF16Table();
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
