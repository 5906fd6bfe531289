/** The report of a comparison: score differences, latency ratios, verdict. */
import { formatTable } from '../../../lib/platform/terminal-output.ts';
import type { ScoreDifferences } from '../load/comparison.ts';
import { formatLatencyTable, type Report } from './report.ts';

export interface ComparisonReport {
  readonly verdict: 'equal' | 'different' | 'nothing compared';
  readonly maxDifference: number;
  readonly differences: ScoreDifferences;
  /** Latency of the endpoint divided by that of the other; null without responses. */
  readonly latencyRatio: { readonly p50: number | null; readonly p99: number | null };
  readonly endpoint: Report;
  readonly against: Report;
}

/** @param maxDifference largest allowed difference between the scores of a row */
export function makeComparison(
  endpoint: Report,
  against: Report,
  differences: ScoreDifferences,
  maxDifference: number,
): ComparisonReport {
  const ratio = (name: 'p50' | 'p99'): number | null => {
    const other = against.latencyMs[name];
    return other === 0 ? null : endpoint.latencyMs[name] / other;
  };
  const { rows, beyond } = differences;
  const verdict = rows === 0 ? 'nothing compared' : beyond === 0 ? 'equal' : 'different';
  return {
    verdict,
    maxDifference,
    differences,
    latencyRatio: { p50: ratio('p50'), p99: ratio('p99') },
    endpoint,
    against,
  };
}

export function formatComparison(report: ComparisonReport): string {
  const { endpoint, against, differences, latencyRatio } = report;
  const reports = [endpoint, against];
  const format = (value: number | null, digits: number): string => value?.toFixed(digits) ?? '–';
  const figures = formatTable(
    ['endpoint', 'version', 'requests', 'failed', 'AUC', 'logloss', 'calibration'],
    reports.map((each) => [
      each.endpoint,
      Object.keys(each.versions).join(', ') || '–',
      String(each.requests),
      String(each.failed),
      format(each.auc, 6),
      format(each.logloss, 6),
      format(each.calibration, 4),
    ]),
  );
  const latencies = formatLatencyTable(reports.map((each) => [each.endpoint, each.latencyMs]));
  const { max, maxRow, mean, p99, rows } = differences;
  const lines = [
    `scores        ${rows} rows compared: mean ${formatDifference(mean)}, ` +
      `p99 ${formatDifference(p99)}, ` +
      `max ${formatDifference(max)}${max === 0 ? '' : ` (row ${maxRow + 1})`}`,
    `latency       ${format(latencyRatio.p50, 2)} × at p50, ` +
      `${format(latencyRatio.p99, 2)} × at p99`,
    ...reports.flatMap((each) =>
      Object.entries(each.failures).map(
        ([code, { count, first }]) =>
          `failed        ${each.endpoint}: ${count} × ${code} (${first})`,
      ),
    ),
    ...(endpoint.interrupted ? ['note          interrupted: figures up to then'] : []),
    `verdict       ${formatVerdict(report)}`,
  ];
  return `${[figures, latencies, lines.join('\n')].join('\n\n')}\n`;
}

export function formatVerdict({ verdict, differences, maxDifference }: ComparisonReport): string {
  const { rows, beyond } = differences;
  if (verdict === 'nothing compared')
    return 'nothing compared: no row was answered by both endpoints';
  if (verdict === 'equal') return `equal: all ${rows} rows within ${maxDifference}`;
  return `different: ${beyond} of ${rows} rows differ by more than ${maxDifference}`;
}

function formatDifference(value: number): string {
  return value === 0 ? '0' : value.toExponential(2);
}
