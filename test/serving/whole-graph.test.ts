/** A graph with its embeddings inside, served without a store, by ids and by features. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { OnnxModel } from '../../lib/platform/onnx.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { runCommand } from '../support/commands.ts';
import {
  BOOL,
  externalFloats,
  FLOAT,
  floats,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  graph as subgraph,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { assertClose } from './support/served-model.ts';
import { ServingProcess } from './support/serving-process.ts';

const TABLE = floats('t', [8, 2], ramp(16));
const WEIGHTS = floats('w', [9, 1], ramp(9, 3));

function graph(batch: string | number, table = TABLE, weights = WEIGHTS): Uint8Array {
  return model({
    inputs: [
      value('ids', INT64, [batch, 2]),
      value('user', INT32, [batch, 1]),
      value('price', FLOAT, [batch, 2]),
    ],
    outputs: [value('prob', FLOAT, [batch, 1])],
    initializers: [
      table,
      floats('u', [5, 3], ramp(15, 2)),
      weights,
      ints('flat', [2], [-1, 4]),
      ints('one', [2], [-1, 3]),
    ],
    nodes: [
      node('Gather', ['t', 'ids'], ['rows']),
      node('Gather', ['u', 'user'], ['who']),
      node('Reshape', ['rows', 'flat'], ['a']),
      node('Reshape', ['who', 'one'], ['b']),
      node('Concat', ['a', 'b', 'price'], ['x'], { attributes: { axis: 1 } }),
      node('MatMul', ['x', 'w'], ['logit']),
      node('Sigmoid', ['logit'], ['prob']),
    ],
  });
}

const FEATURES = {
  format: 1,
  hash: { scheme: 'raw', seed: '0', modulo: '0' },
  slots: ['a', 'b', 'user'].map((name, index) => ({ name, index })),
  dense: {
    input: 'price',
    features: ['p', 'q'].map((name) => ({ name, missing: 0, log: false, shift: 0, scale: 1 })),
  },
  click: { output: 'prob', column: 0 },
  ids: [
    { input: 'ids', slots: ['a', 'b'] },
    { input: 'user', slots: ['user'] },
  ],
};

async function publish(
  folder: string,
  ...flags: string[]
): Promise<{ code: number | null; stderr: string }> {
  const target = ['--output-path', join(folder, 'repo'), '--bundle', 'small', '--cur-version', '1'];
  const from = ['--model', join(folder, 'model.onnx'), ...flags];
  return runCommand('tools/cube-builder/main.js', 'graph', ...from, ...target);
}

async function serve(t: TestContext, folder: string): Promise<ServingProcess> {
  const repository = openRepository(join(folder, 'repo'));
  await repository.activate('small', 'stable', { version: '1', by: 'test', reason: 'test' });
  const from = ['--repository', join(folder, 'repo'), '--bundle', 'small', '--store', 'none'];
  const serving = await ServingProcess.start(t, [...from, '--instances', '2']);
  await serving.waitUntilReady();
  return serving;
}

const rows = Array.from({ length: 70 }, (_, i) => ({
  ids: [(i * 3) % 8, (i * 5) % 8],
  user: i % 5,
  price: [Math.fround(Math.cos(i)), i % 3],
}));

async function scores(): Promise<Float32Array> {
  const full = await OnnxModel.load(graph('n'));
  const ids = BigInt64Array.from(rows.flatMap((row) => row.ids.map(BigInt)));
  const { prob } = await full.run({
    ids: { dtype: 'int64', data: ids, dims: [rows.length, 2] },
    user: {
      dtype: 'int32',
      data: Int32Array.from(rows, ({ user }) => user),
      dims: [rows.length, 1],
    },
    price: {
      dtype: 'float32',
      data: Float32Array.from(rows.flatMap(({ price }) => price)),
      dims: [rows.length, 2],
    },
  });
  assert.ok(prob);
  await full.release();
  return prob.data as Float32Array;
}

/** Asks for all rows by features. */
async function assertScores(serving: ServingProcess): Promise<void> {
  const asked = rows.map(({ ids, user, price }) => ({
    dense: price,
    categorical: [...ids, user].map(String),
  }));
  const { status, body } = await serving.post('/v1/ctr:predict', JSON.stringify({ rows: asked }));
  assert.equal(status, 200, JSON.stringify(body));
  assertClose(body.probabilities, await scores(), 'features');
}

