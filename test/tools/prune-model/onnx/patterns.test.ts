/** Which lookups are cut, and what of the graph stays. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findCapturedNames } from '../../../../tools/prune-model/onnx/onnx-model.ts';
import { readOnnxModel } from '../../../../tools/prune-model/onnx/onnx-reader.ts';
import {
  FLOAT,
  floats,
  graph,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  smallModel,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();
const f32 = (values: number[]): number[] => Array.from(Float32Array.from(values));

test('one ids matrix: the lookup becomes an input and the table a file', async () => {
  const pruned = await harness.prune(smallModel(3, 7, 4));
  assert.deepEqual(pruned.inputs, ['dense', 'rows']);
  assert.deepEqual(pruned.outputs, ['prob']);
  assert.deepEqual(pruned.spec, {
    embeddings: [
      {
        input: 'rows',
        table: 'embedding.weight',
        dim: 4,
        dtype: 'f32',
        shape: [-1, 3, 4],
        slots: [],
        ids: 'ids',
        columns: [0, 1, 2],
      },
    ],
    tables: [{ name: 'embedding.weight', rows: 7, dim: 4, dtype: 'f32' }],
    ids: [{ input: 'ids', dtype: 'int64', columns: 3, slots: [], kept: false }],
    graph: {
      inputs: [{ name: 'dense', dtype: 'float32', shape: [-1, 2] }],
      outputs: [{ name: 'prob', dtype: 'float32', shape: [-1, 1] }],
    },
    features: undefined,
  });
  assert.deepEqual(pruned.table('embedding.weight'), { shape: [7, 4], values: f32(ramp(28)) });
  const { graph } = readOnnxModel(pruned.model, 'pruned');
  const rows = graph.inputs.find(({ name }) => name === 'rows');
  assert.deepEqual([rows?.elemType, rows?.shape], [FLOAT, ['batch', 3, 4]]);
  assert.deepEqual(
    graph.values.map(({ name }) => name),
    ['x'],
  );
  const { verify, bytes, lookups, inputs } = pruned.report;
  assert.deepEqual(verify, { samples: 64, seed: 1, batches: [64, 1], maxAbsDifference: 0 });
  assert.ok(bytes.after < bytes.before && bytes.tables === 112);
  assert.deepEqual(lookups[0]?.columns, [0, 1, 2]);
  assert.deepEqual(inputs, { kept: ['dense'], removed: ['ids'] });
});

/** A graph that selects columns of `ids` by Gather, Slice, Squeeze, Unsqueeze and Reshape. */
function columnsModel(): ReturnType<typeof model> {
  const zero = (name: string, at: number[]): Uint8Array => ints(name, [at.length], at);
  return model({
    inputs: [value('ids', INT64, ['n', 6])],
    outputs: [value('y', FLOAT, ['n', 20])],
    initializers: [
      floats('t', [8, 2], ramp(16)),
      ints('two', [], [2]),
      zero('first', [0]),
      zero('minus', [-1]),
      zero('pair', [3, 1]),
      zero('cut', [1]),
      zero('four', [4]),
      zero('five', [5]),
      zero('flat', [-1]),
      zero('tall', [-1, 1]),
      zero('w2', [-1, 2]),
      zero('w4', [-1, 4]),
      zero('end', [9]),
      zero('step', [2]),
      zero('six', [-1, 6]),
      zero('w6', [0, 6]),
    ],
    nodes: [
      node('Identity', ['ids'], ['same']),
      node('Gather', ['same', 'two'], ['c2'], { attributes: { axis: 1 } }),
      node('Gather', ['t', 'c2'], ['e2']),
      node('Gather', ['ids', 'minus'], ['c5'], { attributes: { axis: -1 } }),
      node('Cast', ['c5'], ['c5_32'], { attributes: { to: INT32 } }),
      node('Gather', ['t', 'c5_32'], ['e5']),
      node('Reshape', ['e5', 'w2'], ['f5']),
      node('Slice', ['ids', 'four', 'five', 'cut'], ['c4']),
      node('Squeeze', ['c4', 'cut'], ['c4_flat']),
      node('Gather', ['t', 'c4_flat'], ['e4']),
      node('Slice', ['ids', 'first', 'end', 'cut', 'step'], ['c024']),
      node('Gather', ['t', 'c024'], ['e024']),
      node('Reshape', ['e024', 'six'], ['f024']),
      node('Gather', ['ids', 'pair'], ['c31'], { attributes: { axis: 1 } }),
      node('Reshape', ['c31', 'w2'], ['c31_same']),
      node('Gather', ['t', 'c31_same'], ['e31']),
      node('Reshape', ['e31', 'w4'], ['f31']),
      node('Reshape', ['c2', 'tall'], ['c2_tall']),
      node('Unsqueeze', ['c2_tall', 'minus'], ['c2_cube']),
      node('Gather', ['t', 'c2_cube'], ['e2_cube']),
      node('Reshape', ['e2_cube', 'w2'], ['f2']),
      node('Reshape', ['c4', 'flat'], ['c4_again']),
      node('Gather', ['t', 'c4_again'], ['f4']),
      node('Concat', ['e2', 'f5', 'e4', 'f024', 'f31', 'f2', 'f4'], ['y'], {
        attributes: { axis: 1 },
      }),
    ],
  });
}

