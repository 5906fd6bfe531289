/** A batch of keys of Cube's seek and their values, in buffers that the next batch overwrites. */
import { CubeError } from '../lib/core/errors.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import type { FoundValues } from '../lib/store/row-locations.ts';
import {
  type DictRows,
  dictBlobsBytesMax,
  dictRowsBytesMax,
  writeDictBlobs,
  writeDictRows,
} from '../proto/dict.ts';
import type { OutputBuffer } from '../proto/output-buffer.ts';
import type { LoadedTable } from './loaded-version.ts';

/** Rows of this many keys stay in the cache until they are written out. */
const BATCH_KEYS = 1024;
const BATCH_BYTES = 256 << 10;

export class SeekBatch implements DictRows {
  readonly table: LoadedTable;
  /** Maximum number of keys in a batch. */
  readonly keysMax: number;
  count = 0;
  hits = 0;
  /** Bit i: key i was found. */
  found: Uint8Array;
  /** Size of a returned row, always f32. */
  readonly rowBytes: number;
  readonly hitPrefix: Uint8Array;
  /** Rows of the batch's keys, or their concatenated values. */
  rows: Uint8Array;
  readonly rowWords: Int32Array;
  readonly #responseBytes: number;
  readonly #batch: LookupBatch;
  #values: FoundValues | undefined;

  constructor(table: LoadedTable, responseBytes: number) {
    const rowBytes = table.getResponseRowBytes(true);
    this.#responseBytes = responseBytes;
    this.table = table;
    this.keysMax = Math.max(1, Math.min(BATCH_KEYS, Math.floor(BATCH_BYTES / (rowBytes + 1))));
    this.found = new Uint8Array(BATCH_KEYS / 8);
    this.rowBytes = rowBytes;
    this.hitPrefix = table.hitPrefix;
    this.rowWords = new Int32Array((this.keysMax * rowBytes) / 4);
    this.rows = new Uint8Array(this.rowWords.buffer);
    this.#batch = new LookupBatch({ rows: this.rows, found: this.found, asF32: true });
  }

  /** Maximum response size for `count` keys; variable-length values are not included. */
  getResponseBytesMax(count: number): number {
    return dictRowsBytesMax(count, this.rowBytes);
  }

  /** @returns hits, or -1 - i when missing key i belongs to another shard */
  lookup(keys: Uint8Array, keysAt: number, count: number): number {
    const { resident } = this.table;
    this.hits =
      resident.dtype === 'bytes'
        ? this.#findValues(keys, keysAt, count)
        : resident.lookup(this.#fill(keys, keysAt, count));
    if (this.hits > 0 && this.#values !== undefined) {
      resident.copyValues(this.#values, this.rows, 0);
    }
    return this.hits;
  }

  /** Like `lookup`, for a table on disk. */
  async lookupAsync(keys: Uint8Array, keysAt: number, count: number): Promise<number> {
    const { resident } = this.table;
    this.hits =
      resident.dtype === 'bytes'
        ? this.#findValues(keys, keysAt, count)
        : await resident.lookupAsync(this.#fill(keys, keysAt, count));
    if (this.hits > 0 && this.#values !== undefined) {
      await resident.copyValuesAsync(this.#values, this.rows, 0);
    }
    return this.hits;
  }

  /** Total size of the values found. */
  get valuesBytes(): number {
    return this.#values?.bytes ?? this.hits * this.rowBytes;
  }

  /** Appends the batch as DictValues. */
  write(output: OutputBuffer): void {
    const { count, found } = this;
    if (this.#values !== undefined) {
      const start = output.reserve(dictBlobsBytesMax(count, this.#values.bytes));
      const { lengths } = this.#values;
      const source = { count, found, lengths, values: this.rows };
      output.truncate(writeDictBlobs(output.bytes, start, source));
      return;
    }
    const start = output.reserve(dictRowsBytesMax(count, this.rowBytes));
    output.truncate(writeDictRows(output.bytes, output.view, start, this));
  }

  /** Values in order, undefined for a missing key: views of the batch's buffer. */
  *values(): Generator<Uint8Array | undefined> {
    let at = 0;
    for (let i = 0; i < this.count; i++) {
      const hit = (this.found[i >> 3]! & (1 << (i & 7))) !== 0;
      const lengths = this.#values?.lengths;
      const length = lengths === undefined ? this.rowBytes : lengths[i]!;
      yield hit ? this.rows.subarray(at, at + length) : undefined;
      at += length;
    }
  }

  #fill(keys: Uint8Array, keysAt: number, count: number): LookupBatch {
    const batch = this.#batch;
    this.count = count;
    batch.keys = keys;
    batch.keysAt = keysAt;
    batch.count = count;
    return batch;
  }

  #findValues(keys: Uint8Array, keysAt: number, count: number): number {
    this.count = count;
    const values = this.table.resident.findValues(keys, keysAt, count);
    this.#values = values;
    this.found = values.found;
    if (values.bytes > this.#responseBytes) {
      throw new CubeError(
        'TOO_LARGE',
        `the values of ${count} keys have ${values.bytes} bytes, over the limit of ` +
          `${this.#responseBytes}; seek fewer keys at once`,
      );
    }
    // Buffers of large batches are not kept.
    if (values.bytes > this.rows.length || this.rows.length > BATCH_BYTES) {
      this.rows = new Uint8Array(values.bytes);
    }
    return values.hits;
  }
}
