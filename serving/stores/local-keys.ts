/**
 * The distinct database keys of one lookup, and which of them each key of the batch is: the database is asked once
 * for a key however often the batch has it. Open addressing in typed arrays; reused between calls.
 */
import { shardOf } from '../../lib/core/keys.ts';
import { LOCAL_KEY_BYTES, writeLocalKey } from './local-row.ts';

export class LocalKeys {
  /** For each key of the batch, in order of the groups, the index of its database key. */
  uniqueOf: Uint32Array = new Uint32Array(0);
  /** Layer, low and high word of each database key. */
  words: Uint32Array = new Uint32Array(0);
  #uniqueCount = 0;
  #keyCount = 0;
  /** 1 + index of a database key; 0: free. A batch uses the first `#mask + 1`, at most half full. */
  #slots: Uint32Array = new Uint32Array(0);
  #mask = 0;
  #bytes: Uint8Array = new Uint8Array(0);
  /** Views of `#bytes`, made once. */
  readonly #views: Uint8Array[] = [];

  /** Begins a batch of up to `keysMax` keys. */
  reset(keysMax: number): void {
    this.#uniqueCount = 0;
    this.#keyCount = 0;
    let capacity = 64;
    while (capacity < keysMax) capacity *= 2;
    this.#mask = 2 * capacity - 1;
    if (this.uniqueOf.length < capacity) {
      this.uniqueOf = new Uint32Array(capacity);
      this.words = new Uint32Array(3 * capacity);
      this.#slots = new Uint32Array(2 * capacity);
      this.#bytes = new Uint8Array(LOCAL_KEY_BYTES * capacity);
      this.#views.length = 0;
    } else {
      this.#slots.fill(0, 0, 2 * capacity);
    }
  }

  /** Adds a group's keys. @param layers the layer number of each shard of the table */
  add(keys: Uint32Array, count: number, layers: Uint32Array): void {
    const shardNum = layers.length;
    for (let i = 0; i < count; i++) {
      const low = keys[2 * i]!;
      const high = keys[2 * i + 1]!;
      const layer = layers[shardOf(low, high, shardNum)]!;
      this.uniqueOf[this.#keyCount++] = this.#find(layer, low, high);
    }
  }

  /** The distinct keys as the database takes them. */
  views(): Uint8Array[] {
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
      const held = slots[slot]!;
      if (held === 0) break;
      const at = 3 * (held - 1);
      if (words[at + 1] === low && words[at + 2] === high && words[at] === layer) return held - 1;
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
