/** Profiles of requests: over every protocol, in shared batches, limited, and as a trace file. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { CtrClient } from '../../lib/client/index.ts';
import { parseProfile, type RequestProfile } from '../../lib/core/request-profile.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { ProfileRecorder } from '../../lib/platform/profile-recorder.ts';
import { startBatchSpan } from '../../serving/engine/batch-span.ts';
import type { Batch, QueuedRequest } from '../../serving/engine/queued-request.ts';
import { toTraceEvents } from '../../tools/ctr-client/reports/trace-file.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { ctrClient } from '../tools/ctr-client/client-process.ts';
import { startInProcess, startRemote } from './support/in-process-serving.ts';
import { multiply } from './support/plain-models.ts';
import { BUNDLE, toTsv, toyRows } from './support/toy-bundle.ts';

const ROWS = toyRows(40);
const STAGES = { queueUs: 0, lookupUs: 0, inferUs: 0, outputUs: 0 };

interface Call {
  readonly query?: string;
  readonly headers?: Record<string, string>;
}

function predict(address: string, { query = '', headers = {} }: Call): Promise<Response> {
  return fetch(`http://${address}/v1/ctr:predict${query}`, {
    method: 'POST',
    headers: { 'content-type': 'text/tab-separated-values', ...headers },
    body: toTsv(ROWS),
  });
}

/** Checks what a profile says about a request that was looked up on two shards. */
function checkProfile(profile: RequestProfile | undefined): void {
  assert.ok(profile !== undefined);
  const { steps, stages, totalUs, startMs } = profile;
  assert.ok(Math.abs(startMs - Date.now()) < 600_000);
  assert.ok(stages.lookupUs > 0 && stages.inferUs > 0);
  const find = (name: string) => steps.filter((step) => step.name === name);
  for (const name of ['parse', 'queue', 'batch', 'format'])
    assert.equal(find(name).length, 1, name);
  assert.equal(find('batch')[0]?.['rows'], ROWS.length);
  const shards = find('shard');
  assert.deepEqual(shards.map((call) => call['shard']).toSorted(), [0, 1]);
  for (const call of shards) {
    assert.ok(Number(call['keys']) > 0 && Number(call['response_bytes']) > 0);
    assert.equal(call['attempts'], 1);
  }
  for (const { atUs, us } of steps) assert.ok(atUs >= 0 && atUs + us <= totalUs + 2_000);
  assert.doesNotMatch(JSON.stringify(profile), /127\.0\.0\.1/, 'no addresses of servers');
}

function readHeader(response: Response): RequestProfile | undefined {
  return parseProfile(response.headers.get('profile') ?? undefined);
}

test('header, query, metadata and parameter ask for a profile; others get none', async (t) => {
  const address = await startRemote(t);
  for (const call of [{ headers: { profile: '1' } }, { query: '?profile=true' }]) {
    const response = await predict(address, call);
    assert.equal(response.status, 200, await response.text());
    checkProfile(readHeader(response));
  }
  for (const call of [{}, { headers: { profile: 'false' } }, { query: '?profile=false' }]) {
    const response = await predict(address, call);
    await response.text();
    assert.equal(response.headers.get('profile'), null);
  }
  const invalid = await predict(address, { headers: { profile: 'yes' } });
  assert.equal(invalid.status, 400);
  assert.match(await invalid.text(), /header profile: expected true or false/);
  const lines = await fetch(`http://${address}/v1/ctr:predict`, {
    method: 'POST',
    headers: { 'content-type': 'application/x-ndjson', profile: '1' },
    body: '{}\n',
  });
  assert.equal(lines.status, 400, await lines.text());
  for (const url of [`http://${address}`, `grpc://${address}`]) {
    const client = new CtrClient({ url, timeoutMs: 60_000 });
    t.after(() => client.close());
    checkProfile((await client.predict(toTsv(ROWS), { profile: true })).profile);
    assert.equal((await client.predict(toTsv(ROWS))).profile, undefined);
  }
});

test('a plain model has a profile, and says what is not a boolean', async (t) => {
  const model = join(temporaryFolder(t), 'double.onnx');
  writeFileSync(model, multiply(2));
  const address = await startInProcess(t, [{ model, instances: 1 }]);
  const infer = (profile: unknown): Promise<Response> => {
    const inputs = [{ name: 'x', datatype: 'FP32', shape: [1, 2], data: [1, 2] }];
    const body = JSON.stringify({ inputs, parameters: { profile } });
    return fetch(`http://${address}/v2/models/double/infer`, { method: 'POST', body });
  };
  const response = await infer(true);
  assert.equal(response.status, 200, await response.text());
  const profile = readHeader(response);
  const names = profile?.steps.map(({ name }) => name) ?? [];
  for (const name of ['parse', 'queue', 'batch', 'format']) assert.ok(names.includes(name), name);
  assert.ok((profile?.stages.inferUs ?? 0) > 0);
  assert.equal((await infer('yes')).status, 400);
});

