/** The results of a replay as plain data: shown in the report and checked against limits. Pure. */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { auc, calibration, logloss } from '../../lib/core/model-metrics.ts';
import { type GoldenRow, NO_LABEL } from './golden-rows.ts';
import type { FailedLine, ReplayRecord, SlotLookups } from './replay-record.ts';
import {
  computeDrift,
  computeHistogram,
  type Drift,
  type Histogram,
  quantile,
} from './score-drift.ts';

/** Odd, so that a difference of zero has its own bar in the middle. */
const HISTOGRAM_BARS = 41;
const FAILED_LINES_MAX = 20;
const FURTHEST_ROWS_MAX = 10;

/** Model quality over the rows that have a label and were scored by all versions. */
export interface Quality {
  readonly rows: number;
  readonly clicks: number;
  /** NaN (null in JSON) where all labels are equal. */
  readonly auc: number;
  readonly logloss: number;
  readonly calibration: number;
}

export interface VersionFindings {
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

/** How far the candidate's scores are from those that the golden rows carry. */
export interface ExpectedFindings {
  readonly rows: number;
  readonly maxAbsDifference: number;
  /** Line of the row that is furthest from its expected score, and both scores. */
  readonly line: number;
  readonly score: number;
  readonly expectedScore: number;
}

export interface Findings {
  readonly candidate: VersionFindings;
  readonly baseline: VersionFindings | undefined;
  /** Over rows with an expected score; absent without such rows. */
  readonly expected?: ExpectedFindings;
  /** Over rows that both versions have scored. */
  readonly drift: Drift | undefined;
  readonly furthest: readonly FurthestRow[];
  /** Scores of the candidate, then of the baseline. */
  readonly scores: Histogram | undefined;
  /** Candidate score − baseline score. */
  readonly differences: Histogram | undefined;
}

export interface ReplayedVersion {
  readonly version: string;
  readonly record: ReplayRecord;
}

/** @throws CubeError INTERNAL when the baseline scored no row */
export function computeFindings(
  rows: readonly GoldenRow[],
  candidate: ReplayedVersion,
  baseline?: ReplayedVersion,
): Findings {
  const versions = baseline === undefined ? [candidate] : [candidate, baseline];
  const isScored = (i: number): boolean =>
    versions.every(({ record }) => !Number.isNaN(record.scores[i]!));
  const scored = [...rows.keys()].filter(isScored);
  requireBaselineScores(baseline);
  const labelled = scored.filter((i) => rows[i]!.label !== NO_LABEL);
  const labels = Uint8Array.from(labelled, (i) => rows[i]!.label);
  const columns = versions.map(({ record }) => selectRows(record.scores, scored));
  const toFindings = ({ version, record }: ReplayedVersion): VersionFindings =>
    computeVersionFindings(
      version,
      record,
      computeQuality(labels, selectRows(record.scores, labelled)),
    );
  const [candidateScores = new Float64Array(0), baselineScores] = columns;
  const isCompared = baselineScores !== undefined && scored.length > 0;
  const expected = compareExpected(rows, candidate.record.scores);
  return {
    ...(expected === undefined ? {} : { expected }),
    candidate: toFindings(candidate),
    baseline: baseline && toFindings(baseline),
    drift: isCompared ? computeDrift(candidateScores, baselineScores) : undefined,
    furthest: isCompared ? findFurthestRows(rows, scored, candidateScores, baselineScores) : [],
    scores: scored.length > 0 ? computeHistogram(columns, HISTOGRAM_BARS) : undefined,
    differences: isCompared
      ? computeHistogram(
          [candidateScores.map((score, i) => score - baselineScores[i]!)],
          HISTOGRAM_BARS,
          true,
        )
      : undefined,
  };
}

/** Rows that failed have no score; the check of errors reports them. */
function compareExpected(
  rows: readonly GoldenRow[],
  scores: Float64Array,
): ExpectedFindings | undefined {
  let count = 0;
  let worst: ExpectedFindings | undefined;
  for (const [i, { line, score: expectedScore }] of rows.entries()) {
    const score = scores[i] ?? Number.NaN;
    if (Number.isNaN(expectedScore) || Number.isNaN(score)) continue;
    count++;
    const maxAbsDifference = Math.abs(score - expectedScore);
    if (worst !== undefined && maxAbsDifference <= worst.maxAbsDifference) continue;
    worst = { rows: 0, maxAbsDifference, line, score, expectedScore };
  }
  return worst && { ...worst, rows: count };
}

function requireBaselineScores(baseline: ReplayedVersion | undefined): void {
  if (baseline === undefined || baseline.record.scores.some((score) => !Number.isNaN(score)))
    return;
  const reason = baseline.record.failedLines[0]?.message ?? 'unknown reason';
  throw new CubeError(
    'INTERNAL',
    `the baseline, version ${baseline.version}, scored no row to compare with: ${reason}`,
  );
}

function selectRows(values: Float64Array, rows: readonly number[]): Float64Array {
  return Float64Array.from(rows, (i) => values[i]!);
}

function computeQuality(labels: Uint8Array, scores: Float64Array): Quality | undefined {
  if (labels.length === 0) return undefined;
  return {
    rows: labels.length,
    clicks: labels.reduce((sum, label) => sum + label, 0),
    auc: auc(labels, scores),
    logloss: logloss(labels, scores),
    calibration: calibration(labels, scores),
  };
}

function computeVersionFindings(
  version: string,
  record: ReplayRecord,
  quality: Quality | undefined,
): VersionFindings {
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
    failedLines: record.failedLines.slice(0, FAILED_LINES_MAX),
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

function findFurthestRows(
  rows: readonly GoldenRow[],
  scored: readonly number[],
  candidate: Float64Array,
  baseline: Float64Array,
): FurthestRow[] {
  const distance = (i: number): number => Math.abs(candidate[i]! - baseline[i]!);
  return [...scored.keys()]
    .sort((a, b) => distance(b) - distance(a))
    .slice(0, FURTHEST_ROWS_MAX)
    .filter((i) => distance(i) > 0)
    .map((i) => {
      const { line } = rows[scored[i]!]!;
      return { line, candidate: candidate[i]!, baseline: baseline[i]! };
    });
}
