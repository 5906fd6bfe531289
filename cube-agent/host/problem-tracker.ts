/**
 * The operations of an agent that fail, with their backoff. The pause before the next attempt
 * doubles with every failure in a row; a problem stays listed until its operation succeeds.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { describeOperation, type Operation, type Problem } from '../fleet/problem.ts';

const BACKOFF_MAX_MS = 60_000;

interface OpenProblem {
  readonly operation: Operation;
  readonly problem: Problem;
  readonly retryAtMs: number;
}

export class ProblemTracker {
  readonly #clock: Clock;
  readonly #firstBackoffMs: number;
  /** By the text of the operation, which is unique. */
  readonly #open = new Map<string, OpenProblem>();

  constructor(clock: Clock, firstBackoffMs: number) {
    this.#clock = clock;
    this.#firstBackoffMs = firstBackoffMs;
  }

  /** @returns whether the problem is new: the operation succeeded before, or the error differs */
  record(operation: Operation, error: unknown): boolean {
    const { code, message } = CubeError.from(error);
    const what = describeOperation(operation);
    const known = this.#open.get(what)?.problem;
    const attempts = (known?.attempts ?? 0) + 1;
    const backoffMs = Math.min(BACKOFF_MAX_MS, this.#firstBackoffMs * 2 ** Math.min(attempts, 20));
    const since = known?.since ?? this.#clock.isoTime();
    this.#open.set(what, {
      operation,
      problem: { what, code, message, since, attempts, ...operation },
      retryAtMs: this.#clock.nowMs() + backoffMs,
    });
    return known?.message !== message;
  }

  /** @returns whether the operation had been failing */
  resolve(operation: Operation): boolean {
    return this.#open.delete(describeOperation(operation));
  }

  /** Drops problems whose operation is no longer needed, or may be retried at once. */
  removeWhere(matches: (operation: Operation) => boolean): void {
    for (const [what, { operation }] of this.#open) {
      if (matches(operation)) this.#open.delete(what);
    }
  }

  /** Whether the operation never failed, or its backoff is over. */
  canTry(operation: Operation): boolean {
    const retryAtMs = this.#open.get(describeOperation(operation))?.retryAtMs ?? 0;
    return this.#clock.nowMs() >= retryAtMs;
  }

  /** Ends every backoff. */
  retryNow(): void {
    for (const [what, open] of this.#open) this.#open.set(what, { ...open, retryAtMs: 0 });
  }

  /** Problems with the seconds until the next attempt; 0 when it is due. */
  toStatus(): (Problem & { readonly nextTrySeconds: number })[] {
    const nowMs = this.#clock.nowMs();
    return [...this.#open.values()].map(({ problem, retryAtMs }) => ({
      ...problem,
      nextTrySeconds: Math.max(0, (retryAtMs - nowMs) / 1000),
    }));
  }

  list(): Problem[] {
    return [...this.#open.values()].map(({ problem }) => problem);
  }
}