test('columns of one ids matrix can be selected in every supported way', async () => {
  const pruned = await harness.prune(columnsModel());
  assert.deepEqual(
    pruned.report.lookups.map(({ input, columns, shape }) => [
      input,
      columns?.join(),
      shape.join(),
    ]),
    [
      ['e2', '2', 'n,2'],
      ['e5', undefined, 'n,1,2'],
      ['e4', '4', 'n,2'],
      ['e024', '0,2,4', 'n,3,2'],
      ['e31', '3,1', 'n,2,2'],
      ['e2_cube', '2', 'n,1,1,2'],
      ['f4', '4', 'n,2'],
    ],
  );
});

test('Slice, Squeeze and Unsqueeze with the attributes of older opsets are supported', async () => {
  const attributes = { starts: [1], ends: [2], axes: [1] };
  const pruned = await harness.prune(
    model({
      opset: 9,
      inputs: [value('ids', INT64, ['n', 3])],
      outputs: [value('y', FLOAT, ['n', 1, 2])],
      initializers: [floats('t', [8, 2], ramp(16))],
      nodes: [
        node('Slice', ['ids'], ['c'], { attributes }),
        node('Squeeze', ['c'], ['s'], { attributes: { axes: [1] } }),
        node('Unsqueeze', ['s'], ['u'], { attributes: { axes: [1] } }),
        node('Gather', ['t', 'u'], ['e']),
        node('Relu', ['e'], ['y']),
      ],
    }),
  );
  assert.deepEqual(pruned.report.lookups[0]?.columns, [1]);
});

test('a lookup that is also an output keeps it; the new input gets another name', async () => {
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n'])],
      outputs: [value('e', FLOAT, ['n', 2]), value('y', FLOAT, ['n', 2])],
      initializers: [floats('t', [8, 2], ramp(16)), floats('e_rows', [1], [2])],
      nodes: [node('Gather', ['t', 'ids'], ['e']), node('Mul', ['e', 'e_rows'], ['y'])],
    }),
  );
  assert.deepEqual(pruned.inputs, ['e_rows_2']);
  assert.deepEqual(pruned.outputs, ['e', 'y']);
  assert.equal(pruned.spec.embeddings[0]?.input, 'e_rows_2');
});

test('ids with other readers stay an input', async () => {
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n', 2])],
      outputs: [value('y', FLOAT, ['n', 2, 3])],
      initializers: [floats('t', [8, 3], ramp(24)), ints('zero', [], [0]), ints('last', [1], [-1])],
      nodes: [
        node('Gather', ['t', 'ids'], ['e']),
        node('Equal', ['ids', 'zero'], ['pad']),
        node('Not', ['pad'], ['real']),
        node('Cast', ['real'], ['mask'], { attributes: { to: FLOAT } }),
        node('Unsqueeze', ['mask', 'last'], ['wide']),
        node('Mul', ['e', 'wide'], ['y']),
      ],
    }),
  );
  assert.deepEqual(pruned.inputs, ['ids', 'e']);
  assert.deepEqual(pruned.report.inputs, { kept: ['ids'], removed: [] });
});

test('operators that only resemble a lookup are left alone', async () => {
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n', 2]), value('code', INT64, ['n', 2])],
      outputs: [value('y', FLOAT, ['n', 2, 3])],
      initializers: [
        floats('t', [8, 3], ramp(24)),
        floats('positions', [5, 3], ramp(15)),
        floats('constants', [5, 3], ramp(15)),
        ints('vocabulary', [4], [3, 2, 1, 0]),
        ints('zero', [], [0]),
        ints('one', [], [1]),
        ints('two', [2], [4, 0]),
      ],
      nodes: [
        node('Gather', ['t', 'ids'], ['e']),
        node('Shape', ['code'], ['shape']),
        node('Gather', ['shape', 'one'], ['length']),
        node('Range', ['zero', 'length', 'one'], ['where']),
        node('Gather', ['positions', 'where'], ['p']),
        node('Gather', ['constants', 'two'], ['c']),
        node('Gather', ['vocabulary', 'code'], ['v']),
        node('Cast', ['v'], ['vf'], { attributes: { to: FLOAT } }),
        node('Gather', ['e', 'zero'], ['column'], { attributes: { axis: 1 } }),
        node('ReduceSum', ['vf'], ['total']),
        node('Unsqueeze', ['column', 'axis'], ['wide']),
        node('Sum', ['e', 'p', 'c', 'total', 'wide'], ['y']),
      ].toSpliced(
        0,
        0,
        node('Constant', [], ['axis'], { attributes: { value: { tensor: ints('', [1], [1]) } } }),
      ),
    }),
  );
  assert.deepEqual(pruned.inputs, ['code', 'e']);
  assert.deepEqual(
    pruned.spec.tables.map(({ name }) => name),
    ['t'],
  );
});

