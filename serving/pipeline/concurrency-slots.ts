/** Numbered execution slots of an op; waiting executions start in the order they came. */
export class ConcurrencySlots {
  readonly #free: number[];
  readonly #waiting: { start: (slot: number) => void; signal: AbortSignal; stop: () => void }[] =
    [];

  constructor(count: number) {
    this.#free = Array.from({ length: count }, (_, index) => count - 1 - index);
  }

  /** The number of a free slot; rejects with the signal's reason when it aborts first. */
  acquire(signal: AbortSignal): number | Promise<number> {
    signal.throwIfAborted();
    const free = this.#free.pop();
    if (free !== undefined) return free;
    return new Promise((resolve, reject) => {
      const stop = (): void => {
        this.#waiting.splice(this.#waiting.indexOf(entry), 1);
        reject(signal.reason);
      };
      const entry = { start: resolve, signal, stop };
      this.#waiting.push(entry);
      signal.addEventListener('abort', stop, { once: true });
    });
  }

  release(slot: number): void {
    const next = this.#waiting.shift();
    if (next === undefined) {
      this.#free.push(slot);
      return;
    }
    next.signal.removeEventListener('abort', next.stop);
    next.start(slot);
  }
}
