/** Quality of the scores by variant of each experiment, with 95 % confidence intervals. */
import {
  aucInterval,
  calibrationInterval,
  type GroupedScores,
  type Interval,
  loglossInterval,
} from '../../../lib/core/metric-intervals.ts';
import { auc, calibration, logloss } from '../../../lib/core/model-metrics.ts';
import { formatTable } from '../../../lib/platform/terminal-output.ts';
import type { PreparedRequest } from '../load/load-run.ts';
import type { ResponseRecorder } from '../load/response-recorder.ts';

/** A metric with its interval; `low` and `high` are null where it cannot be computed. */
export interface Estimate {
  readonly value: number;
  readonly low: number | null;
  readonly high: number | null;
}

export interface VariantReport {
  readonly experiment: string;
  readonly variant: string;
  readonly rows: number;
  readonly clicks: number;
  /** Different experiment keys; a request without a key counts as one. */
  readonly keys: number;
  /** Null if all labels are equal. */
  readonly auc: Estimate | null;
  readonly logloss: Estimate | null;
  /** Mean score divided by click rate; null without clicks. */
  readonly calibration: Estimate | null;
}

export interface VariantsReport {
  readonly variants: readonly VariantReport[];
  /** Answered rows that were not part of any experiment. */
  readonly rowsWithoutVariant: number;
}

/** Uses the last answer of each row. Sorted by experiment and variant. */
export function measureVariants(
  labels: Uint8Array,
  requests: readonly Pick<PreparedRequest, 'start' | 'end' | 'key'>[],
  { probabilities, rowVariants, variantSets }: ResponseRecorder,
): VariantsReport {
  const groups = groupByKey(requests, labels.length);
  const rowsOf = new Map<string, { experiment: string; variant: string; rows: number[] }>();
  let rowsWithoutVariant = 0;
  for (const [row, set] of rowVariants.entries()) {
    if (Number.isNaN(probabilities[row])) continue;
    const variants = Object.entries(variantSets[set] ?? {});
    if (variants.length === 0) rowsWithoutVariant++;
    for (const [experiment, variant] of variants) {
      const name = `${experiment}=${variant}`;
      const known = rowsOf.get(name);
      if (known === undefined) rowsOf.set(name, { experiment, variant, rows: [row] });
      else known.rows.push(row);
    }
  }
  const names = [...rowsOf.keys()].sort();
  const variants = names.flatMap((name) => {
    const found = rowsOf.get(name);
    if (found === undefined) return [];
    const { rows, ...names } = found;
    const data = {
      labels: Uint8Array.from(rows, (row) => labels[row]!),
      scores: Float64Array.from(rows, (row) => probabilities[row]!),
      groups: Uint32Array.from(rows, (row) => groups[row]!),
    };
    return [{ ...names, ...measure(data) }];
  });
  return { variants, rowsWithoutVariant };
}

function measure(data: GroupedScores): Omit<VariantReport, 'experiment' | 'variant'> {
  const { labels, scores, groups } = data;
  return {
    rows: labels.length,
    clicks: labels.reduce((sum, label) => sum + label, 0),
    keys: new Set(groups).size,
    auc: toEstimate(auc(labels, scores), aucInterval(data)),
    logloss: toEstimate(logloss(labels, scores), loglossInterval(data)),
    calibration: toEstimate(calibration(labels, scores), calibrationInterval(data)),
  };
}

function toEstimate(value: number, { low, high }: Interval): Estimate | null {
  if (!Number.isFinite(value)) return null;
  return Number.isNaN(low) ? { value, low: null, high: null } : { value, low, high };
}

/** Rows with the same key are a group; without a key, those of a request. */
function groupByKey(
  requests: readonly Pick<PreparedRequest, 'start' | 'end' | 'key'>[],
  rowCount: number,
): Uint32Array {
  const groups = new Uint32Array(rowCount);
  const groupOf = new Map<string, number>();
  requests.forEach(({ start, end, key }, request) => {
    const group = key === '' ? request : (groupOf.get(key) ?? request);
    if (key !== '') groupOf.set(key, group);
    groups.fill(group, start, end);
  });
  return groups;
}

export function formatVariants({ variants, rowsWithoutVariant }: VariantsReport): string {
  if (variants.length === 0) {
    return (
      'no answer named a variant: serving needs --traffic-file with an experiment on this model, ' +
      'and the variants must be loaded\n'
    );
  }
  const table = formatTable(
    ['experiment', 'variant', 'rows', 'keys', 'AUC, 95 %', 'logloss, 95 %', 'calibration, 95 %'],
    variants.map((each) => [
      each.experiment,
      each.variant,
      String(each.rows),
      String(each.keys),
      formatEstimate(each.auc),
      formatEstimate(each.logloss),
      formatEstimate(each.calibration),
    ]),
  );
  const rest =
    rowsWithoutVariant === 0 ? '' : `\n${rowsWithoutVariant} rows were not part of an experiment`;
  return `${table}${rest}\n`;
}

function formatEstimate(estimate: Estimate | null): string {
  if (estimate === null) return '–';
  const { value, low, high } = estimate;
  const interval = low === null || high === null ? '?' : `${low.toFixed(4)} to ${high.toFixed(4)}`;
  return `${value.toFixed(4)} (${interval})`;
}