test('the batch and its calls are steps of every request in it', () => {
  const recorders = [0, 1].map(() => new ProfileRecorder(systemClock, systemClock.nowMs()));
  const options = [{}, ...recorders.map(({ span: profile }) => ({ profile }))];
  const slices = options.map((one) => ({ request: { options: one } }));
  const span = startBatchSpan({ slices, rowCount: 7 } as unknown as Batch<QueuedRequest>);
  const call = span?.startChild('Service/lookup', 'client', { 'hypercube.shard': 3 });
  assert.equal(call?.traceparent, undefined);
  call?.setAttributes({ 'server.address': '10.0.0.1:9000', 'hypercube.attempts': 2 });
  call?.end('UNAVAILABLE', 'it is down');
  span?.end('OK');
  for (const recorder of recorders) {
    const { steps } = recorder.finish(STAGES);
    const shown = steps
      .map(({ atUs, us, ...rest }) => rest)
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
    assert.deepEqual(shown, [
      { name: 'batch', rows: 7, requests: 3 },
      { name: 'shard', shard: 3, attempts: 2, code: 'UNAVAILABLE' },
    ]);
  }
  assert.equal(startBatchSpan({ slices: slices.slice(0, 1), rowCount: 1 } as never), undefined);
});

test('a profile of very many calls fits a header, and says what it leaves out', () => {
  const recorder = new ProfileRecorder(systemClock, systemClock.nowMs());
  for (let shard = 0; shard < 500; shard++) {
    const attributes = { 'hypercube.shard': shard, 'hypercube.keys': 123_456 };
    recorder.span.startChild('lookup', 'client', attributes).end('OK');
  }
  const profile = recorder.finish(STAGES);
  assert.equal(profile.steps.length + (profile.droppedSteps ?? 0), 500);
  assert.ok(JSON.stringify(profile).length < 8_192);
  assert.deepEqual(parseProfile(JSON.stringify(profile)), profile);
});

test('texts that are not a profile are none', () => {
  fc.assert(
    fc.property(fc.oneof(fc.string(), fc.json()), (text) => {
      assert.equal(parseProfile(text), undefined);
    }),
  );
  assert.equal(parseProfile('{"startMs":1,"totalUs":1,"steps":[null]}'), undefined);
});

test('ctr-client --profile writes a trace with the steps and the calls to shards', async (t) => {
  const address = await startRemote(t);
  const folder = temporaryFolder(t);
  const rows = join(folder, 'rows.tsv');
  writeFileSync(rows, toTsv(ROWS));
  for (const protocol of ['ctr', 'ctr-grpc', 'kserve', 'tfs']) {
    const file = join(folder, `${protocol}.json`);
    const flags = ['--rows', rows, '--endpoint', address, '--protocol', protocol];
    const run = await ctrClient(...flags, '--batch', '4', '--profile', file);
    assert.equal(run.exit, 0, run.stderr);
    assert.match(run.stderr, /has 10 requests/);
    const { traceEvents } = JSON.parse(readFileSync(file, 'utf8'));
    const count = (name: string, ph: string): number =>
      traceEvents.filter((one: TraceEvent) => one.name === name && one.ph === ph).length;
    assert.equal(count('request', 'X'), 20, 'by the client and by serving');
    assert.equal(count('parse', 'X'), 10);
    for (const shard of ['shard 0', 'shard 1']) {
      assert.ok(count(shard, 'b') > 0);
      assert.equal(count(shard, 'b'), count(shard, 'e'));
    }
    checkLanes(traceEvents);
  }
  const model = ['--endpoint', address, '--model', BUNDLE];
  const both = await ctrClient('--rows', rows, ...model, '--profile', 'x', '--against', address);
  assert.equal(both.exit, 2);
});

interface TraceEvent {
  readonly name: string;
  readonly ph: string;
  readonly ts?: number;
  readonly dur?: number;
  readonly pid: number;
  readonly tid?: number;
}

/** Complete events of one lane must nest or follow each other. */
function checkLanes(events: readonly TraceEvent[]): void {
  const lanes = new Map<string, TraceEvent[]>();
  for (const event of events) {
    const lane = `${event.pid}/${event.tid}`;
    if (event.ph === 'X') lanes.set(lane, [...(lanes.get(lane) ?? []), event]);
  }
  for (const lane of lanes.values()) {
    const requests = lane.filter(({ name }) => name === 'request');
    requests.sort((a, b) => (a.ts ?? 0) - (b.ts ?? 0));
    for (const [i, { ts = 0, dur = 0 }] of requests.entries()) {
      assert.ok(ts >= 0 && dur >= 0);
      const next = requests[i + 1]?.ts;
      assert.ok(next === undefined || ts + dur <= next + 1, 'requests of a lane do not overlap');
    }
  }
}

test('a trace of any requests has lanes without overlaps and paired events', () => {
  const step = fc.record({
    name: fc.constantFrom('parse', 'batch', 'shard', 'format'),
    atUs: fc.nat(5_000),
    us: fc.nat(5_000),
    shard: fc.nat(3),
  });
  const request = fc.record({
    sentMs: fc.nat(50),
    durationMs: fc.integer({ min: 1, max: 20 }),
    skewMs: fc.integer({ min: -1_000, max: 1_000 }),
    steps: fc.array(step, { maxLength: 8 }),
  });
  fc.assert(
    fc.property(fc.array(request, { maxLength: 20 }), (requests) => {
      const events = toTraceEvents(
        requests.map(({ sentMs, durationMs, skewMs, steps }) => {
          const profile = { startMs: sentMs + skewMs, totalUs: 1_000, stages: STAGES, steps };
          return { sentMs, endMs: sentMs + durationMs, rows: 1, version: '1', profile };
        }),
      );
      checkLanes(events as TraceEvent[]);
      const begins = events.filter(({ ph }) => ph === 'b');
      const ends = events.filter(({ ph }) => ph === 'e');
      assert.deepEqual(
        begins.map(({ id }) => id),
        ends.map(({ id }) => id),
      );
      assert.equal(new Set(begins.map(({ id }) => id)).size, begins.length);
    }),
  );
});
