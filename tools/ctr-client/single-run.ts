/** A run against one endpoint: sends the rows, prints the report, writes the scores. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Flags, toLoadSchedule } from './flags.ts';
import { type PreparedRequest, runLoad } from './load/load-run.ts';
import type { ResponseRecorder } from './load/response-recorder.ts';
import { runCharts, writeChart } from './reports/chart-file.ts';
import { formatReport, makeReport, type Report } from './reports/report.ts';
import { writeScores } from './reports/scores-file.ts';
import { TraceFile } from './reports/trace-file.ts';
import { formatVariants, measureVariants } from './reports/variant-report.ts';
import { EXIT_INTERRUPTED, type Session } from './session.ts';

interface Measured {
  readonly report: Report;
  readonly recorder: ResponseRecorder;
  readonly requests: readonly Omit<PreparedRequest, 'send'>[];
}

/** Sends the rows with this batch size and concurrency, and shows the progress under `title`. */
export async function measure(
  session: Session,
  title: string,
  batchRows: number,
  concurrency: number,
  trace?: TraceFile,
): Promise<Measured> {
  const { flags, rows, workers } = session;
  const schedule = { ...toLoadSchedule(flags), concurrency };
  const replaySpeed = flags.replay === undefined ? undefined : (flags.replaySpeed ?? 1);
  const { endpoint, protocol } = flags;
  const settings = { endpoint, protocol, batchRows, replaySpeed, schedule };
  if (workers !== undefined) {
    const shown = session.startProgress(title);
    const { load, recorder, requests } = await workers
      .run(batchRows, concurrency, shown.update)
      .finally(shown.stop);
    return { report: makeReport(rows, settings, load, recorder), recorder, requests };
  }
  const requests = await session.prepareRequests(batchRows, concurrency);
  const progress = session.startProgress(title);
  const { load, recorder } = await runLoad({
    requests,
    rowCount: rows.count,
    schedule,
    warmUpMs: session.warmUpMs,
    stop: session.stop,
    onRows: progress.update,
    onProfile: trace && ((request) => trace.add(request)),
  }).finally(progress.stop);
  return { report: makeReport(rows, settings, load, recorder), recorder, requests };
}

/** @throws CubeError when more requests failed than --max-errors, or a response mixed versions */
export async function runOnce(session: Session): Promise<void> {
  const { flags, rows } = session;
  const { batch, concurrency } = flags;
  const trace = flags.profile === undefined ? undefined : new TraceFile(flags.profile);
  const { report, recorder, requests } = await measure(
    session,
    'predicting',
    batch,
    concurrency,
    trace,
  );
  const byVariant =
    flags.byVariant === true && rows.labels !== undefined
      ? measureVariants(rows.labels, requests, recorder)
      : undefined;
  const variantsText = byVariant === undefined ? '' : `\n${formatVariants(byVariant)}`;
  const text = `${formatReport(report)}${variantsText}`;
  const json = { ...report, ...(byVariant !== undefined && { byVariant }) };
  process.stdout.write(flags.json === true ? `${JSON.stringify(json)}\n` : text);
  if (flags.chart !== undefined) {
    writeChart(flags.chart, {
      title: `ctr-client: ${flags.endpoint}`,
      charts: runCharts([report]),
      text,
    });
  }
  if (trace !== undefined) writeTrace(trace, flags);
  if (report.interrupted) process.exitCode = EXIT_INTERRUPTED;
  checkAnswers(report, flags);
  if (flags.output === undefined) return;
  if (report.interrupted) process.stderr.write(`interrupted: ${flags.output} was not written\n`);
  else writeScores(flags.output, rows, recorder);
}

function writeTrace(trace: TraceFile, { profile, endpoint }: Flags): void {
  const count = trace.write();
  const text =
    count === 0
      ? `${profile} is empty: ${endpoint} sent no profiles`
      : `${profile} has ${count} requests; open it at https://ui.perfetto.dev`;
  process.stderr.write(`${text}\n`);
}

/** @throws CubeError when too many requests failed, or a response mixed versions */
function checkAnswers(
  { failed, failures, requests, mixedVersions }: Report,
  { maxErrors, output }: Flags,
): void {
  if (mixedVersions > 0) {
    throw new CubeError(
      'CONFLICT',
      `${mixedVersions} responses came from different versions of graph and tables; report a bug`,
    );
  }
  if (failed <= maxErrors) return;
  const [code = 'INTERNAL', failure] = Object.entries(failures)[0] ?? [];
  const unwritten = output === undefined ? '' : `; ${output} was not written`;
  throw new CubeError(
    'UNAVAILABLE',
    `${failed} of ${requests} requests failed (${code}: ${failure?.first})${unwritten}`,
  );
}
