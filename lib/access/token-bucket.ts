/**
 * A token bucket: a rate with bursts of one second. A taking may be larger than the burst: it is
 * granted when the bucket is not empty, and the debt delays the next ones.
 */

/** Sums of fractions are inexact: a caller that waited as told must not be refused again. */
const ROUNDING = 1e-6;

export class TokenBucket {
  readonly #perSecond: number;
  readonly #burst: number;
  #tokens: number;
  #updatedMs: number;

  constructor(perSecond: number, nowMs: number) {
    this.#perSecond = perSecond;
    this.#burst = Math.max(1, perSecond);
    this.#tokens = this.#burst;
    this.#updatedMs = nowMs;
  }

  /** Milliseconds until a taking is granted; 0: it would be granted now. */
  getWaitMs(nowMs: number): number {
    this.#refill(nowMs);
    // A full token: fractions would let a caller take ahead of its rate.
    const missing = 1 - this.#tokens - ROUNDING;
    return missing <= 0 ? 0 : Math.ceil((missing / this.#perSecond) * 1000);
  }

  take(count: number, nowMs: number): void {
    this.#refill(nowMs);
    this.#tokens -= count;
  }

  #refill(nowMs: number): void {
    const elapsedMs = Math.max(0, nowMs - this.#updatedMs);
    this.#updatedMs = nowMs;
    this.#tokens = Math.min(this.#burst, this.#tokens + (elapsedMs / 1000) * this.#perSecond);
  }
}
