/** Recorded requests of other systems' clients get the answers that these clients can read. */
import assert from 'node:assert/strict';
import { after, before, type TestContext, test } from 'node:test';
import { RawGrpcClient } from '../rpc/support/grpc-client.ts';
import { lintMetrics } from '../support/metrics-lint.ts';
import {
  type RawAnswer,
  readFixture,
  sendFixture,
  sendRaw,
  splitHead,
} from './support/client-fixtures.ts';
import { type Json, OipClient } from './support/kserve-client.ts';
import type { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const INFER = '/inference.GRPCInferenceService/ModelInfer';
const toy = new ToyBundle({ version: '7', seed: 61 });
/** The rows in every recorded prediction. */
const SCORES = [
  { dense: [1, Number.NaN], categorical: ['a', 'b', 'c'] },
  { dense: [2, 3], categorical: ['d', '', 'f'] },
].flatMap((row) => toy.score(row));

let serving: ServingProcess;
const cleanUps: (() => unknown)[] = [];

before(async () => {
  const context = { after: (cleanUp: () => unknown) => cleanUps.push(cleanUp) };
  ({ serving } = await startLocal(context as unknown as TestContext, [toy]));
});
after(async () => {
  for (const cleanUp of cleanUps.toReversed()) await cleanUp();
});

function assertScores(scores: ArrayLike<number>): void {
  assert.equal(scores.length, SCORES.length);
  SCORES.forEach((score, i) => {
    assert.ok(Math.abs(scores[i]! - score) < 1e-5, `value ${i}: ${scores[i]}, expected ${score}`);
  });
}

function toFloats(bytes: Uint8Array): Float32Array {
  return new Float32Array(Uint8Array.from(bytes).buffer);
}

function readError({ headers, body }: RawAnswer): string {
  // KServe's clients compare the whole value.
  assert.equal(headers.get('content-type'), 'application/json');
  return JSON.parse(body.toString()).error;
}

test('gRPC outputs are raw contents, unless typed ones are requested', async () => {
  const raw = new RawGrpcClient(Number(new URL(serving.url).port));
  const typed = new OipClient(serving.url);
  cleanUps.push(
    () => raw.close(),
    () => typed.close(),
  );
  const { code, bytes } = await raw.call(INFER, readFixture('triton-javascript.grpc'));
  assert.equal(code, 0);
  // The end of the message: field 6 (raw_output_contents) with 16 bytes.
  assert.deepEqual([...bytes.subarray(-18, -16)], [0x32, 16]);
  assertScores(toFloats(bytes.subarray(-16)));
  const request = {
    model_name: BUNDLE,
    inputs: [
      {
        name: 'categorical',
        datatype: 'BYTES',
        shape: [2, 3],
        contents: {
          bytes_contents: ['a', 'b', 'c', 'd', '', 'f'].map((text) => Buffer.from(text)),
        },
      },
      {
        name: 'dense',
        datatype: 'FP32',
        shape: [2, 2],
        contents: { fp32_contents: [1, Number.NaN, 2, 3] },
      },
    ],
  };
  const answer: Json = await typed.call('ModelInfer', request);
  assert.equal(answer.outputs[0].contents, null);
  assertScores(toFloats(answer.raw_output_contents[0]));
  const asked = { ...request, parameters: { binary_data_output: { bool_param: false } } };
  const contents: Json = await typed.call('ModelInfer', asked);
  assert.deepEqual(contents.raw_output_contents, []);
  assertScores(contents.outputs[0].contents.fp32_contents);
  for (const [change, problem] of [
    [
      { parameters: { binary_data_output: { string_param: 'false' } } },
      /INVALID_ARGUMENT: parameters\.binary_data_output: expected true or false, got "false"/,
    ],
    [
      { outputs: [{ name: 'prob', parameters: { classification: { int64_param: 2 } } }] },
      /INVALID_ARGUMENT: outputs\[0\]\.parameters\.classification: not supported/,
    ],
    [
      {
        outputs: [{ name: 'prob', parameters: { shared_memory_region: { string_param: 'x' } } }],
      },
      /INVALID_ARGUMENT: outputs\[0\]\.parameters\.shared_memory_region: not supported/,
    ],
  ] as const) {
    await assert.rejects(typed.call('ModelInfer', { ...request, ...change }), problem);
  }
});

test('every response of a stream is marked as the final one of its request', async () => {
  const grpc = new OipClient(serving.url);
  cleanUps.push(() => grpc.close());
  const answers = await grpc.stream([{ model_name: BUNDLE, id: 'x' }, { id: 'y' }]);
  assert.deepEqual(
    answers.map(({ infer_response: { id, parameters } }) => [
      id,
      parameters.triton_final_response.bool_param,
    ]),
    [
      ['x', true],
      ['y', true],
    ],
  );
});

test("Triton's Python client: binary and JSON tensors", async () => {
  const { status, headers, body } = await sendFixture(serving.url, 'tritonclient-binary');
  assert.equal(status, 200);
  const jsonBytes = Number(headers.get('inference-header-content-length'));
  assertScores(toFloats(body.subarray(jsonBytes)));
  const named = await sendFixture(serving.url, 'tritonclient-json-nan');
  assert.equal(named.status, 200, named.body.toString());
  assertScores(JSON.parse(named.body.toString()).outputs[0].data);
  for (const [name, problem] of [
    ['json-infinity', /^input dense, value 1: expected a finite number, .* got Infinity$/],
    ['classification', /^outputs\[0\]\.parameters\.classification: not supported/],
  ] as const) {
    const refused = await sendFixture(serving.url, `tritonclient-${name}`);
    assert.equal(refused.status, 400);
    assert.match(readError(refused), problem);
  }
});

test("compressed requests of Triton's Python client, and compressed answers", async () => {
  for (const encoding of ['gzip', 'deflate'] as const) {
    const { status, headers, body } = await sendFixture(serving.url, `tritonclient-${encoding}`);
    assert.equal(status, 200, body.toString());
    assertScores(toFloats(body.subarray(Number(headers.get('inference-header-content-length')))));
  }
});

test('NaN in JSON is a missing dense value, and refused elsewhere by name', async () => {
  const row = '{"I1": 1.0, "I2": NaN, "C1": "a", "C2": "b", "C3": "c"}';
  const json = async (path: string, body: string, type = 'application/json'): Promise<Json> =>
    (await serving.post(path, body, { 'content-type': type })).body;
  const [, click] = SCORES;
  const read: [string, number][] = [
    ['CTR', (await json('/v1/ctr:predict', `{"rows": [${row}]}`)).probabilities[0]],
    [
      'CTR by position',
      (
        await json(
          '/v1/ctr:predict',
          '{"rows": [{"dense": [1.0, NaN], "categorical": ["a", "b", "c"]}]}',
        )
      ).probabilities[0],
    ],
    ['lines', (await json('/v1/ctr:predict', `${row}\n`, 'application/x-ndjson')).probability],
    [
      'TensorFlow Serving',
      (await json(`/v1/models/${BUNDLE}:predict`, `{"instances": [${row}]}`)).predictions[0][1],
    ],
  ];
  for (const [name, probability] of read) {
    assert.ok(Math.abs(probability - click!) < 1e-5, `${name}: ${probability}`);
  }
  const rows = (one: string): string => `{"rows": [${one}]}`;
  // Large bodies are parsed in slices.
  const many = await json('/v1/ctr:predict', rows(new Array(10_000).fill(row).join(', ')));
  assert.ok(Math.abs(many.probabilities[9_999] - click!) < 1e-5);
  for (const [path, body, problem] of [
    ['ctr:predict', rows('{"I1": -Infinity}'), /rows\[0\]\.I1: expected .*, got -Infinity/],
    ['ctr:predict', rows('{"C1": NaN}'), /rows\[0\]\.C1: expected a string .*, got NaN/],
    [
      'ctr:predict',
      rows('{"scaled": [1, NaN], "keys": ["1", "2", "3"]}'),
      /rows\[0\]\.scaled\[1\]: expected a number .*, got NaN/,
    ],
    ['models/toy:predict', '{"instances": [{"C1": NaN, "I1": 1}]}', /C1, value 0: .*, got NaN/],
    [
      'models/toy:predict',
      '{"instances": [{"C1": "", "I1": Infinity}]}',
      /I1, value 0: .*Infinity/,
    ],
  ] as const) {
    const answer = await serving.post(`/v1/${path}`, body);
    assert.equal(answer.status, 400, body);
    assert.match(answer.body.error, problem);
  }
  const wanted = '{"inputs": [], "parameters": {"sequence_id": NaN}}';
  const { body } = await serving.post(`/v2/models/${BUNDLE}/infer`, wanted);
  assert.match(body.error, /parameters\.sequence_id: expected .*, got NaN/);
});

test('requests of 20 MiB are answered, and larger ones than the limit refused', async () => {
  const padding = Buffer.alloc(20 << 20, ' ');
  const { body } = splitHead(readFixture('tritonclient-json-nan.http'));
  const answer = await serving.post(`/v2/models/${BUNDLE}/infer`, Buffer.concat([padding, body]));
  assert.equal(answer.status, 200);
  const raw = new RawGrpcClient(Number(new URL(serving.url).port));
  cleanUps.push(() => raw.close());
  // Field 15, which no request has: bytes with their length as a varint.
  const unknown = Buffer.concat([Buffer.from([0x7a, 0x80, 0x80, 0x80, 0x0a]), padding]);
  const request = Buffer.concat([readFixture('triton-javascript.grpc'), unknown]);
  assert.equal((await raw.call(INFER, request)).code, 0);
  const path = `/v2/models/${BUNDLE}/infer`;
  const head = `POST ${path} HTTP/1.1\r\nhost: x\r\ncontent-length: 67108865\r\n\r\n`;
  const refused = await sendRaw(serving.url, Buffer.from(head));
  assert.equal(refused.status, 413);
  assert.match(readError(refused), /the limit is 67108864 bytes/);
});

test('trace and log settings are answered, and changes of them refused in words', async () => {
  const grpc = new OipClient(serving.url);
  cleanUps.push(() => grpc.close());
  const trace = await sendFixture(serving.url, 'tritonclient-trace-get');
  assert.deepEqual(JSON.parse(trace.body.toString()).trace_level, ['OFF']);
  const log = await sendFixture(serving.url, 'tritonclient-log-get');
  const settings = JSON.parse(log.body.toString());
  assert.deepEqual([settings.log_info, settings.log_verbose_level], [true, 0]);
  assert.equal((await serving.post('/v2/logging', JSON.stringify(settings))).status, 200);
  const cleared = await serving.post('/v2/trace/setting', '{"trace_level": null}');
  assert.equal(cleared.status, 200);
  for (const [name, problem] of [
    ['trace-update', /^trace_level cannot be changed to "TIMESTAMPS": traces are not supported/],
    ['log-update', /^log_verbose_level cannot be changed to "1": .*--log-level/],
    ['load-config', /^parameter "config" is not supported: publish a new version/],
  ] as const) {
    const refused = await sendFixture(serving.url, `tritonclient-${name}`);
    assert.equal(refused.status, 501, name);
    assert.match(readError(refused), problem);
  }
  const { settings: typed }: Json = await grpc.call('LogSettings', {});
  assert.equal(typed.log_info.bool_param, true);
  assert.deepEqual((await grpc.call('TraceSetting', {})).settings.trace_level.value, ['OFF']);
  for (const [method, request, problem] of [
    [
      'TraceSetting',
      { settings: { trace_level: { value: ['TIMESTAMPS'] } } },
      /UNIMPLEMENTED: trace_level cannot be changed to "TIMESTAMPS"/,
    ],
    [
      'LogSettings',
      { settings: { log_verbose_level: { uint32_param: 1 } } },
      /UNIMPLEMENTED: log_verbose_level cannot be changed/,
    ],
    [
      'LogSettings',
      { settings: { loglevel: { uint32_param: 1 } } },
      /INVALID_ARGUMENT: unknown setting "loglevel" \(expected one of log_file, /,
    ],
  ] as const) {
    await assert.rejects(grpc.call(method, request), problem);
  }
});

test('a load refuses what it would have to ignore', async () => {
  const grpc = new OipClient(serving.url);
  cleanUps.push(() => grpc.close());
  const path = `/v2/repository/models/${BUNDLE}`;
  for (const [body, status, problem] of [
    ['{"parameters": {"file:1/model.onnx": "QQ=="}}', 501, /parameter "file:1\/model.onnx" is not/],
    ['{"parameters": {"speed": "high"}}', 400, /unknown parameter "speed": a load takes none/],
    ['{"parameter": {}}', 400, /unknown field "parameter"/],
    ['config', 400, /body: not JSON/],
  ] as const) {
    const answer = await serving.post(`${path}/load`, body);
    assert.deepEqual([answer.status, problem.test(answer.body.error)], [status, true], body);
  }
  const config = { config: { string_param: '{}' } };
  const load = { model_name: BUNDLE, parameters: config };
  await assert.rejects(grpc.call('RepositoryModelLoad', load), /UNIMPLEMENTED: parameter "config"/);
  await assert.rejects(grpc.call('RepositoryModelUnload', load), /INVALID_ARGUMENT: unknown param/);
  // Triton's Python client always sends this one.
  const dependents = '{"parameters": {"unload_dependents": false}}';
  assert.equal((await serving.post(`${path}/unload`, dependents)).status, 200);
  assert.equal((await serving.post(`${path}/load`, '')).status, 200);
});

test('metrics follow the naming rules of Prometheus', async () => {
  const { body } = await serving.get('/metrics');
  assert.match(body, /^hypercube_engine_scores_total\{/m);
  assert.deepEqual(lintMetrics(body), []);
});

test('every error has the content type application/json', async () => {
  const ask = async (path: string, init?: RequestInit): Promise<void> => {
    const answer = await fetch(serving.url + path, init);
    assert.ok(answer.status >= 400, path);
    assert.equal(answer.headers.get('content-type'), 'application/json', path);
    assert.equal(typeof ((await answer.json()) as Json).error, 'string');
  };
  const body = { method: 'POST', body: '{}', headers: { 'content-type': 'application/json' } };
  await ask('/nowhere');
  await ask('/v2/models/other');
  await ask('/v1/models/other:predict', body);
  await ask(`/v2/models/${BUNDLE}/infer`, body);
  await ask('/v1/ctr:predict', body);
  await ask('/v1/ctr:predict?priority=9', body);
  await ask('/v1/ctr:predict', { ...body, headers: { 'content-encoding': 'x' } });
});
