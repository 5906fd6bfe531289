/**
 * Numbers for training that are equal on every machine and Node version: integer operations,
 * IEEE 754 arithmetic and an exponential function of its own.
 */

export class Random {
  #state: number;

  /** @param seed a positive 32-bit integer */
  constructor(seed: number) {
    this.#state = seed;
    for (let round = 0; round < 16; round++) this.#nextBits();
  }

  /** A uniform number from 0 to 1, without 1. */
  nextUnit(): number {
    return this.#nextBits() * 2 ** -32;
  }

  /** An integer from 0 to `count` - 1. */
  nextBelow(count: number): number {
    return Math.floor(this.nextUnit() * count);
  }

  pick(list: readonly string[]): string {
    return list[this.nextBelow(list.length)] ?? '';
  }

  /** Initial weights, uniform from -scale to scale. */
  weights(length: number, scale: number): Float32Array {
    return Float32Array.from({ length }, () => (2 * this.nextUnit() - 1) * scale);
  }

  /** The xorshift generator with the shifts 13, 17 and 5. */
  #nextBits(): number {
    let bits = this.#state;
    bits ^= bits << 13;
    bits ^= bits >>> 17;
    bits ^= bits << 5;
    this.#state = bits >>> 0;
    return this.#state;
  }
}

const TERMS = 16;
/** Below this, the result does not change a sum of probabilities. */
const EXPONENT_MIN = -60;

/** @param x at most 0 */
function exponential(x: number): number {
  if (x < EXPONENT_MIN) return 0;
  const halvings = Math.ceil(-x / Math.LN2);
  const rest = x + halvings * Math.LN2;
  let sum = 1;
  for (let term = TERMS; term > 0; term--) sum = 1 + (sum * rest) / term;
  for (let i = 0; i < halvings; i++) sum /= 2;
  return sum;
}

/** The probabilities of classes from their logits. */
export function softmax(logits: readonly number[]): number[] {
  const largest = Math.max(...logits);
  const powers = logits.map((logit) => exponential(logit - largest));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => power / total);
}
