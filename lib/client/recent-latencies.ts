/** The 95th percentile of the last few hundred latencies of a shard, recomputed now and then. */

const SAMPLES = 256;
const RECOMPUTE_EVERY = 32;

export class RecentLatencies {
  readonly #samples = new Float64Array(SAMPLES);
  readonly #sorted = new Float64Array(SAMPLES);
  #count = 0;
  /** Milliseconds; infinite until there are enough samples to tell. */
  p95Ms: number = Number.POSITIVE_INFINITY;

  add(latencyMs: number): void {
    this.#samples[this.#count++ % SAMPLES] = latencyMs;
    if (this.#count % RECOMPUTE_EVERY !== 0) return;
    const filled = Math.min(this.#count, SAMPLES);
    const sorted = this.#sorted.subarray(0, filled);
    sorted.set(this.#samples.subarray(0, filled));
    sorted.sort();
    this.p95Ms = sorted[Math.ceil(0.95 * filled) - 1]!;
  }
}
