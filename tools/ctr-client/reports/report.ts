/** The report of a run, as JSON and as text. */
import { formatTable } from '../../../lib/platform/terminal-output.ts';
import type { LatencySummary } from '../load/latency-histogram.ts';
import type { LoadResult, LoadSchedule } from '../load/load-generator.ts';
import type { FailureCount, ResponseRecorder } from '../load/response-recorder.ts';
import type { RowsFile } from '../rows/rows-file.ts';
import { measureQuality, type Quality } from './quality.ts';

/** Where and how requests were sent. */
export interface RunSettings {
  readonly endpoint: string;
  readonly protocol: string;
  readonly batchRows: number;
  /** Of replayed requests. */
  readonly replaySpeed?: number | undefined;
  readonly schedule: LoadSchedule;
}

export interface Report {
  readonly endpoint: string;
  readonly protocol: string;
  /** Rows per request; null if the requests were replayed. */
  readonly batch: number | null;
  readonly concurrency: number;
  /** Requests due per second; null in a closed loop, and if the requests were replayed. */
  readonly rps: number | null;
  /** Times the recorded speed; null if the requests were not replayed. */
  readonly replaySpeed: number | null;
  /** Rows of the file. */
  readonly rows: number;
  /** Rows that have a score. */
  readonly rowsPredicted: number;
  /** Requests of all passes, answered and failed. */
  readonly requests: number;
  readonly failed: number;
  readonly seconds: number;
  readonly rowsPerSecond: number;
  readonly requestsPerSecond: number;
  readonly latencyMs: LatencySummary;
  /** Null without labels, as are the next three. */
  readonly auc: number | null;
  readonly logloss: number | null;
  readonly calibration: number | null;
  readonly calibrationBuckets: Quality['buckets'] | null;
  readonly versions: Readonly<Record<string, VersionReport>>;
  readonly mixedVersions: number;
  /** Null if the protocol does not report it, as is the next one. */
  readonly unseen: number | null;
  readonly unavailable: number | null;
  readonly degraded: number;
  readonly failures: Readonly<Record<string, FailureCount>>;
  readonly interrupted: boolean;
  readonly generator: Omit<LoadResult, 'durationMs' | 'interrupted'>;
}

export interface VersionReport {
  readonly requests: number;
  readonly firstSeconds: number;
  readonly lastSeconds: number;
}

/** Above this share the client's own work distorts the figures. */
const BUSY_SHARE_MAX = 0.9;
/** Share of late requests that does not change a p99. */
const LATE_SHARE_MAX = 0.005;

export function makeReport(
  { count, labels }: Pick<RowsFile, 'count' | 'labels'>,
  { endpoint, protocol, batchRows, replaySpeed, schedule }: RunSettings,
  { durationMs, interrupted, ...generator }: LoadResult,
  recorder: ResponseRecorder,
): Report {
  const seconds = durationMs / 1_000;
  const answered = recorder.latencies.count;
  const quality = measureQuality(labels, recorder.probabilities);
  const isReported = !recorder.versions.has('');
  return {
    endpoint,
    protocol,
    batch: replaySpeed === undefined ? batchRows : null,
    concurrency: schedule.concurrency,
    rps: schedule.rps ?? null,
    replaySpeed: replaySpeed ?? null,
    rows: count,
    rowsPredicted: recorder.probabilities.reduce((sum, p) => sum + (Number.isNaN(p) ? 0 : 1), 0),
    requests: answered + recorder.failedRequests,
    failed: recorder.failedRequests,
    seconds,
    rowsPerSecond: recorder.rowsAnswered / seconds,
    requestsPerSecond: answered / seconds,
    latencyMs: recorder.latencies.summary(),
    auc: quality?.auc ?? null,
    logloss: quality?.logloss ?? null,
    calibration: quality?.calibration ?? null,
    calibrationBuckets: quality?.buckets ?? null,
    versions: isReported ? summarizeVersions(recorder) : {},
    mixedVersions: recorder.mixedResponses,
    unseen: isReported ? recorder.unseen : null,
    unavailable: isReported ? recorder.unavailable : null,
    degraded: recorder.degradedResponses,
    failures: Object.fromEntries(recorder.failures),
    interrupted,
    generator,
  };
}

function summarizeVersions({ versions }: ResponseRecorder): Record<string, VersionReport> {
  const entries = [...versions].map(([version, { requests, firstMs, lastMs }]) => [
    version,
    { requests, firstSeconds: firstMs / 1_000, lastSeconds: lastMs / 1_000 },
  ]);
  return Object.fromEntries(entries);
}

/** The report as pairs of name and text. */
function reportLines(report: Report): [string, string][] {
  const lines: [string, string][] = [
    ['endpoint', describeRun(report)],
    [
      'rows',
      `${report.rowsPredicted} of ${report.rows} predicted in ${report.seconds.toFixed(2)} s`,
    ],
    [
      'throughput',
      `${Math.round(report.rowsPerSecond)} rows/s, ` +
        `${Math.round(report.requestsPerSecond)} requests/s`,
    ],
    ['AUC', report.auc?.toFixed(6) ?? reasonForNoAuc(report)],
    ['logloss', report.logloss?.toFixed(6) ?? reasonForNoAuc(report)],
    ['calibration', calibrationText(report)],
    ['versions', versionsText(report)],
    ['unseen', report.unseen === null ? NOT_REPORTED : `${report.unseen} lookups`],
    [
      'unavailable',
      `${report.unavailable === null ? NOT_REPORTED : `${report.unavailable} lookups`}, ` +
        `${report.degraded} degraded answers`,
    ],
    ['failed', failuresText(report)],
  ];
  if (report.mixedVersions > 0) {
    const what = 'responses came from different versions of graph and tables';
    lines.push(['MIXED', `${report.mixedVersions} ${what}`]);
  }
  for (const warning of listWarnings(report)) lines.push(['note', warning]);
  return lines;
}

