/**
 * KServe v2 over HTTP and gRPC with Triton's extensions: the field numbers of Triton's definitions,
 * and the configuration, metadata and statistics that perf_analyzer reads. The programs themselves
 * are not run here.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { Metadata } from '@grpc/grpc-js';
import { loadSync, type MessageTypeDefinition } from '@grpc/proto-loader';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import {
  binaryBody,
  type Json,
  OipClient,
  postBinary,
  rawStrings,
  toRawBytes,
} from './support/kserve-client.ts';
import { BUNDLE, ToyBundle, toyRows } from './support/toy-bundle.ts';
import { startLocal } from './support/toy-service.ts';

const MODEL = `/v2/models/${BUNDLE}`;
const toy = new ToyBundle({ version: '7', seed: 61 });
const rows = toyRows(3, 5).map((row) => ({ ...row, dense: [1, 2] }));
const dense = { name: 'dense', datatype: 'FP32', shape: [3, 2], data: [1, 2, 1, 2, 1, 2] };
const categorical = {
  name: 'categorical',
  datatype: 'BYTES',
  shape: [3, 3],
  data: rows.map((row) => row.categorical),
};
const inputs = [categorical, dense];
/** A listener that a message leaves takes 1,000. */
const MESSAGE_BYTES_MAX = 400;

/** Field numbers in Triton's grpc_service.proto and model_config.proto. */
const NUMBERS: Readonly<Record<string, string>> = {
  ModelInferRequest:
    'model_name 1, model_version 2, id 3, parameters 4, inputs 5, outputs 6, raw_input_contents 7',
  ModelInferResponse:
    'model_name 1, model_version 2, id 3, parameters 4, outputs 5, raw_output_contents 6',
  InferParameter: 'bool_param 1, int64_param 2, string_param 3, double_param 4, uint64_param 5',
  ModelStreamInferResponse: 'error_message 1, infer_response 2',
  ModelConfig:
    'name 1, platform 2, max_batch_size 4, input 5, output 6, instance_group 7, ' +
    'dynamic_batching 11, ' +
    'ensemble_scheduling 15, backend 17, model_transaction_policy 19',
  ModelInput: 'name 1, data_type 2, dims 4, optional 8',
  ModelOutput: 'name 1, data_type 2, dims 3',
  ModelInstanceGroup: 'name 1, count 2, gpus 3, kind 4',
  ModelDynamicBatching:
    'preferred_batch_size 1, max_queue_delay_microseconds 2, preserve_ordering 3, ' +
    'priority_levels 4, default_priority_level 5, default_queue_policy 6, ' +
    'priority_queue_policy 7',
  ModelQueuePolicy:
    'timeout_action 1, default_timeout_microseconds 2, allow_timeout_override 3, ' +
    'max_queue_size 4',
  ModelStatistics:
    'name 1, version 2, last_inference 3, inference_count 4, execution_count 5, ' +
    'inference_stats 6, batch_stats 7',
  InferStatistics:
    'success 1, fail 2, queue 3, compute_input 4, compute_infer 5, compute_output 6, ' +
    'cache_hit 7, cache_miss 8',
  RepositoryModelLoadRequest: 'repository_name 1, model_name 2, parameters 3',
  TraceSettingRequest: 'settings 1, model_name 2',
  LogSettingsRequest: 'settings 1',
};

test('field numbers are those of Triton', () => {
  const definition = loadSync(fileURLToPath(new URL('../../../proto/oip.proto', import.meta.url)), {
    keepCase: true,
  });
  for (const [message, numbers] of Object.entries(NUMBERS)) {
    const { type } = definition[`inference.${message}`] as MessageTypeDefinition<object, object>;
    const { field } = type as { field: { name: string; number: number }[] };
    const own = field.toSorted((a, b) => a.number - b.number);
    assert.equal(own.map(({ name, number }) => `${name} ${number}`).join(', '), numbers, message);
  }
});

