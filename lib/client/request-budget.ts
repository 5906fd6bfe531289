/**
 * A budget of additional requests (retries, backups) to one shard: a token bucket. Each request
 * adds REQUEST_SHARE of a token, each additional one takes a token. A shard whose replicas all fail
 * or are slow gets at most a tenth more requests than were made, after a burst of BURST.
 */

const REQUEST_SHARE = 0.1;
/** Enough for all requests in flight on one connection when a healthy fleet loses a replica. */
const BURST = 100;

export class RequestBudget {
  readonly #burst: number;
  #tokens: number;

  /** @param burst additional requests that may be made at once */
  constructor(burst: number = BURST) {
    this.#burst = burst;
    this.#tokens = burst;
  }

  /** Counts a request that is not an additional one. */
  countRequest(): void {
    this.#tokens = Math.min(this.#tokens + REQUEST_SHARE, this.#burst);
  }

  /**
   * Takes one additional request; returns false when the budget is spent.
   * @param isUrgent false leaves half of the burst to urgent requests
   */
  tryTake(isUrgent: boolean): boolean {
    if (this.#tokens < (isUrgent ? 1 : this.#burst / 2)) return false;
    this.#tokens--;
    return true;
  }
}
