/** Models pruned without features.json: requests have the inputs of the unpruned graph. */
import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { runCommand } from '../support/commands.ts';
import {
  externalFloats,
  FLOAT,
  floats,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../tools/prune-model/support/onnx-builder.ts';
import { ServingProcess } from './support/serving-process.ts';

/**
 * A history of three ids under a mask, one more id of 32 bits, dense features; a weight in another
 * file.
 */
function historyModel(location: string): Uint8Array {
  return model({
    inputs: [
      value('history', INT64, ['n', 3]),
      value('user', INT32, ['n']),
      value('price', FLOAT, ['n', 2]),
    ],
    outputs: [value('prob', FLOAT, ['n', 1])],
    initializers: [
      floats('item', [9, 4], ramp(36)),
      floats('users', [5, 4], ramp(20, 2)),
      ints('none', [], [0]),
      ints('two', [1], [2]),
      ints('flat', [2], [0, 12]),
      externalFloats('w', [18, 1], location),
    ],
    nodes: [
      node('Gather', ['item', 'history'], ['rows']),
      node('Equal', ['history', 'none'], ['empty']),
      node('Not', ['empty'], ['there']),
      node('Cast', ['there'], ['mask'], { attributes: { to: FLOAT } }),
      node('Unsqueeze', ['mask', 'two'], ['mask3']),
      node('Mul', ['rows', 'mask3'], ['masked']),
      node('Reshape', ['masked', 'flat'], ['wide']),
      node('Gather', ['users', 'user'], ['who']),
      node('Concat', ['wide', 'who', 'price'], ['x'], { attributes: { axis: 1 } }),
      node('MatMul', ['x', 'w'], ['logit']),
      node('Sigmoid', ['logit'], ['prob']),
    ],
  });
}

/** Ids and dense values in one matrix of floats. */
const MATRIX = model({
  inputs: [value('X', FLOAT, ['n', 4])],
  outputs: [value('prob', FLOAT, ['n', 1])],
  initializers: [
    floats('t', [8, 2], ramp(16)),
    floats('w', [6, 1], ramp(6)),
    ints('zero', [1], [0]),
    ints('two', [1], [2]),
    ints('four', [1], [4]),
    ints('one', [1], [1]),
    ints('flat', [2], [0, 4]),
  ],
  nodes: [
    node('Slice', ['X', 'zero', 'two', 'one'], ['sparse']),
    node('Slice', ['X', 'two', 'four', 'one'], ['dense']),
    node('Cast', ['sparse'], ['ids'], { attributes: { to: INT64 } }),
    node('Gather', ['t', 'ids'], ['rows']),
    node('Reshape', ['rows', 'flat'], ['wide']),
    node('Concat', ['wide', 'dense'], ['x'], { attributes: { axis: 1 } }),
    node('MatMul', ['x', 'w'], ['logit']),
    node('Sigmoid', ['logit'], ['prob']),
  ],
});

interface Served {
  readonly serving: ServingProcess;
  readonly folder: string;
}

/** Prunes and builds `model.onnx` of a folder, and serves it from local tables. */
async function serve(t: TestContext, folder: string): Promise<Served> {
  const path = (name: string): string => join(folder, name);
  await run('prune-model', '--model', path('model.onnx'), '--output', path('out'));
  const target = ['--output-path', path('repo'), '--shard-num', '2', '--cur-version', '1'];
  await run('cube-builder', '--input', path('out'), '--dict-name', 'ctr', ...target);
  // Serving must only need the published version, not the folder it was built from.
  rmSync(path('out'), { recursive: true });
  const repository = openRepository(path('repo'));
  await repository.activate('ctr', 'stable', { version: '1', by: 'test', reason: 'test' });
  const place = ['--repository', path('repo'), '--data-dir', path('data')];
  const flags = ['--bundle', 'ctr', '--instances', '1', '--store', 'local'];
  const serving = await ServingProcess.start(t, [...place, ...flags]);
  await serving.waitUntilReady();
  return { serving, folder };
}

async function run(tool: string, ...args: string[]): Promise<void> {
  const { code, stderr } = await runCommand(`tools/${tool}/main.js`, ...args);
  assert.equal(code, 0, stderr);
}

async function infer(serving: ServingProcess, inputs: unknown) {
  const type = { 'content-type': 'application/json' };
  return await serving.post('/v2/models/ctr/infer', JSON.stringify({ inputs }), type);
}

function checkScores(actual: readonly number[], { data }: OnnxTensor): void {
  assert.equal(actual.length, data.length);
  actual.forEach((score, i) => {
    assert.ok(Math.abs(score - Number(data[i])) < 1e-6, `row ${i}: ${score}, not ${data[i]}`);
  });
}

test('ids by input name, also negative; weights in a separate file', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'model.onnx'), historyModel('weights.bin'));
  writeFileSync(join(folder, 'weights.bin'), Float32Array.from(ramp(18)));
  const full = await OnnxModel.load(join(folder, 'model.onnx'));
  const rows = 70;
  const history = Array.from({ length: 3 * rows }, (_, i) => ((i * 7) % 18) - 9);
  const user = Array.from({ length: rows }, (_, i) => (i % 10) - 5);
  const price = Array.from({ length: 2 * rows }, (_, i) => Math.fround(Math.cos(i)));
  const { prob } = await full.run({
    history: { dtype: 'int64', data: BigInt64Array.from(history, BigInt), dims: [rows, 3] },
    user: { dtype: 'int32', data: Int32Array.from(user), dims: [rows] },
    price: { dtype: 'float32', data: Float32Array.from(price), dims: [rows, 2] },
  });
  assert.ok(prob);
  await full.release();

  const { serving } = await serve(t, folder);
  assert.ok(existsSync(join(folder, 'repo', 'ctr', 'versions', '1', 'model.onnx.data')));
  const { body: about } = await serving.get('/v2/models/ctr');
  assert.deepEqual(about.inputs, [
    { name: 'history', datatype: 'INT64', shape: [-1, 3] },
    { name: 'user', datatype: 'INT64', shape: [-1, 1] },
    { name: 'price', datatype: 'FP32', shape: [-1, 2] },
  ]);
  const inputs = [
    { name: 'price', datatype: 'FP32', shape: [rows, 2], data: price },
    { name: 'user', datatype: 'INT32', shape: [rows], data: user },
    { name: 'history', datatype: 'INT64', shape: [rows, 3], data: history },
  ];
  const { status, body } = await infer(serving, inputs);
  assert.equal(status, 200, JSON.stringify(body));
  assert.equal(body.parameters.unseen, 0);
  checkScores(body.outputs[0].data, prob);

  // Ids outside the table have no row.
  const one = (id: string): unknown[] => [
    { name: 'price', datatype: 'FP32', shape: [1, 2], data: [0, 0] },
    { name: 'user', datatype: 'INT64', shape: [1, 1], data: [id] },
    { name: 'history', datatype: 'INT64', shape: [1, 3], data: [1, 2, 3] },
  ];
  for (const id of ['5', '-6', '9223372036854775807', '-9223372036854775808']) {
    const answer = await infer(serving, one(id));
    assert.equal(answer.body.parameters.unseen, 1, id);
  }
  const wrong: readonly (readonly [unknown, RegExp])[] = [
    [inputs.slice(1), /an input price too/],
    [[...inputs, inputs[0]], /each input once/],
    [[inputs[0], inputs[0], inputs[1]], /each input once/],
    [one('9223372036854775808'), /input user, value 0/],
    [[{ ...inputs[0], shape: [rows, 3] }], /price.*expected 210 values/],
    [[inputs[0], inputs[1], { ...inputs[2], datatype: 'FP32' }], /INT64/],
    [[inputs[0], inputs[1], one('1')[2]], /as many rows/],
    [[{ name: 'keys', datatype: 'INT64', shape: [1, 4], data: [1, 2, 3, 4] }], /history/],
  ];
  for (const [bad, reason] of wrong) {
    const answer = await infer(serving, bad);
    assert.equal(answer.status, 400, JSON.stringify(answer.body));
    assert.match(JSON.stringify(answer.body), reason);
  }
  assert.equal(await serving.stop(), 0);
});

