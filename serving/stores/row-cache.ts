/**
 * A cache of rows of one width in typed arrays: W-TinyLFU (arXiv 1512.00727). New rows enter a
 * small window. A row that leaves the window enters the main part only when it was requested more
 * often than the row that it would evict there. The main part has a probation and a protected
 * queue, each by recency. Why not plain LRU: docs/adr/0015-stores.md.
 *
 * An entry is (chain, key). A chain number names the layers that decide the key, and is never used
 * twice, so an entry never becomes wrong; it is only no longer requested.
 */
import { FrequencySketch } from './frequency-sketch.ts';

const NONE = -1;
const WINDOW_SHARE = 0.01;
const PROTECTED_SHARE = 0.8;

/** Queue numbers. */
const WINDOW = 0;
const PROBATION = 1;
const PROTECTED = 2;

export class RowCache {
  readonly capacity: number;
  readonly #width: number;
  readonly #windowMax: number;
  readonly #protectedMax: number;
  /** Chain, low and high key word of each entry. */
  readonly #keys: Uint32Array;
  readonly #rows: Float32Array;
  /** 1: the key is not in the table, and the entry has no row. */
  readonly #unseen: Uint8Array;
  readonly #queue: Uint8Array;
  /** Neighbours in the queue: towards its head (most recent) and its tail. */
  readonly #newer: Int32Array;
  readonly #older: Int32Array;
  readonly #head = new Int32Array(3).fill(NONE);
  readonly #tail = new Int32Array(3).fill(NONE);
  readonly #length = new Int32Array(3);
  /** Open addressing: 1 + entry, 0 free. */
  readonly #slots: Int32Array;
  readonly #mask: number;
  readonly #sketch: FrequencySketch;
  #size = 0;

  constructor(capacity: number, width: number) {
    this.capacity = capacity;
    this.#width = width;
    this.#windowMax = Math.max(1, Math.round(capacity * WINDOW_SHARE));
    this.#protectedMax = Math.floor((capacity - this.#windowMax) * PROTECTED_SHARE);
    this.#keys = new Uint32Array(3 * capacity);
    this.#rows = new Float32Array(width * capacity);
    this.#unseen = new Uint8Array(capacity);
    this.#queue = new Uint8Array(capacity);
    this.#newer = new Int32Array(capacity);
    this.#older = new Int32Array(capacity);
    this.#slots = new Int32Array(computeSlotCount(capacity));
    this.#mask = this.#slots.length - 1;
    this.#sketch = new FrequencySketch(capacity);
  }

  /** The most bytes that an entry takes, bookkeeping included. */
  static entryBytes(width: number): number {
    const [keys, flags, links, slots, sketch] = [12, 2, 8, 12, 8];
    return 4 * width + keys + flags + links + slots + sketch;
  }

  get size(): number {
    return this.#size;
  }

