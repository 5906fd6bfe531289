/** A run for each batch size and concurrency, as a table. */
import { table } from '../../../lib/platform/text-table.ts';
import { type Report, warningsOf } from './report.ts';

const HEAD = [
  'batch',
  'concurrency',
  'rows/s',
  'requests/s',
  'avg ms',
  'p50 ms',
  'p99 ms',
  'p99.9 ms',
  'failed',
];

export function matrixText(cells: readonly Report[]): string {
  const rows = cells.map(({ latencyMs, ...cell }) => [
    String(cell.batch),
    String(cell.concurrency),
    String(Math.round(cell.rowsPerSecond)),
    String(Math.round(cell.requestsPerSecond)),
    ...[latencyMs.avg, latencyMs.p50, latencyMs.p99, latencyMs.p999].map((ms) => ms.toFixed(2)),
    String(cell.failed),
  ]);
  const notes = cells.flatMap((cell) => {
    const place = `batch ${cell.batch} × ${cell.concurrency}`;
    const failures = Object.entries(cell.failures).map(
      ([code, { count, first }]) => `${count} × ${code} (${first})`,
    );
    return [...failures, ...warningsOf(cell)].map((text) => `${place}: ${text}`);
  });
  return `${[table(HEAD, rows), ...(notes.length > 0 ? [notes.join('\n')] : [])].join('\n\n')}\n`;
}
