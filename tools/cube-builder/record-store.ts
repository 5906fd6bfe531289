/**
 * Splits records by shard, and each shard by ranges of the mixed key's high half, within a memory budget: what does not
 * fit goes to one file a range. Order within a range is the order of the input, so that the last of equal keys is known.
 */
import { join } from 'node:path';
import { mixKey, shardOf } from '../../lib/core/keys.ts';
import { removePath } from '../../lib/platform/files.ts';
import { appendPieces } from '../../lib/platform/spill-file.ts';
import { DELETED, RECORD_HEAD_WORDS, type RecordRun, requirePayload } from './records.ts';

const CHUNK_BYTES_MAX = 1 << 20;
const CHUNK_BYTES_MIN = 4 << 10;
/** More ranges than this make files too many and writes too small; a range that is too large is split again. */
const RANGES_MAX = 2048;

export interface StoreOptions {
  readonly shardNum: number;
  /** The shards to keep, ascending; records of others are dropped. */
  readonly shards: readonly number[];
  /** Each shard has 2^rangeBits ranges. */
  readonly rangeBits: number;
  /** Leading bits of the mixed key that are equal already in everything that is added. */
  readonly knownBits?: number;
  readonly budgetBytes: number;
  /** Where files go; made when needed. */
  readonly folder: string;
}

/** Range bits with which a shard's ranges fit into `rangeBytes`, as far as is sensible. */
export function rangeBitsFor(shards: number, totalBytes: number, rangeBytes: number): number {
  let bits = 0;
  while (shards * 2 ** (bits + 1) <= RANGES_MAX && totalBytes / (shards * 2 ** bits) > rangeBytes) {
    bits += 1;
  }
  return bits;
}

export class RecordStore {
  readonly #options: StoreOptions;
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

  constructor(options: StoreOptions) {
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

  /** Rows of one size. @param rows n · rowWords words */
  addRows(keys: Uint32Array, rows: Uint32Array, rowWords: number, flags: number): void {
    const tag = (flags | (rowWords * 4)) >>> 0;
    requirePayload(rowWords * 4, 'a row');
    const length = RECORD_HEAD_WORDS + rowWords;
    for (let key = 0, from = 0; key < keys.length; key += 2) {
      const low = keys[key]!;
      const high = keys[key + 1]!;
      const range = this.#rangeOf(low, high);
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

  /** Values of any length. @param ends where each ends in `values` */
  addValues(keys: Uint32Array, values: Uint8Array, ends: Uint32Array, flags: number): void {
    let start = 0;
    for (let i = 0; i < ends.length; i++) {
      const end = ends[i]!;
      const low = keys[2 * i]!;
      const high = keys[2 * i + 1]!;
      const range = this.#rangeOf(low, high);
      if (range >= 0) {
        requirePayload(end - start, `the value of key ${(BigInt(high) << 32n) | BigInt(low)}`);
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
    this.addRows(keys, keys, 0, (DELETED | flags) >>> 0);
  }

  /** Whole records, as they are. */
  addRecord(words: Uint32Array, at: number, length: number): void {
    const range = this.#rangeOf(words[at]!, words[at + 1]!);
    if (range < 0) return;
    const to = this.#reserve(range, length);
    this.#current[range]!.set(words.subarray(at, at + length), to);
  }

  /** Whether something is in files already. */
  get spilled(): boolean {
    return this.#spilled.includes(1);
  }

  /** Of the largest shard. */
  shardBytes(): number {
    const { shards, rangeBits } = this.#options;
    const words = new Float64Array(shards.length);
    this.#words.forEach((count, range) => {
      words[range >>> rangeBits]! += count;
    });
    return 4 * words.reduce((most, count) => Math.max(most, count), 0);
  }

  /** The ranges of each shard kept, ascending: all in files, or all in memory, whose chunks are the caller's then. */
  finish(mode: 'in files' | 'in memory'): RecordRun[][] {
    const { shards, rangeBits } = this.#options;
    const perShard = 1 << rangeBits;
    return shards.map((_, slot) =>
      Array.from({ length: perShard }, (_, i) => {
        const range = slot * perShard + i;
        const run = { count: this.#counts[range]!, words: this.#words[range]! };
        if (mode === 'in memory') return { ...run, pieces: this.#pieces(range) };
        this.#writeOut(range);
        this.#free.length = 0;
        return run.words === 0 ? { ...run, pieces: [] } : { ...run, path: this.#path(range) };
      }),
    );
  }

  #rangeOf(low: number, high: number): number {
    const { shardNum, rangeBits, knownBits = 0 } = this.#options;
    const slot = this.#slotOfShard[shardOf(low, high, shardNum)]!;
    if (slot < 0 || rangeBits === 0) return slot;
    mixKey(low, high, this.#mixed, 0);
    return (slot << rangeBits) | ((this.#mixed[1]! << knownBits) >>> (32 - rangeBits));
  }

  /** Makes room for a record. @returns where it goes in the range's current chunk */
  #reserve(range: number, length: number): number {
    let at = this.#used[range]!;
    if (at + length > this.#current[range]!.length) {
      this.#nextChunk(range, length);
      at = 0;
    }
    this.#used[range] = at + length;
    this.#counts[range]! += 1;
    this.#words[range]! += length;
    return at;
  }

  #nextChunk(range: number, length: number): void {
    const chunks = Math.ceil(length / this.#chunkWords);
    const fromFree = chunks === 1 && this.#free.length > 0;
    if (!fromFree && this.#chunks + chunks > this.#chunksMax) {
      for (let i = 0; i < this.#used.length; i++) this.#writeOut(i);
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

  #pieces(range: number): Uint32Array[] {
    const last = this.#current[range]!.subarray(0, this.#used[range]!);
    return [...this.#full[range]!, last].filter(({ length }) => length > 0);
  }

  /** What a range has in memory goes to its file; the chunks are free. */
  #writeOut(range: number): void {
    const pieces = this.#pieces(range);
    if (pieces.length === 0) return;
    this.#spilled[range] = 1;
    appendPieces(
      this.#path(range),
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
  }

  #path(range: number): string {
    const { shards, rangeBits, folder } = this.#options;
    return join(folder, `${shards[range >>> rangeBits]}.${range & ((1 << rangeBits) - 1)}.records`);
  }

  /** Forgets everything, files too. */
  remove(): void {
    for (let range = 0; range < this.#used.length; range++) {
      if (this.#spilled[range] === 1) removePath(this.#path(range));
    }
  }
}
