/**
 * Overload, seen by callers of every protocol: refusals come before bodies are read, in the form of
 * the protocol. One version is served in this process, and the test sets its expected wait.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect } from 'node:net';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { runAtOnce, type SlicedWork } from '../../lib/core/json-slices.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { ControlAccess } from '../../lib/rpc/control-access.ts';
import { CTR_PREDICT, CTR_SERVICE } from '../../proto/ctr.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import type { LoadedBundle } from '../../serving/engine/loaded-bundle.ts';
import { Predictor } from '../../serving/engine/predictor.ts';
import { RequestLog } from '../../serving/metrics/request-log.ts';
import { ServingMetrics } from '../../serving/metrics/serving-metrics.ts';
import { ExperimentLogs } from '../../serving/models/experiment-logs.ts';
import { Experiments } from '../../serving/models/experiments.ts';
import type { Models } from '../../serving/models/model-registry.ts';
import { TrafficFile } from '../../serving/models/traffic.ts';
import { Admission } from '../../serving/protocols/admission.ts';
import { registerCtr } from '../../serving/protocols/ctr.ts';
import {
  createEndpoints,
  createServer,
  registerStatusRoutes,
} from '../../serving/protocols/endpoints.ts';
import type { ProtocolContext } from '../../serving/protocols/handle-prediction.ts';
import { registerKserveGrpc } from '../../serving/protocols/kserve-grpc.ts';
import { registerKserveRest } from '../../serving/protocols/kserve-rest.ts';
import { registerPaddle } from '../../serving/protocols/paddle.ts';
import { createServingLimits } from '../../serving/protocols/request-limits.ts';
import { SliceQueue } from '../../serving/protocols/slice-queue.ts';
import { registerTfs } from '../../serving/protocols/tfs.ts';
import { encodeRequestFrame, RawConnection } from '../rpc/support/echo-server.ts';
import { RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { blockLookups, EngineFixture } from './engine/support/engine-fixture.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { BUNDLE } from './support/toy-bundle.ts';

const HTTP_PATHS = [
  ['/v1/ctr:predict', 'text/tab-separated-values'],
  ['/v1/ctr:predict?priority=0', 'application/json'],
  [`/v2/models/${BUNDLE}/infer`, 'application/json'],
  [`/v1/models/${BUNDLE}:predict`, 'application/json'],
  ['/GeneralModelService/inference', 'application/json'],
] as const;
const GRPC_PATHS = [
  `/${CTR_SERVICE}/${CTR_PREDICT}`,
  '/inference.GRPCInferenceService/ModelInfer',
  `/${GENERAL_MODEL_SERVICE}/inference`,
];
const LIMITS = createServingLimits(16 << 20);
const PROTOCOLS = ['baidu_std', 'grpc', 'http'] as const;
/** Invalid in every protocol: an admitted request fails because of it, a refused one does not. */
const GARBAGE = Buffer.from('\u00ff garbage');

class OverloadedServer {
  readonly engine: EngineFixture<never> | Awaited<ReturnType<typeof EngineFixture.onFakeStore>>;
  readonly admission = new Admission(100);
  readonly metrics = new ServingMetrics();
  waitMs = 0;
  readonly port: number;

  private constructor(engine: OverloadedServer['engine'], port: number) {
    this.engine = engine;
    this.port = port;
  }

