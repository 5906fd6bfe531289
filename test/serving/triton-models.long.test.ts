/**
 * A model repository in Triton's layout, served by a process: polling under requests, explicit
 * loads, ensembles, shapes and classes.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { waitFor } from '../support/processes.ts';
import {
  FLOAT,
  floats,
  INT64,
  model,
  node,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { OipClient } from './support/kserve-client.ts';
import { type Answer, ServingProcess } from './support/serving-process.ts';
import { TfsClient } from './support/tfs-client.ts';

const MAIN = fileURLToPath(new URL('../../serving/main.js', import.meta.url));

/** y [batch, 3] = x [batch, 3] op a constant. */
function arithmetic(op: 'Add' | 'Mul', constant: number, input = 'x'): Uint8Array {
  return model({
    inputs: [value(input, FLOAT, ['batch', 3])],
    outputs: [value('y', FLOAT, ['batch', 3])],
    initializers: [floats('c', [1], [constant])],
    nodes: [node(op, [input, 'c'], ['y'])],
  });
}

/** y [batch, 3] = x [batch, 3] as integers. */
const TO_INTEGERS = model({
  inputs: [value('x', FLOAT, ['batch', 3])],
  outputs: [value('y', INT64, ['batch', 3])],
  nodes: [node('Cast', ['x'], ['y'], { attributes: { to: INT64 } })],
});

type Files = Readonly<Record<string, string | Uint8Array>>;

function write(folder: string, files: Files): void {
  for (const [path, content] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, path)), { recursive: true });
    writeFileSync(join(folder, path), content);
  }
}

async function serve(
  t: TestContext,
  files: Files,
  flags: readonly string[] = [],
): Promise<{ serving: ServingProcess; folder: string }> {
  const folder = temporaryFolder(t);
  write(folder, files);
  const serving = await ServingProcess.start(t, ['--model-repository', folder, ...flags]);
  return { serving, folder };
}

function infer(
  serving: ServingProcess,
  path: string,
  data: readonly number[],
  more: object = {},
): Promise<Answer> {
  const shape = [data.length / 3, 3];
  const inputs = [{ name: 'x', datatype: 'FP32', shape, data }];
  return serving.post(`/v2/models/${path}/infer`, JSON.stringify({ inputs, ...more }));
}

const POLL = ['--model-control-mode', 'poll', '--repository-poll-ms', '30'];
const ALL = 'version_policy { all {} }';

test('polling follows the folder while requests run without failures', async (t) => {
  const { serving, folder } = await serve(t, { 'm/1/model.onnx': arithmetic('Add', 1) }, POLL);
  await serving.waitUntilReady();
  const failures: unknown[] = [];
  const seen = new Set<string>();
  let stopped = false;
  const callers = Array.from({ length: 4 }, async () => {
    while (!stopped) {
      const { status, body } = await infer(serving, 'm', [0, 1, 2]);
      if (status !== 200) failures.push(body);
      const [first] = body.outputs[0].data;
      // Version n adds n, and 100 more after it was replaced.
      if (first % 100 !== Number(body.model_version)) failures.push(body);
      seen.add(`${body.model_version}:${first}`);
    }
  });
  const until = (answer: string): Promise<void> =>
    waitFor(answer, () => seen.has(answer) || [...seen]);
  await until('1:1');
  const second = arithmetic('Add', 2);
  write(folder, { 'm/2/model.onnx': second.subarray(0, second.length - 9) });
  await serving.waitFor('/v1/status', ({ body }) => body.models[0].failed.length > 0);
  const index = await serving.post('/v2/repository/index', '');
  assert.equal(index.body[0].state, 'READY');
  assert.equal(index.body[1].state, 'UNAVAILABLE');
  assert.match(index.body[1].reason, /^m\/2\/model\.onnx is not a valid ONNX model/);
  write(folder, { 'm/2/model.onnx': second });
  await until('2:2');
  write(folder, { 'm/2/model.onnx': arithmetic('Add', 102) });
  await until('2:102');
  rmSync(join(folder, 'm/2'), { recursive: true });
  seen.clear();
  await until('1:1');
  stopped = true;
  await Promise.all(callers);
  assert.deepEqual(failures, []);
  write(folder, { 'n/5/model.onnx': second });
  await serving.waitFor('/v2/models/n/ready', ({ status }) => status === 200);
  rmSync(join(folder, 'n'), { recursive: true });
  await serving.waitFor('/v2/models/n/ready', ({ status }) => status === 404);
});

