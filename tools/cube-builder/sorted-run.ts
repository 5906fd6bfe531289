/**
 * A shard's rows on disk in the order that its layer is written from: by (high half of the mixed key, key). Keys and rows
 * lie in files of their own, so that counting and sizing read 8 bytes a row. Written a range at a time, read in pieces.
 */
import { join } from 'node:path';
import { mixKey, multiplyHigh } from '../../lib/core/keys.ts';
import { valueSpace } from '../../lib/core/layer-format.ts';
import { RandomReader, removePath } from '../../lib/platform/files.ts';
import { AppendWriter } from '../../lib/platform/spill-file.ts';
import { Scratch } from './scratch.ts';

const BUFFER_BYTES = 256 << 10;
const PIECE_ROWS_MAX = 32 << 10;

/** What a range brought: rows of one size, or values of any length. */
export type RunPart =
  | { readonly keys: Uint32Array; readonly rows: Uint8Array }
  | { readonly keys: Uint32Array; readonly values: Uint8Array; readonly ends: Uint32Array };

export interface SortedRun {
  readonly count: number;
  readonly deletedCount: number;
  /** 0: values of any length, each padded to what it takes in a layer. */
  readonly rowBytes: number;
  readonly folder: string;
}

const keysFile = (folder: string): string => join(folder, 'keys');
const rowsFile = (folder: string): string => join(folder, 'rows');
const lengthsFile = (folder: string): string => join(folder, 'lengths');
const deletedFile = (folder: string): string => join(folder, 'deleted');

function bytesOf(words: Uint32Array): Uint8Array {
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

  /** The folder is emptied first: what a killed run left is of no use. */
  constructor(folder: string, rowBytes: number) {
    removePath(folder);
    this.#folder = folder;
    this.#rowBytes = rowBytes;
    this.#files = {
      keys: new AppendWriter(keysFile(folder), BUFFER_BYTES),
      rows: new AppendWriter(rowsFile(folder), BUFFER_BYTES),
      lengths: new AppendWriter(lengthsFile(folder), BUFFER_BYTES),
      deleted: new AppendWriter(deletedFile(folder), BUFFER_BYTES),
    };
  }

  write(part: RunPart, deleted: Uint32Array): void {
    this.#count += part.keys.length / 2;
    this.#deletedCount += deleted.length / 2;
    this.#files.keys.write(bytesOf(part.keys));
    this.#files.deleted.write(bytesOf(deleted));
    if ('rows' in part) this.#files.rows.write(part.rows);
    else this.#writeValues(part);
  }

  finish(): SortedRun {
    for (const file of Object.values(this.#files)) file.flush();
    this.close();
    const { folder, rowBytes } = { folder: this.#folder, rowBytes: this.#rowBytes };
    return { count: this.#count, deletedCount: this.#deletedCount, rowBytes, folder };
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
      this.#files.rows.write(zeros.subarray(0, valueSpace(length) - length));
      start = ends[i]!;
    }
    this.#files.lengths.write(bytesOf(lengths));
  }
}

/** Rows `order[0]`, `order[1]` … of a piece are in (home, key) order; no home goes on in the next piece. */
export interface RunPiece {
  readonly count: number;
  readonly keys: Uint32Array;
  /** Both halves of each mixed key. */
  readonly mixed: Uint32Array;
  readonly homes: Uint32Array;
  readonly order: Uint32Array;
  /** Of values: bytes of each. */
  readonly lengths: Uint32Array;
  /** Where each row or value starts in `bytes`, in words; empty for keys alone. */
  readonly starts: Uint32Array;
  /** The rows or padded values, as words. */
  readonly words: Uint32Array;
}

export type RunColumns = 'keys' | 'keys and lengths' | 'everything' | 'deleted keys';

/** The run from front to back, grouped by home slot. @param pieceBytes what a piece may take, unless one home takes more */
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
  readonly #keys: RandomReader;
  readonly #rows: RandomReader | undefined;
  readonly #lengths: RandomReader | undefined;
  #rowsAt = 0;
  /** The arrays of a piece are valid until the next one is read. */
  readonly #scratch = new Scratch();

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
    this.#keys = new RandomReader(deleted ? deletedFile(folder) : keysFile(folder));
    const withLengths =
      rowBytes === 0 && (columns === 'everything' || columns === 'keys and lengths');
    this.#lengths = withLengths ? new RandomReader(lengthsFile(folder)) : undefined;
    this.#rows = columns === 'everything' ? new RandomReader(rowsFile(folder)) : undefined;
  }

  /** @returns a piece of no rows when all that was read is of one home, and more may be */
  read(first: number, rows: number, homeSlots: number): RunPiece {
    const keys = this.#readWords('keys', this.#keys, 8 * first, 2 * rows);
    const lengths =
      this.#lengths === undefined
        ? new Uint32Array(0)
        : this.#readWords('lengths', this.#lengths, 4 * first, rows);
    const mixed = this.#scratch.words('mixed', 2 * rows);
    const homes = this.#scratch.words('homes', rows);
    for (let i = 0; i < rows; i++) {
      mixKey(keys[2 * i]!, keys[2 * i + 1]!, mixed, 2 * i);
      homes[i] = multiplyHigh(mixed[2 * i + 1]!, homeSlots);
    }
    const count = this.#cut(homes, lengths, first + rows === this.count);
    const order = orderByKey(keys, homes, this.#scratch.words('order', count));
    const { starts, words } = this.#readPayloads(first, count, lengths);
    return { count, keys, mixed, homes, order, lengths, starts, words };
  }

  #readWords(name: string, reader: RandomReader, position: number, words: number): Uint32Array {
    const target = this.#scratch.words(name, words);
    reader.readInto(bytesOf(target), position);
    return target;
  }

  close(): void {
    this.#keys.close();
    this.#lengths?.close();
    this.#rows?.close();
  }

  /** Rows up to the last home that is here whole, as many as the piece holds; 0 when not even one home is. */
  #cut(homes: Uint32Array, lengths: Uint32Array, atEnd: boolean): number {
    const rows = homes.length;
    const fitting = this.#rows === undefined ? rows : this.#fitting(rows, lengths);
    if (fitting === rows && atEnd) return rows;
    const lastHome = homes.indexOf(homes[Math.min(fitting, rows - 1)]!);
    if (lastHome > 0) return lastHome;
    const second = homes.findIndex((home) => home !== homes[0]);
    if (second > 0) return second;
    return atEnd ? rows : 0;
  }

  #fitting(rows: number, lengths: Uint32Array): number {
    let bytes = 0;
    for (let i = 0; i < lengths.length; i++) {
      bytes += valueSpace(lengths[i]!);
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
    const starts = this.#scratch.words('starts', count);
    const { rowBytes } = this.#run;
    let words = 0;
    for (let i = 0; i < count; i++) {
      starts[i] = words;
      words += (rowBytes === 0 ? valueSpace(lengths[i]!) : rowBytes) / 4;
    }
    const at = rowBytes === 0 ? this.#rowsAt : first * rowBytes;
    const payloads = this.#readWords('rows', this.#rows, at, words);
    this.#rowsAt = at + 4 * words;
    return { starts, words: payloads };
  }
}

/** Rows come by mixed key; within one home they must come by key. */
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