  static async start(t: TestContext): Promise<OverloadedServer> {
    const engine = await EngineFixture.onFakeStore(t);
    const { bundle } = engine;
    const logger = createLogger('test', { level: 'silent' });
    const made: { server?: OverloadedServer } = {};
    bundle.batcher.estimateWaitMs = () => made.server?.waitMs ?? 0;
    const admission = new Admission(100);
    const metrics = new ServingMetrics();
    const models = serveOnly(bundle);
    const traffic = new TrafficFile();
    const context: ProtocolContext = {
      models,
      experiments: new Experiments({ models, traffic, logger, onMissingTarget: () => undefined }),
      experimentLogs: new ExperimentLogs({ logs: [], files: traffic, clock: systemClock, logger }),
      shadows: { offer: () => undefined, close: () => undefined },
      predictor: new Predictor(),
      admission,
      metrics,
      requestLog: new RequestLog(logger, { slowMs: Number.POSITIVE_INFINITY, share: 0 }),
      slices: new SliceQueue(systemClock),
      logger,
      timeoutMs: 1_000,
      clock: systemClock,
      access: new ControlAccess({ tokenFile: undefined, logger }),
    };
    const endpoints = createEndpoints(context, LIMITS);
    registerStatusRoutes(endpoints, context);
    for (const register of [registerCtr, registerKserveRest, registerKserveGrpc, registerTfs]) {
      register(endpoints, context);
    }
    registerPaddle(endpoints, context);
    const port = createServer(endpoints, PROTOCOLS, { limits: LIMITS, logger });
    const address = await port.listen('127.0.0.1', 0);
    t.after(() => port.stop());
    const server = new OverloadedServer(engine, Number(address.split(':').at(-1)));
    Object.assign(server, { admission, metrics });
    made.server = server;
    return server;
  }

  /** Sends only the head of a POST, and returns the response. */
  async postHead(path: string, type: string, more = ''): Promise<string> {
    const socket = connect(this.port, '127.0.0.1');
    const heads = `host: x\r\ncontent-type: ${type}\r\ncontent-length: 100000\r\n${more}`;
    socket.write(`POST ${path} HTTP/1.1\r\n${heads}\r\n`);
    const [text] = await once(socket, 'data');
    socket.destroy();
    return String(text);
  }

  async post(path: string, type: string, body: Buffer): Promise<number> {
    const url = `http://127.0.0.1:${this.port}${path}`;
    const response = await fetch(url, { method: 'POST', headers: { 'content-type': type }, body });
    await response.arrayBuffer();
    return response.status;
  }
}

function serveOnly(bundle: LoadedBundle): Models {
  const unused = (): never => assert.fail('not used here');
  return {
    find: () => bundle,
    findOnly: () => bundle,
    findOnlyName: () => bundle.name,
    getName: ({ name }) => name,
    loadedVersions: () => [bundle],
    status: () => [],
    load: unused,
    unload: unused,
  };
}

test('every HTTP protocol refuses before the body arrives, when the wait is long', async (t) => {
  const server = await OverloadedServer.start(t);
  for (const [path, type] of HTTP_PATHS) {
    server.waitMs = 600;
    const refusal = await server.postHead(path, type);
    assert.match(refusal, /^HTTP\/1\.1 429 /, path);
    assert.match(refusal, /retry-after: 1\r\n/i);
    assert.match(refusal, /x-bd-error-code: 2004\r\n/i);
    assert.match(refusal, /OVERLOADED[\s\S]*expected wait is 600 ms, the limit .* \d+ ms/);
    assert.equal(await server.post(path, type, GARBAGE), 429, path);
    server.waitMs = 400;
    assert.equal(await server.post(path, type, GARBAGE), 400, path);
    assert.match(await server.postHead(path, type, 'timeout-ms: 700\r\n'), /^HTTP\/1\.1 429 /);
  }
  const counted = /requests_total\{protocol="kserve",code="OVERLOADED"\} 3\n/;
  assert.match(await server.metrics.formatMetrics(), counted);
});

test('gRPC refuses with RESOURCE_EXHAUSTED before the message is parsed', async (t) => {
  const server = await OverloadedServer.start(t);
  const client = new RawGrpcClient(server.port);
  t.after(() => client.close());
  for (const path of GRPC_PATHS) {
    server.waitMs = 6_000;
    const { code, details, cubeCode, trailers } = await client.call(path, GARBAGE);
    assert.deepEqual([code, cubeCode], [8, 'OVERLOADED'], path);
    assert.deepEqual(trailers.get('grpc-retry-pushback-ms'), ['1000']);
    assert.match(details, /expected wait is 6000 ms/);
    server.waitMs = 100;
    assert.equal((await client.call(path, GARBAGE)).code, 3, path);
  }
});

