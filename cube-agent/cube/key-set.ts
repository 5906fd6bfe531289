/** A set of 64-bit keys as pairs of words: open addressing on typed arrays, at most half full. */

const SIZE_MIN = 1024;

export class KeySet {
  #words = new Uint32Array(2 * SIZE_MIN);
  #used = new Uint8Array(SIZE_MIN);
  #count = 0;

  get size(): number {
    return this.#count;
  }

  has(low: number, high: number): boolean {
    return this.#used[this.#findSlot(low, high)] === 1;
  }

  /** @returns false if the key was in the set */
  add(low: number, high: number): boolean {
    const slot = this.#findSlot(low, high);
    if (this.#used[slot] === 1) return false;
    this.#used[slot] = 1;
    this.#words[2 * slot] = low;
    this.#words[2 * slot + 1] = high;
    this.#count += 1;
    if (2 * this.#count > this.#used.length) this.#grow();
    return true;
  }

  /** The slot of the key, or the free slot for it. */
  #findSlot(low: number, high: number): number {
    const mask = this.#used.length - 1;
    let mix = Math.imul(low ^ Math.imul(high, 0x85ebca6b), 0x9e3779b1);
    mix ^= mix >>> 15;
    let slot = Math.imul(mix, 0x2c1b3c6d) & mask;
    while (
      this.#used[slot] === 1 &&
      (this.#words[2 * slot] !== low || this.#words[2 * slot + 1] !== high)
    ) {
      slot = (slot + 1) & mask;
    }
    return slot;
  }

  #grow(): void {
    const words = this.#words;
    const used = this.#used;
    this.#words = new Uint32Array(2 * words.length);
    this.#used = new Uint8Array(2 * used.length);
    for (let i = 0; i < used.length; i++) {
      if (used[i] === 0) continue;
      const slot = this.#findSlot(words[2 * i]!, words[2 * i + 1]!);
      this.#used[slot] = 1;
      this.#words[2 * slot] = words[2 * i]!;
      this.#words[2 * slot + 1] = words[2 * i + 1]!;
    }
  }
}
