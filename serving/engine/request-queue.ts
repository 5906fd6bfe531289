/**
 * Requests whose rows wait for a batch: one line for each priority, the first come first. One of a lower priority that has waited
 * long (half of the queue's timeout, where there is one) goes before younger ones, so that none starves.
 */
import type { BatchingOptions } from './batching.ts';
import { DEFAULT_PRIORITY, type EngineRequest } from './engine-request.ts';

/** Without a timeout: below the deadlines that most callers have. */
const AGED_MS = 250;

export class RequestQueue {
  readonly #lines: EngineRequest[][];
  readonly #agedMs: number;

  constructor({ priorityLevels, queueTimeoutMs }: BatchingOptions) {
    this.#lines = Array.from({ length: priorityLevels }, () => []);
    this.#agedMs = queueTimeoutMs > 0 ? queueTimeoutMs / 2 : AGED_MS;
  }

  push(request: EngineRequest): void {
    const { priority = DEFAULT_PRIORITY } = request.call;
    this.#lines[Math.min(Math.max(priority, 0), this.#lines.length - 1)]!.push(request);
  }

  /** The one whose rows are next. */
  head(nowMs: number): EngineRequest | undefined {
    let chosen: EngineRequest | undefined;
    for (const line of this.#lines) {
      while (line[0]?.waitingRows === 0) line.shift();
      const first = line[0];
      if (first === undefined) continue;
      const isAged = nowMs - first.arrivedMs > this.#agedMs;
      if (chosen === undefined || (isAged && first.arrivedMs < chosen.arrivedMs)) chosen = first;
    }
    return chosen;
  }

  /** When the oldest of those that wait came. */
  oldestMs(): number {
    let oldest = Number.POSITIVE_INFINITY;
    for (const line of this.#lines) {
      while (line[0]?.waitingRows === 0) line.shift();
      if (line[0] !== undefined) oldest = Math.min(oldest, line[0].arrivedMs);
    }
    return oldest;
  }

  /** Forgets those that wait no more. */
  purge(): void {
    this.#lines.forEach((line, i) => {
      this.#lines[i] = line.filter(({ waitingRows }) => waitingRows > 0);
    });
  }
}
