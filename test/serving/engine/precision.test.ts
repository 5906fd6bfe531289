/** Graphs with fewer bits for their weights: close to the original, or refused with the reason. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { createLogger } from '../../../lib/platform/logs.ts';
import { OnnxModel } from '../../../lib/platform/onnx.ts';
import { convertPrecision } from '../../../proto/onnx-precision.ts';
import { applyPrecision } from '../../../serving/engine/apply-precision.ts';
import { convertAndCheck, listSampledBatches } from '../../../serving/engine/precision-check.ts';
import { PRECISION_TOLERANCES } from '../../../serving/engine/precision-difference.ts';
import { FLOAT, floats, model, node, value } from '../../tools/prune-model/support/onnx-builder.ts';

const EXAMPLES = join(import.meta.dirname, '..', '..', '..', '..', 'examples');
const LOWER = ['fp16', 'bf16', 'int8'] as const;
const NO_DATA = new Map<string, Uint8Array>();
const WIDTH = 20;

/** Weights that look trained: fixed values in (-scale, scale). */
function weights(name: string, dims: readonly number[], seed: number, scale = 0.3): Uint8Array {
  const length = dims.reduce((product, dim) => product * dim, 1);
  const values = Array.from({ length }, (_, i) => scale * Math.sin(12.9898 * i + seed));
  return floats(name, dims, values);
}

interface Shape {
  readonly opset: number;
  readonly hidden: number;
  readonly isTransposed: boolean;
  readonly hasBias: boolean;
  readonly seed: number;
}

/** x [n, 20] through Gemm or MatMul, Relu, MatMul and Sigmoid. */
function makeNetwork({ opset, hidden, isTransposed, hasBias, seed }: Shape): Uint8Array {
  const first = isTransposed ? [hidden, WIDTH] : [WIDTH, hidden];
  const isGemm = isTransposed || hasBias;
  const gemm = node('Gemm', hasBias ? ['x', 'w1', 'b1'] : ['x', 'w1'], ['h'], {
    attributes: { transB: isTransposed ? 1 : 0 },
  });
  return model({
    opset,
    inputs: [value('x', FLOAT, ['n', WIDTH])],
    outputs: [value('y', FLOAT, ['n', 16])],
    initializers: [
      weights('w1', first, seed),
      weights('b1', [hidden], seed + 1),
      weights('w2', [hidden, 16], seed + 2),
    ],
    nodes: [
      isGemm ? gemm : node('MatMul', ['x', 'w1'], ['h']),
      node('Relu', ['h'], ['r']),
      node('MatMul', ['r', 'w2'], ['z']),
      node('Sigmoid', ['z'], ['y']),
    ],
  });
}

async function run(graph: OnnxModel, rows: Float32Array): Promise<Float32Array> {
  const dims = [rows.length / WIDTH, WIDTH];
  const { y } = await graph.run({ x: { dtype: 'float32', data: rows, dims } });
  return y?.data as Float32Array;
}

test('networks of every form keep their outputs within the tolerance', async () => {
  const shape = fc.record({
    opset: fc.constantFrom(13, 17, 18),
    hidden: fc.integer({ min: 16, max: 40 }),
    isTransposed: fc.boolean(),
    hasBias: fc.boolean(),
    seed: fc.integer({ min: 0, max: 1000 }),
  });
  const property = fc.asyncProperty(shape, fc.constantFrom(...LOWER), async (of, precision) => {
    const original = makeNetwork(of);
    const checked = await convertAndCheck({
      model: original,
      data: NO_DATA,
      precision,
      source: 'toy',
    });
    assert.ok(checked.difference <= PRECISION_TOLERANCES[precision]);
    assert.ok(checked.difference > 0, 'the weights have not changed');
  });
  await fc.assert(property, { numRuns: 30 });
});

test('the sampled sizes are those that the graph can run', () => {
  const list = (...shapes: (number | string)[][]): number[] =>
    listSampledBatches(shapes.map((shape) => ({ shape })));
  assert.deepEqual(list(['n', WIDTH]), [1, 7, 16, 64]);
  assert.deepEqual(list([-1, WIDTH]), [1, 7, 16, 64]);
  // A table of fixed size beside a batch.
  assert.deepEqual(list([10, 4], ['n']), [1, 7, 16, 64]);
  assert.deepEqual(list([40, WIDTH]), [40, 40, 40, 40]);
  assert.deepEqual(list([10, WIDTH]), new Array(9).fill(10));
  assert.deepEqual(list([1, WIDTH], []), new Array(32).fill(1));
  assert.deepEqual(list([]), new Array(32).fill(1));
});

