/**
 * The requests whose rows wait for a batch: one queue for each priority, first in, first out. A
 * request of a lower priority that has waited for half of the queue timeout goes before younger
 * requests, so that none starves.
 */
import type { BatchingOptions } from './engine-options.ts';
import { DEFAULT_PRIORITY, type QueuedRequest } from './queued-request.ts';

/** Used without a queue timeout: less than the deadlines of most callers. */
const PRIORITY_WAIT_MS = 250;
/** Requests of each priority that are searched for one of a group. */
const GROUP_SEARCH_MAX = 256;

export class RequestQueue<R extends QueuedRequest> {
  readonly #queues: R[][];
  /** Waiting rows of each priority. */
  readonly #rows: number[];
  readonly #priorityWaitMs: number;

  constructor({ priorityLevels, queueTimeoutMs }: BatchingOptions) {
    this.#queues = Array.from({ length: priorityLevels }, () => []);
    this.#rows = new Array<number>(priorityLevels).fill(0);
    this.#priorityWaitMs = queueTimeoutMs > 0 ? queueTimeoutMs / 2 : PRIORITY_WAIT_MS;
  }

  push(request: R): void {
    this.#queues[this.#toLevel(request.options.priority)]!.push(request);
  }

  /** Counts rows of this priority that wait from now on or, when negative, no longer wait. */
  addRows(priority: number | undefined, rowCount: number): void {
    this.#rows[this.#toLevel(priority)]! += rowCount;
  }

  /** Waiting rows of this priority and of higher ones. */
  countRowsBefore(priority: number | undefined): number {
    const level = this.#toLevel(priority);
    let rowCount = 0;
    for (let i = 0; i <= level; i++) rowCount += this.#rows[i]!;
    return rowCount;
  }

  /** The request whose rows are next. */
  next(nowMs: number): R | undefined {
    let chosen: R | undefined;
    for (const queue of this.#queues) {
      while (queue[0]?.waitingRows === 0) queue.shift();
      const first = queue[0];
      if (first === undefined) continue;
      const isOverdue = nowMs - first.arrivedMs > this.#priorityWaitMs;
      if (chosen === undefined || (isOverdue && first.arrivedMs < chosen.arrivedMs)) chosen = first;
    }
    return chosen;
  }

  /** The first waiting request of a group, of the highest priority first. */
  nextOfGroup(group: string | undefined): R | undefined {
    for (const queue of this.#queues) {
      const searched = Math.min(queue.length, GROUP_SEARCH_MAX);
      for (let i = 0; i < searched; i++) {
        const request = queue[i]!;
        if (request.group === group && request.waitingRows > 0) return request;
      }
    }
    return undefined;
  }

  /** When the oldest waiting request arrived; infinite without one. */
  oldestArrivalMs(): number {
    let oldest = Number.POSITIVE_INFINITY;
    for (const queue of this.#queues) {
      while (queue[0]?.waitingRows === 0) queue.shift();
      if (queue[0] !== undefined) oldest = Math.min(oldest, queue[0].arrivedMs);
    }
    return oldest;
  }

  #toLevel(priority = DEFAULT_PRIORITY): number {
    return Math.min(Math.max(priority, 0), this.#queues.length - 1);
  }

  /** Removes requests without waiting rows. */
  removeFinished(): void {
    this.#queues.forEach((queue, i) => {
      this.#queues[i] = queue.filter(({ waitingRows }) => waitingRows > 0);
    });
  }
}
