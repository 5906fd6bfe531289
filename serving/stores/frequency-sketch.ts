/**
 * Estimates how often keys were requested lately, in little memory: a count-min sketch of 4-bit
 * counters (TinyLFU, arXiv 1512.00727). After ten times as many requests as the capacity, all
 * counters are halved, so that old popularity fades.
 */
const COUNTER_MAX = 15;
const SAMPLES_PER_ENTRY = 10;
const DEPTH = 4;
const SEEDS = [0x9e37_79b1, 0x85eb_ca6b, 0xc2b2_ae35, 0x27d4_eb2f] as const;

export class FrequencySketch {
  /** Eight counters in each word. */
  readonly #words: Uint32Array;
  readonly #mask: number;
  readonly #samplesMax: number;
  #samples = 0;

  /** @param capacity number of entries of the cache */
  constructor(capacity: number) {
    let length = 8;
    while (length < capacity) length *= 2;
    this.#words = new Uint32Array(length);
    this.#mask = length - 1;
    this.#samplesMax = SAMPLES_PER_ENTRY * Math.max(1, capacity);
  }

  get bytes(): number {
    return this.#words.byteLength;
  }

  /** @param hash 32 bits, well mixed */
  add(hash: number): void {
    let added = false;
    for (let i = 0; i < DEPTH; i++) {
      const mixed = mixHash(hash, i);
      const at = mixed & this.#mask;
      const shift = (mixed >>> 29) << 2;
      if (((this.#words[at]! >>> shift) & COUNTER_MAX) === COUNTER_MAX) continue;
      this.#words[at]! += 1 << shift;
      added = true;
    }
    if (added && ++this.#samples >= this.#samplesMax) this.#halve();
  }

  /** @returns 0 … 15 */
  estimate(hash: number): number {
    let least = COUNTER_MAX;
    for (let i = 0; i < DEPTH; i++) {
      const mixed = mixHash(hash, i);
      const count = (this.#words[mixed & this.#mask]! >>> ((mixed >>> 29) << 2)) & COUNTER_MAX;
      if (count < least) least = count;
    }
    return least;
  }

  #halve(): void {
    const words = this.#words;
    for (let i = 0; i < words.length; i++) words[i] = (words[i]! >>> 1) & 0x7777_7777;
    this.#samples = this.#samples >>> 1;
  }
}

function mixHash(hash: number, i: number): number {
  let mixed = Math.imul(hash, SEEDS[i]!);
  mixed = Math.imul(mixed ^ (mixed >>> 15), 0x2c1b_3c6d);
  return (mixed ^ (mixed >>> 13)) >>> 0;
}
