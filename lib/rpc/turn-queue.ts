/**
 * Runs tasks between the turns of the event loop, so that what arrives meanwhile is read first: one
 * task in each turn, and more when the turn was long. With thousands of readable sockets a turn
 * takes tens of milliseconds, and one task for each would take only a small part of the time.
 */
import { systemClock } from '../platform/clock.ts';

/** Tasks that take longer together end their turn. */
const TURN_MS_MAX = 10;

export class TurnQueue {
  readonly #tasks: (() => void)[] = [];
  readonly #nowMs: () => number;
  /** When the event loop went on after the last tasks, or the queue was empty. */
  #idleSinceMs = 0;

  constructor(nowMs: () => number = () => systemClock.nowMs()) {
    this.#nowMs = nowMs;
  }

  /** @param task must not throw */
  add(task: () => void): void {
    this.#tasks.push(task);
    if (this.#tasks.length > 1) return;
    this.#idleSinceMs = this.#nowMs();
    setImmediate(this.#runNext);
  }

  readonly #runNext = (): void => {
    const startMs = this.#nowMs();
    const endMs = startMs + Math.min(startMs - this.#idleSinceMs, TURN_MS_MAX);
    do {
      // Removed after its run: `add` schedules a run only for an empty queue.
      this.#tasks[0]?.();
      this.#tasks.shift();
    } while (this.#tasks.length > 0 && this.#nowMs() < endMs);
    this.#idleSinceMs = this.#nowMs();
    if (this.#tasks.length > 0) setImmediate(this.#runNext);
  };
}
