/** A rate that several workers share: each piece is given its time after those of all others. */
import type { Clock } from './clock.ts';

export class RateLimit {
  readonly bytesPerSecond: number;
  readonly #clock: Clock;
  /** When what was taken so far has been paid for. */
  #paidMs = 0;

  constructor(bytesPerSecond: number, clock: Clock) {
    this.bytesPerSecond = Math.max(1, bytesPerSecond);
    this.#clock = clock;
  }

  /** Resolves when `bytes` more may have passed. Idle time is not saved up. */
  async take(bytes: number, signal?: AbortSignal): Promise<void> {
    const nowMs = this.#clock.nowMs();
    this.#paidMs = Math.max(this.#paidMs, nowMs) + (bytes / this.bytesPerSecond) * 1000;
    await this.#clock.sleep(this.#paidMs - nowMs, signal);
  }
}