test('the index says why a version that serves does not use its changed files', async (t) => {
  const config = 'max_batch_size: 8';
  const { serving, folder } = await serve(
    t,
    { 'm/1/model.onnx': arithmetic('Add', 1), 'm/config.pbtxt': config },
    POLL,
  );
  await serving.waitUntilReady();
  const readEntries = async (): Promise<{ version: string; state: string; reason: string }[]> =>
    (await serving.post('/v2/repository/index', '')).body;
  const untilReason = (expected: RegExp): Promise<void> =>
    waitFor(String(expected), async () => {
      const [entry, ...others] = await readEntries();
      assert.deepEqual([entry?.version, entry?.state, others], ['1', 'READY', []]);
      return expected.test(entry?.reason ?? '') || entry;
    });
  await untilReason(/^$/);
  write(folder, { 'm/1/model.onnx': 'x' });
  await untilReason(/^m\/1\/model\.onnx is not a valid ONNX model/);
  assert.equal((await infer(serving, 'm', [0, 1, 2])).status, 200);
  write(folder, { 'm/1/model.onnx': arithmetic('Add', 2) });
  await untilReason(/^$/);
  write(folder, { 'm/config.pbtxt': 'max_batchsize: 8' });
  await untilReason(/^m\/config\.pbtxt:1.*did you mean "max_batch_size"/);
  write(folder, { 'm/config.pbtxt': config });
  await untilReason(/^$/);
  assert.deepEqual((await infer(serving, 'm', [0, 1, 2])).body.outputs[0].data, [2, 3, 4]);
});

test('several versions are served at once, the highest by default', async (t) => {
  const { serving, folder } = await serve(
    t,
    {
      'm/1/model.onnx': arithmetic('Add', 1),
      'm/10/model.onnx': arithmetic('Add', 10),
      'm/9/model.onnx': arithmetic('Add', 9),
      'm/config.pbtxt': ALL,
    },
    POLL,
  );
  await serving.waitUntilReady();
  assert.deepEqual((await infer(serving, 'm', [0, 0, 0])).body.outputs[0].data, [10, 10, 10]);
  await serving.waitFor('/v2/models/m/versions/1/ready', ({ status }) => status === 200);
  const nine = await infer(serving, 'm/versions/9', [0, 0, 0]);
  assert.deepEqual([nine.body.model_version, nine.body.outputs[0].data], ['9', [9, 9, 9]]);
  write(folder, { 'm/config.pbtxt': 'version_policy { specific { versions: [1, 9] } }' });
  await serving.waitFor('/v2/models/m/versions/10/ready', ({ status }) => status === 404);
  assert.equal((await infer(serving, 'm', [0, 0, 0])).body.model_version, '9');
});

test('every protocol of plain models reaches the models of a repository', async (t) => {
  const { serving } = await serve(t, { 'm/3/model.onnx': arithmetic('Add', 3) });
  await serving.waitUntilReady();
  const rest = await serving.post('/v1/models/m:predict', '{"instances":[[1,2,3]]}');
  assert.deepEqual(rest.body, { predictions: [[4, 5, 6]] });
  const tfs = new TfsClient(serving.url);
  t.after(() => tfs.close());
  const shape = { dim: [{ size: 1 }, { size: 3 }] };
  const x = { dtype: 1, tensor_shape: shape, float_val: [1, 2, 3] };
  const answer = await tfs.predict({ model_spec: { name: 'm' }, inputs: { x } });
  assert.deepEqual(answer.outputs.y.float_val, [4, 5, 6]);
  assert.equal(answer.model_spec.version.value, '3');
  const tensor = [{ name: 'x', shape: [1, 3], float_data: [1, 2, 3], elem_type: 1 }];
  const body = JSON.stringify({ tensor, fetch_var_names: ['y'] });
  const paddle = await serving.post('/GeneralModelService/inference', body);
  assert.deepEqual(paddle.body.outputs[0].tensor[0].float_data, [4, 5, 6]);
});

