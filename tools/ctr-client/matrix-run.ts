/** One run for each pair of batch size and concurrency. */
import { CubeError } from '../../lib/core/errors.ts';
import { formatTable } from '../../lib/platform/terminal-output.ts';
import type { Matrix } from './flags.ts';
import { matrixCharts, writeChart } from './reports/chart-file.ts';
import { listWarnings, type Report } from './reports/report.ts';
import { EXIT_INTERRUPTED, type Session } from './session.ts';
import { measure } from './single-run.ts';

const HEAD = [
  'batch',
  'concurrency',
  'rows/s',
  'requests/s',
  'avg ms',
  'p50 ms',
  'p80 ms',
  'p90 ms',
  'p99 ms',
  'p99.9 ms',
  'failed',
];
const LATENCIES = ['avg', 'p50', 'p80', 'p90', 'p99', 'p999'] as const;

/** @throws CubeError when more requests failed than --max-errors */
export async function runMatrix(session: Session, matrix: Matrix): Promise<void> {
  const { flags } = session;
  const { batch: batches = [flags.batch], concurrency: concurrencies = [flags.concurrency] } =
    matrix;
  const cells: Report[] = [];
  for (const batchRows of batches) {
    for (const concurrency of concurrencies) {
      if (!session.stop.aborted) {
        const title = `batch ${batchRows} × ${concurrency}`;
        cells.push((await measure(session, title, batchRows, concurrency)).report);
      }
    }
  }
  const text = formatMatrix(cells);
  process.stdout.write(flags.json === true ? `${JSON.stringify({ cells })}\n` : text);
  if (flags.chart !== undefined && cells.length > 0) {
    const title = `ctr-client: ${flags.endpoint} by ${flags.protocol}`;
    writeChart(flags.chart, { title, charts: matrixCharts(cells), text });
  }
  if (session.stop.aborted) process.exitCode = EXIT_INTERRUPTED;
  const failed = cells.reduce((sum, cell) => sum + cell.failed, 0);
  if (failed <= flags.maxErrors) return;
  const requests = cells.reduce((sum, cell) => sum + cell.requests, 0);
  throw new CubeError('UNAVAILABLE', `${failed} of ${requests} requests failed`);
}

function formatMatrix(cells: readonly Report[]): string {
  const rows = cells.map(({ latencyMs, ...cell }) => [
    String(cell.batch),
    String(cell.concurrency),
    String(Math.round(cell.rowsPerSecond)),
    String(Math.round(cell.requestsPerSecond)),
    ...LATENCIES.map((name) => latencyMs[name].toFixed(2)),
    String(cell.failed),
  ]);
  const notes = cells.flatMap((cell) => {
    const run = `batch ${cell.batch} × ${cell.concurrency}`;
    const failures = Object.entries(cell.failures).map(
      ([code, { count, first }]) => `${count} × ${code} (${first})`,
    );
    return [...failures, ...listWarnings(cell)].map((text) => `${run}: ${text}`);
  });
  const sections = [formatTable(HEAD, rows), notes.join('\n')].filter((text) => text !== '');
  return `${sections.join('\n\n')}\n`;
}
