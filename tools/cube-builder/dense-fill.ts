/**
 * Fills a dense layer from a sorted run. A run is sorted by mixed key but a dense layer by key,
 * so rows are first distributed to buckets of adjacent rows: files that fit in memory, where
 * each is sorted.
 */
import { join } from 'node:path';
import { keyDistance, type Progression } from '../../lib/core/layer-placement.ts';
import { RandomAccessReader, removePath } from '../../lib/platform/files.ts';
import { appendChunks } from '../../lib/platform/spill-file.ts';
import type { FillTask } from './slot-fill.ts';
import { readRun } from './sorted-run.ts';

const BUFFER_BYTES_MIN = 4 << 10;
const BUFFER_BYTES_MAX = 1 << 20;

export function fillDense(fill: FillTask, progression: Progression): void {
  const { run, budgetBytes } = fill;
  const rowWords = run.rowBytes / 4;
  const rowsPerBucket = Math.max(1, Math.floor(budgetBytes / 4 / run.rowBytes));
  const bucketCount = Math.ceil(run.count / rowsPerBucket);
  const folder = join(run.folder, 'buckets');
  removePath(folder);
  const buckets = new RowBuckets(folder, bucketCount, rowWords, budgetBytes / 4);
  const { firstLow, firstHigh, step } = progression;
  for (const piece of readRun(run, 1 << 20, 'everything', budgetBytes / 8)) {
    const { count, keys, starts, words } = piece;
    for (let i = 0; i < count; i++) {
      const distance = keyDistance(keys[2 * i]!, keys[2 * i + 1]!, firstLow, firstHigh);
      const row = distance / step;
      const bucket = Math.floor(row / rowsPerBucket);
      buckets.add(bucket, row - bucket * rowsPerBucket, words, starts[i]!);
    }
  }
  buckets.flush();
  for (let bucket = 0; bucket < bucketCount; bucket++) {
    const rows = Math.min(rowsPerBucket, run.count - bucket * rowsPerBucket);
    const bytes = buckets.readBucket(bucket, rows);
    writeRowsToSegments(fill, bucket * rowsPerBucket, bytes);
  }
  removePath(folder);
}

/** Writes rows from number `first` on. The rows of a segment are contiguous in the file. */
function writeRowsToSegments({ header, writer }: FillTask, first: number, bytes: Uint8Array): void {
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

/** Files of records {row number in the bucket, row}. Each bucket has a write buffer. */
class RowBuckets {
  readonly #folder: string;
  readonly #rowWords: number;
  readonly #buffers: Uint32Array[];
  readonly #used: Uint32Array;

  constructor(folder: string, bucketCount: number, rowWords: number, budgetBytes: number) {
    const share = Math.max(BUFFER_BYTES_MIN, Math.min(BUFFER_BYTES_MAX, budgetBytes / bucketCount));
    const words = Math.max(1, Math.floor(share / 4 / (rowWords + 1))) * (rowWords + 1);
    this.#folder = folder;
    this.#rowWords = rowWords;
    this.#buffers = Array.from({ length: bucketCount }, () => new Uint32Array(words));
    this.#used = new Uint32Array(bucketCount);
  }

  add(bucket: number, row: number, words: Uint32Array, from: number): void {
    const buffer = this.#buffers[bucket]!;
    if (this.#used[bucket] === buffer.length) this.#append(bucket);
    let at = this.#used[bucket]!;
    buffer[at++] = row;
    for (let i = 0; i < this.#rowWords; i++) buffer[at++] = words[from + i]!;
    this.#used[bucket] = at;
  }

  flush(): void {
    this.#buffers.forEach((_, bucket) => {
      this.#append(bucket);
    });
    this.#buffers.length = 0;
  }

  /** Reads and removes a bucket. @returns its rows in order, count · rowBytes bytes */
  readBucket(bucket: number, count: number): Uint8Array {
    const length = 1 + this.#rowWords;
    const target = new Uint32Array(count * this.#rowWords);
    const reader = new RandomAccessReader(this.#path(bucket));
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
    removePath(this.#path(bucket));
    return new Uint8Array(target.buffer);
  }

  #append(bucket: number): void {
    const words = this.#buffers[bucket]!.subarray(0, this.#used[bucket]!);
    this.#used[bucket] = 0;
    appendChunks(this.#path(bucket), [new Uint8Array(words.buffer, 0, words.byteLength)]);
  }

  #path(bucket: number): string {
    return join(this.#folder, String(bucket));
  }
}