export function formatReport(report: Report): string {
  const lines = reportLines(report).map(([name, text]) => `${name.padEnd(14)}${text}`);
  const parts = [lines.join('\n'), formatLatencyTable([['', report.latencyMs]])];
  const { calibrationBuckets: buckets } = report;
  if (buckets !== null && buckets.length > 0)
    parts.push(formatTable(BUCKET_HEAD, bucketRows(buckets)));
  return `${parts.join('\n\n')}\n`;
}

const NOT_REPORTED = 'not reported by this protocol';

function describeRun(report: Report): string {
  const { endpoint, protocol, batch, concurrency, rps, replaySpeed } = report;
  if (replaySpeed !== null) {
    const speed = `recorded requests at ${replaySpeed} × their speed (open loop)`;
    return `${endpoint}, protocol ${protocol}, ${speed}, at most ${concurrency} in flight`;
  }
  const schedule =
    rps === null
      ? `${concurrency} in flight`
      : `${rps} requests/s (open loop), at most ${concurrency} in flight`;
  return `${endpoint}, protocol ${protocol}, ${batch} rows per request, ${schedule}`;
}

function reasonForNoAuc({ calibrationBuckets: buckets }: Report): string {
  if (buckets === null) return 'unknown: the rows have no label column';
  return buckets.length === 0
    ? 'unknown: no request was answered'
    : 'unknown: all labels are equal';
}

function calibrationText(report: Report): string {
  const { calibration } = report;
  if (calibration === null) return reasonForNoAuc(report);
  return `${calibration.toFixed(4)} (mean score / click rate)`;
}

/** Versions in the order of their first responses; the seconds show a switch. */
function versionsText({ versions, unseen }: Report): string {
  const all = Object.entries(versions);
  if (all.length === 0) return unseen === null ? NOT_REPORTED : 'none';
  return all
    .map(([version, { requests, firstSeconds, lastSeconds }]) => {
      const when = `${firstSeconds.toFixed(1)} to ${lastSeconds.toFixed(1)} s`;
      return `${version} (${requests} requests${all.length > 1 ? `, ${when}` : ''})`;
    })
    .join(', then ');
}

function failuresText({ failures }: Report): string {
  const all = Object.entries(failures);
  const failed = all.map(([code, { count, first }]) => `${count} × ${code} (${first})`);
  return failed.join(`\n${' '.repeat(14)}`) || 'none';
}

/** Conditions that limit how far the figures can be trusted. */
export function listWarnings(report: Report): string[] {
  const { waited, unsent, late, lagMaxMs, busyShare } = report.generator;
  const warnings: string[] = [];
  if (report.interrupted) warnings.push('interrupted: figures up to then');
  if (waited > 0) {
    warnings.push(
      `${waited} of ${report.requests} requests were due while all ${report.concurrency} ` +
        `connections were busy, sent up to ${Math.round(lagMaxMs)} ms late; ` +
        'their latency includes the wait',
    );
  }
  if (unsent > 0) warnings.push(`${unsent} more requests were due but not sent before the end`);
  if (late > LATE_SHARE_MAX * report.requests) {
    warnings.push(
      `the client could not keep up: it sent ${late} of ${report.requests} requests late, by up ` +
        `to ${Math.round(lagMaxMs)} ms; raise --workers, or lower ` +
        (report.replaySpeed === null ? '--rps' : '--replay-speed'),
    );
  }
  if (busyShare > BUSY_SHARE_MAX) {
    const share = `${Math.round(100 * busyShare)} %`;
    warnings.push(
      `the client was busy ${share} of the time, which distorts throughput and latency`,
    );
  }
  return warnings;
}

/** A table of latencies in ms. */
export function formatLatencyTable(rows: readonly (readonly [string, LatencySummary])[]): string {
  return formatTable(
    ['latency, ms', ...LATENCY_HEAD],
    rows.map(([name, latency]) => [name, ...latencyCells(latency)]),
  );
}

const LATENCY_HEAD: readonly string[] = ['avg', 'p50', 'p80', 'p90', 'p99', 'p99.9', 'max'];

function latencyCells(latency: LatencySummary): string[] {
  const { avg, p50, p80, p90, p99, p999, max } = latency;
  return [avg, p50, p80, p90, p99, p999, max].map((ms) => ms.toFixed(2));
}

const BUCKET_HEAD: readonly string[] = ['scores', 'rows', 'mean score', 'click rate', 'ratio'];

function bucketRows(buckets: Quality['buckets']): string[][] {
  return buckets.map(({ rows, meanPrediction, clickRate }, i) => [
    `${i + 1}/${buckets.length}`,
    String(rows),
    meanPrediction.toFixed(4),
    clickRate.toFixed(4),
    clickRate === 0 ? '–' : (meanPrediction / clickRate).toFixed(3),
  ]);
}
