/** Two endpoints side by side: how far their scores are apart, how their latencies relate, and the verdict. */
import { table } from '../../../lib/platform/text-table.ts';
import type { Differences } from '../load/comparison.ts';
import { latencyTable, type Report } from './report.ts';

export interface ComparisonReport {
  readonly verdict: 'equal' | 'different' | 'nothing compared';
  readonly maxDifference: number;
  readonly differences: Differences;
  /** Of the endpoint to the other, of p50 and p99; null without answers. */
  readonly latencyRatio: { readonly p50: number | null; readonly p99: number | null };
  readonly endpoint: Report;
  readonly against: Report;
}

/** @param maxDifference what scores of a row may differ by */
export function makeComparison(
  endpoint: Report,
  against: Report,
  differences: Differences,
  maxDifference: number,
): ComparisonReport {
  const ratio = (name: 'p50' | 'p99'): number | null => {
    const other = against.latencyMs[name];
    return other === 0 ? null : endpoint.latencyMs[name] / other;
  };
  const { rows, beyond } = differences;
  const verdict = rows === 0 ? 'nothing compared' : beyond === 0 ? 'equal' : 'different';
  return {
    ...{ verdict, maxDifference, differences },
    latencyRatio: { p50: ratio('p50'), p99: ratio('p99') },
    ...{ endpoint, against },
  };
}

export function comparisonText(report: ComparisonReport): string {
  const { endpoint, against, differences, latencyRatio } = report;
  const sides = [endpoint, against];
  const shown = (value: number | null, digits: number): string => value?.toFixed(digits) ?? '–';
  const figures = table(
    ['endpoint', 'version', 'requests', 'failed', 'AUC', 'logloss', 'calibration'],
    sides.map((side) => [
      side.endpoint,
      Object.keys(side.versions).join(', ') || '–',
      String(side.requests),
      String(side.failed),
      shown(side.auc, 6),
      shown(side.logloss, 6),
      shown(side.calibration, 4),
    ]),
  );
  const latencies = latencyTable(sides.map((side) => [side.endpoint, side.latencyMs]));
  const { max, maxRow, mean, p99, rows } = differences;
  const lines = [
    `scores        ${rows} rows compared: mean ${shownSmall(mean)}, p99 ${shownSmall(p99)}, ` +
      `max ${shownSmall(max)}${max === 0 ? '' : ` (row ${maxRow + 1})`}`,
    `latency       ${shown(latencyRatio.p50, 2)} × at p50, ${shown(latencyRatio.p99, 2)} × at p99`,
    ...sides.flatMap((side) =>
      Object.entries(side.failures).map(
        ([code, { count, first }]) =>
          `failed        ${side.endpoint}: ${count} × ${code} (${first})`,
      ),
    ),
    ...(endpoint.interrupted
      ? ['note          interrupted: these are the figures up to then']
      : []),
    `verdict       ${verdictText(report)}`,
  ];
  return `${[figures, latencies, lines.join('\n')].join('\n\n')}\n`;
}

export function verdictText({ verdict, differences, maxDifference }: ComparisonReport): string {
  const { rows, beyond } = differences;
  if (verdict === 'nothing compared') return 'nothing compared: no row was answered by both';
  if (verdict === 'equal') return `equal: all ${rows} rows within ${maxDifference}`;
  return `different: ${beyond} of ${rows} rows by more than ${maxDifference}`;
}

function shownSmall(value: number): string {
  return value === 0 ? '0' : value.toExponential(2);
}
