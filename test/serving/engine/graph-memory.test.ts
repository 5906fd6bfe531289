/** Batches of one worker that differ in rows, shapes, outputs, size and failure. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { NamedTensor } from '../../../lib/core/tensor.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { LoadedGraph } from '../../../serving/engine/loaded-graph.ts';
import { FLOAT, INT64, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';

/** same = x; both = x + y, which fails unless rows of y have 1 value, or as many as those of x. */
const bytes = model({
  inputs: [value('x', FLOAT, ['batch', 'n']), value('y', INT64, ['batch', 'm'])],
  outputs: [
    value('same', FLOAT, ['batch', 'n']),
    value('both', FLOAT, ['batch', 'n']),
    value('y2', INT64, ['batch', 'm']),
  ],
  nodes: [
    node('Identity', ['x'], ['same']),
    node('Cast', ['y'], ['floats'], { attributes: { to: FLOAT } }),
    node('Add', ['x', 'floats'], ['both']),
    node('Identity', ['y'], ['y2']),
  ],
});

const OUTPUTS = ['same', 'both', 'y2'] as const;

interface Request {
  readonly rows: number;
  readonly n: number;
  readonly m: number;
  readonly seed: number;
  readonly outputs: readonly (typeof OUTPUTS)[number][];
}

const request: fc.Arbitrary<Request> = fc.record({
  rows: fc.integer({ min: 1, max: 9 }),
  // Outputs of 9 × 4,096 floats do not fit into a memory.
  n: fc.constantFrom(2, 2, 2, 3, 1_024, 4_096),
  m: fc.constantFrom(1, 1, 1, 2),
  seed: fc.integer({ min: -1_000, max: 1_000 }),
  outputs: fc.subarray([...OUTPUTS]),
});

function toTensor(name: string, shape: number[], data: Float32Array | BigInt64Array): NamedTensor {
  const dataType = data instanceof Float32Array ? 'FP32' : 'INT64';
  return { name, dataType, shape, data: new Uint8Array(data.buffer as ArrayBuffer) };
}

function expectOutputs({ rows, n, m, outputs }: Request, x: Float32Array, y: BigInt64Array) {
  const sum = Float32Array.from(x, (one, i) => {
    const row = Math.floor(i / n);
    return one + Number(y[row * m + (m === 1 ? 0 : i % n)]);
  });
  const all = [
    toTensor('same', [rows, n], x),
    toTensor('both', [rows, n], sum),
    toTensor('y2', [rows, m], y),
  ];
  return outputs.length === 0 ? all : all.filter(({ name }) => outputs.includes(name as 'y2'));
}

test('a worker answers each batch with its own outputs, whatever came before', async () => {
  const loaded = await LoadedGraph.load({
    name: 'm',
    version: '1',
    model: bytes,
    instances: 1,
    batching: { ...DEFAULT_BATCHING, maxBatch: 8 },
    logger: createLogger('test', { level: 'silent' }),
  });
  const predict = async (one: Request): Promise<void> => {
    const { rows, n, m, seed, outputs } = one;
    const x = Float32Array.from({ length: rows * n }, (_, i) => seed + (i % 97));
    const y = BigInt64Array.from({ length: rows * m }, (_, i) => BigInt(seed * 3 - i));
    const inputs = [toTensor('x', [rows, n], x), toTensor('y', [rows, m], y)];
    const deadlineMs = performance.now() + 60_000;
    const run = loaded.predict({ inputs, outputs }, { deadlineMs });
    if (m !== 1 && n !== m) {
      await assert.rejects(run, { code: 'INVALID_ARGUMENT' });
      return;
    }
    const { outputs: actual } = await run;
    const expected = expectOutputs(one, x, y);
    assert.deepEqual(
      actual.map(({ name, shape }) => [name, shape]),
      expected.map(({ name, shape }) => [name, shape]),
    );
    for (const [i, { data }] of expected.entries()) {
      assert.ok(Buffer.from(data as Uint8Array).equals(actual[i]!.data as Uint8Array));
    }
  };
  try {
    await fc.assert(
      fc.asyncProperty(fc.array(request, { maxLength: 12 }), async (requests) => {
        await Promise.all(requests.map(predict));
      }),
      { numRuns: 25 },
    );
    // More than the memory that is kept for later batches.
    const large: Request = { rows: 1, n: 4 << 20, m: 1, seed: 1, outputs: ['same'] };
    const small: Request = { ...large, n: 2, outputs: [] };
    for (const one of [small, large, large, small, small]) await predict(one);
  } finally {
    await loaded.close();
  }
});

test('outputs whose size depends on values have the size of their own batch', async () => {
  const zeros = model({
    inputs: [value('n', INT64, [1])],
    outputs: [value('zeros', FLOAT, ['n'])],
    nodes: [node('ConstantOfShape', ['n'], ['zeros'])],
  });
  const loaded = await LoadedGraph.load({
    name: 'm',
    version: '1',
    model: zeros,
    instances: 1,
    batching: { ...DEFAULT_BATCHING, maxBatch: undefined },
    logger: createLogger('test', { level: 'silent' }),
  });
  try {
    // 100,000 floats do not fit into a memory.
    for (const size of [3, 3, 3, 3, 100_000, 3, 3, 100_000, 100_000, 4, 4, 5, 5]) {
      const inputs = [toTensor('n', [1], BigInt64Array.of(BigInt(size)))];
      const deadlineMs = performance.now() + 60_000;
      const { outputs } = await loaded.predict({ inputs, outputs: [] }, { deadlineMs });
      assert.deepEqual([outputs[0]?.shape, outputs[0]?.data.length], [[size], 4 * size]);
    }
  } finally {
    await loaded.close();
  }
});
