/** Models of a model repository: requests recorded by one process warm up versions of others. */
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { waitFor } from '../support/processes.ts';
import { FLOAT, model, node, value } from '../tools/prune-model/support/onnx-builder.ts';
import { OipClient } from './support/kserve-client.ts';
import { multiply } from './support/plain-models.ts';
import { ServingProcess } from './support/serving-process.ts';

/** z [batch, 2] = x [batch, 2] + y [batch, 2]. */
const add = model({
  inputs: [value('x', FLOAT, ['batch', 2]), value('y', FLOAT, ['batch', 2])],
  outputs: [value('z', FLOAT, ['batch', 2])],
  nodes: [node('Add', ['x', 'y'], ['z'])],
});

/** Its inputs are those of `add`, and its output that of `double`. */
const CHAIN = `platform: "ensemble"
max_batch_size: 4
input [{ name: "a" data_type: TYPE_FP32 dims: [2] }, { name: "b" data_type: TYPE_FP32 dims: [2] }]
output [{ name: "c" data_type: TYPE_FP32 dims: [2] }]
ensemble_scheduling {
  step [
    { model_name: "sum" model_version: -1
      input_map [{ key: "x" value: "a" }, { key: "y" value: "b" }]
      output_map { key: "z" value: "s" } },
    { model_name: "double" model_version: -1
      input_map { key: "x" value: "s" } output_map { key: "y" value: "c" } }
  ]
}`;

/** A recorded request to `double`. */
const DOUBLED = '{"inputs":[{"name":"x","datatype":"FP32","shape":[1,2],"data":[1,2]}]}';

class Repository {
  readonly folder: string;

  constructor(t: TestContext) {
    this.folder = temporaryFolder(t);
    this.write('models/sum/1/model.onnx', add);
    this.write('models/double/1/model.onnx', multiply(2));
    this.write('models/chain/config.pbtxt', CHAIN);
    this.write('models/chain/1/empty', '');
  }

  write(path: string, content: string | Uint8Array): void {
    mkdirSync(dirname(join(this.folder, path)), { recursive: true });
    writeFileSync(join(this.folder, path), content);
  }

  /** The requests of a recording. */
  read(path: string): { name: string; shape: number[]; data: unknown[] }[][] {
    const lines = readFileSync(join(this.folder, path), 'utf8').split('\n');
    assert.equal(lines.pop(), '');
    return lines.map((line) => JSON.parse(line).inputs);
  }

  start(t: TestContext, models: readonly string[], more = ''): Promise<ServingProcess> {
    const list = models.map((one) => `  - { ${one} }\n`).join('');
    const text = `port: 0\ntimeout-ms: 30000\nmodel-repository: models\n${more}\nmodels:\n${list}`;
    this.write('serving.yaml', text);
    const config = join(this.folder, 'serving.yaml');
    return ServingProcess.start(t, ['--config', config], { isProcess: true, hasOwnPort: true });
  }
}

const POLL = 'model-control-mode: poll\nrepository-poll-ms: 30';

function tensor(name: string, data: readonly number[]): object {
  return { name, datatype: 'FP32', shape: [data.length / 2, 2], data };
}

function infer(serving: ServingProcess, name: string, inputs: readonly object[]) {
  return serving.post(`/v2/models/${name}/infer`, JSON.stringify({ inputs }));
}