test('baidu_std refuses with ELIMIT, and an expired call fails with ERPCTIMEDOUT', async (t) => {
  const server = await OverloadedServer.start(t);
  const connection = new RawConnection(server.port);
  t.after(() => connection.socket.destroy());
  const target = { service: GENERAL_MODEL_SERVICE, method: 'inference' };
  server.waitMs = 600;
  connection.send(encodeRequestFrame(1, GARBAGE, target));
  const [refused] = await connection.receive(1);
  assert.deepEqual([refused?.errorCode, refused?.payload], [2004, '']);
  server.waitMs = 0;
  connection.send(encodeRequestFrame(2, GARBAGE, target));
  assert.equal((await connection.receive(2))[1]?.errorCode, 1003);

  // The lookup lasts longer than the caller waits.
  const gate = blockLookups(server.engine.store);
  const tensor = [
    ...['C1', 'C2', 'C3'].map((name) => ({ name, elem_type: 20, shape: [1], data: ['a'] })),
    { name: 'dense_input', elem_type: 1, shape: [1, 2], float_data: [0.5, 0.5] },
  ];
  connection.send(encodeRequestFrame(3, encodeRequest({ tensor }), { ...target, timeoutMs: 30 }));
  const expired = (await connection.receive(3))[2];
  gate.open();
  assert.equal(expired?.errorCode, 1008);
  assert.match(expired?.errorText ?? '', /\[E1008\]the deadline passed/);
  assert.equal(expired?.payload, '');
});

test('a process that is stopping says so before the body, and closes the connection', async (t) => {
  const server = await OverloadedServer.start(t);
  void server.admission.close();
  for (const [path, type] of HTTP_PATHS) {
    const refusal = await server.postHead(path, type);
    assert.match(refusal, /^HTTP\/1\.1 503 [\s\S]*"code":"STOPPING"/, path);
    assert.match(refusal, /connection: close\r\n/i);
  }
});

/** Path, content type and body of requests with long invalid parts. */
const LONG = '\u0001\u20ac"'.repeat(4_000);
const json = JSON.stringify;
const longTensor = { name: LONG, datatype: 'BYTES', shape: [1, 3], data: [LONG] };
const LONG_INPUTS: readonly (readonly [string, string, string])[] = [
  ['/v1/ctr:predict', 'application/json', json({ rows: [{ [LONG]: 1 }] })],
  ['/v1/ctr:predict', 'application/json', json({ rows: LONG })],
  ['/v1/ctr:predict', 'application/json', json({ rows: [{ dense: [LONG], categorical: [] }] })],
  ['/v1/ctr:predict', 'application/json', json({ rows: [{ label: LONG }] })],
  ['/v1/ctr:predict', 'application/json', json({ rows: [], shared: { [LONG]: '' } })],
  ['/v1/ctr:predict', 'application/json', LONG],
  ['/v1/ctr:predict', 'text/tab-separated-values', `0\t${LONG}\t1\ta\tb\tc\n`],
  ['/v1/ctr:predict', `text/${'y'.repeat(2_000)}`, 'x'],
  [`/v1/ctr:predict?${'q'.repeat(2_000)}=1`, 'application/json', '{}'],
  [`/v1/ctr:predict?priority=${'7'.repeat(2_000)}`, 'application/json', '{}'],
  [`/v2/models/${BUNDLE}/infer`, 'application/json', json({ inputs: [longTensor] })],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({ inputs: [{ ...longTensor, datatype: LONG }] }),
  ],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({
      inputs: [
        { ...longTensor, name: 'C1' },
        { ...longTensor, name: 'C1' },
      ],
    }),
  ],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({ inputs: [{ ...longTensor, parameters: { shared_memory_region: 'x' } }] }),
  ],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({ inputs: [{ ...longTensor, parameters: { binary_data_size: 5 } }] }),
  ],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({ inputs: [longTensor], outputs: [{ name: LONG }] }),
  ],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({ inputs: [longTensor], parameters: { timeout: LONG } }),
  ],
  [
    `/v2/models/${BUNDLE}/infer`,
    'application/json',
    json({ inputs: [longTensor], parameters: { [LONG]: [] } }),
  ],
  [
    `/v1/models/${BUNDLE}:predict`,
    'application/json',
    json({ instances: [{ [LONG]: 1 }, { a: 1 }] }),
  ],
  [`/v1/models/${BUNDLE}:predict`, 'application/json', json({ inputs: { [LONG]: [1, [2]] } })],
  [`/v1/models/${BUNDLE}:predict`, 'application/json', json({ inputs: { [LONG]: [[1], [2, 3]] } })],
  [`/v1/models/${BUNDLE}:predict`, 'application/json', json({ signature_name: LONG, inputs: {} })],
  [`/v1/models/${'m'.repeat(190)}:${'v'.repeat(9)}`, 'application/json', '{}'],
  [
    '/GeneralModelService/inference',
    'application/json',
    json({ tensor: [{ name: LONG, data: [LONG] }] }),
  ],
  [
    '/GeneralModelService/inference',
    'application/json',
    json({ tensor: [], fetch_var_names: [LONG] }),
  ],
  ['/GeneralModelService/inference', 'application/json', json({ tensor: [{ shape: [LONG] }] })],
  [`/${'n'.repeat(4_000)}`, 'application/json', '{}'],
];

