/** What a run amounts to: figures for programs (JSON) and for people (text). */
import { table } from '../../../lib/platform/text-table.ts';
import type { LatencySummary } from '../load/latency-histogram.ts';
import type { LoadResult, Pace } from '../load/load-generator.ts';
import type { Failures, Tally } from '../load/tally.ts';
import type { RowsFile } from '../rows/rows-file.ts';
import { type Quality, qualityOf } from './quality.ts';

/** What was asked of whom. */
export interface RunSettings {
  readonly endpoint: string;
  readonly protocol: string;
  readonly batchRows: number;
  readonly pace: Pace;
}

export interface Report {
  readonly endpoint: string;
  readonly protocol: string;
  readonly batch: number;
  readonly concurrency: number;
  /** Requests due a second; null in a closed loop. */
  readonly rps: number | null;
  /** Of the file. */
  readonly rows: number;
  /** Of those, how many have a score. */
  readonly rowsPredicted: number;
  /** Answered and failed, of all passes. */
  readonly requests: number;
  readonly failed: number;
  readonly seconds: number;
  readonly rowsPerSecond: number;
  readonly requestsPerSecond: number;
  readonly latencyMs: LatencySummary;
  /** Null without labels, as is what follows. */
  readonly auc: number | null;
  readonly logloss: number | null;
  readonly calibration: number | null;
  readonly calibrationBuckets: Quality['buckets'] | null;
  readonly versions: Readonly<Record<string, VersionReport>>;
  readonly mixedVersions: number;
  /** Null where the protocol does not say. */
  readonly unseen: number | null;
  readonly unavailable: number | null;
  readonly degraded: number | null;
  readonly failures: Readonly<Record<string, Failures>>;
  readonly interrupted: boolean;
  readonly generator: Omit<LoadResult, 'durationMs' | 'interrupted'>;
}

export interface VersionReport {
  readonly requests: number;
  readonly firstSeconds: number;
  readonly lastSeconds: number;
}

/** Above, the client's own work is part of what it measures. */
const BUSY_SHARE_MAX = 0.9;
/** Of the requests: fewer late ones do not change a p99. */
const LATE_SHARE_MAX = 0.005;

export function makeReport(
  { count, labels }: Pick<RowsFile, 'count' | 'labels'>,
  { endpoint, protocol, batchRows, pace }: RunSettings,
  { durationMs, interrupted, ...generator }: LoadResult,
  tally: Tally,
): Report {
  const seconds = durationMs / 1_000;
  const answered = tally.latencies.count;
  const quality = qualityOf(labels, tally.probabilities);
  const isTold = !tally.versions.has('');
  return {
    ...{ endpoint, protocol, batch: batchRows, concurrency: pace.concurrency },
    rps: pace.rps ?? null,
    rows: count,
    rowsPredicted: tally.probabilities.reduce((sum, p) => sum + (Number.isNaN(p) ? 0 : 1), 0),
    requests: answered + tally.failed,
    failed: tally.failed,
    seconds,
    rowsPerSecond: tally.rowsAnswered / seconds,
    requestsPerSecond: answered / seconds,
    latencyMs: tally.latencies.summary(),
    auc: quality?.auc ?? null,
    logloss: quality?.logloss ?? null,
    calibration: quality?.calibration ?? null,
    calibrationBuckets: quality?.buckets ?? null,
    versions: isTold ? versionsOf(tally) : {},
    mixedVersions: tally.mixed,
    unseen: isTold ? tally.unseen : null,
    unavailable: isTold ? tally.unavailable : null,
    degraded: isTold ? tally.degraded : null,
    failures: Object.fromEntries(tally.failures),
    interrupted,
    generator,
  };
}

function versionsOf({ versions }: Tally): Record<string, VersionReport> {
  const entries = [...versions].map(([version, { requests, firstMs, lastMs }]) => [
    version,
    { requests, firstSeconds: firstMs / 1_000, lastSeconds: lastMs / 1_000 },
  ]);
  return Object.fromEntries(entries);
}

