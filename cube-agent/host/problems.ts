/**
 * What goes wrong and for how long: each thing that failed is left alone for a while that doubles with every
 * failure in a row, and stays listed until it goes right.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { Problem } from './host-data.ts';

const BACKOFF_MAX_MS = 60_000;

export class Problems {
  readonly #clock: Clock;
  readonly #firstBackoffMs: number;
  readonly #open = new Map<string, Problem & { readonly retryAtMs: number }>();

  constructor(clock: Clock, firstBackoffMs: number) {
    this.#clock = clock;
    this.#firstBackoffMs = firstBackoffMs;
  }

  /** @returns whether this is news: it went right before, or it fails in another way */
  add(what: string, error: unknown): boolean {
    const { code, message } = CubeError.from(error);
    const known = this.#open.get(what);
    const attempts = (known?.attempts ?? 0) + 1;
    const backoffMs = Math.min(BACKOFF_MAX_MS, this.#firstBackoffMs * 2 ** Math.min(attempts, 20));
    const since = known?.since ?? this.#clock.isoTime();
    const retryAtMs = this.#clock.nowMs() + backoffMs;
    this.#open.set(what, { what, code, message, since, attempts, retryAtMs });
    return known?.message !== message;
  }

  /** @returns whether it had been failing */
  clear(what: string): boolean {
    return this.#open.delete(what);
  }

  /** Forgets everything whose name `concerns` picks: it is no longer wanted, or may be tried at once. */
  forget(concerns: (what: string) => boolean): void {
    for (const what of this.#open.keys()) if (concerns(what)) this.#open.delete(what);
  }

  mayTry(what: string): boolean {
    return this.#clock.nowMs() >= (this.#open.get(what)?.retryAtMs ?? 0);
  }

  has(what: string): boolean {
    return this.#open.has(what);
  }

  /** Lets everything be tried at once. */
  retryNow(): void {
    for (const [what, problem] of this.#open) this.#open.set(what, { ...problem, retryAtMs: 0 });
  }

  /** With the time until each is tried again: 0 when it may be at once. */
  report(): (Problem & { readonly nextTrySeconds: number })[] {
    const nowMs = this.#clock.nowMs();
    return [...this.#open.values()].map(({ retryAtMs, ...problem }) => ({
      ...problem,
      nextTrySeconds: Math.max(0, (retryAtMs - nowMs) / 1000),
    }));
  }

  list(): Problem[] {
    return [...this.#open.values()].map(({ retryAtMs: _, ...problem }) => problem);
  }
}
