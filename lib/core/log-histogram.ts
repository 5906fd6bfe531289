/** Counts positive values in buckets whose upper edges grow by a constant factor. */
import type { JsonReader } from './json.ts';

export interface LogBuckets {
  /** Upper edge of the first bucket, which takes every smaller value. */
  readonly first: number;
  readonly perDoubling: number;
  /** The last one takes every larger value. */
  readonly buckets: number;
}

export class LogHistogram {
  readonly #shape: LogBuckets;
  readonly #counts: Float64Array;
  #total = 0;

  constructor(shape: LogBuckets) {
    this.#shape = shape;
    this.#counts = new Float64Array(shape.buckets);
  }

  record(value: number): void {
    const { first, perDoubling, buckets } = this.#shape;
    const step = Math.ceil(perDoubling * Math.log2(Math.max(value, first) / first));
    this.#counts[Math.min(step, buckets - 1)]!++;
    this.#total++;
  }

  /**
   * Upper edge of the bucket with the nearest-rank percentile; 0 for the first bucket, NaN without
   * values. @param share 0..1
   */
  percentile(share: number): number {
    if (this.#total === 0) return Number.NaN;
    const rank = Math.max(1, Math.ceil(share * this.#total));
    let seen = 0;
    const bucket = this.#counts.findIndex((count) => {
      seen += count;
      return seen >= rank;
    });
    const { first, perDoubling } = this.#shape;
    return bucket <= 0 ? 0 : first * 2 ** (bucket / perDoubling);
  }

  /** Counts up to the last one that is not 0. */
  toJson(): number[] {
    const end = this.#counts.findLastIndex((count) => count > 0) + 1;
    return [...this.#counts.subarray(0, end)];
  }

  /** @throws CubeError INVALID_ARGUMENT naming the field */
  addJson(json: JsonReader): void {
    json.items({ max: this.#shape.buckets }).forEach((item, bucket) => {
      const count = item.number();
      if (!(count >= 0)) item.fail('a count');
      this.#counts[bucket]! += count;
      this.#total += count;
    });
  }
}
