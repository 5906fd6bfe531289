/**
 * How fast the engine finishes rows while others wait, and with it how long waiting rows take.
 *
 * Only the time in which rows waited counts: an engine with little to do runs small batches, whose
 * rate says nothing about its capacity. Older measurements fade, so the rate follows changes of the
 * load on the machine. Pure: times are passed in.
 */

/** The weight of a measurement falls to 1/e after this much time in which rows waited. */
const FADE_MS = 1_000;
/** Batches before an estimate is made: the first are slow, because code and caches are cold. */
const BATCHES_MIN = 16;

export class ServiceRate {
  /** Faded sums over the time in which rows waited. */
  #rows = 0;
  #busyMs = 0;
  /** Finished batches of any kind, up to BATCHES_MIN. */
  #batches = 0;
  /** Since when rows have waited without a finished batch; undefined when none waited. */
  #sinceMs: number | undefined;

  /**
   * A batch of `rowCount` rows has ended.
   * @param isWaiting rows wait for a batch now
   */
  recordBatch(rowCount: number, nowMs: number, isWaiting: boolean): void {
    if (this.#batches < BATCHES_MIN) {
      this.#batches++;
      return;
    }
    if (this.#sinceMs !== undefined) {
      const elapsedMs = nowMs - this.#sinceMs;
      const kept = Math.exp(-elapsedMs / FADE_MS);
      this.#rows = this.#rows * kept + rowCount;
      this.#busyMs = this.#busyMs * kept + elapsedMs;
    }
    this.#sinceMs = isWaiting ? nowMs : undefined;
  }

  /**
   * The expected milliseconds until `rowCount` rows, waiting or running, are finished. 0 while no
   * rate is known. The time since the last batch counts, so that a stalled engine looks slow.
   */
  estimateMs(rowCount: number, nowMs: number): number {
    if (rowCount === 0 || this.#rows === 0) return 0;
    const stalledMs = this.#sinceMs === undefined ? 0 : nowMs - this.#sinceMs;
    return (rowCount * (this.#busyMs + stalledMs)) / this.#rows;
  }
}
