/** A run against two endpoints: do they say the same, and which is faster? */
import { CubeError } from '../../lib/core/errors.ts';
import { paceOf } from './flags.ts';
import { compareEndpoints, differencesOf } from './load/comparison.ts';
import { runCharts, writeChart } from './reports/chart-file.ts';
import { comparisonText, makeComparison, verdictText } from './reports/comparison-report.ts';
import { makeReport } from './reports/report.ts';
import { EXIT_INTERRUPTED, type Session } from './session.ts';

/** @throws CubeError when scores differ by more than they may, or more requests failed than may */
export async function runComparison(session: Session): Promise<void> {
  const { flags, rows } = session;
  const other = flags.against!;
  const requests = [
    await session.requests(flags.batch, flags.concurrency),
    await session.requests(flags.batch, flags.concurrency, other),
  ] as const;
  const progress = session.progress('comparing');
  const pace = paceOf(flags);
  const { load, tallies } = await compareEndpoints({
    ...{ requests, rowCount: rows.count, pace, warmUpMs: session.warmUpMs },
    ...{ stop: session.stop, onRows: progress.update },
  }).finally(progress.stop);
  const { protocol, batch: batchRows, maxDiff, maxErrors } = flags;
  const [one, two] = [flags.endpoint, other].map((endpoint, side) =>
    makeReport(rows, { endpoint, protocol, batchRows, pace }, load, tallies[side as 0 | 1]),
  );
  const [first, second] = tallies.map(({ probabilities }) => probabilities);
  const report = makeComparison(one!, two!, differencesOf(first!, second!, maxDiff), maxDiff);
  const text = comparisonText(report);
  process.stdout.write(flags.json === true ? `${JSON.stringify(report)}\n` : text);
  if (flags.chart !== undefined) {
    const title = `ctr-client: ${flags.endpoint} against ${other}`;
    writeChart(flags.chart, { title, charts: runCharts([one!, two!]), text });
  }
  if (load.interrupted) process.exitCode = EXIT_INTERRUPTED;
  if (report.verdict !== 'equal') throw new CubeError('CONFLICT', verdictText(report));
  const failed = one!.failed + two!.failed;
  if (failed > maxErrors) throw new CubeError('UNAVAILABLE', `${failed} requests failed`);
}
