/**
 * A histogram of latencies in fixed memory. Buckets are 1 µs wide up to 256 µs and 1/256 to 1/128
 * of their value above: a percentile is at most 1/128 too high and never too low. Mean and maximum
 * are exact.
 */

/** Each doubling above has half as many buckets. */
const LINEAR_BUCKETS = 256;
const HALF = LINEAR_BUCKETS / 2;
const LINEAR_BITS = 8;
/** Up to 2^40 µs, twelve days. */
const DOUBLINGS = 40 - LINEAR_BITS;
const MICROS_MAX = 2 ** 40 - 1;
const MICROS_PER_MS = 1_000;

export interface LatencySummary {
  readonly avg: number;
  readonly p50: number;
  readonly p80: number;
  readonly p90: number;
  readonly p99: number;
  readonly p999: number;
  readonly max: number;
}

/** What a histogram has counted, to send it to another thread. */
export interface LatencyCounts {
  readonly counts: Float64Array;
  readonly sumMs: number;
  readonly maxMs: number;
}

export class LatencyHistogram {
  readonly #counts = new Float64Array(LINEAR_BUCKETS + DOUBLINGS * HALF);
  #count = 0;
  #sumMs = 0;
  #maxMs = 0;

  get count(): number {
    return this.#count;
  }

  get maxMs(): number {
    return this.#maxMs;
  }

  add(ms: number): void {
    const micros = Math.min(Math.max(Math.ceil(ms * MICROS_PER_MS), 0), MICROS_MAX);
    this.#counts[findBucket(micros)]!++;
    this.#count++;
    this.#sumMs += ms;
    this.#maxMs = Math.max(this.#maxMs, ms);
  }

  export(): LatencyCounts {
    return { counts: this.#counts, sumMs: this.#sumMs, maxMs: this.#maxMs };
  }

  /** Adds all values of another histogram. */
  absorb({ counts, sumMs, maxMs }: LatencyCounts): void {
    for (const [bucket, count] of counts.entries()) {
      this.#counts[bucket]! += count;
      this.#count += count;
    }
    this.#sumMs += sumMs;
    this.#maxMs = Math.max(this.#maxMs, maxMs);
  }

  /**
   * Upper edge of the bucket with the nearest-rank percentile, in ms; 0 without values.
   * @param share 0..1
   */
  percentile(share: number): number {
    const rank = Math.max(Math.ceil(share * this.#count), 1);
    let seen = 0;
    for (let bucket = 0; bucket < this.#counts.length; bucket++) {
      seen += this.#counts[bucket]!;
      if (seen >= rank) return Math.min(bucketUpperMicros(bucket) / MICROS_PER_MS, this.#maxMs);
    }
    return 0;
  }

  /** Values in ms; zeros without values. */
  summary(): LatencySummary {
    return {
      avg: this.#count === 0 ? 0 : this.#sumMs / this.#count,
      p50: this.percentile(0.5),
      p80: this.percentile(0.8),
      p90: this.percentile(0.9),
      p99: this.percentile(0.99),
      p999: this.percentile(0.999),
      max: this.#maxMs,
    };
  }
}

function findBucket(micros: number): number {
  if (micros < LINEAR_BUCKETS) return micros;
  const doublings = Math.floor(Math.log2(micros)) - LINEAR_BITS + 1;
  const mantissa = Math.floor(micros / 2 ** doublings);
  return LINEAR_BUCKETS + (doublings - 1) * HALF + (mantissa - HALF);
}

/** The largest whole number of microseconds that falls into the bucket. */
function bucketUpperMicros(bucket: number): number {
  if (bucket < LINEAR_BUCKETS) return bucket;
  const doublings = Math.floor((bucket - LINEAR_BUCKETS) / HALF) + 1;
  const mantissa = HALF + ((bucket - LINEAR_BUCKETS) % HALF);
  return (mantissa + 1) * 2 ** doublings - 1;
}