function makeFixed(rows: number): Uint8Array {
  return model({
    inputs: [value('x', FLOAT, [rows, WIDTH])],
    outputs: [value('y', FLOAT, [rows, 16])],
    initializers: [weights('w', [WIDTH, 16], 3)],
    nodes: [node('MatMul', ['x', 'w'], ['y'])],
  });
}

test('a graph with a fixed batch is checked with every lower precision', async () => {
  for (const precision of LOWER) {
    const request = { model: makeFixed(3), data: NO_DATA, precision, source: 'toy' };
    const { difference } = await convertAndCheck(request);
    assert.ok(difference > 0 && difference <= PRECISION_TOLERANCES[precision]);
  }
});

test('a graph with FP16 inputs is sampled', async () => {
  const half = 10;
  const graph = model({
    inputs: [value('x', half, ['n', WIDTH])],
    outputs: [value('y', FLOAT, ['n', 16])],
    initializers: [weights('w', [WIDTH, 16], 3)],
    nodes: [
      node('Cast', ['x'], ['f'], { attributes: { to: FLOAT } }),
      node('MatMul', ['f', 'w'], ['y']),
    ],
  });
  const request = { model: graph, data: NO_DATA, precision: 'fp16', source: 'toy' } as const;
  const { difference } = await convertAndCheck(request);
  assert.ok(difference > 0 && difference <= PRECISION_TOLERANCES.fp16);
});

test('with int8 the result of a row does not depend on the other rows of its batch', async () => {
  const of = { opset: 17, hidden: 24, isTransposed: false, hasBias: true, seed: 5 };
  const { model: bytes } = convertPrecision(makeNetwork(of), 'int8', 'toy');
  const graph = await OnnxModel.load(bytes);
  const rows = Float32Array.from({ length: 3 * WIDTH }, (_, i) => Math.sin(i) * 10 ** (i / WIDTH));
  rows.fill(0, WIDTH, 2 * WIDTH);
  const together = await run(graph, rows);
  for (let row = 0; row < 3; row++) {
    const alone = await run(graph, rows.slice(row * WIDTH, (row + 1) * WIDTH));
    assert.deepEqual(together.slice(16 * row, 16 * (row + 1)), alone, `row ${row}`);
  }
  await graph.release();
});

test('a weight that another node reads stays, and converted ones leave the file', async () => {
  const shared = model({
    inputs: [value('x', FLOAT, ['n', WIDTH])],
    outputs: [value('y', FLOAT, ['n', WIDTH]), value('total', FLOAT, [])],
    initializers: [weights('w', [WIDTH, WIDTH], 1)],
    nodes: [
      node('MatMul', ['x', 'w'], ['y']),
      node('ReduceMax', ['w'], ['total'], { attributes: { keepdims: 0 } }),
    ],
  });
  const kept = await convertAndCheck({
    model: shared,
    data: NO_DATA,
    precision: 'int8',
    source: 'toy',
  });
  assert.ok(kept.model.length > 5 * WIDTH * WIDTH);
  const of = { opset: 17, hidden: 40, isTransposed: true, hasBias: true, seed: 9 };
  const original = makeNetwork(of);
  const { model: bytes, bytesBefore, bytesAfter } = convertPrecision(original, 'int8', 'toy');
  assert.equal(bytesBefore, 4 * bytesAfter);
  assert.ok(bytes.length < original.length);
});

/** The difference of two products whose weights are nearly equal, enlarged. */
function makeCancellation(): Uint8Array {
  const near = Array.from({ length: WIDTH * WIDTH }, (_, i) => 0.3 * Math.sin(12.9898 * i + 1));
  return model({
    inputs: [value('x', FLOAT, ['n', WIDTH])],
    outputs: [value('y', FLOAT, ['n', WIDTH])],
    initializers: [
      floats('a', [WIDTH, WIDTH], near),
      floats(
        'b',
        [WIDTH, WIDTH],
        near.map((w, i) => w + 1e-5 * Math.cos(i)),
      ),
      floats('large', [], [1e5]),
    ],
    nodes: [
      node('MatMul', ['x', 'a'], ['p']),
      node('MatMul', ['x', 'b'], ['q']),
      node('Sub', ['p', 'q'], ['d']),
      node('Mul', ['d', 'large'], ['y']),
    ],
  });
}

