/**
 * The requests whose rows wait for a batch: one queue for each priority. Within a priority callers
 * share the rows by weight (FairOrder), and each caller is served first in, first out.
 * Without queue policies, a request of a lower priority that has waited for half of the queue
 * timeout goes before younger requests, so that none starves. With them, a higher priority always
 * goes first.
 */
import type { BatchingOptions, QueuePolicy } from './engine-options.ts';
import { FairOrder } from './fair-order.ts';
import { DEFAULT_PRIORITY, type QueuedRequest } from './queued-request.ts';

/** Used without a queue timeout: less than the deadlines of most callers. */
const PRIORITY_WAIT_MS = 250;
/** Requests of each priority that are searched for one of a group, or for the oldest. */
const GROUP_SEARCH_MAX = 256;

/** The requests of one priority. */
interface Level<R> {
  readonly policy: QueuePolicy;
  readonly order: FairOrder;
  /** Ascending by place. */
  requests: R[];
  /** Requests that waited too long; they run after the others of this priority. */
  delayed: R[];
  /** Requests with waiting rows, in both lists. */
  waiting: number;
  rows: number;
}

export class RequestQueue<R extends QueuedRequest> {
  readonly #levels: readonly Level<R>[];
  /** Waits after which a lower priority goes before younger requests. */
  readonly #priorityWaitMs: number;

  constructor({ priorityLevels, queueTimeoutMs, queuePolicies }: BatchingOptions) {
    const byDefault: QueuePolicy = {
      timeoutAction: 'reject',
      timeoutMs: queueTimeoutMs,
      allowsShorterTimeout: false,
      requestsMax: 0,
    };
    this.#levels = Array.from({ length: priorityLevels }, (_, i) => ({
      policy: queuePolicies?.[i] ?? byDefault,
      order: new FairOrder(),
      requests: [],
      delayed: [],
      waiting: 0,
      rows: 0,
    }));
    const waitMs = queueTimeoutMs > 0 ? queueTimeoutMs / 2 : PRIORITY_WAIT_MS;
    this.#priorityWaitMs = queuePolicies === undefined ? waitMs : Number.POSITIVE_INFINITY;
  }

  push(request: R): void {
    const level = this.#getLevel(request.options.priority);
    request.place = level.order.place(request.options.share, request.rowCount);
    insertByPlace(level.requests, request);
    level.waiting++;
    request.isQueued = true;
  }

  /** Must follow whenever a request may have no waiting rows any more. */
  update(request: R): void {
    if (!request.isQueued || request.waitingRows > 0) return;
    request.isQueued = false;
    this.#getLevel(request.options.priority).waiting--;
  }

  /** How many requests of this priority may wait, if as many do; undefined: there is a place. */
  findExceededLimit(priority: number | undefined): number | undefined {
    const { policy, waiting } = this.#getLevel(priority);
    return policy.requestsMax > 0 && waiting >= policy.requestsMax ? policy.requestsMax : undefined;
  }

  /** Counts rows of this priority that wait from now on or, when negative, no longer wait. */
  addRows(priority: number | undefined, rowCount: number): void {
    this.#getLevel(priority).rows += rowCount;
  }

  /** Waiting rows of this priority and of higher ones. */
  countRowsBefore(priority: number | undefined): number {
    const last = this.#getLevel(priority);
    let rowCount = 0;
    for (const level of this.#levels) {
      rowCount += level.rows;
      if (level === last) break;
    }
    return rowCount;
  }

  /** How long the request may wait, if it has waited longer and must fail. */
  findExceededTimeout(request: R, nowMs: number): number | undefined {
    const { policy } = this.#getLevel(request.options.priority);
    if (policy.timeoutAction !== 'reject') return undefined;
    return hasTimedOut(request, policy, nowMs) ? getTimeoutMs(request, policy) : undefined;
  }

  /** The request whose rows are next. */
  next(nowMs: number): R | undefined {
    let chosen: R | undefined;
    for (const level of this.#levels) {
      const first = findFirst(level, nowMs);
      if (first === undefined) continue;
      const isOverdue = nowMs - first.arrivedMs > this.#priorityWaitMs;
      if (chosen === undefined || (isOverdue && first.arrivedMs < chosen.arrivedMs)) chosen = first;
    }
    return chosen;
  }

  /** The first waiting request of a group, of the highest priority first. */
  nextOfGroup(group: string | undefined): R | undefined {
    for (const { requests, delayed } of this.#levels) {
      for (const queue of [requests, delayed]) {
        const searched = Math.min(queue.length, GROUP_SEARCH_MAX);
        for (let i = 0; i < searched; i++) {
          const request = queue[i]!;
          if (request.group === group && request.waitingRows > 0) return request;
        }
      }
    }
    return undefined;
  }

  /** When the oldest waiting request arrived; infinite without one. */
  oldestArrivalMs(): number {
    let oldest = Number.POSITIVE_INFINITY;
    for (const { requests, delayed } of this.#levels) {
      for (const queue of [requests, delayed]) {
        removeFinishedHead(queue);
        // Beyond these many requests a batch is full, and nobody asks.
        const searched = Math.min(queue.length, GROUP_SEARCH_MAX);
        for (let i = 0; i < searched; i++) {
          const { waitingRows, arrivedMs } = queue[i]!;
          if (waitingRows > 0) oldest = Math.min(oldest, arrivedMs);
        }
      }
    }
    return oldest;
  }

  /** Removes requests without waiting rows. */
  removeFinished(): void {
    const isWaiting = ({ waitingRows }: R): boolean => waitingRows > 0;
    for (const level of this.#levels) {
      level.requests = level.requests.filter(isWaiting);
      level.delayed = level.delayed.filter(isWaiting);
    }
  }

  #getLevel(priority = DEFAULT_PRIORITY): Level<R> {
    return this.#levels[Math.min(Math.max(priority, 0), this.#levels.length - 1)]!;
  }
}

/** A request of a caller that waits alone is the last one, so this is a push. */
function insertByPlace<R extends QueuedRequest>(requests: R[], request: R): void {
  let at = requests.length;
  while (at > 0 && requests[at - 1]!.place > request.place) at--;
  requests.splice(at, 0, request);
}

function removeFinishedHead<R extends QueuedRequest>(queue: R[]): void {
  while (queue[0]?.waitingRows === 0) queue.shift();
}

/** Moves requests that waited too long behind the others, where the policy says so. */
function findFirst<R extends QueuedRequest>(level: Level<R>, nowMs: number): R | undefined {
  const { requests, delayed, policy } = level;
  for (;;) {
    removeFinishedHead(requests);
    const [first] = requests;
    if (first === undefined) break;
    if (policy.timeoutAction === 'reject' || !hasTimedOut(first, policy, nowMs)) {
      level.order.advance(first.place);
      return first;
    }
    delayed.push(first);
    requests.shift();
  }
  removeFinishedHead(delayed);
  return delayed[0];
}

/** A request with rows in a batch has been served in time. */
function hasTimedOut(request: QueuedRequest, policy: QueuePolicy, nowMs: number): boolean {
  const timeoutMs = getTimeoutMs(request, policy);
  return timeoutMs > 0 && request.nextRow === 0 && nowMs - request.arrivedMs >= timeoutMs;
}

function getTimeoutMs({ options }: QueuedRequest, policy: QueuePolicy): number {
  const { timeoutMs, allowsShorterTimeout } = policy;
  const { queueTimeoutMs: own = 0 } = options;
  return allowsShorterTimeout && own > 0 ? Math.min(own, timeoutMs) : timeoutMs;
}
