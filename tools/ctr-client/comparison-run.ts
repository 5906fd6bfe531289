/** A run against two endpoints: compares their scores and latencies. */
import { CubeError } from '../../lib/core/errors.ts';
import { toLoadSchedule } from './flags.ts';
import { compareEndpoints, computeDifferences } from './load/comparison.ts';
import type { ResponseRecorder } from './load/response-recorder.ts';
import { runCharts, writeChart } from './reports/chart-file.ts';
import { formatComparison, formatVerdict, makeComparison } from './reports/comparison-report.ts';
import { makeReport, type Report } from './reports/report.ts';
import { EXIT_INTERRUPTED, type Session } from './session.ts';

/**
 * @param other address of the second endpoint
 * @throws CubeError when scores differ by more than --max-diff, or more requests failed than
 *   --max-errors
 */
export async function runComparison(session: Session, other: string): Promise<void> {
  const { flags, rows } = session;
  const requests = [
    await session.prepareRequests(flags.batch, flags.concurrency),
    await session.prepareRequests(flags.batch, flags.concurrency, other),
  ] as const;
  const progress = session.startProgress('comparing');
  const schedule = toLoadSchedule(flags);
  const { load, recorders } = await compareEndpoints({
    requests,
    rowCount: rows.count,
    schedule,
    warmUpMs: session.warmUpMs,
    stop: session.stop,
    onRows: progress.update,
  }).finally(progress.stop);
  const { protocol, batch: batchRows, maxDiff, maxErrors } = flags;
  const reportEndpoint = (endpoint: string, recorder: ResponseRecorder): Report =>
    makeReport(rows, { endpoint, protocol, batchRows, schedule }, load, recorder);
  const [first, second] = recorders;
  const one = reportEndpoint(flags.endpoint, first);
  const two = reportEndpoint(other, second);
  const differences = computeDifferences(first.probabilities, second.probabilities, maxDiff);
  const report = makeComparison(one, two, differences, maxDiff);
  const text = formatComparison(report);
  process.stdout.write(flags.json === true ? `${JSON.stringify(report)}\n` : text);
  if (flags.chart !== undefined) {
    const title = `ctr-client: ${flags.endpoint} against ${other}`;
    writeChart(flags.chart, { title, charts: runCharts([one, two]), text });
  }
  if (load.interrupted) process.exitCode = EXIT_INTERRUPTED;
  if (report.verdict !== 'equal') throw new CubeError('CONFLICT', formatVerdict(report));
  const failed = one.failed + two.failed;
  if (failed > maxErrors) throw new CubeError('UNAVAILABLE', `${failed} requests failed`);
}