test('one matrix of ids and dense values', async (t) => {
  const folder = temporaryFolder(t);
  writeFileSync(join(folder, 'model.onnx'), MATRIX);
  const rows = 20;
  const data = Array.from({ length: 4 * rows }, (_, i) =>
    i % 4 < 2 ? (((i * 5) % 16) - 8) * 1 : Math.fround(Math.sin(i) * 3),
  );
  const full = await OnnxModel.load(MATRIX);
  const dims = [rows, 4];
  const { prob } = await full.run({
    X: { dtype: 'float32', data: Float32Array.from(data), dims },
  });
  assert.ok(prob);
  await full.release();
  const { serving } = await serve(t, folder);
  const { status, body } = await infer(serving, [
    { name: 'X', datatype: 'FP32', shape: dims, data },
  ]);
  assert.equal(status, 200, JSON.stringify(body));
  assert.equal(body.parameters.unseen, 0);
  checkScores(body.outputs[0].data, prob);
  assert.equal(await serving.stop(), 0);
});

test('bags as a list of ids and offsets, over KServe and TensorFlow Serving', async (t) => {
  const folder = temporaryFolder(t);
  const bytes = readFileSync(
    new URL('../../../data/golden/models/bag-mean-13.onnx', import.meta.url),
  );
  writeFileSync(join(folder, 'model.onnx'), bytes);
  const sizes = Array.from({ length: 70 }, (_, i) => (i * 5) % 7);
  const ids = sizes.flatMap((size, i) => Array.from({ length: size }, (_, k) => (i * 3 + k) % 10));
  const offsets = sizes.map((_, i) => sizes.slice(0, i).reduce((sum, size) => sum + size, 0));
  const full = await OnnxModel.load(bytes);
  const integers = (data: readonly number[]): OnnxTensor => {
    return { dtype: 'int64', data: BigInt64Array.from(data, BigInt), dims: [data.length] };
  };
  const { y } = await full.run({ ids: integers(ids), offsets: integers(offsets) });
  assert.ok(y);
  await full.release();
  const { serving } = await serve(t, folder);
  const { body: about } = await serving.get('/v2/models/ctr');
  assert.deepEqual(about.inputs, [
    { name: 'ids', datatype: 'INT64', shape: [-1] },
    { name: 'offsets', datatype: 'INT64', shape: [-1] },
  ]);
  const list = (name: string, data: readonly unknown[], shape = [data.length]): object => {
    return { name, datatype: 'INT64', shape, data };
  };
  const { status, body } = await infer(serving, [list('ids', ids), list('offsets', offsets)]);
  assert.equal(status, 200, JSON.stringify(body));
  checkScores(body.outputs[0].data, y);
  const tfs = await serving.post(
    '/v1/models/ctr:predict',
    JSON.stringify({ inputs: { ids, offsets } }),
  );
  assert.equal(tfs.status, 200, JSON.stringify(tfs.body));
  checkScores((Object.values(tfs.body)[0] as number[][]).flat(), y);
  const empty = await infer(serving, [list('ids', []), list('offsets', [0, 0])]);
  assert.equal(empty.status, 200, JSON.stringify(empty.body));
  const wrong: readonly (readonly [readonly object[], RegExp])[] = [
    [[list('ids', ids)], /an input offsets too/],
    [[list('ids', ids), list('offsets', [])], /at least one row/],
    [[list('ids', ids), list('offsets', [1, 2])], /offsets.*value 0: expected an offset in 0..0/],
    [[list('ids', [1, 2]), list('offsets', [0, 3])], /value 1: expected an offset in 0..2/],
    [[list('ids', [1, 2]), list('offsets', [0, 2, 1])], /value 2: expected an offset in 2..2/],
    [[list('ids', [1, 2]), list('offsets', ['0', '-1'])], /value 1: expected an offset/],
    [[list('ids', [1, 2], [2, 1]), list('offsets', [0, 1])], /ids.*expected \[ids\]/],
    [[list('ids', [1]), list('offsets', new Array(10_001).fill(0))], /10001 rows in one request/],
  ];
  for (const [bad, reason] of wrong) {
    const answer = await infer(serving, bad);
    assert.ok(answer.status === 400 || answer.status === 413, JSON.stringify(answer.body));
    assert.match(JSON.stringify(answer.body), reason);
  }
  assert.equal(await serving.stop(), 0);
});