test('HTTP and gRPC report the same metadata, configuration and statistics', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  await serving.post(`${MODEL}/infer`, JSON.stringify({ inputs }));
  const about = (await serving.get('/v2')).body;
  assert.ok(about.extensions.includes('binary_tensor_data'));
  assert.deepEqual(await grpc.call('ServerMetadata', {}), about);
  assert.deepEqual(await grpc.call('ServerLive', {}), { live: true });
  assert.deepEqual(await grpc.call('ServerReady', {}), { ready: true });
  assert.deepEqual(await grpc.call('ModelReady', { name: BUNDLE, version: '7' }), { ready: true });

  const { body: metadata } = await serving.get(MODEL);
  const named = await grpc.call('ModelMetadata', { name: BUNDLE });
  const shapes = (tensors: Json[]): number[][] => tensors.map(({ shape }) => shape.map(Number));
  assert.deepEqual(shapes(named.inputs), [
    [-1, 3],
    [-1, 2],
  ]);
  assert.deepEqual(shapes(metadata.inputs), shapes(named.inputs));

  const { body: config } = await serving.get(`${MODEL}/config`);
  assert.deepEqual(
    config.input.map(({ name, data_type, dims }: Json) => [name, data_type, dims]),
    [
      ['categorical', 'TYPE_STRING', [3]],
      ['dense', 'TYPE_FP32', [2]],
    ],
  );
  assert.ok(config.max_batch_size > 1);
  assert.equal(config.model_transaction_policy.decoupled, false);
  const { config: typed } = await grpc.call('ModelConfig', { name: BUNDLE, version: '' });
  assert.deepEqual([typed.name, typed.max_batch_size], [BUNDLE, config.max_batch_size]);
  assert.deepEqual(typed.input[0].dims, ['3']);

  const { body: stats } = await serving.get(`${MODEL}/versions/7/stats`);
  const [own] = stats.model_stats;
  assert.deepEqual([own.name, own.version], [BUNDLE, '7']);
  assert.ok(own.inference_count >= 3 && own.execution_count >= 1);
  for (const part of [
    'success',
    'fail',
    'queue',
    'compute_input',
    'compute_infer',
    'compute_output',
    'cache_hit',
    'cache_miss',
  ]) {
    const { count, ns } = own.inference_stats[part];
    assert.ok(Number.isSafeInteger(count) && Number.isSafeInteger(ns), part);
  }
  assert.ok(own.inference_stats.success.count >= 1 && own.inference_stats.success.ns > 0);
  assert.deepEqual((await serving.get('/v2/models/stats')).body, stats);
  const counted = await grpc.call('ModelStatistics', { name: BUNDLE });
  assert.equal(Number(counted.model_stats[0].inference_count), own.inference_count);
  assert.equal((await serving.get('/v2/trace/setting')).body.trace_level[0], 'OFF');
  const memory = await serving.post('/v2/systemsharedmemory/region/x/register', '{}');
  assert.match(memory.body.error, /shared memory is not supported/);
});

test('responses follow the request: id, outputs, binary data, detail', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const ask = async (body: object): Promise<Json> =>
    (await serving.post(`${MODEL}/infer`, JSON.stringify(body))).body;
  const plain = await ask({ id: 'ä-1', inputs, outputs: [{ name: 'prob' }] });
  assert.equal(plain.id, 'ä-1');
  const asked = binaryBody([], {}).headers;
  const binary = await postBinary(serving, `${MODEL}/infer`, {
    body: Buffer.from(
      JSON.stringify({ inputs, outputs: [{ name: 'prob', parameters: { binary_data: true } }] }),
    ),
    headers: { 'content-type': asked['content-type']! },
  });
  assert.equal(binary.json.outputs[0].parameters.binary_data_size, 24);
  const bytes = Uint8Array.from(binary.outputs.get('prob')!);
  assert.deepEqual(Array.from(new Float32Array(bytes.buffer)), plain.outputs[0].data);

  const parameters = { detail: true, priority: 1, timeout: 5_000_000 };
  const detailed = await ask({ inputs, parameters });
  const lookups = ['hit', 'unseen', 'unavailable'].map((k) => detailed.parameters[`C1.${k}`]);
  assert.equal(
    lookups.reduce((sum, count) => sum + count, 0),
    rows.length,
  );
  assert.ok(detailed.parameters.infer_micros > 0);

  const user = rows[0]!.categorical[0]!;
  const shared = await ask({
    inputs: [
      dense,
      { name: 'C1', datatype: 'BYTES', shape: [1], data: [user] },
      { name: 'C3', datatype: 'BYTES', shape: [3], data: rows.map((row) => row.categorical[2]) },
    ],
  });
  rows.forEach((row, i) => {
    const expected = toy.score({ ...row, categorical: [user, '', row.categorical[2]!] })[1]!;
    assert.ok(Math.abs(shared.outputs[0].data[2 * i + 1] - expected) < 1e-6, `row ${i}`);
  });
});