test('explicit mode loads and unloads by request', async (t) => {
  const { serving } = await serve(
    t,
    { 'a/1/model.onnx': arithmetic('Add', 1), 'b/1/model.onnx': arithmetic('Add', 2) },
    ['--model-control-mode', 'explicit', '--load-model', 'a'],
  );
  await serving.waitUntilReady();
  assert.equal((await infer(serving, 'b', [0, 0, 0])).status, 503);
  assert.equal((await serving.post('/v2/repository/models/b/load', '')).status, 200);
  assert.deepEqual((await infer(serving, 'b', [0, 0, 0])).body.outputs[0].data, [2, 2, 2]);
  const body = JSON.stringify({ parameters: { unload_dependents: true } });
  assert.equal((await serving.post('/v2/repository/models/b/unload', body)).status, 200);
  assert.equal((await infer(serving, 'b', [0, 0, 0])).status, 503);
  const missing = await serving.post('/v2/repository/models/c/load', '');
  assert.equal(missing.status, 404);
  assert.equal(missing.body.error, 'the repository has no model "c"; known here: a, b');
});

const TENSORS = `
  max_batch_size: 8
  input { name: "x" data_type: TYPE_FP32 dims: 3 }
  output { name: "y" data_type: TYPE_FP32 dims: 3 }`;

function step(name: string, input: string, output: string): string {
  return (
    `step { model_name: "${name}" model_version: -1 input_map { key: "x" value: "${input}" } ` +
    `output_map { key: "y" value: "${output}" } }`
  );
}

const ensemble = (...steps: string[]): string =>
  `platform: "ensemble" ${TENSORS} ensemble_scheduling { ${steps.join(' ')} }`;

const STEPS: Files = {
  'add/1/model.onnx': arithmetic('Add', 1),
  'double/1/model.onnx': arithmetic('Mul', 2),
  'chain/config.pbtxt': ensemble(step('double', 'mid', 'y'), step('add', 'x', 'mid')),
  'chain/1/.keep': '',
  'nested/config.pbtxt': ensemble(step('chain', 'x', 'z'), step('chain', 'z', 'y')),
  'nested/1/.keep': '',
};

test('an ensemble computes what its models compute one after the other', async (t) => {
  const { serving, folder } = await serve(t, { ...STEPS, 'a b/1/.keep': '' }, POLL);
  await serving.waitUntilReady();
  assert.ok(
    serving.log.some((line) => /"folder":"a b".*not a model name.*rename the folder/.test(line)),
  );
  const values = [0, 1, 2, 3, 4, 5];
  const chain = (x: number): number => 2 * (x + 1);
  const one = await infer(serving, 'chain', values);
  assert.deepEqual(one.body.outputs[0], {
    name: 'y',
    datatype: 'FP32',
    shape: [2, 3],
    data: values.map(chain),
  });
  const nested = await infer(serving, 'nested', values);
  assert.deepEqual(nested.body.outputs[0].data, values.map(chain).map(chain));
  const rows = {
    instances: [
      [0, 1, 2],
      [3, 4, 5],
    ],
  };
  const path = '/v1/models/chain:predict';
  const tensorFlow = await serving.post(path, JSON.stringify(rows));
  assert.deepEqual(tensorFlow.body.predictions.flat(), values.map(chain));
  const config = await serving.get('/v2/models/chain/config');
  assert.equal(config.body.platform, 'ensemble');
  assert.equal(config.body.max_batch_size, 8);
  assert.equal(config.body.ensemble_scheduling.step[1].input_map.x, 'x');
  const stats = await serving.get('/v2/models/add/stats');
  assert.equal(stats.body.model_stats[0].inference_stats.success.count, 4);
  write(folder, { 'add/2/model.onnx': arithmetic('Add', 5) });
  await waitFor('the new step answers', async () => {
    const { status, body } = await infer(serving, 'chain', [0, 0, 0]);
    assert.equal(status, 200);
    return body.outputs[0].data[0] === 10;
  });
});