test('models of a repository record their requests, which warm up the next process', async (t) => {
  const repository = new Repository(t);
  const serving = await repository.start(t, [
    'name: sum, record: recorded/sum.jsonl, record-share: 1, record-redact: y',
    'name: chain, record: recorded/chain.jsonl, record-share: 1',
  ]);
  await serving.waitUntilReady();
  const answer = await infer(serving, 'sum', [
    tensor('x', [1, 2, 3, 4]),
    tensor('y', [5, 6, 7, 8]),
  ]);
  assert.deepEqual(answer.body.outputs[0].data, [6, 8, 10, 12]);
  const chained = await infer(serving, 'chain', [tensor('a', [1, 2]), tensor('b', [3, 4])]);
  assert.deepEqual(chained.body.outputs[0].data, [8, 12]);
  assert.equal((await infer(serving, 'double', [tensor('x', [1, 2])])).status, 200);
  const client = new OipClient(serving.url);
  t.after(() => client.close());
  const inputs = ['x', 'y'].map((name) => {
    return { name, datatype: 'FP32', shape: [1, 2], contents: { fp32_contents: [9, 10] } };
  });
  await client.call('ModelInfer', { model_name: 'sum', inputs });
  client.close();
  assert.equal(await serving.stop(), 0);
  assert.deepEqual(
    repository.read('recorded/sum.jsonl').map((tensors) => tensors.map(({ data }) => data)),
    [
      [
        [1, 2, 3, 4],
        [0, 0, 0, 0],
      ],
      [
        [9, 10],
        [0, 0],
      ],
    ],
  );
  // The steps of an ensemble record nothing.
  assert.deepEqual(
    repository.read('recorded/chain.jsonl').map((tensors) => tensors.map(({ name }) => name)),
    [['a', 'b']],
  );

  const warm = await repository.start(t, [
    'name: sum, warm-up-file: recorded/sum.jsonl',
    'name: chain, warm-up-file: recorded/chain.jsonl',
  ]);
  await warm.waitUntilReady();
  const { body } = await warm.get('/v2/models/chain/stats');
  assert.equal(body.model_stats[0].inference_count, 0, 'a warm-up is not counted');
  assert.equal(
    (await infer(warm, 'chain', [tensor('a', [1, 2]), tensor('b', [3, 4])])).status,
    200,
  );
  assert.equal(await warm.stop(), 0);

  // A process that was killed while it wrote, and a damaged line.
  const text = readFileSync(join(repository.folder, 'recorded/sum.jsonl'), 'utf8');
  repository.write('recorded/cut.jsonl', `${text}{"inputs":[{"na`);
  repository.write('recorded/bad.jsonl', `${DOUBLED}\n${DOUBLED.replace('[1,2]', '[1,3]')}\n`);
  const damaged = await repository.start(t, [
    'name: sum, warm-up-file: recorded/cut.jsonl',
    'name: double, warm-up-file: recorded/bad.jsonl',
  ]);
  const reason = /double.*warm-up failed: .*bad\.jsonl, line 2: inputs\[0\]\.data: /;
  await damaged.waitFor('/v1/status', ({ body }) => reason.test(JSON.stringify(body)));
  await damaged.waitFor('/v2/models/sum/ready', ({ status }) => status === 200);
  assert.equal((await damaged.get('/v2/models/double/ready')).status >= 400, true);
});

test('a recording goes on after a reload, and warms up the versions that come later', async (t) => {
  const repository = new Repository(t);
  repository.write('double.jsonl', `${DOUBLED}\n`);
  const serving = await repository.start(
    t,
    [
      'name: double, record: recorded.jsonl, record-share: 1, warm-up-file: double.jsonl',
      'name: later, warm-up-file: double.jsonl',
    ],
    POLL,
  );
  await serving.waitFor('/v2/models/double/ready', ({ status }) => status === 200);
  assert.ok(serving.log.some((line) => /settings of a missing model.*/.test(line)));
  const call = async () => (await infer(serving, 'double', [tensor('x', [1, 2])])).body;
  assert.deepEqual((await call()).outputs[0].data, [2, 4]);
  repository.write('models/double/1/model.onnx', multiply(3));
  await waitFor('version 1 to be replaced', async () => {
    return (await call()).outputs[0].data[0] === 3 || 'not yet';
  });
  const before = repository.read('recorded.jsonl').length;
  assert.ok(before >= 2);
  // The warm-up does not fit this version, so the one before goes on.
  repository.write('models/double/2/model.onnx', add);
  const reason = /double\.jsonl, line 1: .*expected an input y too/;
  await serving.waitFor('/v1/status', ({ body }) => reason.test(JSON.stringify(body)));
  assert.equal((await call()).model_version, '1');
  repository.write('models/double/2/model.onnx', multiply(5));
  await waitFor('version 2', async () => (await call()).model_version === '2' || 'not yet');
  repository.write('models/later/1/model.onnx', multiply(7));
  await serving.waitFor('/v2/models/later/ready', ({ status }) => status === 200);
  assert.equal(await serving.stop(), 0);
  const calls = repository.read('recorded.jsonl');
  assert.ok(calls.length > before);
  assert.ok(calls.every(([x]) => x?.name === 'x'));
});