test('loads and unloads models for authorized callers', async (t) => {
  const folder = temporaryFolder(t);
  const tokenFile = join(folder, 'token');
  const token = 'correct horse battery';
  writeFileSync(tokenFile, token);
  const { serving } = await startLocal(t, [toy], ['--control-token-file', tokenFile]);
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  const json = { 'content-type': 'application/json' };
  const bearer = { ...json, authorization: `Bearer ${token}` };
  const unload = `/v2/repository/models/${BUNDLE}/unload`;
  const load = `/v2/repository/models/${BUNDLE}/load`;
  const index = async (): Promise<Json> => (await serving.post('/v2/repository/index', '')).body;

  assert.equal((await serving.post(unload, '{}')).status, 403);
  await assert.rejects(grpc.call('RepositoryModelUnload', { model_name: BUNDLE }), /token/);
  assert.deepEqual(await index(), [{ name: BUNDLE, version: '7', state: 'READY', reason: '' }]);
  assert.equal((await serving.post(unload, '{}', bearer)).status, 200);
  const [gone] = await index();
  assert.deepEqual([gone.name, gone.state], [BUNDLE, 'UNAVAILABLE']);
  assert.deepEqual((await serving.post('/v2/repository/index', '{"ready":true}')).body, []);
  assert.equal((await serving.post(`${MODEL}/infer`, JSON.stringify({ inputs }))).status, 503);
  assert.equal((await serving.get(`${MODEL}/ready`)).status, 503);
  assert.equal((await grpc.call('ModelReady', { name: BUNDLE })).ready, false);

  const metadata = new Metadata();
  metadata.set('authorization', `Bearer ${token}`);
  await grpc.call('RepositoryModelLoad', { model_name: BUNDLE }, metadata);
  const { models } = await grpc.call('RepositoryIndex', {});
  assert.deepEqual([models[0].version, models[0].state], ['7', 'READY']);
  assert.equal((await serving.post(`${MODEL}/infer`, JSON.stringify({ inputs }))).status, 200);
  assert.equal((await serving.post(load, '{}', bearer)).status, 200);
  assert.equal((await serving.post('/v2/repository/models/x/load', '{}', bearer)).status, 404);
});

test('a web page cannot unload models; without a token file this host can', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const path = `/v2/repository/models/${BUNDLE}/unload`;
  const page = { 'content-type': 'application/json', origin: 'http://example.com' };
  assert.equal((await serving.post(path, '{}', page)).status, 403);
  assert.equal((await serving.post(path, '{}')).status, 200);
});

const good = {
  model_name: BUNDLE,
  id: 'good',
  inputs: [
    { name: 'categorical', datatype: 'BYTES', shape: [1, 3] },
    { name: 'dense', datatype: 'FP32', shape: [1, 2] },
  ],
  raw_input_contents: [rawStrings(['a', 'b', 'c']), toRawBytes(Float32Array.of(1, 2))],
};

test('a stream continues after a failed request, whose response has the reason', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  const bad = { ...good, raw_input_contents: [] };
  const answers = await grpc.stream([good, bad, good]);
  assert.deepEqual(
    answers.map(({ error_message: error, infer_response: response }) => [error, response.id]),
    [
      ['', 'good'],
      ['input "categorical": it has neither contents nor raw_input_contents', 'good'],
      ['', 'good'],
    ],
  );
});

test('messages of a long stream leave nothing in memory', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const stream = grpc.openStream();
  const readHeapAfter = async (messages: number): Promise<number> => {
    for (let i = 0; i < messages; i++) stream.write(good);
    for (let i = 0; i < messages; i++) {
      const [{ error_message: error }] = (await once(stream, 'data')) as [Json];
      assert.equal(error, '');
    }
    collect();
    return process.memoryUsage().heapUsed;
  };
  const before = await readHeapAfter(1000);
  const grown = (await readHeapAfter(1000)) - before;
  assert.ok(grown < 1000 * MESSAGE_BYTES_MAX, `${grown} bytes more`);
  stream.end();
  await once(stream, 'end');
});
