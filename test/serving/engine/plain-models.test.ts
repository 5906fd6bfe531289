import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../../lib/core/graph-signature.ts';
import { countElements, type NamedTensor } from '../../../lib/core/tensor.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { OnnxModel } from '../../../lib/platform/onnx.ts';
import { CPU_ONLY } from '../../../lib/platform/onnx-providers.ts';
import { fromOnnxTensor, toOnnxTensor } from '../../../lib/platform/onnx-tensors.ts';
import { exchangeBfloat16 } from '../../../proto/onnx-bfloat16.ts';
import { readGraphSignature } from '../../../proto/onnx-signature.ts';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { type GraphLoadOptions, LoadedGraph } from '../../../serving/engine/loaded-graph.ts';
import {
  BOOL,
  FLOAT,
  floats,
  graph,
  INT64,
  ints,
  model,
  node,
  tensor,
  value,
} from '../../tools/prune-model/support/onnx-builder.ts';
import { assertRejected } from './support/engine-fixture.ts';

const BFLOAT16 = 16;
const TYPES: readonly (readonly [number, TensorType])[] = [
  [1, 'FP32'],
  [2, 'UINT8'],
  [3, 'INT8'],
  [4, 'UINT16'],
  [5, 'INT16'],
  [6, 'INT32'],
  [7, 'INT64'],
  [8, 'BYTES'],
  [9, 'BOOL'],
  [10, 'FP16'],
  [11, 'FP64'],
  [12, 'UINT32'],
  [13, 'UINT64'],
];

type Options = Partial<Omit<GraphLoadOptions, 'batching'>> & {
  readonly batching?: Partial<GraphLoadOptions['batching']>;
};

async function load(t: TestContext, bytes: Uint8Array, options: Options = {}) {
  const loaded = await LoadedGraph.load({
    name: 'm',
    version: '1',
    model: bytes,
    instances: 1,
    logger: createLogger('test', { level: 'silent' }),
    ...options,
    batching: { ...DEFAULT_BATCHING, maxBatch: undefined, ...options.batching },
  });
  t.after(() => loaded.close());
  return loaded;
}

const call = (...inputs: NamedTensor[]) => ({ inputs, outputs: [] });
const soon = () => ({ deadlineMs: performance.now() + 60_000 });

function fp32(name: string, shape: readonly number[], values: readonly number[]): NamedTensor {
  const data = new Uint8Array(Float32Array.from(values).buffer);
  return { name, dataType: 'FP32', shape, data };
}

function readFloats({ data }: NamedTensor): number[] {
  return Array.from(new Float32Array((data as Uint8Array).slice().buffer));
}

/** Elements of any bits; those of BOOL are 0 or 1. */
function createData(dataType: TensorType, count: number, seed: number): NamedTensor['data'] {
  const next = (i: number): number => Math.imul(seed + i + 1, 0x9e3779b1) >>> 0;
  if (dataType === 'BYTES') {
    const texts = ['', 'é', 'plain', '日本', '\u{1f600}', 'a\0b'];
    return Array.from({ length: count }, (_, i) => `${texts[next(i) % texts.length]}${next(i)}`);
  }
  const bytes = new Uint8Array(count * TENSOR_TYPE_BYTES[dataType]);
  return bytes.map((_, i) => (dataType === 'BOOL' ? next(i) & 1 : next(i) >>> 13));
}

/** A graph of every operator that accepts any type: copies, joins and reorders its inputs. */
function anyTypeGraph(type: number, dims: readonly (number | string)[]): Uint8Array {
  const joined =
    dims.length > 1 ? [node('Concat', ['x', 'y'], ['b'], { attributes: { axis: 1 } })] : [];
  const shape = dims.length === 0 ? [] : ['batch', ...dims.slice(1)];
  const wide = shape.map((dim, i) => (i === 1 ? 'wide' : dim));
  return model({
    inputs: [value('x', type, shape), value('y', type, shape)],
    outputs: [value('a', type, shape), ...(joined.length > 0 ? [value('b', type, wide)] : [])],
    nodes: [node('Identity', ['x'], ['a']), ...joined],
  });
}

