/** Items that expire unless they are removed in time: one timer for all of them. */
import { systemClock } from '../platform/clock.ts';

export class ExpiryQueue<T> {
  readonly #timeoutMs: number;
  readonly #onExpired: (item: T) => void;
  /** When each item expires, in this order. */
  readonly #expiryMs = new Map<T, number>();
  #timer: NodeJS.Timeout | undefined;

  /** @param onExpired called once for an item, which is removed before */
  constructor(timeoutMs: number, onExpired: (item: T) => void) {
    this.#timeoutMs = timeoutMs;
    this.#onExpired = onExpired;
  }

  /** Adds an item that is not in the queue. */
  add(item: T): void {
    this.#expiryMs.set(item, systemClock.nowMs() + this.#timeoutMs);
    this.#schedule(this.#timeoutMs);
  }

  remove(item: T): void {
    this.#expiryMs.delete(item);
  }

  #schedule(waitMs: number): void {
    if (this.#timer !== undefined) return;
    this.#timer = setTimeout(() => this.#expire(), Math.max(1, waitMs));
    // A connection keeps its process running, not its time limit.
    this.#timer.unref();
  }

  #expire(): void {
    this.#timer = undefined;
    const nowMs = systemClock.nowMs();
    for (const [item, expiryMs] of this.#expiryMs) {
      if (expiryMs > nowMs) {
        this.#schedule(expiryMs - nowMs);
        return;
      }
      this.#expiryMs.delete(item);
      this.#onExpired(item);
    }
  }
}
