/**
 * Partitions records by shard, and each shard by ranges of the high half of the mixed key, within
 * a memory budget. Records that do not fit are appended to one file per range. A range keeps the
 * input order, so that the last record of a key can be found.
 */
import { join } from 'node:path';
import { computeShard, mixKey } from '../../lib/core/keys.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import { appendChunks } from '../../lib/platform/spill-file.ts';
import { checkPayloadBytes, DELETED_FLAG, RECORD_HEAD_WORDS, type RecordRun } from './records.ts';

const CHUNK_BYTES_MAX = 1 << 20;
const CHUNK_BYTES_MIN = 4 << 10;
/** More ranges would mean too many files and small writes. Large ranges are split later. */
const RANGES_MAX = 2048;

export interface RecordStoreOptions {
  readonly shardNum: number;
  /** Shards to keep, ascending; records of other shards are dropped. */
  readonly shards: readonly number[];
  /** Each shard has 2^rangeBits ranges. */
  readonly rangeBits: number;
  /** Number of leading bits of the mixed key that all added records share. */
  readonly knownBits?: number;
  readonly budgetBytes: number;
  /** Folder for the files; created when needed. */
  readonly folder: string;
}

/** Chooses range bits so that ranges fit into `rangeBytes`, up to RANGES_MAX ranges. */
export function chooseRangeBits(shards: number, totalBytes: number, rangeBytes: number): number {
  let bits = 0;
  while (shards * 2 ** (bits + 1) <= RANGES_MAX && totalBytes / (shards * 2 ** bits) > rangeBytes) {
    bits += 1;
  }
  return bits;
}

export class RecordStore {
  readonly #options: RecordStoreOptions;
  readonly #slotOfShard: Int32Array;
  readonly #chunkWords: number;
  readonly #chunksMax: number;
  #chunks = 0;
  readonly #free: Uint32Array[] = [];
  readonly #current: Uint32Array[];
  readonly #used: Uint32Array;
  readonly #full: Uint32Array[][];
  readonly #counts: Float64Array;
  readonly #words: Float64Array;
  readonly #spilled: Uint8Array;
  readonly #mixed = new Uint32Array(2);

  constructor(options: RecordStoreOptions) {
    const { shards, shardNum, rangeBits, budgetBytes } = options;
    const ranges = shards.length << rangeBits;
    this.#options = options;
    this.#slotOfShard = new Int32Array(shardNum).fill(-1);
    shards.forEach((shard, slot) => {
      this.#slotOfShard[shard] = slot;
    });
    let bytes = CHUNK_BYTES_MAX;
    while (bytes > CHUNK_BYTES_MIN && bytes * ranges * 2 > budgetBytes) bytes /= 2;
    this.#chunkWords = bytes / 4;
    this.#chunksMax = Math.max(ranges + 1, Math.floor(budgetBytes / bytes));
    const nothing = new Uint32Array(0);
    this.#current = Array.from({ length: ranges }, () => nothing);
    this.#used = new Uint32Array(ranges);
    this.#full = Array.from({ length: ranges }, () => []);
    this.#counts = new Float64Array(ranges);
    this.#words = new Float64Array(ranges);
    this.#spilled = new Uint8Array(ranges);
  }

  /** Adds rows of one size. @param rows n · rowWords words */
  addRows(keys: Uint32Array, rows: Uint32Array, rowWords: number, flags: number): void {
    const tag = (flags | (rowWords * 4)) >>> 0;
    checkPayloadBytes(rowWords * 4, 'a row');
    const length = RECORD_HEAD_WORDS + rowWords;
    for (let key = 0, from = 0; key < keys.length; key += 2) {
      const low = keys[key]!;
      const high = keys[key + 1]!;
      const range = this.#findRange(low, high);
      if (range < 0) {
        from += rowWords;
        continue;
      }
      const at = this.#reserve(range, length);
      const chunk = this.#current[range]!;
      chunk[at] = low;
      chunk[at + 1] = high;
      chunk[at + 2] = tag;
      for (let j = at + RECORD_HEAD_WORDS; j < at + length; j++) chunk[j] = rows[from++]!;
    }
  }

  /** Adds values of any length. @param ends end offset of each value in `values` */
  addValues(keys: Uint32Array, values: Uint8Array, ends: Uint32Array, flags: number): void {
    let start = 0;
    for (let i = 0; i < ends.length; i++) {
      const end = ends[i]!;
      const low = keys[2 * i]!;
      const high = keys[2 * i + 1]!;
      const range = this.#findRange(low, high);
      if (range >= 0) {
        checkPayloadBytes(end - start, `the value of key ${(BigInt(high) << 32n) | BigInt(low)}`);
        const length = RECORD_HEAD_WORDS + ((end - start + 3) >>> 2);
        const at = this.#reserve(range, length);
        const chunk = this.#current[range]!;
        chunk[at] = low;
        chunk[at + 1] = high;
        chunk[at + 2] = (flags | (end - start)) >>> 0;
        chunk[at + length - 1] = end === start ? chunk[at + length - 1]! : 0;
        const bytes = new Uint8Array(chunk.buffer, chunk.byteOffset, chunk.byteLength);
        bytes.set(values.subarray(start, end), 4 * (at + RECORD_HEAD_WORDS));
      }
      start = end;
    }
  }