test('random graphs answer alone and in batches as onnxruntime does by itself', async (t) => {
  const dim = fc.oneof(fc.integer({ min: 1, max: 4 }), fc.constant('n'));
  const cases = fc.record({
    type: fc.constantFrom(...TYPES),
    dims: fc.array(dim, { maxLength: 5 }),
    requests: fc.array(fc.record({ rows: fc.integer({ min: 1, max: 5 }), n: fc.nat(3) }), {
      minLength: 1,
      maxLength: 8,
    }),
    maxBatch: fc.constantFrom(0, 1, 3, 64),
    seed: fc.nat(1_000_000),
  });
  await fc.assert(
    fc.asyncProperty(
      cases,
      async ({ type: [number, dataType], dims, requests, maxBatch, seed }) => {
        const bytes = anyTypeGraph(number, dims);
        const isScalar = dims.length === 0;
        const batching = { maxBatch: isScalar ? 0 : maxBatch };
        const served = await load(t, bytes, { batching });
        const direct = await OnnxModel.load(bytes);
        const answers = requests.map(async ({ rows, n }, i) => {
          const sizes = dims.slice(1).map((size) => (size === 'n' ? n + 1 : Number(size)));
          const shape = isScalar ? [] : [rows, ...sizes];
          const inputs = ['x', 'y'].map((name, j): NamedTensor => {
            const data = createData(dataType, countElements(shape), seed + 97 * i + j);
            return { name, dataType, shape, data };
          });
          const { outputs } = await served.predict({ inputs, outputs: [] }, soon());
          return { inputs, outputs };
        });
        for (const { inputs, outputs } of await Promise.all(answers)) {
          const feeds = Object.fromEntries(
            inputs.map((input) => {
              const { data } = input;
              const aligned = data instanceof Uint8Array ? data.slice() : data;
              return [input.name, toOnnxTensor({ ...input, data: aligned })];
            }),
          );
          const expected = await direct.runTensors(feeds);
          assert.deepEqual(
            outputs.map(({ data, ...rest }) => ({ ...rest, data: [...data] })),
            Object.entries(expected).map(([name, tensor]) => {
              const { data, ...rest } = fromOnnxTensor(name, tensor);
              return { ...rest, data: [...data] };
            }),
          );
        }
        await direct.release();
      },
    ),
    { numRuns: 12 },
  );
});

/** y = 2x, for rows of any length. */
const double = model({
  inputs: [value('x', FLOAT, ['batch', 'n'])],
  outputs: [value('y', FLOAT, ['batch', 'n'])],
  initializers: [floats('two', [1], [2])],
  nodes: [node('Mul', ['x', 'two'], ['y'])],
});

test('requests of equal shape share a batch, others do not', async (t) => {
  const served = await load(t, double, { batching: { maxBatch: 8 } });
  const lengths = [2, 3, 2, 3, 2, 3];
  const answers = lengths.map((n) =>
    served.predict(call(fp32('x', [1, n], new Array(n).fill(n))), soon()),
  );
  for (const [i, { outputs }] of (await Promise.all(answers)).entries()) {
    const n = lengths[i] ?? 0;
    assert.deepEqual(outputs[0]?.shape, [1, n]);
    assert.deepEqual(readFloats(outputs[0]!), new Array(n).fill(2 * n));
  }
  assert.deepEqual(
    served.stats.batchSizes().map(({ rows, executions }) => [rows, executions]),
    [[3, 2]],
  );
});

test('a request larger than a batch is split, and its answer joined', async (t) => {
  const served = await load(t, double, { batching: { maxBatch: 4 } });
  const values = Array.from({ length: 22 }, (_, i) => i);
  const { outputs, rowCount } = await served.predict(call(fp32('x', [11, 2], values)), soon());
  assert.equal(rowCount, 11);
  assert.deepEqual(outputs[0]?.shape, [11, 2]);
  assert.deepEqual(
    readFloats(outputs[0]!),
    values.map((x) => 2 * x),
  );
  assert.equal(served.stats.executions, 3);
});

test('tensors that do not fit the signature are refused by name', async (t) => {
  const bytes = model({
    inputs: [value('x', FLOAT, ['batch', 2]), value('ids', INT64, ['batch', 'n'])],
    outputs: [value('y', FLOAT, ['batch', 2])],
    nodes: [node('Identity', ['x'], ['y'])],
  });
  const served = await load(t, bytes);
  const ids = (shape: readonly number[]): NamedTensor => {
    return {
      name: 'ids',
      dataType: 'INT64',
      shape,
      data: new Uint8Array(8 * countElements(shape)),
    };
  };
  const x = fp32('x', [1, 2], [0, 0]);
  const refuse = (message: RegExp, ...inputs: NamedTensor[]): Promise<void> =>
    assertRejected(served.predict(call(...inputs), soon()), 'INVALID_ARGUMENT', message);
  await refuse(/expected an input ids too/, x);
  await refuse(/input "z": name: expected one of x, ids/, x, ids([1, 3]), { ...x, name: 'z' });
  await refuse(/input "x": name: expected each input once/, x, x, ids([1, 1]));
  await refuse(/input "x": datatype: expected FP32, got INT64/, { ...ids([1, 2]), name: 'x' });
  await refuse(
    /input "x": shape: expected \[batch, 2\], got \[1, 3\]/,
    fp32('x', [1, 3], [1, 2, 3]),
    ids([1, 1]),
  );
  await refuse(/input "ids": shape: expected \[batch, n\], got \[1\]/, x, ids([1]));
  await refuse(/input "ids": shape: expected as many rows .* \(1\), got 2/, x, ids([2, 1]));
  await refuse(/at least one row/, fp32('x', [0, 2], []), ids([0, 2]));
});

