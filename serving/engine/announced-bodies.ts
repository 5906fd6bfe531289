/**
 * Counts admitted requests whose bodies have not arrived. New ones are told from old ones, because
 * a caller that sends nothing after its head must not make the engine look busy for long. Pure:
 * times are passed in.
 */

/** A request is new for one to two times as long. */
const PERIOD_MS = 250;

export class AnnouncedBodies {
  #period = 0;
  /** Requests of this period, of the one before, and of all earlier ones. */
  #current = 0;
  #previous = 0;
  #older = 0;

  /** Counts a request. @returns the period, for `remove` */
  add(nowMs: number): number {
    this.#advance(nowMs);
    this.#current++;
    return this.#period;
  }

  /** @param period from `add` */
  remove(period: number, nowMs: number): void {
    this.#advance(nowMs);
    if (period === this.#period) this.#current--;
    else if (period === this.#period - 1) this.#previous--;
    else this.#older--;
  }

  /** Requests whose bodies should arrive soon. */
  countNew(nowMs: number): number {
    this.#advance(nowMs);
    return this.#current + this.#previous;
  }

  /** Requests whose callers are slow, or send nothing. */
  countOld(nowMs: number): number {
    this.#advance(nowMs);
    return this.#older;
  }

  #advance(nowMs: number): void {
    const period = Math.floor(nowMs / PERIOD_MS);
    if (period <= this.#period) return;
    const isNext = period === this.#period + 1;
    this.#older += isNext ? this.#previous : this.#previous + this.#current;
    this.#previous = isNext ? this.#current : 0;
    this.#current = 0;
    this.#period = period;
  }
}