test('a graph that names files is rejected by the builder and by serving', async (t) => {
  const folder = temporaryFolder(t);
  const secret = join(folder, 'secret.bin');
  writeFileSync(secret, Float32Array.from(ramp(18)));
  const before = process.cwd();
  t.after(() => process.chdir(before));
  process.chdir(folder);
  for (const location of ['secret.bin', secret, '../secret.bin', 'model.onnx.data/../secret.bin']) {
    await assert.rejects(OnnxModel.load(historyModel(location)), { code: 'INVALID_ARGUMENT' });
    const data = new Map([['model.onnx.data', new Uint8Array(72)]]);
    await assert.rejects(OnnxModel.load(historyModel(location), { externalData: data }), {
      code: 'INVALID_ARGUMENT',
    });
  }
  const short = new Map([['model.onnx.data', new Uint8Array(71)]]);
  const load = OnnxModel.load(historyModel('model.onnx.data'), { externalData: short });
  await assert.rejects(load, { code: 'INVALID_ARGUMENT' });

  writeFileSync(join(folder, 'model.onnx'), historyModel('secret.bin'));
  const paths = ['--model', join(folder, 'model.onnx'), '--output', join(folder, 'out')];
  await run('prune-model', ...paths);
  rmSync(join(folder, 'out', 'model.onnx.data'));
  mkdirSync(join(folder, 'repo'));
  const target = ['--output-path', join(folder, 'repo'), '--shard-num', '1', '--cur-version', '1'];
  const input = ['--input', join(folder, 'out'), '--dict-name', 'ctr'];
  const { code, stderr } = await runCommand('tools/cube-builder/main.js', ...input, ...target);
  assert.equal(code, 1);
  assert.match(stderr, /model\.onnx.*data.*prune the model again/);
  assert.ok(readFileSync(secret).length > 0);
});