test('requests by ids; an id outside its table fails only its own request', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'model.onnx'), graph('n'));
  const { code, stderr } = await publish(folder);
  assert.equal(code, 0, stderr);
  const serving = await serve(t, folder);
  const infer = (given: typeof rows): ReturnType<ServingProcess['post']> => {
    const tensor = (name: string, datatype: string, width: number, data: unknown[]): object => {
      return { name, datatype, shape: [given.length, width], data };
    };
    const inputs = [
      tensor(
        'ids',
        'INT64',
        2,
        given.flatMap(({ ids }) => ids),
      ),
      tensor(
        'user',
        'INT32',
        1,
        given.map(({ user }) => user),
      ),
      tensor(
        'price',
        'FP32',
        2,
        given.flatMap(({ price }) => price),
      ),
    ];
    return serving.post('/v2/models/small/infer', JSON.stringify({ inputs }));
  };
  const asked = [infer(rows), infer([{ ...rows[0]!, ids: [8, 0] }]), infer(rows.slice(0, 3))];
  const [all, beyond, few] = await Promise.all(asked);
  assert.ok(all && beyond && few);
  assert.equal(all.status, 200, JSON.stringify(all.body));
  const expected = await scores();
  assertClose(all.body.outputs[0].data, expected, 'all');
  assertClose(few.body.outputs[0].data, expected.subarray(0, 3), 'few');
  assert.equal(beyond.status, 500);
  assert.match(beyond.body.error, /out of data bounds/);
});

test('tensors in files of any name beside the graph are published with it', async (t) => {
  const folder = temporaryFolder(t);
  const table = externalFloats('t', [8, 2], 'ranker.onnx.data');
  const weights = externalFloats('w', [9, 1], 'weights_of.dense');
  writeFileSync(join(folder, 'model.onnx'), graph('n', table, weights));
  writeFileSync(join(folder, 'ranker.onnx.data'), Float32Array.from(ramp(16)));
  writeFileSync(join(folder, 'weights_of.dense'), Float32Array.from(ramp(9, 3)));
  writeFileSync(join(folder, 'features.json'), JSON.stringify(FEATURES));
  const { code, stderr } = await publish(folder, '--features', join(folder, 'features.json'));
  assert.equal(code, 0, stderr);
  const serving = await serve(t, folder);
  await assertScores(serving);
});

test('requests by features, with features.json', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'model.onnx'), graph('n'));
  writeFileSync(join(folder, 'features.json'), JSON.stringify(FEATURES));
  const { code, stderr } = await publish(folder, '--features', join(folder, 'features.json'));
  assert.equal(code, 0, stderr);
  const serving = await serve(t, folder);
  await assertScores(serving);
});