test('lookups that no output needs are removed without a new input', async () => {
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n']), value('unused', INT64, ['n'])],
      outputs: [value('y', FLOAT, ['n', 2])],
      initializers: [floats('t', [8, 2], ramp(16)), floats('dead', [8], ramp(8))],
      nodes: [
        node('Gather', ['dead', 'unused'], ['nobody']),
        node('Gather', ['t', 'ids'], ['e']),
        node('Relu', ['e'], ['y']),
      ],
    }),
  );
  assert.deepEqual(pruned.inputs, ['e']);
  assert.deepEqual(pruned.report.inputs.removed, ['ids', 'unused']);
  assert.deepEqual(pruned.report.nodes, { before: 3, after: 1 });
});

test('a model with a fixed batch size is verified with that size', async () => {
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, [5, 2])],
      outputs: [value('y', FLOAT, [5, 2, 2])],
      initializers: [floats('t', [8, 2], ramp(16))],
      nodes: [node('Gather', ['t', 'ids'], ['e']), node('Relu', ['e'], ['y'])],
    }),
    '--verify',
    '12',
  );
  assert.deepEqual(pruned.spec.embeddings[0]?.shape, [5, 2, 2]);
  assert.deepEqual(pruned.report.verify?.batches, [5, 5, 5]);
});

test('an If whose branches use the rows is kept unchanged', async () => {
  const branch = (op: string): Uint8Array =>
    graph({
      inputs: [],
      outputs: [value(`${op}_y`, FLOAT, ['n', 2])],
      nodes: [node(op, ['e'], [`${op}_y`])],
    });
  const pruned = await harness.prune(
    model({
      inputs: [value('ids', INT64, ['n']), value('flag', 9, [])],
      outputs: [value('y', FLOAT, ['n', 2])],
      initializers: [floats('t', [8, 2], ramp(16))],
      nodes: [
        node('Gather', ['t', 'ids'], ['e']),
        node('If', ['flag'], ['y'], {
          attributes: {
            then_branch: { graph: branch('Relu') },
            else_branch: { graph: branch('Neg') },
          },
        }),
      ],
    }),
  );
  assert.deepEqual(pruned.inputs, ['flag', 'e']);
  const [body] = readOnnxModel(pruned.model, 'pruned').graph.nodes[0]?.bodies ?? [];
  assert.ok(body);
  assert.deepEqual([...findCapturedNames(body)], ['e']);
});

test('everything that is not cut keeps its exact bytes, unknown fields included', async () => {
  const extra = Uint8Array.of(0x9a, 0x3f, 3, 1, 2, 3, 0x72, 5, 0x0a, 1, 0x6b, 0x12, 0);
  const parts = {
    inputs: [value('ids', INT64, ['n'])],
    outputs: [value('y', FLOAT, ['n', 2])],
    initializers: [floats('t', [8, 2], ramp(16)), floats('w', [2, 2], ramp(4))],
    nodes: [
      node('Gather', ['t', 'ids'], ['e']),
      node('MatMul', ['e', 'w'], ['y'], { name: 'dense' }),
    ],
  };
  const pruned = await harness.prune(model({ ...parts, extra }));
  const expected = model({
    inputs: [value('e', FLOAT, ['n', 2])],
    outputs: parts.outputs,
    initializers: parts.initializers.slice(1),
    nodes: parts.nodes.slice(1),
    extra,
  });
  assert.deepEqual(pruned.model, expected);
});

test('the same model gives the same bytes; a pruned model has nothing to prune', async () => {
  const first = await harness.prune(smallModel());
  const second = await harness.prune(smallModel());
  assert.deepEqual(second.model, first.model);
  assert.deepEqual(second.report, first.report);
  const again = new PruneHarness();
  assert.match(
    await again.expectRefusal(first.model, 3),
    /has no embedding lookups.*serving --model/,
  );
});
