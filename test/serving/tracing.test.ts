/** Spans of predictions: parents from every protocol, batches with links, calls to shards. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import { Client, credentials, Metadata } from '@grpc/grpc-js';
import { SpanKind, SpanStatusCode } from '@opentelemetry/api';
import type { ReadableSpan } from '@opentelemetry/sdk-trace-base';
import { createCtrRequest } from '../../lib/client/ctr-rows.ts';
import { readExporters } from '../../lib/platform/start-tracing.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { CTR_PREDICT, CTR_SERVICE, encodeCtrRequest } from '../../proto/ctr.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { recordSpans } from '../platform/support/recorded-spans.ts';
import { killOnTestEnd, temporaryFolder } from '../repository/support/fixtures.ts';
import { getErrorCode } from '../support/errors.ts';
import { DIST } from '../support/processes.ts';
import { publishToy, startInProcess, startRemote } from './support/in-process-serving.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { multiply } from './support/plain-models.ts';
import { createPaddleRequest } from './support/protocol-clients.ts';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, toTsv, toyRows } from './support/toy-bundle.ts';

const ROWS = toyRows(3);
const TSV = { 'content-type': 'text/tab-separated-values' };
const SPAN = '00f067aa0ba902b7';
const traceId = (n: number): string => `4bf92f3577b34da6a3ce929d0e0e473${n}`;
const traceparent = (n: number): string => `00-${traceId(n)}-${SPAN}-01`;

function post(address: string, body: string, trace: string): Promise<Response> {
  const headers = { ...TSV, traceparent: trace };
  return fetch(`http://${address}/v1/ctr:predict`, { method: 'POST', headers, body });
}

async function callGrpc(address: string, trace: string): Promise<void> {
  const client = new Client(address, credentials.createInsecure());
  const metadata = new Metadata();
  metadata.set('traceparent', trace);
  const same = (bytes: Buffer): Buffer => bytes;
  const request = Buffer.from(encodeCtrRequest(createCtrRequest(toTsv(ROWS), {})));
  const path = `/${CTR_SERVICE}/${CTR_PREDICT}`;
  await new Promise<void>((resolve, reject) => {
    client.makeUnaryRequest(path, same, same, request, metadata, (error) =>
      error === null ? resolve() : reject(error),
    );
  });
  client.close();
}

async function callBaidu(address: string, trace: string): Promise<void> {
  const channel = new Channel(address);
  const payload = encodeRequest(createPaddleRequest(ROWS));
  const none = new Uint8Array(0);
  const options = { traceparent: trace, compressType: 2 } as const;
  await channel.call(GENERAL_MODEL_SERVICE, 'inference', payload, none, 30_000, options);
  channel.close();
}

test('predictions of every protocol are children of their callers', async (t) => {
  const listSpans = await recordSpans(t);
  const address = await startRemote(t);
  assert.equal((await post(address, toTsv(ROWS), traceparent(1))).status, 200);
  await callGrpc(address, traceparent(2));
  await callBaidu(address, traceparent(3));
  assert.equal((await post(address, 'not a row', traceparent(4))).status, 400);
  assert.equal((await post(address, toTsv(ROWS), 'invalid')).status, 200);
  const find = (trace: number, name: string): ReadableSpan[] =>
    listSpans().filter((one) => one.spanContext().traceId === traceId(trace) && one.name === name);
  for (const [trace, protocol] of [
    [1, 'ctr'],
    [2, 'ctr'],
    [3, 'paddle'],
  ] as const) {
    const [request] = find(trace, `predict ${protocol}`);
    const [batch] = find(trace, 'batch');
    assert.ok(request && batch, `${trace}`);
    assert.deepEqual([request.kind, request.parentSpanContext?.spanId], [SpanKind.SERVER, SPAN]);
    const { attributes } = request;
    assert.equal(attributes['hypercube.protocol'], protocol);
    assert.equal(attributes['hypercube.model'], BUNDLE);
    assert.equal(attributes['hypercube.version'], '1');
    assert.equal(attributes['hypercube.rows'], ROWS.length);
    assert.ok(Number(attributes['hypercube.lookup_us']) > 0);
    assert.ok(Number(attributes['hypercube.infer_us']) > 0);
    assert.equal(batch.parentSpanContext?.spanId, request.spanContext().spanId);
    const calls = find(trace, 'hypercube.LookupService/lookup');
    const shards = calls.map((call) => call.attributes['hypercube.shard']);
    assert.deepEqual(shards.sort(), [0, 1]);
    for (const call of calls) {
      assert.equal(call.parentSpanContext?.spanId, batch.spanContext().spanId);
    }
  }
  const [refused] = find(4, 'predict ctr');
  assert.equal(refused?.status.code, SpanStatusCode.ERROR);
  assert.equal(refused.attributes['error.type'], 'INVALID_ARGUMENT');
  const roots = listSpans().filter((one) => one.parentSpanContext === undefined);
  assert.deepEqual(
    roots.map(({ name }) => name),
    ['predict ctr'],
  );
});

test('the batches of a plain model are traced', async (t) => {
  const listSpans = await recordSpans(t);
  const model = join(temporaryFolder(t), 'double.onnx');
  writeFileSync(model, multiply(2));
  const address = await startInProcess(t, [{ model, instances: 1 }]);
  const inputs = [{ name: 'x', datatype: 'FP32', shape: [1, 2], data: [1, 2] }];
  const response = await fetch(`http://${address}/v2/models/double/infer`, {
    method: 'POST',
    headers: { traceparent: traceparent(1) },
    body: JSON.stringify({ inputs }),
  });
  assert.equal(response.status, 200, await response.text());
  const batch = listSpans().find(({ name }) => name === 'batch');
  const request = listSpans().find(({ name }) => name === 'predict kserve');
  assert.ok(batch && request);
  assert.equal(batch.parentSpanContext?.spanId, request.spanContext().spanId);
  assert.equal(request.attributes['hypercube.model'], 'double');
});

test('requests of one batch have links to and from its span', async (t) => {
  const listSpans = await recordSpans(t);
  const address = await startRemote(t);
  // Requests that arrive while batches are in flight share the next one.
  const list = (name: string): ReadableSpan[] => listSpans().filter((one) => one.name === name);
  let shared: ReadableSpan | undefined;
  for (let round = 0; shared === undefined; round++) {
    assert.ok(round < 100, 'no batch was shared');
    await Promise.all(Array.from({ length: 40 }, () => post(address, toTsv(ROWS), traceparent(1))));
    shared = list('batch').find(({ links }) => links.length > 0);
  }
  const ids = shared.links.map(({ context }) => context.spanId);
  for (const id of ids) {
    const request = list('predict ctr').find((one) => one.spanContext().spanId === id);
    assert.deepEqual(
      request?.links.map(({ context }) => context.spanId),
      [shared.spanContext().spanId],
    );
  }
  assert.equal(shared.attributes['hypercube.requests'], 1 + ids.length);
});

test('a process sends its spans where OTEL_EXPORTER_OTLP_ENDPOINT says', async (t) => {
  let received = '';
  const collector = createServer((request, response) => {
    request.setEncoding('latin1').on('data', (text: string) => {
      received += text;
    });
    request.on('end', () => response.end());
  });
  t.after(() => collector.close());
  await once(collector.listen(0, '127.0.0.1'), 'listening');
  const { port } = collector.address() as AddressInfo;
  const toys = await publishToy(t, 1);
  process.env['OTEL_EXPORTER_OTLP_ENDPOINT'] = `http://127.0.0.1:${port}`;
  let serving: ServingProcess;
  try {
    const flags = ['--repository', toys.location, '--bundle', BUNDLE];
    serving = await ServingProcess.start(t, flags, { isProcess: true });
  } finally {
    delete process.env['OTEL_EXPORTER_OTLP_ENDPOINT'];
  }
  await serving.waitUntilReady();
  assert.equal((await serving.postTsv(toTsv(ROWS))).status, 200);
  assert.equal(await serving.stop(), 0);
  for (const text of ['predict ctr', 'service.name', 'serving', 'hypercube.version', 'batch']) {
    assert.ok(received.includes(text), text);
  }
});

test('a process without the packages for tracing says which to install', async (t) => {
  const hook =
    'export async function resolve(name, context, next) {' +
    ' if (name.startsWith("@opentelemetry/sdk")) throw new Error("not installed");' +
    ' return next(name, context); }';
  const hooks = join(temporaryFolder(t), 'hooks.mjs');
  const toUrl = (code: string): string => `data:text/javascript,${encodeURIComponent(code)}`;
  const source = JSON.stringify(toUrl(hook));
  writeFileSync(hooks, `import { register } from 'node:module';\nregister(${source});\n`);
  const main = join(DIST, 'serving', 'main.js');
  const flags = ['--port', '0', '--bundle', BUNDLE, '--bundle-dir', dirname(hooks)];
  const child = spawn(process.execPath, ['--import', hooks, main, ...flags], {
    stdio: ['ignore', 'ignore', 'pipe'],
    env: { ...process.env, OTEL_TRACES_EXPORTER: 'console' },
  });
  killOnTestEnd(t, child);
  let errors = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    errors += text;
  });
  const [code] = await once(child, 'close');
  assert.notEqual(code, 0);
  assert.match(errors, /npm install @opentelemetry\/sdk-trace-base /);
});

test('the standard variables turn tracing on and off', () => {
  const endpoint = { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://localhost:4318' };
  assert.deepEqual(readExporters({}), []);
  assert.deepEqual(readExporters(endpoint), ['otlp']);
  assert.deepEqual(readExporters({ ...endpoint, OTEL_TRACES_EXPORTER: 'none' }), []);
  assert.deepEqual(readExporters({ ...endpoint, OTEL_SDK_DISABLED: 'TRUE' }), []);
  assert.deepEqual(readExporters({ OTEL_TRACES_EXPORTER: 'otlp, console' }), ['otlp', 'console']);
  const wrong = [
    { OTEL_TRACES_EXPORTER: 'zipkin' },
    { ...endpoint, OTEL_EXPORTER_OTLP_PROTOCOL: 'grpc' },
  ];
  for (const variables of wrong) {
    assert.equal(
      getErrorCode(() => readExporters(variables)),
      'INVALID_ARGUMENT',
    );
  }
});
