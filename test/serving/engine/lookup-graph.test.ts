/** Models with tables whose requests are tensors: the scores are those of the unpruned graph. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../../lib/core/graph-signature.ts';
import { countElements, type NamedTensor } from '../../../lib/core/tensor.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { OnnxModel } from '../../../lib/platform/onnx.ts';
import { fromOnnxTensor, toOnnxTensor } from '../../../lib/platform/onnx-tensors.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { LookupGraph } from '../../../serving/engine/lookup-graph.ts';
import { readVersionGraph, readVersionSlots } from '../../../serving/engine/version-files.ts';
import type { EmbeddingStore } from '../../../serving/stores/embedding-store.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import {
  BOOL,
  FLOAT,
  floats,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';
import { assertClose, BUNDLE, publishModel } from '../support/served-model.ts';
import { attentionModel } from '../support/tensor-models.ts';
import { assertRejected } from './support/engine-fixture.ts';

const logger = createLogger('test', { level: 'silent' });
const TABLE_ROWS = 12;

/** @param wrap changes the store, to let lookups fail */
async function load(
  t: TestContext,
  full: Uint8Array,
  wrap: (store: EmbeddingStore) => EmbeddingStore = (store) => store,
  maxBatch?: number,
): Promise<LookupGraph> {
  const repository = openRepository(await publishModel(t, full));
  const manifest = await repository.readManifest(BUNDLE, '1');
  const spec = await readVersionSlots(repository, manifest);
  const memory = new MemoryStore({ repository, budgetBytes: 64 << 20 });
  const loaded = await LookupGraph.load({
    ...(await readVersionGraph(repository, manifest)),
    manifest,
    spec,
    store: wrap(memory),
    instances: 1,
    batching: { ...DEFAULT_BATCHING, maxBatch },
    logger,
  });
  t.after(async () => {
    await loaded.retire();
    await memory.close();
  });
  return loaded;
}

function createTensor(
  name: string,
  dataType: Exclude<TensorType, 'BYTES'>,
  shape: readonly number[],
  next: () => number,
): NamedTensor {
  const count = countElements(shape);
  const data = new Uint8Array(count * TENSOR_TYPE_BYTES[dataType]);
  const view = new DataView(data.buffer);
  for (let i = 0; i < count; i++) {
    const id = next() % TABLE_ROWS;
    if (dataType === 'INT64')
      view.setBigInt64(8 * i, BigInt(id - (id % 5 === 4 ? TABLE_ROWS : 0)), true);
    else if (dataType === 'INT32') view.setInt32(4 * i, id, true);
    else if (dataType === 'FP32') view.setFloat32(4 * i, id / 7, true);
    else if (dataType === 'FP64') view.setFloat64(8 * i, id / 3, true);
    else view.setUint8(i, id & 1);
  }
  return { name, dataType, shape, data };
}

/** Deterministic integers. */
function createNumbers(seed: number): () => number {
  let state = seed;
  return () => {
    state = Math.imul(state ^ (state >>> 15), 0x2c1b3c6d) + 0x9e3779b9;
    return (state ^ (state >>> 13)) >>> 0;
  };
}

/** Compares answers to requests that run at once with those of the unpruned graph. */
async function check(
  served: LookupGraph,
  direct: OnnxModel,
  requests: readonly (readonly NamedTensor[])[],
): Promise<void> {
  const answers = requests.map((inputs) =>
    served.predict({ inputs, outputs: [] }, { deadlineMs: performance.now() + 60_000 }),
  );
  for (const [i, { outputs, lookups }] of (await Promise.all(answers)).entries()) {
    const feeds = requests[i]!.map((input) => [input.name, toOnnxTensor(input)] as const);
    const expected = await direct.runTensors(Object.fromEntries(feeds));
    assert.equal(lookups?.unavailable, 0);
    for (const output of outputs) {
      const tensor = fromOnnxTensor(output.name, expected[output.name]!);
      assert.deepEqual(output.shape, tensor.shape);
      const read = ({ data }: NamedTensor): Float32Array =>
        new Float32Array(new Uint8Array(data as Uint8Array).buffer);
      assertClose(read(output), read(tensor), output.name);
    }
  }
}

test('sequences of any length with masks, switches, integers and doubles', async (t) => {
  const full = attentionModel();
  const served = await load(t, full);
  assert.equal(served.isBatched, true);
  assert.deepEqual(
    served.signature.inputs.map(({ name, dataType, dims }) => [name, dataType, dims?.length]),
    [
      ['history', 'INT64', 2],
      ['item', 'INT64', 1],
      ['mask', 'BOOL', 2],
      ['boost', 'BOOL', 1],
      ['age', 'INT32', 2],
      ['price', 'FP64', 2],
      ['dense', 'FP32', 2],
    ],
  );
  const direct = await OnnxModel.load(full);
  t.after(() => direct.release());
  const request = fc.record({
    rows: fc.integer({ min: 1, max: 4 }),
    length: fc.integer({ min: 1, max: 5 }),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 6 }), fc.nat(), (sizes, seed) => {
      const next = createNumbers(seed);
      const requests = sizes.map(({ rows, length }) => [
        createTensor('history', 'INT64', [rows, length], next),
        createTensor('mask', 'BOOL', [rows, length], next),
        createTensor('item', 'INT64', [rows], next),
        createTensor('boost', 'BOOL', [rows], next),
        createTensor('age', 'INT32', [rows, 1], next),
        createTensor('price', 'FP64', [rows, 1], next),
        createTensor('dense', 'FP32', [rows, 2], next),
      ]);
      return check(served, direct, requests);
    }),
    { numRuns: 15 },
  );
  assert.ok(served.stats.lookups > 0);
});

