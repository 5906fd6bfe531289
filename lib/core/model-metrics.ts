/**
 * Quality metrics of a model's probabilities: AUC (does it rank clicks first?), logloss (are the
 * probabilities right?) and calibration (are they right on average?). Columns in, one number out;
 * no state is kept and no input is changed.
 *
 * Labels are 0 (no click) or 1 (click). Probabilities may be f32 or f64; sums use f64.
 */
import { CubeError } from './errors.ts';

type Scores = Float64Array | Float32Array;

/**
 * Probabilities are clipped to this distance from 0 and 1 before the logarithm, as scikit-learn's
 * log_loss does for f64.
 */
const PROBABILITY_MIN = 1e-15;

/**
 * Area under the ROC curve: the probability that a click scores higher than a non-click; a tie
 * counts half. Exact: it counts pairs (O(n log n)) and divides once. Works for any monotone score.
 * @param labels 0 or 1, [rows]
 * @param scores [rows]
 * @returns 0..1, or NaN when all labels are equal
 * @throws CubeError INVALID_ARGUMENT for unequal lengths, another label or a NaN score
 */
export function auc(labels: Uint8Array, scores: Scores): number {
  checkColumns(labels, scores);
  const clicks = countClicks(labels);
  const others = labels.length - clicks;
  if (clicks === 0 || others === 0) return Number.NaN;
  const clickScores = new Float64Array(clicks);
  const otherScores = new Float64Array(others);
  let click = 0;
  let other = 0;
  for (let row = 0; row < labels.length; row++) {
    if (labels[row] === 1) clickScores[click++] = scores[row]!;
    else otherScores[other++] = scores[row]!;
  }
  const halves = countHalfPairs(clickScores.sort(), otherScores.sort());
  return halves / 2 / (clicks * others);
}

/**
 * Mean negative log-likelihood (natural logarithm) of the labels. Probabilities are clipped to
 * [1e-15, 1 − 1e-15], so that one certain mistake costs 34.5 instead of infinity.
 * @param labels 0 or 1, [rows]
 * @param probabilities of label 1, [rows]
 * @returns ≥ 0, or NaN without rows
 * @throws CubeError INVALID_ARGUMENT for unequal lengths, another label or a NaN probability
 */
export function logloss(labels: Uint8Array, probabilities: Scores): number {
  checkColumns(labels, probabilities);
  let sum = 0;
  for (let row = 0; row < labels.length; row++) {
    const clipped = Math.min(Math.max(probabilities[row]!, PROBABILITY_MIN), 1 - PROBABILITY_MIN);
    sum -= labels[row] === 1 ? Math.log(clipped) : Math.log1p(-clipped);
  }
  return sum / labels.length;
}

/**
 * Mean predicted probability divided by the mean label: 1 is calibrated, 1.1 predicts 10% too many
 * clicks.
 * @param labels 0 or 1, [rows]
 * @param probabilities of label 1, [rows]
 * @returns the ratio; Infinity without clicks, NaN without rows
 * @throws CubeError INVALID_ARGUMENT for unequal lengths, another label or a NaN probability
 */
export function calibration(labels: Uint8Array, probabilities: Scores): number {
  checkColumns(labels, probabilities);
  let predicted = 0;
  for (let row = 0; row < labels.length; row++) predicted += probabilities[row]!;
  return predicted / countClicks(labels);
}

/** Rows of similar scores: mean prediction and observed click rate. */
export interface CalibrationBucket {
  readonly rows: number;
  readonly meanPrediction: number;
  /** Share of the rows that were clicked. */
  readonly clickRate: number;
}

/**
 * Splits the rows, in the order of their scores, into buckets of equal size (the first ones have
 * one row more where the number does not divide).
 * @param labels 0 or 1, [rows]
 * @param probabilities of label 1, [rows]
 * @param bucketMax maximum number of buckets; fewer when there are fewer rows
 * @throws CubeError INVALID_ARGUMENT for unequal lengths, another label or a NaN probability
 */
export function calibrationBuckets(
  labels: Uint8Array,
  probabilities: Scores,
  bucketMax: number,
): CalibrationBucket[] {
  checkColumns(labels, probabilities);
  const order = Uint32Array.from(labels.keys()).sort(
    (a, b) => probabilities[a]! - probabilities[b]!,
  );
  const bucketNum = Math.min(bucketMax, order.length);
  const buckets: CalibrationBucket[] = [];
  for (let bucket = 0, at = 0; bucket < bucketNum; bucket++) {
    const end = at + Math.ceil((order.length - at) / (bucketNum - bucket));
    const rows = end - at;
    let predicted = 0;
    let clicks = 0;
    for (; at < end; at++) {
      predicted += probabilities[order[at]!]!;
      clicks += labels[order[at]!]!;
    }
    buckets.push({ rows, meanPrediction: predicted / rows, clickRate: clicks / rows });
  }
  return buckets;
}

/**
 * Twice the number of pairs in which the click scores higher, plus the number of ties. Both columns
 * ascend. Integers below 2^53.
 */
function countHalfPairs(clickScores: Float64Array, otherScores: Float64Array): number {
  let halves = 0;
  let below = 0;
  let notAbove = 0;
  for (const score of clickScores) {
    while (below < otherScores.length && otherScores[below]! < score) below++;
    while (notAbove < otherScores.length && otherScores[notAbove]! <= score) notAbove++;
    halves += below + notAbove;
  }
  return halves;
}

function countClicks(labels: Uint8Array): number {
  let clicks = 0;
  for (const label of labels) clicks += label;
  return clicks;
}

function checkColumns(labels: Uint8Array, scores: Scores): void {
  if (labels.length !== scores.length) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `model metrics: ${labels.length} labels but ${scores.length} scores`,
    );
  }
  for (let row = 0; row < labels.length; row++) {
    if (labels[row]! > 1) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `model metrics: row ${row}: the label is ${labels[row]}, expected 0 or 1`,
      );
    }
    if (Number.isNaN(scores[row])) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `model metrics: row ${row}: the score is not a number`,
      );
    }
  }
}
