/**
 * Keys of a shard with what a server must answer for them: values from all over the base and, as many, from the newest
 * layer, where a server that took a patch for nothing or put it at the wrong place goes wrong; and keys that were deleted.
 */

interface Expectation {
  readonly low: number;
  readonly high: number;
  /** Undefined: the key is not there. */
  readonly value: Uint8Array | undefined;
}

export class SeekSample {
  readonly expectations: Expectation[] = [];
  readonly #size: number;
  #every = 1;
  #offered = 0;
  #absent = 0;

  /** @param size about how many keys of each layer */
  constructor(size: number) {
    this.#size = size;
  }

  /** @param isNewest as many keys as of all others: half of the sample */
  beginLayer(rows: number, isNewest: boolean): void {
    const wanted = isNewest ? this.#size / 2 : this.#size / 4;
    this.#every = Math.max(1, Math.ceil(rows / Math.max(1, wanted)));
    this.#offered = 0;
  }

  offer(low: number, high: number, value: Uint8Array): void {
    if (this.#offered++ % this.#every === 0) {
      this.expectations.push({ low, high, value: value.slice() });
    }
  }

  offerAbsent(low: number, high: number): void {
    if (this.#absent++ < this.#size / 4) this.expectations.push({ low, high, value: undefined });
  }

  /** 2 words a key. */
  keys(): Uint32Array {
    return Uint32Array.from(this.expectations.flatMap(({ low, high }) => [low, high]));
  }
}
