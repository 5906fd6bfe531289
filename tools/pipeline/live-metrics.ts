/**
 * Reads the metrics of a running pipeline twice, and reports what happened between, as a tracer
 * does. Counters of several processes, which the label `worker` keeps apart, are added.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { type IntervalReport, type OpReport, type QueueReport, STAGES } from './tracer-log.ts';

const FETCH_TIMEOUT_MS = 10_000;
const TEXT_BYTES_MAX = 64 << 20;
const SAMPLE = /^(hypercube_pipeline_\w+)(?:\{(.*)\})? (\S+)$/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

/** Values by the name of the metric, the op and the stage. */
export type Samples = ReadonlyMap<string, number>;

/** @throws CubeError UNAVAILABLE, INVALID_ARGUMENT when the server has no pipeline */
export async function readLiveReport(url: string, intervalMs: number): Promise<IntervalReport[]> {
  const before = await fetchSamples(url);
  const startMs = systemClock.nowMs();
  await systemClock.sleep(intervalMs);
  const after = await fetchSamples(url);
  const seconds = (systemClock.nowMs() - startMs) / 1_000;
  // The first report has the queues only, to which those of the second are compared.
  return [toReport(before, before, seconds), toReport(before, after, seconds)];
}

async function fetchSamples(url: string): Promise<Samples> {
  const { href } = new URL('/metrics', url);
  let text: string;
  try {
    const response = await fetch(href, { signal: AbortSignal.timeout(FETCH_TIMEOUT_MS) });
    if (!response.ok) throw new Error(`HTTP ${response.status}`);
    text = await response.text();
  } catch (error) {
    const { message, cause } = error as Error;
    const reason = cause instanceof Error ? `${message}: ${cause.message}` : message;
    throw new CubeError('UNAVAILABLE', `cannot read ${href}: ${reason}`);
  }
  if (text.length > TEXT_BYTES_MAX) throw new CubeError('TOO_LARGE', `${href}: too large`);
  const samples = parseSamples(text);
  if (samples.size > 0) return samples;
  throw new CubeError('INVALID_ARGUMENT', `${href} has no metrics of a pipeline`);
}

/** @param text of Prometheus metrics */
function parseSamples(text: string): Samples {
  const samples = new Map<string, number>();
  for (const line of text.split('\n')) {
    const [, name, labels = '', value] = SAMPLE.exec(line) ?? [];
    if (name === undefined || !Number.isFinite(Number(value))) continue;
    const known = new Map([...labels.matchAll(LABEL)].map(([, key, label]) => [key, label]));
    const key = toKey(
      name.slice('hypercube_pipeline_'.length),
      known.get('op'),
      known.get('stage'),
    );
    samples.set(key, (samples.get(key) ?? 0) + Number(value));
  }
  return samples;
}

function toKey(name: string, op = '', stage = ''): string {
  return `${name} ${stage} ${op}`;
}

function toReport(before: Samples, after: Samples, seconds: number): IntervalReport {
  const state = (name: string, op = ''): number => after.get(toKey(name, op)) ?? 0;
  const change = (name: string, op = '', stage = ''): number => {
    const key = toKey(name, op, stage);
    // A process that was replaced starts from 0.
    return Math.max(0, (after.get(key) ?? 0) - (before.get(key) ?? 0));
  };
  const ops = new Map<string, OpReport>();
  const queues = new Map<string, QueueReport>();
  const prefix = toKey('op_concurrency', '');
  for (const key of after.keys()) {
    if (!key.startsWith(prefix)) continue;
    const op = key.slice(prefix.length);
    const count = change('op_requests_total', op);
    const stageMs = Object.fromEntries(
      STAGES.map((stage) => {
        const total = 1_000 * change('op_stage_seconds_total', op, stage);
        return [stage, count === 0 ? 0 : total / count];
      }),
    ) as OpReport['stageMs'];
    ops.set(op, { stageMs, idle: undefined, concurrency: state('op_concurrency', op) });
    queues.set(op, { length: state('queue_length', op), capacity: state('queue_capacity', op) });
  }
  const requests = change('requests_total');
  const failures = change('failures_total');
  const latencyMs = 1_000 * change('request_seconds_total');
  return {
    ops,
    queues,
    requests,
    qps: requests / seconds,
    success: requests === 0 ? 1 : 1 - failures / requests,
    latencyMs: requests === 0 ? 0 : latencyMs / requests,
  };
}