const refusals: Readonly<Record<string, readonly [Uint8Array, RegExp]>> = {
  'outputs that differ too much': [makeCancellation(), /differ from the original by .* the limit/],
  'a graph without weights': [
    model({
      inputs: [value('x', FLOAT, ['n', 2])],
      outputs: [value('y', FLOAT, ['n', 2])],
      nodes: [node('Relu', ['x'], ['y'])],
    }),
    /changes nothing, because the graph has no/,
  ],
  'weights that are inputs too': [
    model({
      inputs: [value('x', FLOAT, ['n', WIDTH]), value('w', FLOAT, [WIDTH, WIDTH])],
      outputs: [value('y', FLOAT, ['n', WIDTH])],
      initializers: [weights('w', [WIDTH, WIDTH], 1)],
      nodes: [node('MatMul', ['x', 'w'], ['y'])],
    }),
    /changes nothing/,
  ],
  'inputs that cannot be sampled': [
    model({
      inputs: [value('x', FLOAT, ['n', WIDTH]), value('s', 8, ['n'])],
      outputs: [value('y', FLOAT, ['n', WIDTH]), value('t', 8, ['n'])],
      initializers: [weights('w', [WIDTH, WIDTH], 1)],
      nodes: [node('MatMul', ['x', 'w'], ['y']), node('Identity', ['s'], ['t'])],
    }),
    /input "s": inputs of string cannot be sampled/,
  ],
};

for (const [what, [graph, reason]] of Object.entries(refusals)) {
  test(`every lower precision refuses ${what}`, async () => {
    for (const precision of LOWER) {
      const converted = convertAndCheck({ model: graph, data: NO_DATA, precision, source: 'toy' });
      await assert.rejects(converted, { code: 'UNSUPPORTED', message: reason });
    }
  });
}

test('int8 refuses old operators, and damaged graphs are corrupt, never served', () => {
  const of = { opset: 11, hidden: 20, isTransposed: false, hasBias: true, seed: 2 };
  const old = { code: 'UNSUPPORTED', message: /int8 needs version 13 .* has 11/ };
  assert.throws(() => convertPrecision(makeNetwork(of), 'int8', 'toy'), old);
  const bytes = makeNetwork({ ...of, opset: 17 });
  const property = fc.property(
    fc.nat(bytes.length - 1),
    fc.nat(255),
    fc.boolean(),
    (at, byte, isCut) => {
      const damaged = isCut ? bytes.slice(0, at) : bytes.slice();
      if (!isCut) damaged[at] = byte;
      try {
        convertPrecision(damaged, 'int8', 'toy');
      } catch (error) {
        assert.match(String((error as { code?: string }).code), /^(CORRUPT|UNSUPPORTED)$/);
      }
    },
  );
  fc.assert(property, { numRuns: 500 });
});

test('the thread returns a converted graph, or its refusal; fp32 is the same graph', async () => {
  const logger = createLogger('test', { level: 'silent' });
  const bow = readFileSync(join(EXAMPLES, 'sentiment/models/bow/1/model.onnx'));
  const graph = { model: new Uint8Array(bow), data: NO_DATA, source: 'bow' };
  assert.equal(await applyPrecision(graph, { precision: 'fp32', logger }), graph.model);
  const smaller = await applyPrecision(graph, { precision: 'fp16', logger });
  assert.ok(smaller.length < graph.model.length);
  await assert.rejects(applyPrecision(graph, { precision: 'int8', logger }), {
    code: 'UNSUPPORTED',
    message: /bow: precision int8 changes nothing/,
  });
});

test('a graph inside a larger buffer converts to the same bytes', () => {
  const shape = { opset: 17, hidden: 16, isTransposed: false, hasBias: true, seed: 3 };
  const graph = makeNetwork(shape);
  const larger = Buffer.concat([Buffer.alloc(7), graph]);
  for (const precision of LOWER) {
    const expected = convertPrecision(graph, precision, 'test').model;
    const actual = convertPrecision(larger.subarray(7), precision, 'test').model;
    assert.deepEqual(Buffer.from(actual), Buffer.from(expected));
  }
});
