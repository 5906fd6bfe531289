/**
 * A byte rate that several workers share: every acquisition is scheduled after all earlier ones.
 */
import type { Clock } from './clock.ts';

export class ByteRateLimiter {
  readonly bytesPerSecond: number;
  readonly #clock: Clock;
  /** When the bytes acquired so far will have passed at the allowed rate. */
  #paidMs = 0;

  constructor(bytesPerSecond: number, clock: Clock) {
    this.bytesPerSecond = Math.max(1, bytesPerSecond);
    this.#clock = clock;
  }

  /** Resolves when `bytes` more may pass. Idle time is not saved up. */
  async acquire(bytes: number, signal?: AbortSignal): Promise<void> {
    const nowMs = this.#clock.nowMs();
    this.#paidMs = Math.max(this.#paidMs, nowMs) + (bytes / this.bytesPerSecond) * 1000;
    await this.#clock.sleep(this.#paidMs - nowMs, signal);
  }
}
