/**
 * Counts durations in steps of a fifth of a power of two (15 %), from 10 microseconds to minutes.
 * Percentiles are those of the time since they were last read.
 */

const STEPS_PER_DOUBLING = 5;
const FIRST_MS = 0.01;
const STEPS = 120;

export class LatencyHistogram {
  readonly #counts = new Float64Array(STEPS);
  readonly #read = new Float64Array(STEPS);

  record(durationMs: number): void {
    const step = Math.ceil(
      STEPS_PER_DOUBLING * Math.log2(Math.max(durationMs, FIRST_MS) / FIRST_MS),
    );
    const at = Math.min(step, STEPS - 1);
    this.#counts[at] = (this.#counts[at] ?? 0) + 1;
  }

  /**
   * @param shares ascending, such as 0.5 for the median
   * @returns milliseconds; NaN without a duration since the last call
   */
  takePercentiles(shares: readonly number[]): number[] {
    const fresh = this.#counts.map((count, step) => count - (this.#read[step] ?? 0));
    this.#read.set(this.#counts);
    const total = fresh.reduce((sum, count) => sum + count, 0);
    return shares.map((share) => {
      if (total === 0) return Number.NaN;
      let sum = 0;
      const step = fresh.findIndex((count) => {
        sum += count;
        return sum >= share * total;
      });
      return FIRST_MS * 2 ** (step / STEPS_PER_DOUBLING);
    });
  }
}
