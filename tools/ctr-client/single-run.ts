/** A run against one endpoint: the rows out, the report and the scores back. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Flags, paceOf } from './flags.ts';
import { runTraffic } from './load/traffic.ts';
import { runCharts, writeChart } from './reports/chart-file.ts';
import { makeReport, type Report, reportText } from './reports/report.ts';
import { writeScores } from './reports/scores-file.ts';
import { EXIT_INTERRUPTED, type Session } from './session.ts';

/** @throws CubeError when more requests failed than may, or an answer mixed versions */
export async function runOnce(session: Session): Promise<void> {
  const { flags, rows } = session;
  const requests = await session.requests(flags.batch, flags.concurrency);
  const progress = session.progress('predicting');
  const pace = paceOf(flags);
  const { load, tally } = await runTraffic({
    ...{ requests, rowCount: rows.count, pace, warmUpMs: session.warmUpMs },
    ...{ stop: session.stop, onRows: progress.update },
  }).finally(progress.stop);
  const { endpoint, protocol, batch: batchRows } = flags;
  const report = makeReport(rows, { endpoint, protocol, batchRows, pace }, load, tally);
  const text = reportText(report);
  process.stdout.write(flags.json === true ? `${JSON.stringify(report)}\n` : text);
  if (flags.chart !== undefined) {
    writeChart(flags.chart, {
      title: `ctr-client: ${endpoint}`,
      charts: runCharts([report]),
      text,
    });
  }
  if (report.interrupted) process.exitCode = EXIT_INTERRUPTED;
  checkAnswers(report, flags);
  if (flags.output === undefined) return;
  if (report.interrupted) process.stderr.write(`interrupted: ${flags.output} is not written\n`);
  else writeScores(flags.output, rows, tally);
}

/** @throws CubeError when too many answers are missing, or some are not whole */
function checkAnswers(
  { failed, failures, requests, mixedVersions }: Report,
  { maxErrors, output }: Flags,
): void {
  if (mixedVersions > 0) {
    throw new CubeError(
      'CONFLICT',
      `${mixedVersions} answers mixed versions of graph and tables: this must never happen`,
    );
  }
  if (failed <= maxErrors) return;
  const [code = 'INTERNAL', failure] = Object.entries(failures)[0] ?? [];
  const unwritten = output === undefined ? '' : `; ${output} is not written`;
  throw new CubeError(
    'UNAVAILABLE',
    `${failed} of ${requests} requests failed (${code}: ${failure?.first})${unwritten}`,
  );
}
