/**
 * The rows of a shard on disk, sorted by (high half of the mixed key, key), the order in which
 * its layer is written. Keys and rows are in separate files, so that counting and sizing read
 * only 8 bytes per row. A run is written range by range and read in pieces.
 */
import { join } from 'node:path';
import { mixKey, multiplyHigh } from '../../lib/core/keys.ts';
import { paddedValueBytes } from '../../lib/core/layer-format.ts';
import { RandomAccessReader, removePath } from '../../lib/platform/files.ts';
import { AppendWriter } from '../../lib/platform/spill-file.ts';
import { ReusableArrays } from './records.ts';

const BUFFER_BYTES = 256 << 10;
const PIECE_ROWS_MAX = 32 << 10;

/** Content of a range: rows of one size, or values of any length. */
export type RunPart =
  | { readonly keys: Uint32Array; readonly rows: Uint8Array }
  | { readonly keys: Uint32Array; readonly values: Uint8Array; readonly ends: Uint32Array };

export interface SortedRun {
  readonly count: number;
  readonly deletedCount: number;
  /** 0: values of any length, each padded as in a layer. */
  readonly rowBytes: number;
  readonly folder: string;
}

const getKeysFile = (folder: string): string => join(folder, 'keys');
const getRowsFile = (folder: string): string => join(folder, 'rows');
const getLengthsFile = (folder: string): string => join(folder, 'lengths');
const getDeletedFile = (folder: string): string => join(folder, 'deleted');

function viewBytes(words: Uint32Array): Uint8Array {
  return new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
}