test('an ensemble is not ready while one of its steps is unloaded', async (t) => {
  const flags = ['--model-control-mode', 'explicit', '--load-model', 'nested'];
  const { serving } = await serve(t, STEPS, flags);
  await serving.waitUntilReady();
  const readState = async (name: string): Promise<{ state: string; reason: string }> => {
    const { body } = await serving.post('/v2/repository/index', '');
    return body.find((entry: { name: string }) => entry.name === name);
  };
  assert.equal((await serving.post('/v2/repository/models/add/unload', '')).status, 200);
  const expected = /^step add of chain: no version of add is served: it is not loaded/;
  const ready = await serving.get('/v2/models/chain/ready');
  assert.deepEqual([ready.status, ready.body.ready], [503, false]);
  assert.match(ready.body.error, expected);
  const refused = await infer(serving, 'chain', [0, 0, 0]);
  assert.equal(refused.status, 503);
  assert.match(refused.body.error, expected);
  const chain = await readState('chain');
  assert.equal(chain.state, 'UNAVAILABLE');
  assert.match(chain.reason, expected);
  for (const path of ['chain', 'chain/versions/1']) {
    const tensorFlow = await serving.get(`/v1/models/${path}`);
    const [{ version, state, status }] = tensorFlow.body.model_version_status;
    assert.deepEqual([version, state, status.error_code], ['1', 'END', 'UNAVAILABLE']);
    assert.match(status.error_message, expected);
  }
  const nested = await readState('nested');
  assert.equal(nested.state, 'UNAVAILABLE');
  assert.match(nested.reason, expected);
  const client = new OipClient(serving.url);
  t.after(() => client.close());
  assert.equal((await client.call('ModelReady', { name: 'chain' })).ready, false);
  const { body } = await serving.get('/v1/status');
  const { problem } = body.models.find(({ model: name }: { model: string }) => name === 'chain');
  assert.match(problem, expected);
  assert.equal((await serving.get('/readyz')).status, 200, 'other models are served');
  const stats = await serving.get('/v2/models/chain/stats');
  assert.equal(stats.status, 200);
  assert.equal((await serving.post('/v2/repository/models/nested/load', '')).status, 200);
  assert.equal((await serving.get('/v2/models/chain/ready')).status, 200);
  assert.equal((await readState('nested')).state, 'READY');
  const tensorFlow = await serving.get('/v1/models/chain');
  assert.equal(tensorFlow.body.model_version_status[0].state, 'AVAILABLE');
});

test('an ensemble is not ready once a step is removed, and names no folder', async (t) => {
  const { serving, folder } = await serve(t, STEPS, POLL);
  await serving.waitUntilReady();
  rmSync(join(folder, 'add'), { recursive: true });
  await serving.waitFor('/v2/models/chain/ready', ({ status }) => status === 503);
  const { status, body } = await infer(serving, 'chain', [0, 0, 0]);
  const error = 'step add of chain: the repository has no model add';
  assert.deepEqual([status, body.error], [503, error]);
  write(folder, { 'add/1/model.onnx': arithmetic('Add', 1) });
  await serving.waitFor('/v2/models/nested/ready', (answer) => answer.status === 200);
});

test('an ensemble is not ready while a step has a version whose tensors do not fit', async (t) => {
  const flags = ['--model-control-mode', 'explicit', '--load-model', 'nested'];
  const { serving, folder } = await serve(t, STEPS, flags);
  await serving.waitUntilReady();
  const replace = async (name: string, bytes: Uint8Array): Promise<void> => {
    write(folder, { [`${name}/1/model.onnx`]: bytes });
    assert.equal((await serving.post(`/v2/repository/models/${name}/load`, '')).status, 200);
  };
  const assertMisfit = async (name: string, bytes: Uint8Array, reason: string): Promise<void> => {
    await replace(name, bytes);
    const error = `a step of chain does not fit: chain/config.pbtxt:4: ${reason}`;
    for (const path of ['chain', 'nested']) {
      const refused = await infer(serving, path, [0, 0, 0]);
      assert.deepEqual([refused.status, refused.body.error], [503, error]);
      const ready = await serving.get(`/v2/models/${path}/ready`);
      assert.deepEqual([ready.status, ready.body.error], [503, error]);
    }
    const { body } = await serving.post('/v2/repository/index', '');
    const entry = body.find((one: { name: string }) => one.name === 'chain');
    assert.deepEqual([entry.state, entry.reason], ['UNAVAILABLE', error]);
  };
  await assertMisfit('add', TO_INTEGERS, 'step double: x is FP32, but output y of add is INT64');
  await replace('add', arithmetic('Add', 3));
  assert.deepEqual((await infer(serving, 'chain', [0, 0, 0])).body.outputs[0].data, [6, 6, 6]);
  await assertMisfit(
    'add',
    arithmetic('Add', 1, 'input'),
    'step add: the model has no input x; known here: input',
  );
  await replace('add', arithmetic('Add', 3));
  await replace('double', TO_INTEGERS);
  const { status, body } = await infer(serving, 'chain', [0, 0, 0]);
  assert.equal(status, 503);
  assert.match(body.error, /^a step .*: y is FP32, but output y of double is INT64$/);
  assert.ok(!body.error.includes(folder), body.error);
});

