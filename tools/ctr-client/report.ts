/** What a run amounts to: figures for people (text) and for programs (JSON), and the predictions as CSV. */
import { auc, logloss } from '../../lib/core/model-metrics.ts';
import type { RowsFile } from './rows-file.ts';
import type { TrafficResult } from './traffic.ts';

const NO_LABELS = 'unknown: the rows have no label column';
const ONE_LABEL = 'unknown: all labels are equal';

export interface Report {
  readonly rows: number;
  readonly rowsPredicted: number;
  readonly requests: number;
  readonly seconds: number;
  readonly rowsPerSecond: number;
  readonly requestsPerSecond: number;
  readonly latencyMs: { readonly p50: number; readonly p95: number; readonly p99: number };
  /** Of the predicted rows; null without labels, or when all labels are equal. */
  readonly auc: number | null;
  readonly logloss: number | null;
  /** Requests by version. */
  readonly versions: Readonly<Record<string, number>>;
  readonly mixedVersions: number;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: number;
  readonly failures: Readonly<Record<string, { readonly count: number; readonly first: string }>>;
}

export function makeReport({ lines, labels }: RowsFile, result: TrafficResult): Report {
  const { probabilities, latenciesMs, durationMs } = result;
  const predicted = Uint32Array.from(probabilities.keys()).filter(
    (row) => !Number.isNaN(probabilities[row]),
  );
  const scores = Float64Array.from(predicted, (row) => probabilities[row]!);
  const truth = labels && Uint8Array.from(predicted, (row) => labels[row]!);
  const sorted = latenciesMs.slice().sort();
  const seconds = durationMs / 1_000;
  return {
    rows: lines.length,
    rowsPredicted: predicted.length,
    requests: latenciesMs.length,
    seconds,
    rowsPerSecond: predicted.length / seconds,
    requestsPerSecond: latenciesMs.length / seconds,
    latencyMs: {
      p50: percentile(sorted, 0.5),
      p95: percentile(sorted, 0.95),
      p99: percentile(sorted, 0.99),
    },
    auc: truth === undefined ? null : numberOrNull(auc(truth, scores)),
    logloss: truth === undefined ? null : numberOrNull(logloss(truth, scores)),
    versions: Object.fromEntries(result.requestsByVersion),
    mixedVersions: result.mixed,
    unseen: result.unseen,
    unavailable: result.unavailable,
    degraded: result.degraded,
    failures: Object.fromEntries(result.failures),
  };
}

/** The smallest value that at least `share` of all values do not exceed; 0 without values. */
export function percentile(sorted: Float64Array, share: number): number {
  return sorted[Math.max(Math.ceil(share * sorted.length) - 1, 0)] ?? 0;
}

function numberOrNull(value: number): number | null {
  return Number.isNaN(value) ? null : value;
}

export function reportText(report: Report): string {
  const { latencyMs } = report;
  const counts = Object.entries(report.versions).map(
    ([version, n]) => `${version} (${n} requests)`,
  );
  const lines = [
    [
      'rows',
      `${report.rowsPredicted} of ${report.rows} predicted in ${report.seconds.toFixed(2)} s`,
    ],
    [
      'throughput',
      `${Math.round(report.rowsPerSecond)} rows/s, ${Math.round(report.requestsPerSecond)} requests/s`,
    ],
    [
      'latency',
      `p50 ${latencyMs.p50.toFixed(2)} ms, p95 ${latencyMs.p95.toFixed(2)} ms, p99 ${latencyMs.p99.toFixed(2)} ms`,
    ],
    ['AUC', report.auc?.toFixed(6) ?? (report.logloss === null ? NO_LABELS : ONE_LABEL)],
    ['logloss', report.logloss?.toFixed(6) ?? NO_LABELS],
    ['versions', counts.join(', ') || 'none'],
    ['unseen', `${report.unseen} lookups`],
    ['unavailable', `${report.unavailable} lookups, ${report.degraded} degraded answers`],
  ];
  const failures = Object.entries(report.failures);
  const failed = failures.map(([code, { count, first }]) => `${count} × ${code} (${first})`);
  lines.push(['failed', failed.join('\n              ') || 'none']);
  if (report.mixedVersions > 0) {
    const what = 'answers whose graph and tables are of different versions';
    lines.push(['MIXED', `${report.mixedVersions} ${what}`]);
  }
  return lines.map(([name, text]) => `${`${name}`.padEnd(14)}${text}\n`).join('');
}

/** row,label,probability,version with rows from 1; the label is empty where the file has none. */
export function predictionsCsv({ labels }: RowsFile, result: TrafficResult): string {
  const { probabilities, versions } = result;
  const lines = ['row,label,probability,version\n'];
  for (let row = 0; row < probabilities.length; row++) {
    lines.push(`${row + 1},${labels?.[row] ?? ''},${probabilities[row]},${versions[row]}\n`);
  }
  return lines.join('');
}
