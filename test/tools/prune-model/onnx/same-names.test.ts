/** Different things of one name, and axes that look alike: what is cut is what the graph meant. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RandomNumbers } from '../../../../tools/prune-model/cut/verification.ts';
import { OnnxInputSampler } from '../../../../tools/prune-model/onnx/input-sampler.ts';
import { readOnnxModel } from '../../../../tools/prune-model/onnx/onnx-reader.ts';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import type { Report } from '../../../../tools/prune-model/report.ts';
import {
  type Attribute,
  BOOL,
  FLOAT,
  FLOAT16,
  floats,
  graph,
  INT64,
  ints,
  model,
  node,
  ramp,
  type Shape,
  tensor,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();

function at(
  op: string,
  inputs: readonly string[],
  output: string,
  attributes: Readonly<Record<string, Attribute>> = {},
): Uint8Array {
  return node(op, inputs, [output], { attributes });
}

/** In this process, with a verification. */
async function pruneHere(bytes: Uint8Array): Promise<Report> {
  const request = { features: undefined, samples: 24, force: true, dryRun: false, inProcess: true };
  const path = harness.write('model.onnx', bytes);
  return (await pruneModel({ ...request, model: path, output: harness.output }))!;
}

function buildModel(
  nodes: readonly Uint8Array[],
  initializers: readonly Uint8Array[],
  options: { shape?: Shape; input?: string; opset?: number } = {},
): Uint8Array {
  const { shape = ['n', 2], input = 'ids', opset = 13 } = options;
  return model({
    nodes,
    initializers,
    opset,
    inputs: [value(input, INT64, shape)],
    outputs: [value('y', FLOAT, [])],
  });
}

function ifModel(branches: readonly [Uint8Array, Uint8Array], outer: Uint8Array[]): Uint8Array {
  const [then, otherwise] = branches;
  return model({
    inputs: [value('ids', INT64, ['n', 2]), value('flag', BOOL, [])],
    outputs: [value('y', FLOAT, [])],
    initializers: outer,
    nodes: [
      node('If', ['flag'], ['y'], {
        attributes: { then_branch: { graph: then }, else_branch: { graph: otherwise } },
      }),
    ],
  });
}

test('tables and maps with one name in several bodies stay separate', async () => {
  const branch = (output: string, scale: number, map: readonly number[]): Uint8Array =>
    graph({
      inputs: [],
      outputs: [value(output, FLOAT, ['n', 2, 3])],
      initializers: [floats('own', [8, 3], ramp(24, scale)), ints('map', [4], map)],
      nodes: [
        at('Mod', ['ids', 'four'], `${output}_small`),
        at('Gather', ['map', `${output}_small`], `${output}_id`),
        at('Gather', ['own', `${output}_id`], output),
      ],
    });
  const branches = [branch('a', 1, [0, 1, 2, 7]), branch('b', 2, [3, 0, 5, -8])] as const;
  const { tables } = await pruneHere(ifModel(branches, [ints('four', [], [4])]));
  assert.deepEqual(
    tables.map(({ name, lookups }) => [name, lookups]),
    [
      ['own', 1],
      ['own_2', 1],
    ],
  );
});

test('a body that shadows a name of the outer graph is refused', async () => {
  const hiding = graph({
    inputs: [],
    outputs: [value('a', FLOAT, ['n', 2, 3])],
    initializers: [floats('t', [8, 3], ramp(24, 2))],
    nodes: [at('Gather', ['t', 'ids'], 'a')],
  });
  const plain = graph({
    inputs: [],
    outputs: [value('b', FLOAT, ['n', 2, 3])],
    nodes: [at('Gather', ['t', 'ids'], 'b')],
  });
  const bytes = ifModel([hiding, plain], [floats('t', [8, 3], ramp(24))]);
  assert.match(
    await harness.expectRefusal(bytes, 4, '--verify', '0'),
    /tensor "t".*a value outside the body/,
  );
});

test('one quantised table read with two scales gives two tables', async () => {
  const rows = Int8Array.from({ length: 24 }, (_, i) => 7 * i - 80);
  const { tables } = await pruneHere(
    buildModel(
      [
        at('Gather', ['q', 'ids'], 'a'),
        at('Gather', ['q', 'ids'], 'b'),
        at('DequantizeLinear', ['a', 'fine'], 'fa'),
        at('DequantizeLinear', ['b', 'coarse'], 'fb'),
        at('Sub', ['fa', 'fb'], 'y'),
      ],
      [tensor('q', 3, [8, 3], rows), floats('fine', [], [0.01]), floats('coarse', [], [0.5])],
    ),
  );
  assert.equal(tables.length, 2);
});

