/**
 * The order of waiting requests of several callers: start-time fair queueing. Each caller's
 * requests keep their order, and while several callers wait, each gets rows in proportion to its
 * weight, however many it sends. One caller alone is served first in, first out. Pure.
 */

/** Callers of the past are forgotten when there are more than these. */
const CALLERS_MAX = 1_000;

/** Who sent a request. */
export interface Share {
  readonly id: string;
  /** > 0, relative to other callers. */
  readonly weight: number;
}

export class FairOrder {
  /** The place of the last request served. */
  #now = 0;
  /** For each caller the place after its last request. */
  readonly #next = new Map<string, number>();

  /** @returns the place of a request: requests are served in ascending order of places */
  place(share: Share | undefined, rowCount: number): number {
    const { id, weight } = share ?? NO_CALLER;
    const place = Math.max(this.#now, this.#next.get(id) ?? 0);
    if (this.#next.size >= CALLERS_MAX && !this.#next.has(id)) this.#forget();
    this.#next.set(id, place + Math.max(1, rowCount) / weight);
    return place;
  }

  /** The request at this place is served. */
  advance(place: number): void {
    this.#now = Math.max(this.#now, place);
  }

  /** Callers whose next place is not later than that of a new caller. */
  #forget(): void {
    for (const [id, next] of this.#next) if (next <= this.#now) this.#next.delete(id);
  }
}

const NO_CALLER: Share = { id: '', weight: 1 };