test('keys computed from sequences, axes in another order, ids kept for a mask', async (t) => {
  const full = model({
    inputs: [value('a', INT64, ['n', 'l']), value('b', INT32, ['n', 2, 'l'])],
    outputs: [value('x', FLOAT, ['l', 'n', 3]), value('y', FLOAT, ['n', 'l', 3])],
    initializers: [
      floats('t', [TABLE_ROWS, 3], ramp(3 * TABLE_ROWS)),
      floats('u', [2 * TABLE_ROWS, 3], ramp(6 * TABLE_ROWS, 2)),
      ints('offset', [1, 2, 1], [0, TABLE_ROWS]),
      ints('pad', [1], [0]),
      ints('one', [1], [1]),
      ints('last', [1], [2]),
    ],
    nodes: [
      node('Transpose', ['a'], ['turned'], { attributes: { perm: [1, 0] } }),
      node('Gather', ['t', 'turned'], ['x']),
      node('Cast', ['b'], ['wide'], { attributes: { to: INT64 } }),
      node('Add', ['wide', 'offset'], ['keys']),
      node('Gather', ['u', 'keys'], ['rows']),
      node('ReduceSum', ['rows', 'one'], ['sums'], { attributes: { keepdims: 0 } }),
      node('Equal', ['a', 'pad'], ['isPad']),
      node('Not', ['isPad'], ['isWord']),
      node('Cast', ['isWord'], ['weight'], { attributes: { to: FLOAT } }),
      node('Unsqueeze', ['weight', 'last'], ['weights']),
      node('Mul', ['sums', 'weights'], ['y']),
    ],
  });
  const served = await load(t, full);
  assert.equal(served.isBatched, false);
  const direct = await OnnxModel.load(full);
  t.after(() => direct.release());
  const next = createNumbers(5);
  const requests = [
    [1, 1],
    [3, 2],
    [2, 5],
  ].map(([n = 1, l = 1]) => [
    createTensor('a', 'INT64', [n, l], next),
    createTensor('b', 'INT32', [n, 2, l], next),
  ]);
  await check(served, direct, requests);
  const [a, b] = requests[1]!;
  const wrong = { ...createTensor('b', 'INT32', [3, 2, 4], next) };
  const ask = (...inputs: NamedTensor[]): Promise<unknown> =>
    served.predict({ inputs, outputs: [] }, { deadlineMs: performance.now() + 60_000 });
  await assertRejected(ask(a!, wrong), 'INVALID_ARGUMENT', /input "b": shape\[2\]: expected 2, as/);
  await assertRejected(ask(a!), 'INVALID_ARGUMENT', /expected an input b too/);
  await assertRejected(
    ask(a!, b!, { ...b!, name: 'c' }),
    'INVALID_ARGUMENT',
    /expected one of a, b/,
  );
  const many = createTensor('a', 'INT64', [1024, 1025], next);
  const big = createTensor('b', 'INT32', [1024, 2, 1025], next);
  await assertRejected(ask(many, big), 'TOO_LARGE', /over 1048576 ids to look up in one request/);
});

test('a scalar switch chooses a branch, and each request runs alone', async (t) => {
  const full = model({
    inputs: [value('ids', INT64, ['n', 2]), value('square', BOOL, [])],
    outputs: [value('y', FLOAT, ['n', 2, 3])],
    initializers: [floats('t', [TABLE_ROWS, 3], ramp(3 * TABLE_ROWS))],
    nodes: [
      node('Gather', ['t', 'ids'], ['rows']),
      node('Mul', ['rows', 'rows'], ['squares']),
      node('Where', ['square', 'squares', 'rows'], ['y']),
    ],
  });
  const served = await load(t, full);
  const direct = await OnnxModel.load(full);
  t.after(() => direct.release());
  const next = createNumbers(9);
  const requests = [0, 1].map((bit) => [
    createTensor('ids', 'INT64', [3, 2], next),
    { name: 'square', dataType: 'BOOL' as const, shape: [], data: Uint8Array.of(bit) },
  ]);
  await check(served, direct, requests);
});

test('an unavailable key fails its request, unless the policy has default rows', async (t) => {
  const full = attentionModel();
  const fail = (store: EmbeddingStore): EmbeddingStore => ({
    kind: store.kind,
    prepare: (manifest, signal) => store.prepare(manifest, signal),
    retire: (manifest) => store.retire(manifest),
    close: () => store.close(),
    async lookup(manifest, groups, timeoutMs) {
      const summary = await store.lookup(manifest, groups, timeoutMs);
      return { ...summary, unavailable: 1, reason: 'shard 1: down' };
    },
  });
  const served = await load(t, full, fail);
  const next = createNumbers(1);
  const inputs = served.signature.inputs.map(({ name, dataType, dims = [] }) => {
    const shape = dims.map((dim) => (typeof dim === 'number' ? dim : 1));
    return createTensor(name, dataType as 'INT64', shape, next);
  });
  const answer = served.predict(
    { inputs, outputs: [] },
    { deadlineMs: performance.now() + 60_000 },
  );
  await assertRejected(answer, 'UNAVAILABLE', /no answer for 1 of 2 lookups \(shard 1: down\)/);
});
