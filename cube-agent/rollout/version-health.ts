/**
 * The health of a version in live traffic: the metrics of all serving processes for it and for the
 * previous version, checked against limits. The processes count from the load of a version, so a
 * controller that has just started sees the same numbers.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { HealthFailure } from './rollout-view.ts';

export interface HealthLimits {
  /** Minimum number of requests; with fewer the version is not judged. */
  readonly requestsMin: number;
  /** Maximum share of failed requests. */
  readonly errorRateMax: number;
  /** Maximum share of lookups that no replica answered. */
  readonly unavailableMax: number;
  /** Maximum rise of the share of unseen keys over the previous version. */
  readonly unseenRiseMax: number;
  /** Maximum relative difference of the mean score from the previous version. */
  readonly scoreDriftMax: number;
  /** Maximum 99th percentile of latency, measured in powers of two. */
  readonly p99MsMax: number;
}

/** The measurements of a version that the limits apply to. */
export interface HealthReadings {
  readonly requests: number;
  readonly errorRate: number;
  /** The larger share: of unavailable lookups, or of requests that no replica answered. */
  readonly unavailable: number;
  readonly p99Ms: number;
  /** Undefined while the previous version has too few requests to compare with. */
  readonly unseenRise: number | undefined;
  readonly scoreDrift: number | undefined;
}

export interface VersionCounts {
  requests: number;
  failures: number;
  /** Failures with code UNAVAILABLE. */
  unanswered: number;
  scoredRows: number;
  scoreSum: number;
  lookups: number;
  unseen: number;
  unavailable: number;
  /** Number of requests by upper bound of their latency in milliseconds. */
  readonly durations: Map<number, number>;
}

const RESPONSE_BYTES_MAX = 16 << 20;
const TIMEOUT_MS = 5_000;
const SERIES = /^hypercube_engine_([a-z_]+)\{([^}]*)\} (\S+)$/;
const LABEL = /([a-z]+)="((?:[^"\\]|\\.)*)"/g;

const FIELDS: Readonly<Record<string, Exclude<keyof VersionCounts, 'durations'>>> = {
  requests_total: 'requests',
  failures_total: 'failures',
  scored_rows_total: 'scoredRows',
  scores_total: 'scoreSum',
  lookups_total: 'lookups',
  lookups_unseen_total: 'unseen',
  lookups_unavailable_total: 'unavailable',
};

export function emptyCounts(): VersionCounts {
  return {
    requests: 0,
    failures: 0,
    unanswered: 0,
    scoredRows: 0,
    scoreSum: 0,
    lookups: 0,
    unseen: 0,
    unavailable: 0,
    durations: new Map(),
  };
}

/**
 * Adds the metrics of one process, in the text format of Prometheus.
 * @param counts by version; missing versions are added
 */
export function addMetrics(text: string, model: string, counts: Map<string, VersionCounts>): void {
  for (const line of text.split('\n')) {
    const [, name = '', labelText = '', value = ''] = SERIES.exec(line) ?? [];
    const field = FIELDS[name];
    if (field === undefined && name !== 'requests_by_duration_total') continue;
    const labels = new Map([...labelText.matchAll(LABEL)].map(([, key, text]) => [key, text]));
    const version = labels.get('version');
    const number = Number(value);
    if (labels.get('model') !== model || version === undefined || !Number.isFinite(number))
      continue;
    const entry = counts.get(version) ?? emptyCounts();
    counts.set(version, entry);
    if (field === 'failures' && labels.get('code') === 'UNAVAILABLE') entry.unanswered += number;
    if (field !== undefined) entry[field] += number;
    else {
      const millis = Number(labels.get('millis'));
      entry.durations.set(millis, (entry.durations.get(millis) ?? 0) + number);
    }
  }
}

/** @returns undefined before the first request of the version */
export function readHealth(
  counts: VersionCounts | undefined,
  before: VersionCounts | undefined,
  limits: HealthLimits,
): HealthReadings | undefined {
  if (counts === undefined) return undefined;
  const requests = counts.requests + counts.failures;
  const comparison = compareVersions(counts, before, limits);
  return {
    requests,
    errorRate: share(counts.failures, requests),
    unavailable: Math.max(
      share(counts.unavailable, counts.lookups),
      share(counts.unanswered, requests),
    ),
    p99Ms: percentile(counts.durations, 0.99),
    unseenRise: comparison?.unseenRise,
    scoreDrift: comparison?.scoreDrift,
  };
}

