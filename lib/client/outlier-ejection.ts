/**
 * Outlier ejection: a replica that answers, but fails a larger share of its calls than the others,
 * gets no calls for a while. Retries would hide it, and would spend the retry budget that a real
 * outage needs. Only the comparison counts: when all fail alike, nobody is ejected.
 *
 * Ejections last EJECTION_MS, doubled with each further one up to EJECTION_MS_MAX; a replica that
 * was not ejected for EJECTION_MEMORY_MS starts again.
 */

/** Fewer calls say nothing about a replica, or about the others. */
const CALLS_MIN = 10;
/** A lower failure rate is left to retries. */
const FAILURE_RATE_MIN = 0.2;
/** How many times as often as the others an outlier fails. */
const FAILURE_FACTOR = 3;
const EJECTION_MS = 1_000;
const EJECTION_MS_MAX = 30_000;
const EJECTION_MEMORY_MS = 60_000;
/** Outcomes count for one to two of these periods. */
const PERIOD_MS = 5_000;

export interface CallOutcomes {
  readonly calls: number;
  readonly failures: number;
}

/** @param others the outcomes of all other replicas together */
export function isOutlier(own: CallOutcomes, others: CallOutcomes): boolean {
  if (own.calls < CALLS_MIN || others.calls < CALLS_MIN) return false;
  const rate = own.failures / own.calls;
  return rate >= FAILURE_RATE_MIN && rate >= FAILURE_FACTOR * (others.failures / others.calls);
}

/** The number of replicas that may be ejected at a time: the others must carry the load. */
export function getEjectedMax(replicaCount: number): number {
  return Math.floor(replicaCount / 2);
}

/** How long the nth successive ejection lasts; n ≥ 1. */
export function getEjectionMs(successive: number): number {
  return Math.min(EJECTION_MS * 2 ** (successive - 1), EJECTION_MS_MAX);
}

/** The recent outcomes of one replica, and its ejections. */
export class OutlierState {
  #current = { calls: 0, failures: 0 };
  #previous: CallOutcomes = { calls: 0, failures: 0 };
  #periodEndMs = 0;
  #ejectedUntilMs = Number.NEGATIVE_INFINITY;
  #successive = 0;

  get ejectedUntilMs(): number {
    return this.#ejectedUntilMs;
  }

  isEjected(nowMs: number): boolean {
    return nowMs < this.#ejectedUntilMs;
  }

  record(nowMs: number, hasFailed: boolean): void {
    if (nowMs >= this.#periodEndMs) this.#startPeriod(nowMs);
    this.#current.calls++;
    if (hasFailed) this.#current.failures++;
  }

  getOutcomes(nowMs: number): CallOutcomes {
    if (nowMs >= this.#periodEndMs) this.#startPeriod(nowMs);
    const { calls, failures } = this.#current;
    return { calls: calls + this.#previous.calls, failures: failures + this.#previous.failures };
  }

  /** Its outcomes are forgotten: after the ejection it is judged by new calls. */
  eject(nowMs: number): void {
    if (nowMs > this.#ejectedUntilMs + EJECTION_MEMORY_MS) this.#successive = 0;
    this.#successive++;
    this.#ejectedUntilMs = nowMs + getEjectionMs(this.#successive);
    this.#current = { calls: 0, failures: 0 };
    this.#previous = this.#current;
    this.#periodEndMs = 0;
  }

  #startPeriod(nowMs: number): void {
    const isNext = nowMs < this.#periodEndMs + PERIOD_MS;
    this.#previous = isNext ? this.#current : { calls: 0, failures: 0 };
    this.#current = { calls: 0, failures: 0 };
    this.#periodEndMs = nowMs + PERIOD_MS;
  }
}
