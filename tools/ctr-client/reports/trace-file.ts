/**
 * Writes the profiles of requests as a Chrome trace (chrome://tracing, ui.perfetto.dev): requests
 * as the client sees them, their steps in serving, and the calls to shards. Times are in
 * microseconds.
 */
import type { ProfileStep, RequestProfile } from '../../../lib/core/request-profile.ts';
import { replaceFile } from '../../../lib/platform/files.ts';
import type { TracedRequest } from '../load/load-run.ts';

/** Later requests are not in the trace. */
const TRACED_REQUESTS_MAX = 10_000;

interface TraceEvent {
  readonly name: string;
  /** X: a complete event; b, e: begin and end of one that may overlap others; M: a name. */
  readonly ph: 'X' | 'b' | 'e' | 'M';
  readonly ts?: number;
  readonly dur?: number;
  readonly pid: number;
  readonly tid?: number;
  readonly cat?: string;
  readonly id?: number;
  readonly args?: object;
}

const CLIENT = 1;
const SERVING = 2;
const SHARDS = 3;
const PROCESSES: readonly (readonly [number, string])[] = [
  [CLIENT, 'client'],
  [SERVING, 'serving'],
  [SHARDS, 'shards'],
];
/** Two reports of one call differ by their rounding. */
const SAME_MICROS = 2;

export class TraceFile {
  readonly #path: string;
  readonly #requests: TracedRequest[] = [];

  constructor(path: string) {
    this.#path = path;
  }

  add(request: TracedRequest): void {
    if (this.#requests.length < TRACED_REQUESTS_MAX) this.#requests.push(request);
  }

  /** @returns the number of requests in the trace */
  write(): number {
    const lines = toTraceEvents(this.#requests).map((event) => JSON.stringify(event));
    const text = `{"displayTimeUnit":"ms","traceEvents":[\n${lines.join(',\n')}\n]}\n`;
    replaceFile(this.#path, Buffer.from(text));
    return this.#requests.length;
  }
}

export function toTraceEvents(requests: readonly TracedRequest[]): TraceEvent[] {
  const sorted = requests.toSorted((a, b) => a.sentMs - b.sentMs);
  const originMs = sorted[0]?.sentMs ?? 0;
  const events: TraceEvent[] = [];
  const calls: PlacedStep[] = [];
  const laneEnds: number[] = [];
  for (const request of sorted) {
    const lane = takeLane(laneEnds, request);
    const at = (ms: number): number => Math.round(1_000 * (ms - originMs));
    const { sentMs, endMs, rows, version, profile } = request;
    const args = { rows, version };
    const times = { ts: at(sentMs), dur: at(endMs) - at(sentMs) };
    events.push({ name: 'request', ph: 'X', ...times, pid: CLIENT, tid: lane, args });
    const start = at(alignStartMs(request));
    events.push(...toServingEvents(profile, start, lane));
    for (const step of profile.steps) {
      if (step.name === 'shard') calls.push({ step, ts: start + step.atUs });
    }
  }
  return [...PROCESSES.map(nameProcess), ...nameLanes(laneEnds.length), ...events, ...place(calls)];
}

/** The first lane that is free when the request is sent: requests of one lane do not overlap. */
function takeLane(laneEnds: number[], { sentMs, endMs }: TracedRequest): number {
  const free = laneEnds.findIndex((laneEndMs) => laneEndMs <= sentMs);
  const lane = free === -1 ? laneEnds.length : free;
  laneEnds[lane] = endMs;
  return lane + 1;
}

/** The clock of another machine differs: there, the middle of the call is the best guess. */
function alignStartMs({ sentMs, endMs, profile }: TracedRequest): number {
  const durationMs = profile.totalUs / 1_000;
  const isInside = profile.startMs >= sentMs && profile.startMs + durationMs <= endMs;
  return isInside ? profile.startMs : sentMs + Math.max(0, endMs - sentMs - durationMs) / 2;
}

function toServingEvents(
  { steps, stages, totalUs }: RequestProfile,
  start: number,
  lane: number,
): TraceEvent[] {
  const event = (name: string, atUs: number, dur: number, args?: object): TraceEvent => ({
    name,
    ph: 'X',
    ts: start + atUs,
    dur,
    pid: SERVING,
    tid: lane,
    ...(args !== undefined && { args }),
  });
  const events = [event('request', 0, totalUs, stages)];
  let batchEnd = 0;
  for (const step of steps) {
    const { name, atUs, us, ...attributes } = step;
    if (name === 'shard') continue;
    // Batches of a large request may overlap; slices of a lane must not.
    const isOverlapping = name === 'batch' && atUs < batchEnd;
    if (isOverlapping) continue;
    events.push(event(name, atUs, us, attributes));
    if (name === 'batch') batchEnd = atUs + us;
  }
  const batches = steps.filter(({ name }) => name === 'batch');
  const [batch] = batches;
  if (batch === undefined || batches.length > 1) return events;
  const { lookupUs, inferUs, outputUs } = stages;
  const end = batch.atUs + batch.us;
  // Their order is known, and their durations; what lies between is the way to the worker.
  const inferStart = Math.max(batch.atUs, end - outputUs - inferUs);
  const lookupDur = Math.min(lookupUs, inferStart - batch.atUs);
  if (lookupDur > 0) events.push(event('lookup', batch.atUs, lookupDur));
  events.push(event('infer', inferStart, Math.min(inferUs, end - inferStart)));
  return events;
}

interface PlacedStep {
  readonly step: ProfileStep;
  readonly ts: number;
}

/** The requests of a batch share its calls to shards: each call is drawn once. */
function place(calls: readonly PlacedStep[]): TraceEvent[] {
  const sorted = calls.toSorted(
    (a, b) => Number(a.step['shard']) - Number(b.step['shard']) || a.ts - b.ts,
  );
  const events: TraceEvent[] = [];
  let last: PlacedStep | undefined;
  for (const [id, call] of sorted.entries()) {
    const { step, ts } = call;
    const isSame =
      last !== undefined &&
      last.step['shard'] === step['shard'] &&
      ts - last.ts <= SAME_MICROS &&
      Math.abs(step.us - last.step.us) <= SAME_MICROS;
    if (isSame) continue;
    last = call;
    const { name, atUs, us, ...args } = step;
    const common = { name: `shard ${step['shard']}`, cat: name, id, pid: SHARDS };
    events.push({ ...common, ph: 'b', ts, args }, { ...common, ph: 'e', ts: ts + us });
  }
  return events;
}

function nameProcess([pid, name]: readonly [number, string]): TraceEvent {
  return { name: 'process_name', ph: 'M', pid, args: { name } };
}

function nameLanes(count: number): TraceEvent[] {
  return Array.from({ length: count }, (_, i) =>
    [CLIENT, SERVING].map((pid): TraceEvent => {
      return { name: 'thread_name', ph: 'M', pid, tid: i + 1, args: { name: `request ${i + 1}` } };
    }),
  ).flat();
}