/** @returns undefined while the previous version has too few requests to compare with */
function compareVersions(
  counts: VersionCounts,
  before: VersionCounts | undefined,
  limits: HealthLimits,
): { unseenRise: number; scoreDrift: number; mean: number; meanBefore: number } | undefined {
  if (before === undefined || before.requests < limits.requestsMin) return undefined;
  const mean = share(counts.scoreSum, counts.scoredRows);
  const meanBefore = share(before.scoreSum, before.scoredRows);
  return {
    unseenRise: share(counts.unseen, counts.lookups) - share(before.unseen, before.lookups),
    scoreDrift: meanBefore === 0 ? 0 : Math.abs(mean / meanBefore - 1),
    mean,
    meanBefore,
  };
}

/**
 * Checks a version against the limits. Pure. Unanswered lookups are a fault of the fleet: without
 * servers requests fail and slow down whatever the version.
 * @returns undefined when the version is healthy or has too few requests
 */
export function checkHealth(
  counts: VersionCounts | undefined,
  before: VersionCounts | undefined,
  limits: HealthLimits,
): HealthFailure | undefined {
  if (counts === undefined) return undefined;
  const all = counts.requests + counts.failures;
  if (all < limits.requestsMin) return undefined;
  const unavailable = [
    ...describeExcess(
      'of the lookups are unavailable',
      share(counts.unavailable, counts.lookups),
      limits.unavailableMax,
    ),
    ...describeExcess(
      'of the requests are unanswered',
      counts.unanswered / all,
      limits.unavailableMax,
    ),
  ];
  const found = [
    ...unavailable,
    ...describeExcess('of the requests fail', counts.failures / all, limits.errorRateMax),
  ];
  const p99Ms = percentile(counts.durations, 0.99);
  if (p99Ms > limits.p99MsMax) found.push(`p99 is ${p99Ms} ms (limit ${limits.p99MsMax})`);
  const comparison = compareVersions(counts, before, limits);
  if (comparison !== undefined) {
    const { unseenRise, scoreDrift, mean, meanBefore } = comparison;
    found.push(...describeExcess('more of the keys are unseen', unseenRise, limits.unseenRiseMax));
    const text = `between mean scores ${round(mean)} and ${round(meanBefore)}`;
    found.push(...describeExcess(text, scoreDrift, limits.scoreDriftMax));
  }
  if (found.length === 0) return undefined;
  const fault = unavailable.length > 0 ? 'fleet' : 'version';
  return { fault, reason: `${found.join('; ')}, over ${all} requests` };
}

/**
 * Collects the counts of all serving processes. A process that does not answer is logged and
 * skipped.
 */
export async function collectCounts(
  endpoints: readonly string[],
  model: string,
  logger: Logger,
): Promise<Map<string, VersionCounts>> {
  const counts = new Map<string, VersionCounts>();
  await Promise.all(
    endpoints.map(async (address) => {
      try {
        addMetrics(await fetchMetrics(address), model, counts);
      } catch (error) {
        logger.warn({ address, error: CubeError.from(error).message }, 'cannot read metrics');
      }
    }),
  );
  return counts;
}

async function fetchMetrics(address: string): Promise<string> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(`http://${address}/metrics`, { redirect: 'error', signal });
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response.body ?? []) {
    bytes += piece.length;
    if (bytes > RESPONSE_BYTES_MAX) {
      throw new CubeError('TOO_LARGE', `${address} answers more than ${RESPONSE_BYTES_MAX} bytes`);
    }
    pieces.push(piece);
  }
  if (response.ok) return Buffer.concat(pieces).toString();
  throw new CubeError('UNAVAILABLE', `${address}/metrics: HTTP status ${response.status}`);
}

function describeExcess(what: string, value: number, max: number): string[] {
  return value > max ? [`${round(100 * value)} % ${what} (limit ${round(100 * max)} %)`] : [];
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}

function round(value: number): number {
  return Number(value.toPrecision(3));
}

/** @param durations number of requests by upper bound in milliseconds */
function percentile(durations: ReadonlyMap<number, number>, q: number): number {
  const steps = [...durations].sort(([a], [b]) => a - b);
  const all = steps.reduce((sum, [, requests]) => sum + requests, 0);
  let seen = 0;
  for (const [millis, requests] of steps) {
    seen += requests;
    if (seen >= q * all) return millis;
  }
  return 0;
}
