import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  FLOAT,
  floats,
  INT64,
  ints,
  model,
  node,
  ramp,
  smallModel,
  value,
} from './onnx-builder.ts';
import { Harness } from './prune-harness.ts';

const harness = new Harness();

/** features.json of smallModel: three slots, two dense features. */
const FEATURES = {
  format: 1,
  hash: { scheme: 'xxh64-concat', seed: '7', modulo: '7' },
  slots: [
    { name: 'C1', index: 14 },
    { name: 'C2', index: 15 },
    { name: 'C3', index: 16 },
  ],
  dense: {
    input: 'dense',
    features: [
      { name: 'I1', log: true },
      { name: 'I2', scale: 0.5 },
    ],
  },
  click: { output: 'prob', column: 0 },
  ids: [{ input: 'ids', slots: ['C3', 'C1', 'C2'] }],
};

function mismatch(features: object, bytes: Uint8Array = smallModel(), status = 1): string {
  return harness.refuse(bytes, status, '--features', harness.write('features.json', features));
}

test('what the training script said travels to slots.json, slots in column order', async () => {
  const path = harness.write('features.json', FEATURES);
  const { spec, report } = await harness.prune(smallModel(), '--features', path);
  assert.deepEqual(spec.embeddings[0]?.slots, ['C3', 'C1', 'C2']);
  assert.deepEqual(report.lookups[0]?.slots, ['C3', 'C1', 'C2']);
  assert.deepEqual(spec.features, {
    hash: { scheme: 'xxh64-concat', seed: 7n, modulo: 7n },
    slots: FEATURES.slots,
    dense: {
      input: 'dense',
      features: [
        { name: 'I1', missing: 0, log: true, shift: 0, scale: 1 },
        { name: 'I2', missing: 0, log: false, shift: 0, scale: 0.5 },
      ],
    },
    click: { output: 'prob', column: 0 },
  });
});

test('slots follow selected columns', async () => {
  const columns = model({
    inputs: [value('ids', INT64, ['n', 3])],
    outputs: [value('y', FLOAT, ['n', 2])],
    initializers: [floats('t', [8, 2], ramp(16)), ints('last', [], [2]), ints('first', [], [0])],
    nodes: [
      node('Gather', ['ids', 'last'], ['c'], { attributes: { axis: 1 } }),
      node('Gather', ['t', 'c'], ['a']),
      node('Gather', ['ids', 'first'], ['d'], { attributes: { axis: 1 } }),
      node('Gather', ['t', 'd'], ['b']),
      node('Sub', ['a', 'b'], ['y']),
    ],
  });
  const features = {
    ...FEATURES,
    dense: undefined,
    click: { output: 'y', column: 1 },
    ids: [{ input: 'ids', slots: ['C1', 'C2', 'C3'] }],
  };
  const path = harness.write('features.json', features);
  const { spec } = await harness.prune(columns, '--features', path);
  assert.deepEqual(
    spec.embeddings.map(({ slots }) => slots),
    [['C3'], ['C1']],
  );
});

test('every mismatch between features.json and graph names both sides', () => {
  const ids = (...list: object[]): object => ({ ...FEATURES, ids: list });
  const slots = FEATURES.ids[0]!.slots;
  const dense = (input: string, count: number): object => ({
    ...FEATURES,
    dense: { input, features: Array.from({ length: count }, (_, i) => ({ name: `I${i}` })) },
  });
  const cases: [object, RegExp][] = [
    [
      ids({ input: 'idz', slots }),
      /ids input "idz" is not an input of the model \(those are "ids", "dense"\)/,
    ],
    [
      ids({ input: 'dense', slots }),
      /ids input "dense" feeds no lookup \(those that do are "ids"\)/,
    ],
    [ids({ input: 'ids', slots: ['C1', 'C2'] }), /ids input "ids" 2 slots, in the model it has 3/],
    [ids({ input: 'ids', slots }, { input: 'ids', slots }), /lists the input "ids" twice/],
    [
      ids({ input: 'ids', slots: ['C1', 'C2', 'C1'] }),
      /slot C1 is in ids input "ids" and again in "ids"/,
    ],
    [
      { ...FEATURES, slots: [...FEATURES.slots, { name: 'C4', index: 17 }] },
      /no ids input carries "C4"/,
    ],
    [
      dense('dens', 2),
      /dense input "dens" is not an input of the model \(its dense inputs are "dense"\)/,
    ],
    [dense('dense', 3), /3 dense features, the input "dense" of the model has 2 columns/],
    [
      { ...FEATURES, dense: undefined },
      /needs the inputs "dense", which features.json does not name/,
    ],
    [
      { ...FEATURES, click: { output: 'p', column: 0 } },
      /output "p" is not an output .*those are "prob"/,
    ],
    [
      { ...FEATURES, click: { output: 'prob', column: 1 } },
      /column 1 is outside the output "prob" \[batch, 1\]/,
    ],
    [
      { ...FEATURES, hash: { ...FEATURES.hash, modulo: '8' } },
      /modulo 8, table "embedding.weight" has 7 rows/,
    ],
    [{ ...FEATURES, hash: { ...FEATURES.hash, modulo: '0' } }, /unbounded keys .*has 7 rows/],
    [{ ...FEATURES, slots: [] }, /features.json: slots: expected an array of at least 1 items/],
  ];
  for (const [features, pattern] of cases) assert.match(mismatch(features), pattern);
});

test('a click column that only a run can check is checked by the run', () => {
  const open = model({
    inputs: [value('ids', INT64, ['n', 3])],
    outputs: [value('y', FLOAT, ['n', 'width'])],
    initializers: [floats('t', [7, 2], ramp(14)), ints('wide', [2], [0, -1])],
    nodes: [node('Gather', ['t', 'ids'], ['e']), node('Reshape', ['e', 'wide'], ['y'])],
  });
  const features = { ...FEATURES, dense: undefined, click: { output: 'y', column: 6 } };
  assert.match(mismatch(features, open), /column 6 is outside the output "y" \[1, 6\]/);
});

test('a graph that also needs the ids keeps them, and slots.json says which slots they are', async () => {
  const nodes = [
    node('Gather', ['t', 'ids'], ['e']),
    node('Cast', ['ids'], ['f'], { attributes: { to: FLOAT } }),
    node('Unsqueeze', ['f', 'end'], ['g']),
    node('Mul', ['e', 'g'], ['h']),
    node('ReduceSum', ['h', 'end'], ['prob'], { attributes: { keepdims: 0 } }),
  ];
  const masked = model({
    inputs: [value('ids', INT64, ['n', 3])],
    outputs: [value('prob', FLOAT, ['n', 3])],
    initializers: [floats('t', [7, 2], ramp(14)), ints('end', [1], [-1])],
    nodes,
  });
  const features = harness.write('masked.json', { ...FEATURES, dense: undefined });
  const { inputs, spec } = await harness.prune(masked, '--features', features);
  assert.deepEqual(inputs, ['ids', 'e']);
  const slots = FEATURES.ids[0]!.slots;
  assert.deepEqual(spec.ids, [{ input: 'ids', dtype: 'int64', columns: 3, slots, kept: true }]);
});

test('a features file that is absent, empty or no JSON is an error of one line', () => {
  const absent = harness.path('absent.json');
  assert.match(
    harness.refuse(smallModel(), 1, '--features', absent),
    /cannot read .*absent.json: no such file/,
  );
  const broken = harness.write('broken.json', '{"format": 1');
  assert.match(harness.refuse(smallModel(), 1, '--features', broken), /broken.json: not JSON/);
});
