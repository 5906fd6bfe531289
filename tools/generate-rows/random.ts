/**
 * Random numbers that depend only on their seeds. Rows must be the same bytes on every machine and
 * Node version, so only integer arithmetic, sqrt (exact by IEEE 754) and V8's own ports of log and
 * exp are used; no Math.random, no pow, no sin.
 */

const TO_UNIT = 2 ** -32;

/**
 * A bijection of the 32-bit integers that flips about half the output bits for each input bit
 * (lowbias32).
 */
export function mix32(value: number): number {
  value = Math.imul(value ^ (value >>> 16), 0x7feb352d);
  value = Math.imul(value ^ (value >>> 15), 0x846ca68b);
  return (value ^ (value >>> 16)) >>> 0;
}

/** Hashes a seed and two words to 32 bits. */
export function hashWords(seed: number, first: number, second: number): number {
  return mix32(mix32(mix32(seed) ^ first) ^ second);
}

/**
 * Converts 32 bits to a number that is about standard normal: the sum of its four bytes, centred
 * and scaled to variance 1.
 */
export function bitsToNormal(bits: number): number {
  const sum = (bits & 255) + ((bits >>> 8) & 255) + ((bits >>> 16) & 255) + (bits >>> 24);
  return (sum - 510) / 147.80166;
}

/** The random numbers of one row (sfc32); any row can be reached without the rows before it. */
export class RowRandom {
  #a = 0;
  #b = 0;
  #c = 0;
  #counter = 0;

  /** @param seed u32 @param row 0..2^53 */
  seek(seed: number, row: number): void {
    this.#a = seed | 0;
    this.#b = row | 0;
    this.#c = Math.floor(row * TO_UNIT) | 0;
    this.#counter = 1;
    for (let round = 0; round < 12; round++) this.nextBits();
  }

  nextBits(): number {
    const sum = (this.#a + this.#b + this.#counter) | 0;
    this.#counter = (this.#counter + 1) | 0;
    this.#a = this.#b ^ (this.#b >>> 9);
    this.#b = (this.#c + (this.#c << 3)) | 0;
    this.#c = (((this.#c << 21) | (this.#c >>> 11)) + sum) | 0;
    return sum >>> 0;
  }

  /** @returns a uniform number, never 0 or 1 */
  nextUnit(): number {
    return (this.nextBits() + 0.5) * TO_UNIT;
  }

  /** @returns a standard normal number (Marsaglia's polar method, which needs no trigonometry) */
  nextNormal(): number {
    for (;;) {
      const x = 2 * this.nextUnit() - 1;
      const y = 2 * this.nextUnit() - 1;
      const square = x * x + y * y;
      if (square < 1) return x * Math.sqrt((-2 * Math.log(square)) / square);
    }
  }
}
