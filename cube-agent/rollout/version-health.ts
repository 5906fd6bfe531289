/**
 * How a version does in live traffic: what serving processes count for it and for the version before it, over all of them, held to
 * limits. The counts are the processes' own since they loaded a version, so a controller that was just started knows as much.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Sickness } from './rollout-view.ts';

export interface HealthLimits {
  /** Requests below which nothing is judged. */
  readonly requestsMin: number;
  /** Share of the requests that fail. */
  readonly errorRateMax: number;
  /** Share of lookups that no replica answered. */
  readonly unavailableMax: number;
  /** By how much the share of unseen keys may be above that of the version before. */
  readonly unseenRiseMax: number;
  /** By which share of itself the mean score may differ from that of the version before. */
  readonly scoreDriftMax: number;
  /** 99th percentile, in steps of powers of two. */
  readonly p99MsMax: number;
}

export interface VersionCounts {
  requests: number;
  failures: number;
  /** Of the failures those for which nobody answered. */
  unanswered: number;
  scoredRows: number;
  scoreSum: number;
  lookups: number;
  unseen: number;
  unavailable: number;
  /** Requests by the milliseconds that they took at most. */
  readonly durations: Map<number, number>;
}

const ANSWER_BYTES_MAX = 16 << 20;
const TIMEOUT_MS = 5_000;
const SERIES = /^hypercube_engine_([a-z_]+)\{([^}]*)\} (\S+)$/;
const LABEL = /([a-z]+)="((?:[^"\\]|\\.)*)"/g;

const FIELDS: Readonly<Record<string, Exclude<keyof VersionCounts, 'durations'>>> = {
  requests_total: 'requests',
  failures_total: 'failures',
  scored_rows_total: 'scoredRows',
  score_sum: 'scoreSum',
  lookups_total: 'lookups',
  lookups_unseen_total: 'unseen',
  lookups_unavailable_total: 'unavailable',
};

export function noCounts(): VersionCounts {
  return {
    ...{ requests: 0, failures: 0, unanswered: 0, scoredRows: 0, scoreSum: 0 },
    ...{ lookups: 0, unseen: 0, unavailable: 0, durations: new Map() },
  };
}

/** Adds what one process says, in the text format of Prometheus. @param counts by version; others of the model are added */
export function addCounts(text: string, model: string, counts: Map<string, VersionCounts>): void {
  for (const line of text.split('\n')) {
    const [, name = '', labelText = '', value = ''] = SERIES.exec(line) ?? [];
    const field = FIELDS[name];
    if (field === undefined && name !== 'requests_by_duration_total') continue;
    const labels = new Map([...labelText.matchAll(LABEL)].map(([, key, text]) => [key, text]));
    const version = labels.get('version');
    const number = Number(value);
    if (labels.get('model') !== model || version === undefined || !Number.isFinite(number))
      continue;
    const entry = counts.get(version) ?? noCounts();
    counts.set(version, entry);
    if (field === 'failures' && labels.get('code') === 'UNAVAILABLE') entry.unanswered += number;
    if (field !== undefined) entry[field] += number;
    else {
      const millis = Number(labels.get('millis'));
      entry.durations.set(millis, (entry.durations.get(millis) ?? 0) + number);
    }
  }
}

/**
 * What is wrong; undefined while nothing is, or too little is known. Where lookups go unanswered servers are away, which fails requests
 * and slows them down whatever the version. Pure.
 */
export function sicknessOf(
  counts: VersionCounts | undefined,
  before: VersionCounts | undefined,
  limits: HealthLimits,
): Sickness | undefined {
  if (counts === undefined) return undefined;
  const all = counts.requests + counts.failures;
  if (all < limits.requestsMin) return undefined;
  const away = [
    ...over(
      'of the lookups have no answer',
      share(counts.unavailable, counts.lookups),
      limits.unavailableMax,
    ),
    ...over('of the requests find nobody', counts.unanswered / all, limits.unavailableMax),
  ];
  const found = [
    ...away,
    ...over('of the requests fail', counts.failures / all, limits.errorRateMax),
  ];
  const p99Ms = percentile(counts.durations, 0.99);
  if (p99Ms > limits.p99MsMax) found.push(`p99 is ${p99Ms} ms (limit ${limits.p99MsMax})`);
  if (before !== undefined && before.requests >= limits.requestsMin) {
    const rise = share(counts.unseen, counts.lookups) - share(before.unseen, before.lookups);
    found.push(...over('more of the keys are unseen', rise, limits.unseenRiseMax));
    const mean = share(counts.scoreSum, counts.scoredRows);
    const meanBefore = share(before.scoreSum, before.scoredRows);
    const drift = meanBefore === 0 ? 0 : Math.abs(mean / meanBefore - 1);
    found.push(
      ...over(
        `between mean scores ${round(mean)} and ${round(meanBefore)}`,
        drift,
        limits.scoreDriftMax,
      ),
    );
  }
  if (found.length === 0) return undefined;
  const fault = away.length > 0 ? 'fleet' : 'version';
  return { fault, why: `${found.join('; ')}, over ${all} requests` };
}

/** Asks every serving process; those that do not answer are left out, which is logged. */
export async function liveCounts(
  endpoints: readonly string[],
  model: string,
  logger: Logger,
): Promise<Map<string, VersionCounts>> {
  const counts = new Map<string, VersionCounts>();
  await Promise.all(
    endpoints.map(async (address) => {
      try {
        addCounts(await metricsOf(address), model, counts);
      } catch (error) {
        logger.warn({ address, error: CubeError.from(error).message }, 'no metrics');
      }
    }),
  );
  return counts;
}

async function metricsOf(address: string): Promise<string> {
  const signal = AbortSignal.timeout(TIMEOUT_MS);
  const response = await fetch(`http://${address}/metrics`, { redirect: 'error', signal });
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const piece of response.body ?? []) {
    bytes += piece.length;
    if (bytes > ANSWER_BYTES_MAX) {
      throw new CubeError('TOO_LARGE', `${address} answers more than ${ANSWER_BYTES_MAX} bytes`);
    }
    pieces.push(piece);
  }
  if (response.ok) return Buffer.concat(pieces).toString();
  throw new CubeError('UNAVAILABLE', `${address}/metrics: HTTP status ${response.status}`);
}

function over(what: string, value: number, max: number): string[] {
  return value > max ? [`${round(100 * value)} % ${what} (limit ${round(100 * max)} %)`] : [];
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}

function round(value: number): number {
  return Number(value.toPrecision(3));
}

/** @param durations requests by the most that they took */
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
