/**
 * 95 % confidence intervals of model metrics. Rows of one group (one experiment key) may depend on
 * each other; groups are taken as independent. AUC: DeLong's method, in the form for groups
 * (Obuchowski 1997). Logloss and calibration: the delta method with the variance between groups.
 * All are normal approximations: with few clicks or few groups they are too narrow.
 */
import { auc, calibration, logloss } from './model-metrics.ts';

export interface Interval {
  readonly low: number;
  readonly high: number;
}

/** Rows as columns of equal length. */
export interface GroupedScores {
  /** 0 or 1. */
  readonly labels: Uint8Array;
  readonly scores: Float64Array;
  /** Number of each row's group. */
  readonly groups: Uint32Array;
}

/** The 0.975 quantile of the normal distribution. */
const NORMAL_QUANTILE = 1.959963984540054;
const PROBABILITY_MIN = 1e-15;

/** @returns within 0..1; NaN with fewer than two groups with clicks, or without clicks */
export function aucInterval({ labels, scores, groups }: GroupedScores): Interval {
  const value = auc(labels, scores);
  const [others, clicks] = [0, 1].map((label) =>
    scores.filter((_, row) => labels[row] === label).sort(),
  ) as [Float64Array, Float64Array];
  const clickSums = new GroupSums();
  const otherSums = new GroupSums();
  for (let row = 0; row < labels.length; row++) {
    const score = scores[row]!;
    const group = groups[row]!;
    if (labels[row] === 1) {
      clickSums.add(group, (rankShare(others, score) - value) / clicks.length);
    } else {
      otherSums.add(group, (1 - rankShare(clicks, score) - value) / others.length);
    }
  }
  const variance =
    clickSums.variance() + otherSums.variance() + 2 * clickSums.covariance(otherSums);
  return toInterval(value, variance, 1);
}

/** @returns at least 0; NaN with fewer than two groups */
export function loglossInterval({ labels, scores, groups }: GroupedScores): Interval {
  const value = logloss(labels, scores);
  const sums = new GroupSums();
  for (let row = 0; row < labels.length; row++) {
    const score = Math.min(Math.max(scores[row]!, PROBABILITY_MIN), 1 - PROBABILITY_MIN);
    const loss = labels[row] === 1 ? -Math.log(score) : -Math.log1p(-score);
    sums.add(groups[row]!, (loss - value) / labels.length);
  }
  return toInterval(value, sums.variance());
}

/**
 * Of mean score divided by click rate. @returns at least 0; NaN without clicks, or with fewer than
 * two groups
 */
export function calibrationInterval({ labels, scores, groups }: GroupedScores): Interval {
  const value = calibration(labels, scores);
  const clicks = labels.reduce((sum, label) => sum + label, 0);
  const sums = new GroupSums();
  for (let row = 0; row < labels.length; row++) {
    sums.add(groups[row]!, (scores[row]! - value * labels[row]!) / clicks);
  }
  return toInterval(value, sums.variance());
}

/** Sums of a value's derivatives by group. */
class GroupSums {
  readonly #sums = new Map<number, number>();

  add(group: number, value: number): void {
    this.#sums.set(group, (this.#sums.get(group) ?? 0) + value);
  }

  /** @returns that of the sum of all groups; NaN with fewer than two */
  variance(): number {
    let squares = 0;
    for (const sum of this.#sums.values()) squares += sum * sum;
    return (squares * this.#sums.size) / (this.#sums.size - 1);
  }

  covariance(other: GroupSums): number {
    const groups = new Set([...this.#sums.keys(), ...other.#sums.keys()]).size;
    let products = 0;
    for (const [group, sum] of this.#sums) products += sum * (other.#sums.get(group) ?? 0);
    return (products * groups) / (groups - 1);
  }
}

/** Share of the values below `score`; ties count half. @param sorted ascending */
function rankShare(sorted: Float64Array, score: number): number {
  const below = findFirst(sorted, (value) => value >= score);
  const notAbove = findFirst(sorted, (value) => value > score);
  return (below + notAbove) / 2 / sorted.length;
}

/** Index of the first value that fits; all later ones fit too. */
function findFirst(sorted: Float64Array, fits: (value: number) => boolean): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (fits(sorted[middle]!)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function toInterval(value: number, variance: number, max = Number.POSITIVE_INFINITY): Interval {
  if (!Number.isFinite(value) || !Number.isFinite(variance)) {
    return { low: Number.NaN, high: Number.NaN };
  }
  // Rounding, and groups with opposite deviations, can give a value just below 0.
  const half = NORMAL_QUANTILE * Math.sqrt(Math.max(variance, 0));
  return { low: Math.max(value - half, 0), high: Math.min(value + half, max) };
}