test('features.json that does not match the graph is refused, with what differs', async (t) => {
  const folder = temporaryFolder(t);
  const path = join(folder, 'features.json');
  writeFileSync(join(folder, 'model.onnx'), graph('n'));
  const { dense, click } = FEATURES;
  const mistakes: readonly [object, RegExp][] = [
    [{ click: { ...click, output: 'p' } }, /it names the output p, but the graph has: prob/],
    [{ dense: { ...dense, input: 'prices' } }, /the graph's input price is not in it/],
    [{ dense: { ...dense, features: dense.features.slice(1) } }, /input: price .* Expected: 2/],
    [{ dense: undefined }, /the graph's input price is not in it, so it has no values/],
  ];
  for (const [mistake, reason] of mistakes) {
    writeFileSync(path, JSON.stringify({ ...FEATURES, ...mistake }));
    const { code, stderr } = await publish(folder, '--features', path);
    assert.equal(code, 1);
    assert.match(stderr, reason);
    assert.match(stderr, /features\.json does not match .*model\.onnx: /);
  }
});

test('external data inside a branch is refused, with the reason', async (t) => {
  const folder = temporaryFolder(t);
  const branch = (weight: Uint8Array): Uint8Array =>
    subgraph({
      inputs: [],
      outputs: [value('z', FLOAT, [2])],
      initializers: [weight],
      nodes: [node('Add', ['x', 'w'], ['z'])],
    });
  const then_branch = { graph: branch(externalFloats('w', [2], 'branch.bin')) };
  const else_branch = { graph: branch(floats('w', [2], [1, 2])) };
  const bytes = model({
    inputs: [value('x', FLOAT, [2]), value('c', BOOL, [])],
    outputs: [value('y', FLOAT, [2])],
    nodes: [node('If', ['c'], ['y'], { attributes: { then_branch, else_branch } })],
  });
  writeFileSync(join(folder, 'model.onnx'), bytes);
  writeFileSync(join(folder, 'branch.bin'), Float32Array.of(3, 4));
  const { code, stderr } = await publish(folder, '--plain');
  assert.equal(code, 1);
  assert.match(stderr, /tensors of branches and loops are in the file branch\.bin, which/);
});

test('a graph that cannot be served is rejected before it is published', async (t) => {
  const folder = temporaryFolder(t);
  const path = join(folder, 'features.json');
  writeFileSync(join(folder, 'model.onnx'), graph(4));
  const fixed = await publish(folder);
  assert.deepEqual(
    [fixed.code, /"ids" is int64 \[4, 2\].*dynamic batch/.test(fixed.stderr)],
    [1, true],
  );
  writeFileSync(join(folder, 'model.onnx'), graph('n'));
  writeFileSync(path, JSON.stringify({ ...FEATURES, ids: [{ input: 'ids', slots: ['a'] }] }));
  const short = await publish(folder, '--features', path);
  assert.match(short.stderr, /1 slots for the input "ids", which has 2 columns/);
  const slots = FEATURES.slots.map((slot) => ({
    ...slot,
    modulo: slot.name === 'user' ? '6' : '8',
  }));
  const hash = { scheme: 'xxh64-concat' };
  writeFileSync(path, JSON.stringify({ ...FEATURES, hash, slots }));
  const large = await publish(folder, '--features', path);
  assert.match(large.stderr, /its slot user has modulo 6, but the graph fails with its key 5;/);
  writeFileSync(path, JSON.stringify({ ...FEATURES, click: { output: 'prob', column: 1 } }));
  const beyond = await publish(folder, '--features', path);
  const bags = FEATURES.slots.map((slot) => ({ ...slot, pooling: 'sum' }));
  writeFileSync(path, JSON.stringify({ ...FEATURES, slots: bags }));
  const pooled = await publish(folder, '--features', path);
  assert.match(pooled.stderr, /the graph input ids takes the ids themselves, .* not a bag/);
  assert.match(beyond.stderr, /its click column 1 is outside the output "prob" \[n, 1\]/);
  const linear = (weights: Uint8Array): Uint8Array =>
    model({
      inputs: [value('x', FLOAT, ['n', 2])],
      outputs: [value('y', FLOAT, ['n', 1])],
      initializers: [weights],
      nodes: [node('MatMul', ['x', 'w'], ['y'])],
    });
  writeFileSync(join(folder, 'model.onnx'), linear(floats('w', [2, 1], ramp(2))));
  const dense = await publish(folder);
  assert.match(dense.stderr, /has no integer inputs, .*; --plain publishes it/);
  const apart = (location: string): Uint8Array => linear(externalFloats('w', [2, 1], location));
  writeFileSync(join(folder, 'model.onnx'), apart('encoder.onnx.data'));
  const incomplete = await publish(folder, '--plain');
  assert.match(
    incomplete.stderr,
    /has tensors in the file "encoder\.onnx\.data", which is not beside it/,
  );
  for (const location of [
    'slots.json',
    'keys.1.json',
    '../secret',
    'a b',
    join(folder, 'secret'),
  ]) {
    writeFileSync(join(folder, 'secret'), new Uint8Array(8));
    writeFileSync(join(folder, 'model.onnx'), apart(location));
    const refused = await publish(folder, '--plain');
    assert.equal(refused.code, 1);
    assert.match(refused.stderr, /a version can have it under another name only/);
  }
  assert.throws(() =>
    readFileSync(join(folder, 'repo', 'small', 'versions', '1', 'manifest.json')),
  );
});