test('a graph without a batch dimension runs each request alone', async (t) => {
  const bytes = model({
    inputs: [value('x', FLOAT, [2]), value('flag', 9, [])],
    outputs: [value('y', FLOAT, [2]), value('n', INT64, [1])],
    nodes: [
      node('If', ['flag'], ['y'], {
        attributes: {
          then_branch: {
            graph: graph({
              nodes: [node('Neg', ['x'], ['t'])],
              inputs: [],
              outputs: [value('t', FLOAT, [2])],
            }),
          },
          else_branch: {
            graph: graph({
              nodes: [node('Abs', ['x'], ['e'])],
              inputs: [],
              outputs: [value('e', FLOAT, [2])],
            }),
          },
        },
      }),
      node('Shape', ['x'], ['n']),
    ],
  });
  const served = await load(t, bytes);
  assert.equal(served.isBatched, false);
  const flag = (byte: number): NamedTensor => {
    return { name: 'flag', dataType: 'BOOL', shape: [], data: Uint8Array.of(byte) };
  };
  const answers = [1, 0, 1].map((byte) =>
    served.predict({ inputs: [fp32('x', [2], [-1, 2]), flag(byte)], outputs: ['y'] }, soon()),
  );
  const results = (await Promise.all(answers)).map(({ outputs }) => readFloats(outputs[0]!));
  assert.deepEqual(results, [
    [1, -2],
    [1, 2],
    [1, -2],
  ]);
  assert.equal(served.stats.executions, 3);
  await assertRejected(
    load(t, bytes, { batching: { maxBatch: 8 } }),
    'INVALID_ARGUMENT',
    /first dimension of "x", shape \[2\], is not dynamic.*max-batch 0/,
  );
});

test('an output whose first dimension is not the batch is refused with the remedy', async (t) => {
  const bytes = model({
    inputs: [value('x', FLOAT, ['batch', 2])],
    outputs: [value('y', FLOAT, ['rows', 2])],
    initializers: [ints('axes', [1], [0])],
    nodes: [node('ReduceMean', ['x'], ['y'], { attributes: { axes: [0] } })],
  });
  const served = await load(t, bytes);
  await assertRejected(
    served.predict(call(fp32('x', [2, 2], [1, 2, 3, 4])), soon()),
    'UNSUPPORTED',
    /output "y" has shape \[1, 2\] for a batch of 2 rows.*max-batch 0/,
  );
});

test('values that the graph refuses fail their own request only', async (t) => {
  const bytes = model({
    inputs: [value('i', INT64, ['batch'])],
    outputs: [value('y', FLOAT, ['batch'])],
    initializers: [floats('table', [3], [10, 20, 30])],
    nodes: [node('Gather', ['table', 'i'], ['y'])],
  });
  const served = await load(t, bytes);
  const ask = (i: bigint) => {
    const data = new Uint8Array(BigInt64Array.of(i).buffer);
    return served.predict(call({ name: 'i', dataType: 'INT64', shape: [1], data }), soon());
  };
  const [first, second, third] = await Promise.allSettled([ask(1n), ask(7n), ask(2n)]);
  assert.ok(first?.status === 'fulfilled' && third?.status === 'fulfilled');
  assert.deepEqual(
    [first, third].map(({ value: { outputs } }) => readFloats(outputs[0]!)),
    [[20], [30]],
  );
  assert.ok(second?.status === 'rejected');
  assert.match(String(second.reason), /Gather/);
  assert.equal(second.reason.code, 'INVALID_ARGUMENT');
});

test('repeated requests are answered from the cache', async (t) => {
  const served = await load(t, double, { requestCacheBytes: 1 << 20 });
  for (const x of [1, 1, 2]) {
    const { outputs } = await served.predict(call(fp32('x', [1, 1], [x])), soon());
    assert.deepEqual(readFloats(outputs[0]!), [2 * x]);
  }
  assert.deepEqual([served.stats.cacheHits, served.stats.executions], [1, 2]);
});

