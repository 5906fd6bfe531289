/** A batch of keys of Cube's seek and their values, in buffers that the next batch overwrites. */
import { CubeError } from '../lib/core/errors.ts';
import type { FoundValues } from '../lib/store/found-values.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import {
  type DictRows,
  dictBlobsBytesMax,
  dictValuesBytesMax,
  writeDictBlobs,
  writeDictValues,
} from '../proto/dict.ts';
import type { OutputBuffer } from '../proto/output-buffer.ts';
import type { HeldTable } from './held-version.ts';

/** Rows looked up at once stay in the cache until they are written out. */
const BATCH_KEYS = 1024;
const BATCH_BYTES = 256 << 10;

export class SeekBatch implements DictRows {
  readonly table: HeldTable;
  /** Keys of a batch, at most. */
  readonly keysMax: number;
  count = 0;
  hits = 0;
  /** Bit i: key i was found. */
  found: Uint8Array;
  /** Of a row as answered, which is f32 whatever the table stores. */
  readonly rowBytes: number;
  readonly hitPrefix: Uint8Array;
  /** Of the batch's keys, or their values one after another. */
  rows: Uint8Array;
  readonly rowWords: Int32Array;
  readonly #responseBytes: number;
  readonly #batch: LookupBatch;
  #values: FoundValues | undefined;

  constructor(table: HeldTable, responseBytes: number) {
    const rowBytes = table.answeredRowBytes(true);
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

  /** Bytes of a seek of so many keys, at most; of values, which have any length, without themselves. */
  answerBytesMax(count: number): number {
    return dictValuesBytesMax(count, this.rowBytes);
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

  /** The same for a table on disk. */
  async lookupLater(keys: Uint8Array, keysAt: number, count: number): Promise<number> {
    const { resident } = this.table;
    this.hits =
      resident.dtype === 'bytes'
        ? this.#findValues(keys, keysAt, count)
        : await resident.lookupLater(this.#fill(keys, keysAt, count));
    if (this.hits > 0 && this.#values !== undefined) {
      await resident.copyValuesLater(this.#values, this.rows, 0);
    }
    return this.hits;
  }

  /** Bytes of the values found, all together. */
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
    const start = output.reserve(dictValuesBytesMax(count, this.rowBytes));
    output.truncate(writeDictValues(output.bytes, output.view, start, this));
  }

  /** The values in order, undefined for a missing key: views of the batch's buffer. */
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
        `the values of ${count} keys have ${values.bytes} bytes, over the limit of ${this.#responseBytes}; seek fewer keys at once`,
      );
    }
    // Values of a large batch are not kept.
    if (values.bytes > this.rows.length || this.rows.length > BATCH_BYTES) {
      this.rows = new Uint8Array(values.bytes);
    }
    return values.hits;
  }
}
