/** Where tables stand in a model, and how they come out of it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { readOnnxModel } from '../../../../tools/prune-model/onnx/onnx-reader.ts';
import {
  FLOAT,
  floats,
  floatsInField,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  tensor,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();
const f32 = (values: number[]): number[] => Array.from(Float32Array.from(values));

test('a table shared by 26 inputs is exported once, and each lookup becomes an input', async () => {
  const fields = Array.from({ length: 26 }, (_, i) => `C${i + 1}`);
  const pruned = await harness.prune(
    model({
      inputs: fields.map((name, i) => value(name, INT64, i % 2 ? ['n', 1] : ['n'])),
      outputs: [value('sum', FLOAT, ['n', 3])],
      initializers: [floats('shared/table', [11, 3], ramp(33)), ints('last', [1], [-1])],
      nodes: [
        ...fields.map((name) => node('Gather', ['shared/table', name], [`e_${name}`])),
        ...fields.flatMap((name, i) =>
          i % 2
            ? [
                node('ReduceSum', [`e_${name}`, 'one'], [`f_${name}`], {
                  attributes: { keepdims: 0 },
                }),
              ]
            : [],
        ),
        node(
          'Sum',
          fields.map((name, i) => (i % 2 ? `f_${name}` : `e_${name}`)),
          ['sum'],
        ),
      ].toSpliced(
        0,
        0,
        node('Constant', [], ['one'], { attributes: { value: { tensor: ints('', [1], [1]) } } }),
      ),
    }),
  );
  assert.deepEqual(
    pruned.inputs,
    fields.map((name) => `e_${name}`),
  );
  assert.equal(pruned.spec.tables.length, 1);
  assert.equal(pruned.spec.tables[0]?.name, 'shared_table');
  assert.deepEqual(pruned.spec.embeddings[0]?.shape, [-1, 3]);
  assert.deepEqual(pruned.spec.embeddings[1]?.shape, [-1, 1, 3]);
  assert.deepEqual(
    pruned.spec.embeddings.map(({ ids }) => ids),
    fields,
  );
  assert.equal(pruned.report.tables[0]?.lookups, 26);
});

test('tables whose names collide as file names get distinct files', async () => {
  const pruned = await harness.prune(
    model({
      inputs: [value('a', INT32, ['n']), value('b', INT64, ['n'])],
      outputs: [value('y', FLOAT, ['n', 7])],
      initializers: [floats('Emb/1', [5, 3], ramp(15)), floats('emb:1', [9, 4], ramp(36, 2))],
      nodes: [
        node('Gather', ['Emb/1', 'a'], ['ea'], { attributes: { axis: 0 } }),
        node('Gather', ['emb:1', 'b'], ['eb'], { domain: 'ai.onnx' }),
        node('Concat', ['ea', 'eb'], ['y'], { attributes: { axis: -1 } }),
      ],
    }),
  );
  assert.deepEqual(
    pruned.spec.tables.map(({ name, rows, dim }) => [name, rows, dim]),
    [
      ['Emb_1', 5, 3],
      ['emb_1_2', 9, 4],
    ],
  );
  assert.deepEqual(pruned.table('emb_1_2').values, f32(ramp(36, 2)));
});

test('a table with other readers stays in the graph and is exported too', async () => {
  const tied = model({
    inputs: [value('ids', INT64, ['n'])],
    outputs: [value('y', FLOAT, ['n', 8])],
    initializers: [floats('t', [8, 2], ramp(16))],
    nodes: [
      node('Gather', ['t', 'ids'], ['e']),
      node('Transpose', ['t'], ['tt'], { name: 'tie' }),
      node('MatMul', ['e', 'tt'], ['y']),
    ],
  });
  const pruned = await harness.prune(tied);
  assert.deepEqual(pruned.report.tables[0]?.keptFor, ['node "tie" (Transpose)']);
  assert.deepEqual(pruned.table('t').values, f32(ramp(16)));
  const outcome = await harness.run(
    '--model',
    harness.path('model.onnx'),
    '--output',
    harness.output,
    '--force',
  );
  assert.match(
    outcome.stdout,
    /table t also stays in the graph, where it is read by node "tie" \(Transpose\)/,
  );
});

test('tables in a Constant node, behind Identity, or in float_data are exported', async () => {
  const values = ramp(8);
  const tables = ['constant', 'renamed', 'packed', 'single'];
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n'])],
      outputs: [value('y', FLOAT, ['n', 2])],
      initializers: [
        floats('origin', [4, 2], values),
        floatsInField('packed', [4, 2], values, true),
        floatsInField('single', [4, 2], values, false),
      ],
      nodes: [
        node('Constant', [], ['constant'], {
          attributes: { value: { tensor: floats('', [4, 2], values) } },
        }),
        node('Identity', ['origin'], ['alias']),
        node('Identity', ['alias'], ['renamed']),
        ...tables.map((name) => node('Gather', [name, 'ids'], [`e_${name}`])),
        node(
          'Sum',
          tables.map((name) => `e_${name}`),
          ['y'],
        ),
      ],
    }),
  );
  const names = ['constant', 'origin', 'packed', 'single'];
  assert.deepEqual(
    pruned.spec.tables.map(({ name }) => name),
    names,
  );
  for (const name of names) assert.deepEqual(pruned.table(name).values, f32(values));
});

test('initializers that IR version 3 lists as inputs are removed with their tables', async () => {
  const pruned = await harness.prune(
    model({
      irVersion: 3,
      opset: 8,
      inputs: [value('ids', INT64, ['n']), value('t', FLOAT, [8, 2]), value('w', FLOAT, [2, 1])],
      outputs: [value('y', FLOAT, ['n', 1])],
      initializers: [floats('t', [8, 2], ramp(16)), floats('w', [2, 1], ramp(2))],
      nodes: [node('Gather', ['t', 'ids'], ['e']), node('MatMul', ['e', 'w'], ['y'])],
    }),
  );
  assert.deepEqual(pruned.inputs, ['e']);
  const { graph } = readOnnxModel(pruned.model, 'pruned');
  assert.deepEqual(
    graph.inputs.map(({ name }) => name),
    ['w', 'e'],
  );
});

test('rows with NaN and infinity keep their bits', async () => {
  const bits = Uint32Array.of(0x7fc0_1234, 0xff80_0000, 0x8000_0000, 0x0000_0001, 0x3f80_0000, 0);
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n'])],
      outputs: [value('y', FLOAT, ['n', 2])],
      initializers: [tensor('t', FLOAT, [3, 2], bits)],
      nodes: [node('Gather', ['t', 'ids'], ['e']), node('Neg', ['e'], ['y'])],
    }),
  );
  assert.ok(Object.is(pruned.table('t').values[2], -0));
  assert.deepEqual(pruned.table('t').values.slice(0, 2), [Number.NaN, Number.NEGATIVE_INFINITY]);
});