test('a quantised table with float16 scales gives float16 rows', async () => {
  const q = tensor(
    'q',
    3,
    [8, 3],
    Int8Array.from({ length: 24 }, (_, i) => 11 * i - 120),
  );
  const scale = tensor('scale', FLOAT16, [], Uint16Array.of(0x22a8));
  const cast = at('Cast', ['half'], 'y', { to: FLOAT });
  const before = [at('DequantizeLinear', ['q', 'scale'], 't'), at('Gather', ['t', 'ids'], 'half')];
  const behind = [at('Gather', ['q', 'ids'], 'r'), at('DequantizeLinear', ['r', 'scale'], 'half')];
  for (const nodes of [before, behind]) {
    const report = await pruneHere(buildModel([...nodes, cast], [q, scale], { opset: 19 }));
    assert.equal(report.lookups.length, 1);
  }
});

test('a negative axis of a table behind a Cast is supported', async () => {
  const halves = Uint16Array.from({ length: 24 }, (_, i) => 0x3c00 + 37 * i);
  const t = tensor('h', FLOAT16, [8, 3], halves);
  for (const [axis, rows] of [
    [-2, 8],
    [-1, 3],
  ] as const) {
    const gather = at('Gather', ['t', 'ids'], 'y', { axis });
    const cast = at('Cast', ['h'], 't', { to: FLOAT });
    const { tables } = await pruneHere(buildModel([cast, gather], [t]));
    assert.equal(tables[0]?.rows, rows);
  }
});

test('the shape of ids is not taken from rows with permuted axes', async () => {
  const sized = [
    at('Gather', ['t', 'turned'], 'rows'),
    at('Shape', ['ids'], 'shape'),
    at('Gather', ['shape', 'one'], 'size'),
    at('Cast', ['size'], 'factor', { to: FLOAT }),
    at('Mul', ['rows', 'factor'], 'y'),
  ];
  const parts = [floats('t', [8, 3], ramp(24)), ints('one', [], [1])];
  const transpose = at('Transpose', ['ids'], 'turned', { perm: [1, 0] });
  const turned = await pruneHere(buildModel([transpose, ...sized], parts, { shape: ['n', 's'] }));
  assert.deepEqual(turned.inputs.kept, ['ids']);
  const reshape = at('Reshape', ['ids', 'to'], 'turned');
  const flat = buildModel([reshape, ...sized], [...parts, ints('to', [3], [0, 3, 2])], {
    shape: ['n', 2, 3],
  });
  assert.deepEqual((await pruneHere(flat)).inputs.kept, ['ids']);
});

test('two axes of one name, and an input named batch, are supported', async () => {
  const gather = (input: string): Uint8Array => at('Gather', ['t', input], 'y');
  const t = floats('t', [8, 3], ramp(24));
  const square = await pruneHere(buildModel([gather('ids')], [t], { shape: ['n', 'n'] }));
  assert.equal(square.lookups.length, 1);
  const input = 'batch';
  const open = await pruneHere(buildModel([gather(input)], [t], { shape: ['n', ''], input }));
  const rows = readOnnxModel(harness.readOutput('model.onnx'), 'pruned').graph.inputs[0];
  assert.equal(open.lookups.length, 1);
  assert.notEqual(rows?.shape?.[1], 1);
});

test('conditions are true in one of the first two runs and false in the other', () => {
  const inputs = ['p', 'q', 'r'].map((name) => ({
    raw: { field: 11, bytes: new Uint8Array(0) },
    name,
    elemType: BOOL,
    shape: [],
  }));
  const spec = { embeddings: [], tables: [], ids: [], features: undefined };
  const sampler = new OnnxInputSampler(inputs, [], spec, new RandomNumbers(1));
  const [first, second] = [sampler.draw(4), sampler.draw(1)];
  for (const { name } of inputs) {
    const drawn = [first, second].map(({ tensors }) => Number(tensors.get(name)!.data[0]));
    assert.deepEqual(drawn.sort(), [0, 1]);
  }
});