test('an ensemble whose steps do not fit is not served, and says why', async (t) => {
  const { serving } = await serve(t, {
    'add/1/model.onnx': arithmetic('Add', 1),
    'cycle/config.pbtxt': ensemble(step('add', 'b', 'y'), step('add', 'y', 'b')),
    'cycle/1/.keep': '',
    'missing/config.pbtxt': ensemble(step('add', 'z', 'y')),
    'missing/1/.keep': '',
    'self/config.pbtxt': ensemble(step('self', 'x', 'y')),
    'self/1/.keep': '',
    'left/config.pbtxt': ensemble(step('right', 'x', 'y')),
    'left/1/.keep': '',
    'right/config.pbtxt': ensemble(step('left', 'x', 'y')),
    'right/1/.keep': '',
    'wrong/config.pbtxt': ensemble(step('add', 'x', 'y')).replace('TYPE_FP32', 'TYPE_INT64'),
    'wrong/1/.keep': '',
    'twice/config.pbtxt': ensemble(step('add', 'x', 'y'), step('add', 'x', 'y')),
    'twice/1/.keep': '',
  });
  const expected: Record<string, RegExp> = {
    cycle: /the steps add, add wait for each other/,
    missing: /config\.pbtxt:4: step add: input x takes the tensor z, which is neither/,
    self: /no version of self is served: ensemble self contains itself: self -> self/,
    left: /ensemble left contains itself: left -> right -> left/,
    right: /ensemble right contains itself: right -> left -> right/,
    wrong: /x is FP32, but input x is INT64/,
    twice: /tensor y has two sources/,
  };
  await serving.waitFor('/v2/models/add/ready', ({ status }) => status === 200);
  await serving.waitFor('/v1/status', ({ body }) =>
    body.models.every(
      (one: { model: string; failed: unknown[] }) => one.model === 'add' || one.failed[0],
    ),
  );
  for (const [name, reason] of Object.entries(expected)) {
    const { status, body } = await infer(serving, name, [0, 0, 0]);
    assert.equal(status, 503);
    assert.match(body.error, reason);
  }
});

test('a change that closes a cycle of ensembles interrupts no request', async (t) => {
  const { serving, folder } = await serve(t, STEPS, POLL);
  await serving.waitUntilReady();
  const cycle = ensemble(step('nested', 'x', 'z'), step('add', 'z', 'y'));
  write(folder, { 'chain/config.pbtxt': cycle });
  const { body } = await serving.waitFor('/v1/status', (answer) =>
    answer.body.models.some(({ failed }: { failed: unknown[] }) => failed.length > 0),
  );
  const { failed } = body.models.find(({ model: name }: { model: string }) => name === 'chain');
  assert.match(failed[0].message, /ensemble chain contains itself: chain -> nested -> chain/);
  assert.deepEqual((await infer(serving, 'chain', [0, 0, 0])).body.outputs[0].data, [2, 2, 2]);
  assert.deepEqual((await infer(serving, 'nested', [0, 0, 0])).body.outputs[0].data, [6, 6, 6]);
  assert.equal((await serving.get('/metrics')).status, 200);
});

/** The configuration of the model below, over HTTP and gRPC. */
async function assertConfig(serving: ServingProcess, grpc: OipClient): Promise<void> {
  const config = await serving.get('/v2/models/m/config');
  assert.equal(config.body.max_batch_size, 4);
  assert.deepEqual(config.body.input[0].dims, [1, 3]);
  assert.equal(config.body.instance_group[0].count, 2);
  assert.deepEqual(config.body.dynamic_batching.priority_queue_policy['2'], {
    timeout_action: 'DELAY',
    default_timeout_microseconds: 20_000_000,
    allow_timeout_override: true,
    max_queue_size: 100,
  });
  const inGrpc = await grpc.call('ModelConfig', { name: 'm' });
  // The client library shows 64-bit keys as their bytes.
  const policies = Object.values(inGrpc.config.dynamic_batching.priority_queue_policy);
  const actions = policies.map((policy) => (policy as { timeout_action: string }).timeout_action);
  assert.deepEqual(actions, ['REJECT', 'DELAY']);
}

