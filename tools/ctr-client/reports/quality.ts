/** Quality of the scores, for rows with labels. */
import {
  auc,
  type CalibrationBucket,
  calibration,
  calibrationBuckets,
  logloss,
} from '../../../lib/core/model-metrics.ts';

export interface Quality {
  /** Null if all labels are equal. */
  readonly auc: number | null;
  readonly logloss: number | null;
  /** Mean score divided by click rate; null without clicks. */
  readonly calibration: number | null;
  /** Buckets by score with equal numbers of rows. */
  readonly buckets: readonly CalibrationBucket[];
}

const BUCKETS = 10;

/** Measures the rows that have a score. @returns undefined without labels */
export function measureQuality(
  labels: Uint8Array | undefined,
  probabilities: Float64Array,
): Quality | undefined {
  if (labels === undefined) return undefined;
  const scored = Uint32Array.from(probabilities.keys()).filter(
    (row) => !Number.isNaN(probabilities[row]),
  );
  const scores = Float64Array.from(scored, (row) => probabilities[row]!);
  const truth = Uint8Array.from(scored, (row) => labels[row]!);
  return {
    auc: finiteOrNull(auc(truth, scores)),
    logloss: finiteOrNull(logloss(truth, scores)),
    calibration: finiteOrNull(calibration(truth, scores)),
    buckets: calibrationBuckets(truth, scores, BUCKETS),
  };
}

function finiteOrNull(value: number): number | null {
  return Number.isFinite(value) ? value : null;
}