/** The report as lines of a name and what there is to say. */
function reportLines(report: Report): [string, string][] {
  const lines: [string, string][] = [
    ['asked', describeRun(report)],
    [
      'rows',
      `${report.rowsPredicted} of ${report.rows} predicted in ${report.seconds.toFixed(2)} s`,
    ],
    [
      'throughput',
      `${Math.round(report.rowsPerSecond)} rows/s, ${Math.round(report.requestsPerSecond)} requests/s`,
    ],
    ['AUC', report.auc?.toFixed(6) ?? reasonForNoAuc(report)],
    ['logloss', report.logloss?.toFixed(6) ?? reasonForNoAuc(report)],
    ['calibration', calibrationText(report)],
    ['versions', versionsText(report)],
    ['unseen', report.unseen === null ? NOT_TOLD : `${report.unseen} lookups`],
    [
      'unavailable',
      report.unavailable === null
        ? NOT_TOLD
        : `${report.unavailable} lookups, ${report.degraded} degraded answers`,
    ],
    ['failed', failuresText(report)],
  ];
  if (report.mixedVersions > 0) {
    const what = 'answers whose graph and tables are of different versions';
    lines.push(['MIXED', `${report.mixedVersions} ${what}`]);
  }
  for (const warning of warningsOf(report)) lines.push(['note', warning]);
  return lines;
}

export function reportText(report: Report): string {
  const lines = reportLines(report).map(([name, text]) => `${name.padEnd(14)}${text}`);
  const parts = [lines.join('\n'), latencyTable([['', report.latencyMs]])];
  const { calibrationBuckets: buckets } = report;
  if (buckets !== null && buckets.length > 0) parts.push(table(BUCKET_HEAD, bucketRows(buckets)));
  return `${parts.join('\n\n')}\n`;
}

const NOT_TOLD = 'not told by this protocol';

function describeRun({ endpoint, protocol, batch, concurrency, rps }: Report): string {
  const pace =
    rps === null
      ? `${concurrency} in flight`
      : `${rps} requests/s whatever comes back, at most ${concurrency} in flight`;
  return `${endpoint} by ${protocol}, ${batch} rows a request, ${pace}`;
}

function reasonForNoAuc({ calibrationBuckets: buckets }: Report): string {
  if (buckets === null) return 'unknown: the rows have no label column';
  return buckets.length === 0 ? 'unknown: nothing was answered' : 'unknown: all labels are equal';
}

function calibrationText(report: Report): string {
  const { calibration } = report;
  if (calibration === null) return reasonForNoAuc(report);
  return `${calibration.toFixed(4)} (mean score / click rate)`;
}

/** In the order of their first answers: a switch in the middle shows in the seconds. */
function versionsText({ versions, unseen }: Report): string {
  const all = Object.entries(versions);
  if (all.length === 0) return unseen === null ? NOT_TOLD : 'none';
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

/** What one must know before believing the figures. */
export function warningsOf(report: Report): string[] {
  const { waited, unsent, late, busyShare } = report.generator;
  const warnings: string[] = [];
  if (report.interrupted) warnings.push('interrupted: these are the figures up to then');
  if (waited > 0) {
    warnings.push(
      `${waited} of ${report.requests} requests found all ${report.concurrency} lanes taken when they were due; ` +
        'the wait is in their latency',
    );
  }
  if (unsent > 0)
    warnings.push(`${unsent} more requests were due and not sent when the time was over`);
  if (late > LATE_SHARE_MAX * report.requests) {
    warnings.push(
      `the client itself could not keep up: it sent ${late} of ${report.requests} requests late; ask for fewer`,
    );
  }
  if (busyShare > BUSY_SHARE_MAX) {
    const share = `${Math.round(100 * busyShare)} %`;
    warnings.push(
      `the client was busy ${share} of the time: throughput and latency are also its own`,
    );
  }
  return warnings;
}

/** In ms. */
export function latencyTable(rows: readonly (readonly [string, LatencySummary])[]): string {
  return table(
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