test('errors repeat at most 200 bytes of what the caller sent', async (t) => {
  const server = await OverloadedServer.start(t);
  const tooLong: string[] = [];
  for (const [path, type, body] of LONG_INPUTS) {
    const url = `http://127.0.0.1:${server.port}${path}`;
    const response = await fetch(url, { method: 'POST', headers: { 'content-type': type }, body });
    const text = await response.text();
    const sent = `${path.slice(0, 60)} ${type.slice(0, 40)} ${body.slice(0, 120)}`;
    const place = `${sent}: ${text.slice(0, 200)}`;
    assert.ok(response.status >= 400, place);
    const { error, err_msg: message = error } = JSON.parse(text);
    tooLong.push(...findLongEcho(message, place));
  }
  const client = new RawGrpcClient(server.port);
  t.after(() => client.close());
  const { details } = await client.call(`/a.B/${'c'.repeat(2_000)}`, GARBAGE);
  tooLong.push(...findLongEcho(details, 'gRPC'));
  const connection = new RawConnection(server.port);
  t.after(() => connection.socket.destroy());
  for (const [i, service] of ['s'.repeat(127), `a.${'s'.repeat(125)}`].entries()) {
    connection.send(encodeRequestFrame(i, GARBAGE, { service, method: 'm'.repeat(127) }));
    const text = (await connection.receive(i + 1))[i]?.errorText ?? '';
    tooLong.push(...findLongEcho(text, 'baidu_std'));
  }
  assert.deepEqual(tooLong, []);
});

/** Counts the bytes of the input in an error: its repeated parts. */
function findLongEcho(error: string, place: string): string[] {
  let bytes = 0;
  for (const [run] of error.matchAll(/(.{1,18}?)\1{4,}/gs)) bytes += Buffer.byteLength(run);
  return bytes <= 200 ? [] : [`${bytes} bytes of input: ${place}`];
}

test('slices of large bodies take turns with the event loop, one body after another', async () => {
  let nowMs = 0;
  const clock = { ...systemClock, nowMs: () => nowMs };
  const queue = new SliceQueue(clock);
  const events: string[] = [];
  function* work(name: string): SlicedWork<string> {
    for (let i = 0; i < 3; i++) {
      events.push(name);
      nowMs += 5;
      yield;
    }
    return name;
  }
  const isNeeded = { aborted: false };
  const results = Promise.all([queue.run(work('a'), isNeeded), queue.run(work('b'), isNeeded)]);
  for (let turn = 0; turn < 20; turn++) {
    events.push('turn');
    await new Promise((resolve) => setImmediate(resolve));
  }
  assert.deepEqual(await results, ['a', 'b']);
  const withoutTurns = events.filter((event) => event !== 'turn').join('');
  assert.equal(withoutTurns, 'aaabbb');
  assert.doesNotMatch(events.join(' '), /[ab] [ab]/, 'one slice of 5 ms in each turn');
  const gone = queue.run(work('c'), { aborted: true });
  await assert.rejects(gone, (error) => CubeError.from(error).code === 'DEADLINE_EXCEEDED');
  assert.equal(runAtOnce(work('d')), 'd');
});
