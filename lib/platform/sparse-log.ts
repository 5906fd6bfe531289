/** Warnings that callers can cause at will: at most one a second is written, and the next says how many were not. */
import { systemClock } from './clock.ts';
import type { Logger } from './logs.ts';

const INTERVAL_MS = 1000;

export class SparseLog {
  readonly #logger: Logger;
  #nextMs = Number.NEGATIVE_INFINITY;
  #unsaid = 0;

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  warn(fields: object, message: string): void {
    const nowMs = systemClock.nowMs();
    if (nowMs < this.#nextMs) {
      this.#unsaid++;
      return;
    }
    this.#nextMs = nowMs + INTERVAL_MS;
    const unsaid = this.#unsaid;
    this.#unsaid = 0;
    this.#logger.warn(unsaid === 0 ? fields : { ...fields, unsaid }, message);
  }
}
