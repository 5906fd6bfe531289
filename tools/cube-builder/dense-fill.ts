/**
 * Fills a dense layer from a sorted run: rows come by mixed key and lie by key, so they are first dealt into files of
 * neighbouring rows, each small enough to be put in order in memory.
 */
import { join } from 'node:path';
import { keyDistance, type Progression } from '../../lib/core/layer-placement.ts';
import { RandomReader, removePath } from '../../lib/platform/files.ts';
import { appendPieces } from '../../lib/platform/spill-file.ts';
import type { Fill } from './slot-fill.ts';
import { readRun } from './sorted-run.ts';

const BUFFER_BYTES_MIN = 4 << 10;
const BUFFER_BYTES_MAX = 1 << 20;

export function fillDense(fill: Fill, progression: Progression): void {
  const { run, budgetBytes } = fill;
  const rowWords = run.rowBytes / 4;
  const rowsPerFile = Math.max(1, Math.floor(budgetBytes / 4 / run.rowBytes));
  const files = Math.ceil(run.count / rowsPerFile);
  const folder = join(run.folder, 'neighbours');
  removePath(folder);
  const dealer = new Dealer(folder, files, rowWords, budgetBytes / 4);
  const { firstLow, firstHigh, step } = progression;
  for (const piece of readRun(run, 1 << 20, 'everything', budgetBytes / 8)) {
    const { count, keys, starts, words } = piece;
    for (let i = 0; i < count; i++) {
      const distance = keyDistance(keys[2 * i]!, keys[2 * i + 1]!, firstLow, firstHigh);
      const row = distance / step;
      const file = Math.floor(row / rowsPerFile);
      dealer.deal(file, row - file * rowsPerFile, words, starts[i]!);
    }
  }
  dealer.finish();
  for (let file = 0; file < files; file++) {
    const rows = Math.min(rowsPerFile, run.count - file * rowsPerFile);
    const bytes = dealer.collect(file, rows);
    writeRows(fill, file * rowsPerFile, bytes);
  }
  removePath(folder);
}

/** Rows from number `first` on; a segment's rows are contiguous in the file. */
function writeRows({ header, writer }: Fill, first: number, bytes: Uint8Array): void {
  const { rowsPerSegment, stride, segments } = header;
  for (let done = 0; done < bytes.length; ) {
    const row = first + done / stride;
    const inSegment = row % rowsPerSegment;
    const length = Math.min(bytes.length - done, (rowsPerSegment - inSegment) * stride);
    const { offset } = segments[(row - inSegment) / rowsPerSegment]!;
    writer.writeAt(bytes.subarray(done, done + length), offset + inSegment * stride);
    done += length;
  }
}

/** Records of {number of the row in its file, row}, gathered for each file and appended when there are enough. */
class Dealer {
  readonly #folder: string;
  readonly #rowWords: number;
  readonly #buffers: Uint32Array[];
  readonly #used: Uint32Array;

  constructor(folder: string, files: number, rowWords: number, budgetBytes: number) {
    const share = Math.max(BUFFER_BYTES_MIN, Math.min(BUFFER_BYTES_MAX, budgetBytes / files));
    const words = Math.max(1, Math.floor(share / 4 / (rowWords + 1))) * (rowWords + 1);
    this.#folder = folder;
    this.#rowWords = rowWords;
    this.#buffers = Array.from({ length: files }, () => new Uint32Array(words));
    this.#used = new Uint32Array(files);
  }

  deal(file: number, row: number, words: Uint32Array, from: number): void {
    const buffer = this.#buffers[file]!;
    if (this.#used[file] === buffer.length) this.#append(file);
    let at = this.#used[file]!;
    buffer[at++] = row;
    for (let i = 0; i < this.#rowWords; i++) buffer[at++] = words[from + i]!;
    this.#used[file] = at;
  }

  finish(): void {
    this.#buffers.forEach((_, file) => {
      this.#append(file);
    });
    this.#buffers.length = 0;
  }

  /** @returns the rows of one file in order, count · rowBytes */
  collect(file: number, count: number): Uint8Array {
    const length = 1 + this.#rowWords;
    const target = new Uint32Array(count * this.#rowWords);
    const reader = new RandomReader(this.#path(file));
    try {
      const perPiece = Math.max(1, Math.floor(BUFFER_BYTES_MAX / 4 / length));
      const piece = new Uint32Array(Math.min(perPiece, count) * length);
      for (let row = 0; row < count; row += perPiece) {
        const words = piece.subarray(0, Math.min(perPiece, count - row) * length);
        const bytes = new Uint8Array(words.buffer, 0, words.byteLength);
        reader.readInto(bytes, 4 * row * length);
        for (let at = 0; at < words.length; at += length) {
          target.set(words.subarray(at + 1, at + length), words[at]! * this.#rowWords);
        }
      }
    } finally {
      reader.close();
    }
    removePath(this.#path(file));
    return new Uint8Array(target.buffer);
  }

  #append(file: number): void {
    const words = this.#buffers[file]!.subarray(0, this.#used[file]!);
    this.#used[file] = 0;
    appendPieces(this.#path(file), [new Uint8Array(words.buffer, 0, words.byteLength)]);
  }

  #path(file: number): string {
    return join(this.#folder, String(file));
  }
}