test('declared shapes, warm-up, priorities and classes are honoured', async (t) => {
  const { serving } = await serve(t, {
    'm/1/model.onnx': arithmetic('Add', 0),
    'm/labels.txt': 'cat\ndog\nbird\n',
    'm/warmup/rows': new Uint8Array(12),
    'm/config.pbtxt': `
      max_batch_size: 4
      input { name: "x" data_type: TYPE_FP32 dims: [1, 3] reshape { shape: [3] } }
      output { name: "y" data_type: TYPE_FP32 dims: 3 label_filename: "labels.txt" }
      instance_group { count: 2 kind: KIND_CPU }
      dynamic_batching {
        preferred_batch_size: 2 preserve_ordering: true priority_levels: 2
        default_priority_level: 1 max_queue_delay_microseconds: 10
        priority_queue_policy { key: 2 value { timeout_action: DELAY max_queue_size: 100
          default_timeout_microseconds: 20000000 allow_timeout_override: true } }
      }
      model_warmup { name: "file" batch_size: 1 inputs { key: "x" value {
        data_type: TYPE_FP32 dims: [1, 3] input_data_file: "rows" } } }
      response_cache { enable: true }`,
  });
  await serving.waitUntilReady();
  const request = (more: object = {}): Promise<Answer> =>
    serving.post(
      '/v2/models/m/infer',
      JSON.stringify({
        inputs: [{ name: 'x', datatype: 'FP32', shape: [2, 1, 3], data: [1, 3, 2, 9, 7, 7.5] }],
        ...more,
      }),
    );
  const values = await request();
  assert.deepEqual(values.body.outputs[0].shape, [2, 3]);
  assert.deepEqual(values.body.outputs[0].data, [1, 3, 2, 9, 7, 7.5]);
  const outputs = [{ name: 'y', parameters: { classification: 2 } }];
  const classes = await request({ outputs });
  assert.deepEqual(classes.body.outputs[0], {
    name: 'y',
    datatype: 'BYTES',
    shape: [2, 2],
    data: ['3.000000:1:dog', '2.000000:2:bird', '9.000000:0:cat', '7.500000:2:bird'],
  });
  const grpc = new OipClient(serving.url);
  t.after(() => grpc.close());
  const reply = await grpc.call('ModelInfer', {
    model_name: 'm',
    inputs: [
      { name: 'x', datatype: 'FP32', shape: [1, 1, 3], contents: { fp32_contents: [1, 3, 2] } },
    ],
    outputs: [{ name: 'y', parameters: { classification: { int64_param: 1 } } }],
  });
  assert.equal(Buffer.from(reply.raw_output_contents[0]).subarray(4).toString(), '3.000000:1:dog');
  const sequence = await request({ parameters: { sequence_id: 7 } });
  assert.match(sequence.body.error, /sequence_id: sequences are not supported/);
  assert.equal((await request({ parameters: { sequence_id: 0, priority: 2 } })).status, 200);
  const wrong = await infer(serving, 'm', [1, 2, 3]);
  assert.match(wrong.body.error, /expected \[-1, 1, 3\], got \[1, 3\]/);
  await assertConfig(serving, grpc);
  // The timeout counts for the queue only, and the queue is empty.
  assert.equal((await request({ parameters: { timeout: 1 } })).status, 200);
});

