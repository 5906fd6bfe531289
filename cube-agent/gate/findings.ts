/** What a replay found out, as plain data: what the report shows and what limits are held against. Pure. */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { auc, calibration, logloss } from '../../lib/core/model-metrics.ts';
import { type GoldenRow, NO_LABEL } from './golden-rows.ts';
import { type Drift, driftOf, type Histogram, histogramOf, quantile } from './score-drift.ts';
import type { FailedLine, SideRecord, SlotLookups } from './side-record.ts';

/** Odd, so that differences of nothing have a bar of their own in the middle. */
const BARS = 41;
const FAILED_LINES_SHOWN = 20;
const FURTHEST_ROWS_SHOWN = 10;

/** Of the rows that have a label and a score of every side. */
export interface Quality {
  readonly rows: number;
  readonly clicks: number;
  /** NaN (null in JSON) where all labels are equal. */
  readonly auc: number;
  readonly logloss: number;
  readonly calibration: number;
}

export interface SideFindings {
  readonly version: string;
  readonly rowsSent: number;
  readonly rowsFailed: number;
  readonly failures: Readonly<Partial<Record<ErrorCode, number>>>;
  readonly failedLines: readonly FailedLine[];
  readonly lookups: number;
  readonly unseen: number;
  readonly unavailable: number;
  readonly slots: readonly Readonly<SlotLookups>[];
  readonly scoreMean: number;
  readonly latency: { readonly requests: number; readonly p50Ms: number; readonly p99Ms: number };
  readonly quality: Quality | undefined;
}

export interface FurthestRow {
  readonly line: number;
  readonly candidate: number;
  readonly baseline: number;
}

export interface Findings {
  readonly candidate: SideFindings;
  readonly baseline: SideFindings | undefined;
  /** Of rows that both have scored. */
  readonly drift: Drift | undefined;
  readonly furthest: readonly FurthestRow[];
  /** Of the candidate's scores, then the baseline's. */
  readonly scores: Histogram | undefined;
  /** Of candidate − baseline. */
  readonly differences: Histogram | undefined;
}

export interface ReplayedSide {
  readonly version: string;
  readonly record: SideRecord;
}

/** @throws CubeError INTERNAL when the baseline answered nothing: there is nothing to compare with */
export function findingsOf(
  rows: readonly GoldenRow[],
  candidate: ReplayedSide,
  baseline?: ReplayedSide,
): Findings {
  const sides = baseline === undefined ? [candidate] : [candidate, baseline];
  const isScored = (i: number): boolean =>
    sides.every(({ record }) => !Number.isNaN(record.scores[i]!));
  const scored = [...rows.keys()].filter(isScored);
  requireAnswers(baseline);
  const labelled = scored.filter((i) => rows[i]!.label !== NO_LABEL);
  const labels = Uint8Array.from(labelled, (i) => rows[i]!.label);
  const columns = sides.map(({ record }) => pick(record.scores, scored));
  const side = ({ version, record }: ReplayedSide): SideFindings =>
    sideFindings(version, record, qualityOf(labels, pick(record.scores, labelled)));
  const [ours, theirs] = columns;
  const isCompared = theirs !== undefined && scored.length > 0;
  return {
    candidate: side(candidate),
    baseline: baseline && side(baseline),
    drift: isCompared ? driftOf(ours!, theirs) : undefined,
    furthest: isCompared ? furthestRows(rows, scored, ours!, theirs) : [],
    scores: scored.length > 0 ? histogramOf(columns, BARS) : undefined,
    differences: isCompared
      ? histogramOf([ours!.map((score, i) => score - theirs[i]!)], BARS, true)
      : undefined,
  };
}

function requireAnswers(baseline: ReplayedSide | undefined): void {
  if (baseline === undefined || baseline.record.scores.some((score) => !Number.isNaN(score)))
    return;
  const why = baseline.record.failedLines[0]?.message ?? 'no reason was given';
  throw new CubeError(
    'INTERNAL',
    `the baseline, version ${baseline.version}, answered no row: there is nothing to compare with (${why})`,
  );
}

function pick(values: Float64Array, places: readonly number[]): Float64Array {
  return Float64Array.from(places, (i) => values[i]!);
}

function qualityOf(labels: Uint8Array, scores: Float64Array): Quality | undefined {
  if (labels.length === 0) return undefined;
  return {
    rows: labels.length,
    clicks: labels.reduce((sum, label) => sum + label, 0),
    auc: auc(labels, scores),
    logloss: logloss(labels, scores),
    calibration: calibration(labels, scores),
  };
}

function sideFindings(
  version: string,
  record: SideRecord,
  quality: Quality | undefined,
): SideFindings {
  const slots = [...record.slots.values()];
  const sum = (of: (slot: SlotLookups) => number): number =>
    slots.reduce((total, slot) => total + of(slot), 0);
  const latencies = Float64Array.from(record.latencies).sort();
  const scores = record.scores.filter((score) => !Number.isNaN(score));
  return {
    version,
    rowsSent: record.rowsSent,
    rowsFailed: [...record.failedRows.values()].reduce((total, rows) => total + rows, 0),
    failures: Object.fromEntries(record.failedRows),
    failedLines: record.failedLines.slice(0, FAILED_LINES_SHOWN),
    lookups: sum(({ hit, unseen, unavailable }) => hit + unseen + unavailable),
    unseen: sum(({ unseen }) => unseen),
    unavailable: sum(({ unavailable }) => unavailable),
    slots,
    scoreMean: scores.reduce((total, score) => total + score, 0) / scores.length,
    latency: {
      requests: latencies.length,
      p50Ms: quantile(latencies, 0.5),
      p99Ms: quantile(latencies, 0.99),
    },
    quality,
  };
}

function furthestRows(
  rows: readonly GoldenRow[],
  scored: readonly number[],
  candidate: Float64Array,
  baseline: Float64Array,
): FurthestRow[] {
  const distance = (i: number): number => Math.abs(candidate[i]! - baseline[i]!);
  return [...scored.keys()]
    .sort((a, b) => distance(b) - distance(a))
    .slice(0, FURTHEST_ROWS_SHOWN)
    .filter((i) => distance(i) > 0)
    .map((i) => {
      const { line } = rows[scored[i]!]!;
      return { line, candidate: candidate[i]!, baseline: baseline[i]! };
    });
}
