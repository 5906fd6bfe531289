/**
 * Keys of a shard with the values that a server must return: from the whole base, as many from the
 * newest layer, where a server that lost or misplaced a patch is wrong, and deleted keys.
 */
interface Expectation {
  readonly low: number;
  readonly high: number;
  /** Undefined: the key must be missing. */
  readonly value: Uint8Array | undefined;
}

export class SeekSample {
  readonly expectations: Expectation[] = [];
  readonly #size: number;
  #every = 1;
  #offered = 0;
  #absent = 0;

  /** @param size approximate number of keys */
  constructor(size: number) {
    this.#size = size;
  }

  /** @param isNewest the newest layer gets half of the sample */
  beginLayer(rows: number, isNewest: boolean): void {
    const keys = isNewest ? this.#size / 2 : this.#size / 4;
    this.#every = Math.max(1, Math.ceil(rows / Math.max(1, keys)));
    this.#offered = 0;
  }

  offerPresent(low: number, high: number, value: Uint8Array): void {
    if (this.#offered++ % this.#every === 0) {
      this.expectations.push({ low, high, value: value.slice() });
    }
  }

  offerAbsent(low: number, high: number): void {
    if (this.#absent++ < this.#size / 4) this.expectations.push({ low, high, value: undefined });
  }

  /** Two words per key: low, high. */
  toKeys(): Uint32Array {
    return Uint32Array.from(this.expectations.flatMap(({ low, high }) => [low, high]));
  }
}
