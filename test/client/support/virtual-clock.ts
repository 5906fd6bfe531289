/** A clock whose time passes only when a test says so. */
import type { TimerClock } from '../../../lib/platform/clock.ts';

export class VirtualClock implements TimerClock {
  #nowMs = 0;
  readonly #sleepers: { readonly atMs: number; wake(): void }[] = [];

  nowMs(): number {
    return this.#nowMs;
  }

  isoTime(): string {
    return '';
  }

  sleep(ms: number): Promise<void> {
    return new Promise((wake) => this.#sleepers.push({ atMs: this.#nowMs + ms, wake }));
  }

  after(ms: number, run: () => void): void {
    this.#sleepers.push({ atMs: this.#nowMs + ms, wake: run });
  }

  /** Lets time pass, and wakes the sleepers in order of time. */
  async advance(ms: number): Promise<void> {
    const endMs = this.#nowMs + ms;
    for (;;) {
      const next = this.#sleepers.sort((a, b) => a.atMs - b.atMs)[0];
      if (next === undefined || next.atMs > endMs) break;
      this.#sleepers.shift();
      this.#nowMs = next.atMs;
      next.wake();
      await settle();
    }
    this.#nowMs = endMs;
    await settle();
  }
}

/** Runs the continuations of settled promises. */
function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}
