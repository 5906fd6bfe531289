/** A run for each batch size and concurrency, one after another. */
import { CubeError } from '../../lib/core/errors.ts';
import { paceOf } from './flags.ts';
import { runTraffic } from './load/traffic.ts';
import { matrixCharts, writeChart } from './reports/chart-file.ts';
import { matrixText } from './reports/matrix-report.ts';
import { makeReport, type Report } from './reports/report.ts';
import { EXIT_INTERRUPTED, type Session } from './session.ts';

/** @throws CubeError when more requests failed than may */
export async function runMatrix(session: Session): Promise<void> {
  const { flags } = session;
  const { batch: batches = [flags.batch], concurrency: lanes = [flags.concurrency] } =
    flags.matrix!;
  const cells: Report[] = [];
  for (const batchRows of batches) {
    for (const concurrency of lanes) {
      if (!session.stop.aborted) cells.push(await runCell(session, batchRows, concurrency));
    }
  }
  const text = matrixText(cells);
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

async function runCell(session: Session, batchRows: number, concurrency: number): Promise<Report> {
  const { flags, rows } = session;
  const requests = await session.requests(batchRows, concurrency);
  const progress = session.progress(`batch ${batchRows} × ${concurrency}`);
  const pace = { ...paceOf(flags), concurrency };
  const { load, tally } = await runTraffic({
    ...{ requests, rowCount: rows.count, pace, warmUpMs: session.warmUpMs },
    ...{ stop: session.stop, onRows: progress.update },
  }).finally(progress.stop);
  const { endpoint, protocol } = flags;
  return makeReport(rows, { endpoint, protocol, batchRows, pace }, load, tally);
}
