/**
 * Rows of a table by shard. The key of a row is its number, so shard s of N has rows s, s + N, s + 2N, … A table may
 * be larger than memory: as many shards are gathered in one pass over the file as the budget allows.
 */
import { RandomReader } from '../../lib/platform/files.ts';
import type { TableFile } from './pruned-model.ts';

const PIECE_BYTES = 8 << 20;

export interface ShardRows {
  readonly shardIndex: number;
  /** 2n words (low, high). */
  readonly keys: Uint32Array;
  /** n · dim. */
  readonly rows: Float32Array;
}

/**
 * @returns every shard in order, empty ones too; the arrays are the caller's
 */
export function* shardsOf(
  table: TableFile,
  shardNum: number,
  budgetBytes: number,
): Generator<ShardRows> {
  const rowBytes = 4 * table.dim;
  const shardBytes = Math.max(1, Math.ceil(table.rows / shardNum) * (rowBytes + 8));
  const perPass = Math.max(1, Math.min(shardNum, Math.floor(budgetBytes / shardBytes)));
  const reader = new RandomReader(table.path);
  try {
    for (let first = 0; first < shardNum; first += perPass) {
      const count = Math.min(perPass, shardNum - first);
      yield* gather(reader, table, shardNum, first, count);
    }
  } finally {
    reader.close();
  }
}

/** One pass over the file for shards first … first + count - 1. */
function gather(
  reader: RandomReader,
  table: TableFile,
  shardNum: number,
  first: number,
  count: number,
): ShardRows[] {
  const { dim } = table;
  const shards = Array.from({ length: count }, (_, i) =>
    emptyShard(first + i, table.rows, shardNum, dim),
  );
  const rowBytes = 4 * dim;
  const pieceRows = Math.max(1, Math.floor(PIECE_BYTES / rowBytes));
  const piece = new Float32Array(Math.min(pieceRows, table.rows) * dim);
  for (let row = 0; row < table.rows; row += pieceRows) {
    const rows = Math.min(pieceRows, table.rows - row);
    const bytes = new Uint8Array(piece.buffer, 0, rows * rowBytes);
    reader.readInto(bytes, table.dataOffset + row * rowBytes);
    for (const shard of shards) copyRows(piece, row, rows, dim, shardNum, shard);
  }
  return shards;
}

function emptyShard(shardIndex: number, rows: number, shardNum: number, dim: number): ShardRows {
  const count = shardIndex < rows ? Math.ceil((rows - shardIndex) / shardNum) : 0;
  const keys = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) {
    const key = shardIndex + i * shardNum;
    keys[2 * i] = key;
    keys[2 * i + 1] = Math.floor(key / 2 ** 32);
  }
  return { shardIndex, keys, rows: new Float32Array(count * dim) };
}

/** Copies the shard's rows out of rows firstRow … firstRow + count - 1 of the table. */
function copyRows(
  piece: Float32Array,
  firstRow: number,
  count: number,
  dim: number,
  shardNum: number,
  { shardIndex, rows }: ShardRows,
): void {
  const ahead = (shardIndex - (firstRow % shardNum) + shardNum) % shardNum;
  for (let i = ahead; i < count; i += shardNum) {
    const target = ((firstRow + i - shardIndex) / shardNum) * dim;
    for (let j = 0; j < dim; j++) rows[target + j] = piece[i * dim + j]!;
  }
}
