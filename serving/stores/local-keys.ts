/**
 * The distinct database keys of one lookup, and which of them may decide each key of the batch. The
 * database is asked once for a key in a layer, however often the batch has the key. Open addressing
 * in typed arrays; reused between calls.
 */
import { computeShard } from '../../lib/core/keys.ts';
import { mayContain } from '../../lib/store/key-filter.ts';
import { LOCAL_KEY_BYTES, writeLocalKey } from './local-row.ts';

/** The layers of one shard of a table, newest first. */
export interface StoredChain {
  /** Layer numbers. */
  readonly numbers: Uint32Array;
  /** The key filter of each delta; the base, which is last, has none. */
  readonly filters: readonly Uint32Array[];
}

export class LocalKeys {
  /**
   * Indices of the database keys that may decide key 0 of the batch, newest layer first, then those
   * for key 1, …
   */
  candidates: Uint32Array = new Uint32Array(0);
  /** Where the candidates of each key of the batch end, in the order of the groups. */
  ends: Uint32Array = new Uint32Array(0);
  /** Layer, low and high word of each database key. */
  words: Uint32Array = new Uint32Array(0);
  #uniqueCount = 0;
  #keyCount = 0;
  #candidateCount = 0;
  /**
   * 1 + index of a database key; 0: free. A batch uses the first `#mask + 1`, of which at most half
   * are taken.
   */
  #slots: Uint32Array = new Uint32Array(0);
  #mask = 0;
  #bytes: Uint8Array = new Uint8Array(0);
  /** Views of `#bytes`, made once. */
  readonly #views: Uint8Array[] = [];

  /** Begins a batch. @param candidatesMax the sum over its keys of the layers of the key's table */
  reset(candidatesMax: number): void {
    this.#uniqueCount = 0;
    this.#keyCount = 0;
    this.#candidateCount = 0;
    let capacity = 64;
    while (capacity < candidatesMax) capacity *= 2;
    this.#mask = 2 * capacity - 1;
    if (this.candidates.length < capacity) {
      this.candidates = new Uint32Array(capacity);
      this.ends = new Uint32Array(capacity);
      this.words = new Uint32Array(3 * capacity);
      this.#slots = new Uint32Array(2 * capacity);
      this.#bytes = new Uint8Array(LOCAL_KEY_BYTES * capacity);
      this.#views.length = 0;
    } else {
      this.#slots.fill(0, 0, 2 * capacity);
    }
  }

  /** Adds a group's keys. @param chains one for each shard of the table */
  addKeys(keys: Uint32Array, count: number, chains: readonly StoredChain[]): void {
    const shardNum = chains.length;
    for (let i = 0; i < count; i++) {
      const low = keys[2 * i]!;
      const high = keys[2 * i + 1]!;
      const { numbers, filters } = chains[computeShard(low, high, shardNum)]!;
      for (let l = 0; l < numbers.length; l++) {
        if (l < filters.length && !mayContain(filters[l]!, low, high)) continue;
        this.candidates[this.#candidateCount++] = this.#find(numbers[l]!, low, high);
      }
      this.ends[this.#keyCount++] = this.#candidateCount;
    }
  }

  /** The distinct keys in the database's format. */
  toViews(): Uint8Array[] {
    for (let i = this.#views.length; i < this.#uniqueCount; i++) {
      const at = i * LOCAL_KEY_BYTES;
      this.#views.push(this.#bytes.subarray(at, at + LOCAL_KEY_BYTES));
    }
    return this.#views.slice(0, this.#uniqueCount);
  }

  #find(layer: number, low: number, high: number): number {
    const { words } = this;
    const slots = this.#slots;
    const mask = this.#mask;
    let slot = Math.imul(low ^ Math.imul(high, 0x85eb_ca6b) ^ (layer << 7), 0x9e37_79b1);
    slot = (slot ^ (slot >>> 15)) & mask;
    for (;;) {
      const entry = slots[slot]!;
      if (entry === 0) break;
      const at = 3 * (entry - 1);
      if (words[at + 1] === low && words[at + 2] === high && words[at] === layer) return entry - 1;
      slot = (slot + 1) & mask;
    }
    const index = this.#uniqueCount++;
    slots[slot] = index + 1;
    words[3 * index] = layer;
    words[3 * index + 1] = low;
    words[3 * index + 2] = high;
    writeLocalKey(this.#bytes, index * LOCAL_KEY_BYTES, layer, low, high);
    return index;
  }
}