test('--check-config lists ignored fields and refuses invalid ones', (t) => {
  const folder = temporaryFolder(t);
  const check = () =>
    spawnSync(process.execPath, [MAIN, '--model-repository', folder, '--check-config'], {
      encoding: 'utf8',
    });
  write(folder, {
    'm/config.pbtxt': 'metric_tags { key: "a" value: "b" }',
    'my model/config.pbtxt': 'max_batch_size: 1',
    '.git/config': '',
  });
  const good = check();
  assert.equal(good.status, 0, good.stderr);
  assert.match(good.stdout, /modelRepository:\n {2}folder: /);
  assert.match(good.stdout, /ignored: .*m\/config\.pbtxt:1 metric_tags \(metrics have fixed names/);
  assert.match(good.stdout, /ignored: .*my model \(not served: expected a name of 1 to 128/);
  assert.doesNotMatch(good.stdout, /\.git/);
  write(folder, { 'm/config.pbtxt': 'max_batchsize: 1' });
  const bad = check();
  assert.equal(bad.status, 2);
  assert.match(bad.stderr, /did you mean "max_batch_size"/);
});

test('--check-config says which execution provider is missing, and what to install', (t) => {
  const folder = temporaryFolder(t);
  const provider = process.platform === 'darwin' ? 'dml' : 'coreml';
  const check = (...flags: string[]) => {
    const args = [MAIN, '--model', 'm.onnx', '--check-config', ...flags];
    return spawnSync(process.execPath, args, { encoding: 'utf8' });
  };
  const replaced = check('--provider', `${provider},cpu`);
  assert.equal(replaced.status, 0, replaced.stderr);
  assert.match(replaced.stdout, new RegExp(`- - ${provider}\\n +- cpu`));
  assert.match(
    replaced.stdout,
    /^ignored: model m provider \w+ \(onnxruntime-node .*; to use it,/m,
  );
  write(folder, { 'g/config.pbtxt': 'instance_group { kind: KIND_GPU gpus: 63 }' });
  const refused = check('--model-repository', folder);
  assert.equal(refused.status, 2);
  assert.match(refused.stderr, /g\/config\.pbtxt: execution provider cuda:63 is not available/);
});

/** y [n, 2] = x [n, 2] + b [n, 2], where b is [10, 20] by default. */
const OPTIONAL = model({
  inputs: [value('x', FLOAT, ['n', 2]), value('b', FLOAT, ['n', 2])],
  outputs: [value('y', FLOAT, ['n', 2])],
  initializers: [floats('b', [1, 2], [10, 20])],
  nodes: [node('Add', ['x', 'b'], ['y'])],
});

test('an optional input has the default of the graph where a request leaves it out', async (t) => {
  const inputs = (isOptional: string): string =>
    `
    input { name: "x" data_type: TYPE_FP32 dims: 2 }
    input { name: "b" data_type: TYPE_FP32 dims: 2 optional: true }
    input { name: "c" data_type: TYPE_FP32 dims: 2 optional: true }`.replace(isOptional, '');
  const c = 'input { name: "c" data_type: TYPE_FP32 dims: 2 optional: true }';
  const { serving } = await serve(
    t,
    {
      'm/1/model.onnx': OPTIONAL,
      'm/config.pbtxt': `max_batch_size: 8 ${inputs(c)}`,
      'chain/config.pbtxt': ensemble(step('m', 'x', 'z'), step('m', 'z', 'y')).replaceAll(
        'dims: 3',
        'dims: 2',
      ),
      'chain/1/.keep': '',
      'wrong/1/model.onnx': OPTIONAL,
      'wrong/config.pbtxt': `max_batch_size: 8 ${inputs('')}`,
    },
    POLL,
  );
  await serving.waitFor('/v2/models/m/ready', ({ status }) => status === 200);
  await serving.waitFor('/v2/models/chain/ready', ({ status }) => status === 200);
  const sendTo = (path: string, ...tensors: [string, number[]][]): Promise<Answer> => {
    const list = tensors.map(([name, data]) => {
      return { name, datatype: 'FP32', shape: [data.length / 2, 2], data };
    });
    return serving.post(`/v2/models/${path}/infer`, JSON.stringify({ inputs: list }));
  };
  const send = (...tensors: [string, number[]][]): Promise<Answer> => sendTo('m', ...tensors);
  const [given, absent] = await Promise.all([
    send(['x', [1, 2, 3, 4]], ['b', [5, 6, 7, 8]]),
    send(['x', [1, 2, 3, 4]]),
  ]);
  assert.deepEqual(given.body.outputs[0].data, [6, 8, 10, 12]);
  assert.deepEqual(absent.body.outputs[0].data, [11, 22, 13, 24]);
  // The steps of an ensemble leave it out, too.
  const chained = await sendTo('chain', ['x', [1, 2, 3, 4]]);
  assert.deepEqual(chained.body.outputs[0].data, [21, 42, 23, 44]);
  assert.match((await send(['b', [1, 2]])).body.error, /expected an input x too/);
  const config = await serving.get('/v2/models/m/config');
  assert.deepEqual(
    config.body.input.map(({ optional }: { optional?: boolean }) => optional ?? false),
    [false, true],
  );
  await serving.waitFor('/v1/status', ({ body }) =>
    body.models.some(({ failed }: { failed: { message: string }[] }) =>
      failed.some(({ message }) => /input c is optional .* has no default/.test(message)),
    ),
  );
});
