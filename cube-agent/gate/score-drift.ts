/** The difference between two columns of scores, by row and as distributions. Pure. */

export interface Drift {
  /** Rows that both versions have scored. */
  readonly rows: number;
  /** Mean of |candidate − baseline|. */
  readonly mean: number;
  readonly p50: number;
  readonly p99: number;
  readonly largest: number;
  /** Population stability index over the baseline's deciles. */
  readonly psi: number;
}

/** Bars of equal width between `low` and `high`; the last one holds `high` itself. */
export interface Histogram {
  readonly low: number;
  readonly high: number;
  /** One column of counts for each column of values. */
  readonly counts: readonly (readonly number[])[];
}

const DECILES = 10;
/** Minimum width of a histogram: smaller differences are rounding errors. */
const MIN_RANGE = 1e-6;

/**
 * Quantile by nearest rank: the smallest value that at least `share` of the values do not exceed.
 * @param sorted ascending; an empty array gives NaN
 */
export function quantile(sorted: Float64Array, share: number): number {
  const rank = Math.ceil(share * sorted.length);
  return sorted[Math.min(Math.max(rank - 1, 0), sorted.length - 1)] ?? Number.NaN;
}

/** @param candidate scores of the same rows as `baseline`, at least one */
export function computeDrift(candidate: Float64Array, baseline: Float64Array): Drift {
  const distance = candidate.map((score, row) => Math.abs(score - baseline[row]!)).sort();
  const rows = distance.length;
  return {
    rows,
    mean: distance.reduce((sum, value) => sum + value, 0) / rows,
    p50: quantile(distance, 0.5),
    p99: quantile(distance, 0.99),
    largest: distance[rows - 1] ?? Number.NaN,
    psi: computePsi(candidate, baseline),
  };
}

/**
 * Population stability index: Σ (c − b) ln(c / b) over the shares c and b of the columns in the
 * baseline's deciles. An empty bin counts as half a row, so that the index stays finite. The index
 * of equal columns is 0; a shift is visible from 0.1 and large from 0.25.
 */
export function computePsi(candidate: Float64Array, baseline: Float64Array): number {
  const sorted = baseline.slice().sort();
  const inner = Array.from({ length: DECILES - 1 }, (_, i) => quantile(sorted, (i + 1) / DECILES));
  const edges = [...new Set(inner)];
  const computeShares = (values: Float64Array): number[] => {
    const bins = new Array<number>(edges.length + 1).fill(0);
    for (const value of values) bins[findBin(edges, value)]! += 1;
    return bins.map((count) => Math.max(count, 0.5) / values.length);
  };
  const baselineShares = computeShares(baseline);
  return computeShares(candidate).reduce((sum, c, bin) => {
    const b = baselineShares[bin]!;
    return sum + (c - b) * Math.log(c / b);
  }, 0);
}

/** The first bin whose upper edge is not below the value. */
function findBin(edges: readonly number[], value: number): number {
  const bin = edges.findIndex((edge) => value <= edge);
  return bin < 0 ? edges.length : bin;
}

/**
 * @param columns not all empty
 * @param isCentred centres the range on 0, for differences
 */
export function computeHistogram(
  columns: readonly Float64Array[],
  bars: number,
  isCentred = false,
): Histogram {
  const [low, high] = computeRange(columns, isCentred);
  const counts = columns.map((column) => {
    const bins = new Array<number>(bars).fill(0);
    for (const value of column) {
      const bar = Math.floor(((value - low) / (high - low)) * bars);
      bins[Math.min(Math.max(bar, 0), bars - 1)]! += 1;
    }
    return bins;
  });
  return { low, high, counts };
}

/** From the smallest to the largest value, widened if they are equal. */
function computeRange(columns: readonly Float64Array[], isCentred: boolean): [number, number] {
  let low = Number.POSITIVE_INFINITY;
  let high = Number.NEGATIVE_INFINITY;
  for (const column of columns) {
    for (const value of column) {
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  if (isCentred) high = Math.max(Math.abs(low), Math.abs(high));
  if (isCentred) low = -high;
  return high - low > MIN_RANGE ? [low, high] : [low - MIN_RANGE, high + MIN_RANGE];
}