  addDeleted(keys: Uint32Array, flags: number): void {
    this.addRows(keys, keys, 0, (DELETED_FLAG | flags) >>> 0);
  }

  /** Adds one complete record. */
  addRecord(words: Uint32Array, at: number, length: number): void {
    const range = this.#findRange(words[at]!, words[at + 1]!);
    if (range < 0) return;
    const to = this.#reserve(range, length);
    this.#current[range]!.set(words.subarray(at, at + length), to);
  }

  /** Whether some records were written to files. */
  get hasSpilled(): boolean {
    return this.#spilled.includes(1);
  }

  /** Bytes of records of the largest shard. */
  computeLargestShardBytes(): number {
    const { shards, rangeBits } = this.#options;
    const words = new Float64Array(shards.length);
    this.#words.forEach((count, range) => {
      words[range >>> rangeBits]! += count;
    });
    return 4 * words.reduce((most, count) => Math.max(most, count), 0);
  }

  /**
   * Returns the ranges of each shard in ascending order, all in files or all in memory. Chunks in
   * memory then belong to the caller.
   */
  finish(mode: 'in files' | 'in memory'): RecordRun[][] {
    const { shards, rangeBits } = this.#options;
    const perShard = 1 << rangeBits;
    return shards.map((_, slot) =>
      Array.from({ length: perShard }, (_, i) => {
        const range = slot * perShard + i;
        const run = { count: this.#counts[range]!, words: this.#words[range]! };
        if (mode === 'in memory') return { ...run, pieces: this.#getPieces(range) };
        this.#spill(range);
        this.#free.length = 0;
        return run.words === 0 ? { ...run, pieces: [] } : { ...run, path: this.#getPath(range) };
      }),
    );
  }

  #findRange(low: number, high: number): number {
    const { shardNum, rangeBits, knownBits = 0 } = this.#options;
    const slot = this.#slotOfShard[computeShard(low, high, shardNum)]!;
    if (slot < 0 || rangeBits === 0) return slot;
    mixKey(low, high, this.#mixed, 0);
    return (slot << rangeBits) | ((this.#mixed[1]! << knownBits) >>> (32 - rangeBits));
  }

  /** Reserves space for a record. @returns its offset in the range's current chunk */
  #reserve(range: number, length: number): number {
    let at = this.#used[range]!;
    if (at + length > this.#current[range]!.length) {
      this.#startChunk(range, length);
      at = 0;
    }
    this.#used[range] = at + length;
    this.#counts[range]! += 1;
    this.#words[range]! += length;
    return at;
  }

  #startChunk(range: number, length: number): void {
    const chunks = Math.ceil(length / this.#chunkWords);
    const fromFree = chunks === 1 && this.#free.length > 0;
    if (!fromFree && this.#chunks + chunks > this.#chunksMax) {
      for (let i = 0; i < this.#used.length; i++) this.#spill(i);
      if (chunks > 1) {
        this.#chunks -= this.#free.length;
        this.#free.length = 0;
      }
    } else if (this.#used[range]! > 0) {
      this.#full[range]!.push(this.#current[range]!.subarray(0, this.#used[range]!));
    }
    const reused = chunks === 1 ? this.#free.pop() : undefined;
    if (reused === undefined) this.#chunks += chunks;
    this.#current[range] = reused ?? new Uint32Array(chunks * this.#chunkWords);
    this.#used[range] = 0;
  }

  #getPieces(range: number): Uint32Array[] {
    const last = this.#current[range]!.subarray(0, this.#used[range]!);
    return [...this.#full[range]!, last].filter(({ length }) => length > 0);
  }

  /** Appends the records of a range to its file and frees their chunks. */
  #spill(range: number): void {
    const pieces = this.#getPieces(range);
    if (pieces.length === 0) return;
    this.#spilled[range] = 1;
    appendChunks(
      this.#getPath(range),
      pieces.map((piece) => new Uint8Array(piece.buffer, piece.byteOffset, piece.byteLength)),
    );
    for (const { buffer } of pieces) {
      const words = buffer.byteLength / 4;
      if (words === this.#chunkWords) this.#free.push(new Uint32Array(buffer));
      else this.#chunks -= words / this.#chunkWords;
    }
    this.#full[range] = [];
    this.#current[range] = new Uint32Array(0);
    this.#used[range] = 0;
    faultPoint('build.spilled');
  }

  #getPath(range: number): string {
    const { shards, rangeBits, folder } = this.#options;
    return join(folder, `${shards[range >>> rangeBits]}.${range & ((1 << rangeBits) - 1)}.records`);
  }
}
