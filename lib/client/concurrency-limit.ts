/**
 * An adaptive limit of the calls in flight to one replica. While a replica keeps up, its latency
 * does not depend on the number of calls in flight; once calls queue in it, more calls only add
 * latency. The limit follows the gradient, the ratio of the latency without a queue to the latency
 * now: below 1 the limit shrinks with it, else it grows by the square root of itself.
 */

/** High enough that a healthy replica is used before anything is known about it. */
const LIMIT_INITIAL = 64;
const LIMIT_MIN = 2;
const LIMIT_MAX = 4_096;
/** Latency may grow by this factor before the limit shrinks: batches and sizes of calls vary. */
const TOLERANCE = 2;
/** Less is noise of timers and schedulers. */
const TOLERANCE_MS = 2;
/** One window never halves the limit further. */
const GRADIENT_MIN = 0.5;
/** The limit after a refusal by the replica: it knows its own load best. */
const REFUSAL_FACTOR = 0.9;
/** How fast the latency without a queue follows windows of calls that did not queue. */
const UNLOADED_SHARE = 0.1;
/** The same where the limit does not hold: the calls themselves may have become slower. */
const UNLIMITED_SHARE = 0.01;
const WINDOW_CALLS_MIN = 16;
const WINDOW_MS_MIN = 50;

/** What a window of calls showed. */
export interface LimitWindow {
  readonly limit: number;
  /** The latency without a queue; 0: unknown. */
  readonly baseMs: number;
  /** Average latency of the window. */
  readonly latencyMs: number;
  /** Most calls in flight at a time. */
  readonly inFlightMax: number;
  /** Calls that the replica refused because of its load. */
  readonly refusals: number;
}

/** The limit and the latency without a queue after a window. */
export function computeLimit(window: LimitWindow): {
  readonly limit: number;
  readonly baseMs: number;
} {
  const { limit, baseMs, latencyMs, inFlightMax, refusals } = window;
  if (refusals > 0) return { limit: clampLimit(limit * REFUSAL_FACTOR), baseMs };
  if (baseMs === 0) return { limit, baseMs: latencyMs };
  const nextBaseMs = Math.min(latencyMs, baseMs + getBaseShare(window) * (latencyMs - baseMs));
  const gradient = (TOLERANCE * nextBaseMs + TOLERANCE_MS) / latencyMs;
  // Calls queue in the replica already: what is in flight is too much, however high the limit is.
  if (gradient < 1) {
    const used = Math.min(limit, inFlightMax);
    const next = used * Math.max(GRADIENT_MIN, gradient) + Math.sqrt(used);
    return { limit: clampLimit(Math.min(limit, next)), baseMs: nextBaseMs };
  }
  // An unused limit says nothing about a higher one.
  const isUsed = inFlightMax >= limit / 2;
  return { limit: isUsed ? clampLimit(limit + Math.sqrt(limit)) : limit, baseMs: nextBaseMs };
}

function getBaseShare({ limit, inFlightMax }: LimitWindow): number {
  if (inFlightMax <= LIMIT_MIN) return UNLOADED_SHARE;
  return inFlightMax > 2 * limit ? UNLIMITED_SHARE : 0;
}

function clampLimit(limit: number): number {
  return Math.min(LIMIT_MAX, Math.max(LIMIT_MIN, limit));
}

/** The limit of one replica. */
export class ConcurrencyLimit {
  #limit = LIMIT_INITIAL;
  #baseMs = 0;
  #calls = 0;
  #latencySumMs = 0;
  #inFlightMax = 0;
  #refusals = 0;
  #windowEndMs = 0;

  get value(): number {
    return Math.floor(this.#limit);
  }

  /** @param inFlight with this call */
  recordCall(inFlight: number): void {
    if (inFlight > this.#inFlightMax) this.#inFlightMax = inFlight;
  }

  recordAnswer(latencyMs: number, nowMs: number): void {
    this.#calls++;
    this.#latencySumMs += latencyMs;
    if (this.#calls >= WINDOW_CALLS_MIN && nowMs >= this.#windowEndMs) this.#endWindow(nowMs);
  }

  recordRefusal(nowMs: number): void {
    this.#refusals++;
    if (nowMs >= this.#windowEndMs) this.#endWindow(nowMs);
  }

  #endWindow(nowMs: number): void {
    const next = computeLimit({
      limit: this.#limit,
      baseMs: this.#baseMs,
      latencyMs: this.#latencySumMs / this.#calls,
      inFlightMax: this.#inFlightMax,
      refusals: this.#refusals,
    });
    this.#limit = next.limit;
    this.#baseMs = next.baseMs;
    this.#calls = 0;
    this.#latencySumMs = 0;
    this.#inFlightMax = 0;
    this.#refusals = 0;
    this.#windowEndMs = nowMs + WINDOW_MS_MIN;
  }
}