/** y = 2x in float32, rounded; z = x or y, chosen in bodies that read names of the graph. */
function bfloat16Graph(opset?: number): Uint8Array {
  const to = (type: number) => ({ attributes: { to: type } });
  const branch = (name: string) =>
    graph({
      inputs: [],
      outputs: [value('chosen', BFLOAT16, ['batch', 'n'])],
      nodes: [node('Identity', [name], ['chosen'])],
    });
  const branches = { then_branch: { graph: branch('y') }, else_branch: { graph: branch('x') } };
  return model({
    ...(opset !== undefined && { opset }),
    inputs: [value('x', BFLOAT16, ['batch', 'n'])],
    outputs: ['y', 'z'].map((name) => value(name, BFLOAT16, ['batch', 'n'])),
    initializers: [floats('two', [1], [2]), tensor('yes', BOOL, [], Uint8Array.of(1))],
    nodes: [
      node('Cast', ['x'], ['wide'], to(FLOAT)),
      node('Mul', ['wide', 'two'], ['doubled']),
      node('Cast', ['doubled'], ['y'], to(BFLOAT16)),
      node('If', ['yes'], ['z'], { attributes: branches }),
    ],
  });
}

test('bfloat16 tensors pass bit by bit, merged, split and through bodies', async (t) => {
  const loaded = await load(t, bfloat16Graph(), { batching: { maxBatch: 3 } });
  const types = [...loaded.signature.inputs, ...loaded.signature.outputs];
  assert.deepEqual([...new Set(types.map(({ dataType }) => dataType))], ['BF16']);
  // 1, -3.1, infinity, zero, the smallest number.
  const bits = [0x3f80, 0xc046, 0x7f80, 0x0000, 0x0001];
  const doubled = [0x4000, 0xc0c6, 0x7f80, 0x0000, 0x0002];
  const toBytes = (halves: readonly number[]) => new Uint8Array(Uint16Array.from(halves).buffer);
  const ask = async (rows: number): Promise<void> => {
    const repeat = (halves: readonly number[]) => toBytes(Array(rows).fill(halves).flat());
    const x = { name: 'x', dataType: 'BF16', shape: [rows, 5], data: repeat(bits) } as const;
    const { outputs } = await loaded.predict(call(x), soon());
    for (const output of outputs) {
      assert.deepEqual([output.dataType, output.shape], ['BF16', [rows, 5]]);
      assert.deepEqual(Buffer.from(output.data as Uint8Array), Buffer.from(repeat(doubled)));
    }
  };
  await Promise.all([1, 2, 7].map(ask));
  await assertRejected(load(t, bfloat16Graph(12)), 'UNSUPPORTED', /"x" is BF16.*version 13/);
});

test('damaged graphs with bfloat16 are refused, never crash', async () => {
  const bytes = bfloat16Graph();
  const signature = readGraphSignature(bytes, 'm');
  fc.assert(
    fc.property(fc.nat(bytes.length - 1), fc.nat(255), (at, byte) => {
      const damaged = Uint8Array.from(bytes);
      damaged[at] = byte;
      try {
        exchangeBfloat16(damaged, signature, 'm');
      } catch (error) {
        assert.ok(error instanceof CubeError, String(error));
      }
    }),
  );
});

test('instances are spread; a missing provider is refused or replaced', async (t) => {
  const bytes = model({
    inputs: [value('x', FLOAT, ['n'])],
    outputs: [value('y', FLOAT, ['n'])],
    nodes: [node('Identity', ['x'], ['y'])],
  });
  const spread = await load(t, bytes, { instances: 3, placements: [CPU_ONLY, [{ name: 'cpu' }]] });
  assert.deepEqual(
    spread.pool.placements.map(({ workers }) => workers),
    [2, 1],
  );
  const foreign = process.platform === 'darwin' ? 'dml' : 'coreml';
  const replaced = await load(t, bytes, {
    placements: [[{ name: foreign }, { name: 'cpu' }]],
  });
  assert.deepEqual(replaced.pool.placements, [{ providers: [{ name: 'cpu' }], workers: 1 }]);
  const { outputs } = await replaced.predict(call(fp32('x', [2], [1, 2])), soon());
  assert.deepEqual(readFloats(outputs[0]!), [1, 2]);
  const refused = load(t, bytes, { placements: [[{ name: foreign }]] });
  await assertRejected(refused, 'UNSUPPORTED', /is not available: onnxruntime-node .*list cpu/);
});