export class RunWriter {
  readonly #folder: string;
  readonly #rowBytes: number;
  readonly #files: {
    keys: AppendWriter;
    rows: AppendWriter;
    lengths: AppendWriter;
    deleted: AppendWriter;
  };
  #count = 0;
  #deletedCount = 0;

  /** Empties the folder first; leftovers of an interrupted build cannot be reused. */
  constructor(folder: string, rowBytes: number) {
    removePath(folder);
    this.#folder = folder;
    this.#rowBytes = rowBytes;
    this.#files = {
      keys: new AppendWriter(getKeysFile(folder), BUFFER_BYTES),
      rows: new AppendWriter(getRowsFile(folder), BUFFER_BYTES),
      lengths: new AppendWriter(getLengthsFile(folder), BUFFER_BYTES),
      deleted: new AppendWriter(getDeletedFile(folder), BUFFER_BYTES),
    };
  }

  write(part: RunPart, deleted: Uint32Array): void {
    this.#count += part.keys.length / 2;
    this.#deletedCount += deleted.length / 2;
    this.#files.keys.write(viewBytes(part.keys));
    this.#files.deleted.write(viewBytes(deleted));
    if ('rows' in part) this.#files.rows.write(part.rows);
    else this.#writeValues(part);
  }

  finish(): SortedRun {
    for (const file of Object.values(this.#files)) file.flush();
    this.close();
    return {
      count: this.#count,
      deletedCount: this.#deletedCount,
      rowBytes: this.#rowBytes,
      folder: this.#folder,
    };
  }

  close(): void {
    for (const file of Object.values(this.#files)) file.close();
  }

  #writeValues({ values, ends }: { values: Uint8Array; ends: Uint32Array }): void {
    const zeros = new Uint8Array(8);
    const lengths = new Uint32Array(ends.length);
    let start = 0;
    for (let i = 0; i < ends.length; i++) {
      const length = ends[i]! - start;
      lengths[i] = length;
      this.#files.rows.write(values.subarray(start, ends[i]!));
      this.#files.rows.write(zeros.subarray(0, paddedValueBytes(length) - length));
      start = ends[i]!;
    }
    this.#files.lengths.write(viewBytes(lengths));
  }
}

/** Some rows of a run. `order` sorts them by (home slot, key); a home slot is never split. */
export interface RunPiece {
  readonly count: number;
  readonly keys: Uint32Array;
  /** Both halves of each mixed key. */
  readonly mixed: Uint32Array;
  readonly homes: Uint32Array;
  readonly order: Uint32Array;
  /** Bytes of each value; empty for rows. */
  readonly lengths: Uint32Array;
  /** Start of each row or value in `words`; empty if only keys were read. */
  readonly starts: Uint32Array;
  /** The rows or padded values, as words. */
  readonly words: Uint32Array;
}

export type RunColumns = 'keys' | 'keys and lengths' | 'everything' | 'deleted keys';

/**
 * Reads the run from front to back, grouped by home slot.
 * @param pieceBytes maximum memory of a piece, unless a single home slot needs more
 */
export function* readRun(
  run: SortedRun,
  homeSlots: number,
  columns: RunColumns,
  pieceBytes: number,
): Generator<RunPiece> {
  const reader = new RunReader(run, columns, pieceBytes);
  try {
    let rows = reader.pieceRows;
    for (let first = 0; first < reader.count; ) {
      const piece = reader.read(first, Math.min(rows, reader.count - first), homeSlots);
      if (piece.count === 0) {
        rows *= 2;
        continue;
      }
      yield piece;
      first += piece.count;
      rows = reader.pieceRows;
    }
  } finally {
    reader.close();
  }
}

class RunReader {
  readonly count: number;
  readonly pieceRows: number;
  readonly #run: SortedRun;
  readonly #pieceBytes: number;
  readonly #keys: RandomAccessReader;
  readonly #rows: RandomAccessReader | undefined;
  readonly #lengths: RandomAccessReader | undefined;
  #rowsAt = 0;
  /** Holds the arrays of a piece, which are valid until the next piece is read. */
  readonly #arrays = new ReusableArrays();

  constructor(run: SortedRun, columns: RunColumns, pieceBytes: number) {
    const { folder, rowBytes } = run;
    const deleted = columns === 'deleted keys';
    this.#run = run;
    this.#pieceBytes = pieceBytes;
    this.count = deleted ? run.deletedCount : run.count;
    this.pieceRows = Math.max(
      1,
      Math.min(PIECE_ROWS_MAX, Math.floor(pieceBytes / (32 + rowBytes))),
    );
    this.#keys = new RandomAccessReader(deleted ? getDeletedFile(folder) : getKeysFile(folder));
    const withLengths =
      rowBytes === 0 && (columns === 'everything' || columns === 'keys and lengths');
    this.#lengths = withLengths ? new RandomAccessReader(getLengthsFile(folder)) : undefined;
    this.#rows = columns === 'everything' ? new RandomAccessReader(getRowsFile(folder)) : undefined;
  }

  /** @returns an empty piece if all rows read have the same home slot and more may follow */
  read(first: number, rows: number, homeSlots: number): RunPiece {
    const keys = this.#readWords('keys', this.#keys, 8 * first, 2 * rows);
    const lengths =
      this.#lengths === undefined
        ? new Uint32Array(0)
        : this.#readWords('lengths', this.#lengths, 4 * first, rows);
    const mixed = this.#arrays.get('mixed', 2 * rows);
    const homes = this.#arrays.get('homes', rows);
    for (let i = 0; i < rows; i++) {
      mixKey(keys[2 * i]!, keys[2 * i + 1]!, mixed, 2 * i);
      homes[i] = multiplyHigh(mixed[2 * i + 1]!, homeSlots);
    }
    const count = this.#countCompleteRows(homes, lengths, first + rows === this.count);
    const order = orderByKey(keys, homes, this.#arrays.get('order', count));
    const { starts, words } = this.#readPayloads(first, count, lengths);
    return { count, keys, mixed, homes, order, lengths, starts, words };
  }

  #readWords(
    name: string,
    reader: RandomAccessReader,
    position: number,
    words: number,
  ): Uint32Array {
    const target = this.#arrays.get(name, words);
    reader.readInto(viewBytes(target), position);
    return target;
  }

  close(): void {
    this.#keys.close();
    this.#lengths?.close();
    this.#rows?.close();
  }

  /** Counts the rows up to the last complete home slot that fits; 0 if no home slot is complete. */
  #countCompleteRows(homes: Uint32Array, lengths: Uint32Array, atEnd: boolean): number {
    const rows = homes.length;
    const fitting = this.#rows === undefined ? rows : this.#countFittingRows(rows, lengths);
    if (fitting === rows && atEnd) return rows;
    const lastHome = homes.indexOf(homes[Math.min(fitting, rows - 1)]!);
    if (lastHome > 0) return lastHome;
    const second = homes.findIndex((home) => home !== homes[0]);
    if (second > 0) return second;
    return atEnd ? rows : 0;
  }

  #countFittingRows(rows: number, lengths: Uint32Array): number {
    let bytes = 0;
    for (let i = 0; i < lengths.length; i++) {
      bytes += paddedValueBytes(lengths[i]!);
      if (bytes > this.#pieceBytes) return i;
    }
    return rows;
  }

  #readPayloads(
    first: number,
    count: number,
    lengths: Uint32Array,
  ): { starts: Uint32Array; words: Uint32Array } {
    if (this.#rows === undefined) return { starts: lengths, words: lengths };
    const starts = this.#arrays.get('starts', count);
    const { rowBytes } = this.#run;
    let words = 0;
    for (let i = 0; i < count; i++) {
      starts[i] = words;
      words += (rowBytes === 0 ? paddedValueBytes(lengths[i]!) : rowBytes) / 4;
    }
    const at = rowBytes === 0 ? this.#rowsAt : first * rowBytes;
    const payloads = this.#readWords('rows', this.#rows, at, words);
    this.#rowsAt = at + 4 * words;
    return { starts, words: payloads };
  }
}

/** Rows are sorted by mixed key; within one home slot they must be sorted by key. */
function orderByKey(keys: Uint32Array, homes: Uint32Array, order: Uint32Array): Uint32Array {
  const count = order.length;
  for (let start = 0; start < count; ) {
    let end = start + 1;
    order[start] = start;
    while (end < count && homes[end] === homes[start]) {
      order[end] = end;
      end += 1;
    }
    if (end - start > 1) {
      const group = order.subarray(start, end);
      group.sort((a, b) => keys[2 * a + 1]! - keys[2 * b + 1]! || keys[2 * a]! - keys[2 * b]!);
    }
    start = end;
  }
  return order;
}