  get bytes(): number {
    const arrays = [this.#keys, this.#rows, this.#unseen, this.#queue, this.#newer, this.#older];
    const all = arrays.reduce((sum, { byteLength }) => sum + byteLength, 0);
    return all + this.#slots.byteLength + this.#sketch.bytes;
  }

  /** Finds a key and counts the request. @returns its entry, or -1 */
  find(chain: number, low: number, high: number): number {
    const hash = hashKey(chain, low, high);
    this.#sketch.add(hash);
    const entry = this.#slots[this.#findSlot(hash, chain, low, high)]! - 1;
    if (entry === NONE) return NONE;
    this.#touch(entry);
    return entry;
  }

  isUnseen(entry: number): boolean {
    return this.#unseen[entry] === 1;
  }

  copyRow(entry: number, rows: Float32Array, at: number): void {
    const width = this.#width;
    const from = entry * width;
    for (let i = 0; i < width; i++) rows[at + i] = this.#rows[from + i]!;
  }

  /** Adds a key that `find` did not find. @param rows undefined when the key is not in the table */
  add(
    chain: number,
    low: number,
    high: number,
    rows: Float32Array | undefined,
    rowsAt: number,
  ): void {
    const hash = hashKey(chain, low, high);
    const slot = this.#findSlot(hash, chain, low, high);
    if (this.#slots[slot] !== 0) return;
    const entry = this.#size < this.capacity ? this.#size++ : this.#evict();
    this.#keys[3 * entry] = chain;
    this.#keys[3 * entry + 1] = low;
    this.#keys[3 * entry + 2] = high;
    this.#unseen[entry] = rows === undefined ? 1 : 0;
    for (let i = 0; rows !== undefined && i < this.#width; i++) {
      this.#rows[entry * this.#width + i] = rows[rowsAt + i]!;
    }
    // The eviction may have moved entries, and with them the free slot.
    this.#slots[this.#findSlot(hash, chain, low, high)] = entry + 1;
    this.#push(entry, WINDOW);
    // Until the cache is full, entries move from the window to the main part without comparison.
    if (this.#length[WINDOW]! > this.#windowMax && this.#size < this.capacity) {
      this.#move(this.#tail[WINDOW]!, PROBATION);
    }
  }

  /** Frees an entry: the oldest of the window, or the one that it replaces in the main part. */
  #evict(): number {
    const candidate = this.#tail[WINDOW]!;
    const victim =
      this.#tail[PROBATION]! === NONE ? this.#tail[PROTECTED]! : this.#tail[PROBATION]!;
    const isWorthy =
      victim !== NONE &&
      this.#sketch.estimate(this.#hashOfEntry(candidate)) >
        this.#sketch.estimate(this.#hashOfEntry(victim));
    if (isWorthy) this.#move(candidate, PROBATION);
    const loser = isWorthy ? victim : candidate;
    this.#unlink(loser);
    this.#removeSlot(loser);
    return loser;
  }

  /** Moves an entry to the head of its queue, or from probation to the protected queue. */
  #touch(entry: number): void {
    const queue = this.#queue[entry]!;
    if (queue !== PROBATION) {
      if (this.#head[queue] !== entry) this.#move(entry, queue);
      return;
    }
    this.#move(entry, PROTECTED);
    if (this.#length[PROTECTED]! > this.#protectedMax) {
      this.#move(this.#tail[PROTECTED]!, PROBATION);
    }
  }

  #move(entry: number, queue: number): void {
    this.#unlink(entry);
    this.#push(entry, queue);
  }

  #push(entry: number, queue: number): void {
    const head = this.#head[queue]!;
    this.#queue[entry] = queue;
    this.#newer[entry] = NONE;
    this.#older[entry] = head;
    if (head === NONE) this.#tail[queue] = entry;
    else this.#newer[head] = entry;
    this.#head[queue] = entry;
    this.#length[queue]! += 1;
  }

  #unlink(entry: number): void {
    const queue = this.#queue[entry]!;
    const newer = this.#newer[entry]!;
    const older = this.#older[entry]!;
    if (newer === NONE) this.#head[queue] = older;
    else this.#older[newer] = older;
    if (older === NONE) this.#tail[queue] = newer;
    else this.#newer[older] = newer;
    this.#length[queue]! -= 1;
  }

  #hashOfEntry(entry: number): number {
    const at = 3 * entry;
    return hashKey(this.#keys[at]!, this.#keys[at + 1]!, this.#keys[at + 2]!);
  }

  /** The slot of the key, or the free one where it belongs. */
  #findSlot(hash: number, chain: number, low: number, high: number): number {
    const keys = this.#keys;
    let slot = hash & this.#mask;
    for (;;) {
      const taken = this.#slots[slot]!;
      if (taken === 0) return slot;
      const at = 3 * (taken - 1);
      if (keys[at + 1] === low && keys[at + 2] === high && keys[at] === chain) return slot;
      slot = (slot + 1) & this.#mask;
    }
  }

  /** Removes an entry's slot and closes the gap, so that no search ends early. */
  #removeSlot(entry: number): void {
    const slots = this.#slots;
    let gap = this.#hashOfEntry(entry) & this.#mask;
    while (slots[gap] !== entry + 1) gap = (gap + 1) & this.#mask;
    for (let slot = (gap + 1) & this.#mask; slots[slot] !== 0; slot = (slot + 1) & this.#mask) {
      const home = this.#hashOfEntry(slots[slot]! - 1) & this.#mask;
      if (((slot - home) & this.#mask) < ((slot - gap) & this.#mask)) continue;
      slots[gap] = slots[slot]!;
      gap = slot;
    }
    slots[gap] = 0;
  }
}

/** At most two thirds of the slots are taken. */
function computeSlotCount(capacity: number): number {
  let slots = 16;
  while (2 * slots < 3 * capacity) slots *= 2;
  return slots;
}

function hashKey(chain: number, low: number, high: number): number {
  let hash = Math.imul(
    low ^ Math.imul(high, 0x85eb_ca6b) ^ Math.imul(chain, 0xc2b2_ae35),
    0x9e37_79b1,
  );
  hash = Math.imul(hash ^ (hash >>> 15), 0x2c1b_3c6d);
  return (hash ^ (hash >>> 13)) >>> 0;
}
