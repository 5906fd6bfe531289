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
} from './support/onnx-builder.ts';
import { PruneHarness } from './support/prune-harness.ts';

const harness = new PruneHarness();

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

/** Flags for a features.json whose ids input has another order than its slots. */
function acceptFeatures(features: object): string[] {
  return ['--accept', '--features', harness.write('features.json', features)];
}

function mismatch(features: object, bytes: Uint8Array = smallModel(), status = 1): Promise<string> {
  return harness.expectRefusal(bytes, status, ...acceptFeatures(features));
}

test('slots.json carries the content of features.json, slots in column order', async () => {
  const { spec, report } = await harness.prune(smallModel(), ...acceptFeatures(FEATURES));
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

test('slots follow the selected columns', async () => {
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
  const { spec } = await harness.prune(columns, ...acceptFeatures(features));
  assert.deepEqual(
    spec.embeddings.map(({ slots }) => slots),
    [['C3'], ['C1']],
  );
});

test('every mismatch error names the value in features.json and in the graph', async () => {
  const ids = (...list: object[]): object => ({ ...FEATURES, ids: list });
  const slots = FEATURES.ids[0]!.slots;
  const dense = (input: string, count: number): object => ({
    ...FEATURES,
    dense: { input, features: Array.from({ length: count }, (_, i) => ({ name: `I${i}` })) },
  });
  const cases: [object, RegExp][] = [
    [
      ids({ input: 'idz', slots }),
      /ids input "idz" is not an input of the model \(its inputs are "ids", "dense"\)/,
    ],
    [ids({ input: 'dense', slots }), /ids input "dense" feeds no lookup \("ids" do\)/],
    [
      ids({ input: 'ids', slots: ['C1', 'C2'] }),
      /2 slots for ids input "ids", which has 3 columns/,
    ],
    [ids({ input: 'ids', slots }, { input: 'ids', slots }), /lists the input "ids" twice/],
    [
      ids({ input: 'ids', slots: ['C1', 'C2', 'C1'] }),
      /slot C1 is in ids input "ids" and again in "ids"/,
    ],
    [
      { ...FEATURES, slots: [...FEATURES.slots, { name: 'C4', index: 17 }] },
      /no ids input contains the slots "C4"/,
    ],
    [
      dense('dens', 2),
      /dense input "dens" is not an input of the model \(its dense inputs are "dense"\)/,
    ],
    [dense('dense', 3), /3 dense features, but the input "dense" of the model has 2 columns/],
    [
      { ...FEATURES, dense: undefined },
      /needs the inputs "dense", which features.json does not list/,
    ],
    [
      { ...FEATURES, click: { output: 'p', column: 0 } },
      /output "p" is not an output .*its outputs are "prob"/,
    ],
    [
      { ...FEATURES, click: { output: 'prob', column: 1 } },
      /column 1 is outside the output "prob" \[batch, 1\]/,
    ],
    [
      { ...FEATURES, hash: { ...FEATURES.hash, modulo: '8' } },
      /modulo 8, but table "embedding.weight" has 7 rows/,
    ],
    [{ ...FEATURES, hash: { ...FEATURES.hash, modulo: '0' } }, /unbounded keys .*has 7 rows/],
    [{ ...FEATURES, slots: [] }, /features.json: slots: expected an array of at least 1 items/],
  ];
  for (const [features, pattern] of cases) assert.match(await mismatch(features), pattern);
});

test('unknown fields of features.json are named with the nearest known field', async () => {
  const [dense] = FEATURES.dense.features;
  const [slot] = FEATURES.slots;
  const cases: [object, RegExp][] = [
    [
      { ...FEATURES, hash: { ...FEATURES.hash, modulus: '7' } },
      /features\.json: hash: unknown field "modulus" \(did you mean "modulo"\?\)/,
    ],
    [
      { ...FEATURES, dense: { input: 'dense', features: [{ ...dense, sclae: 2 }] } },
      /dense\.features\[0\]: unknown field "sclae" \(did you mean "scale"\?\)/,
    ],
    [
      { ...FEATURES, dense: { input: 'dense', features: [{ ...dense, mean: 1, std: 2 }] } },
      /unknown field "mean" \(known here: name, input, missing, log, shift, scale\)/,
    ],
    [{ ...FEATURES, seperator: '|' }, /unknown field "seperator" \(did you mean "separator"\?\)/],
    [
      { ...FEATURES, slots: [{ ...slot, pool: 'sum' }, ...FEATURES.slots.slice(1)] },
      /slots\[0\]: unknown field "pool" \(did you mean "pooling"\?\)/,
    ],
    [{ ...FEATURES, click: { ...FEATURES.click, colum: 0 } }, /click: unknown field "colum"/],
    [{ ...FEATURES, ids: [{ ...FEATURES.ids[0], slot: 'C1' }] }, /ids\[0\]: unknown field "slot"/],
  ];
  for (const [features, pattern] of cases) assert.match(await mismatch(features), pattern);
});

test('features.json that looks wrong is refused without --accept', async () => {
  const ordered = { ...FEATURES, ids: [{ input: 'ids', slots: ['C1', 'C2', 'C3'] }] };
  const refuse = (features: object): Promise<string> =>
    harness.expectRefusal(smallModel(), 1, '--features', harness.write('f.json', features));
  await harness.prune(smallModel(), '--features', harness.write('f.json', ordered));
  const cases: [object, RegExp][] = [
    [FEATURES, /ids input "ids" lists C3 before C1, but "slots" has them the other way/],
    [
      { ...ordered, slots: ordered.slots.map((slot) => ({ ...slot, index: 14 })) },
      /slots C1 and C2 have the index 14, so equal values share a key; slots C1 and C3 have/,
    ],
    [
      { ...ordered, hash: { ...ordered.hash, modulo: '5' } },
      /hash\.modulo 5 reaches only the first 5 of the 7 rows of table "embedding\.weight"/,
    ],
  ];
  const rename = (name: string): object => ({
    ...ordered,
    dense: { ...ordered.dense, features: [{ name }, { name: 'I2' }] },
  });
  cases.push([rename('C2'), /a slot and a dense feature have the name "C2"/]);
  for (const name of ['label', 'categorical', 'dense', 'keys']) {
    cases.push([
      rename(name),
      new RegExp(`the name "${name}" of a feature is a field of requests`),
    ]);
  }
  for (const [features, pattern] of cases) {
    const message = await refuse(features);
    assert.match(message, pattern);
    assert.match(message, /Correct it, or prune with --accept/);
    const { report } = await harness.prune(smallModel(), ...acceptFeatures(features));
    assert.match(report.warnings.join('; '), pattern);
  }
});

/** Three tables of different sizes, one for each column of the ids. */
const SIZES = [11, 7, 5];
const THREE_TABLES = model({
  inputs: [value('ids', INT64, ['n', 3])],
  outputs: [value('prob', FLOAT, ['n', 2])],
  initializers: SIZES.flatMap((rows, i) => [
    floats(`t${i}`, [rows, 2], ramp(2 * rows)),
    ints(`c${i}`, [], [i]),
  ]),
  nodes: [
    ...SIZES.flatMap((_, i) => [
      node('Gather', ['ids', `c${i}`], [`i${i}`], { attributes: { axis: 1 } }),
      node('Gather', [`t${i}`, `i${i}`], [`e${i}`]),
    ]),
    node('Sum', ['e0', 'e1', 'e2'], ['prob']),
  ],
});

test('each slot may have the modulo of its own table', async () => {
  const spec = (...modulos: (string | undefined)[]): object => ({
    ...FEATURES,
    dense: undefined,
    hash: { scheme: 'xxh64-concat', modulo: '11' },
    slots: FEATURES.slots.map((slot, i) => ({ ...slot, modulo: modulos[i] })),
    ids: [{ input: 'ids', slots: ['C1', 'C2', 'C3'] }],
  });
  const written = harness.write('own.json', spec(undefined, '7', '5'));
  const { spec: slots } = await harness.prune(THREE_TABLES, '--features', written);
  assert.deepEqual(
    slots.features?.slots.map(({ modulo }) => modulo),
    [undefined, 7n, 5n],
  );
  const cases: [object, RegExp][] = [
    [spec(), /its hash has modulo 11, but table "t1" has 7 rows; give the slot C2 the "modulo"/],
    [spec(undefined, '7', '6'), /its slot C3 has modulo 6, but table "t2" has 5 rows/],
    [spec(undefined, '7', '0'), /its slot C3 has unbounded keys \(modulo 0\)/],
  ];
  for (const [features, pattern] of cases)
    assert.match(await mismatch(features, THREE_TABLES), pattern);
  const small = harness.write('small.json', spec(undefined, '7', '4'));
  assert.match(
    await harness.expectRefusal(THREE_TABLES, 1, '--features', small),
    /slot C3: modulo 4 reaches only the first 4 of the 5 rows of table "t2"/,
  );
});

test('what a slot makes of missing values is checked', async () => {
  const cases: [object, RegExp][] = [
    [{ missing: '' }, /slots\[0\]\.missing: expected a text of 1 to 1000 characters/],
    [{ missing: 'x', pooling: 'sum' }, /missing: expected no field "missing" .* set emptyBag/],
    [{ side: 'ad' }, /slots\[0\]\.side: expected one of user, item, got "ad"/],
  ];
  for (const [wrong, pattern] of cases) {
    const slots = [{ ...FEATURES.slots[0], ...wrong }, ...FEATURES.slots.slice(1)];
    assert.match(await mismatch({ ...FEATURES, slots }), pattern);
  }
  const raw = { ...FEATURES, hash: { scheme: 'raw' } };
  const slots = [{ ...FEATURES.slots[0], missing: 'none' }, ...FEATURES.slots.slice(1)];
  assert.match(await mismatch({ ...raw, slots }), /missing: expected an integer in 0\.\.2\^64 - 1/);
});

test('the verification checks a click column when its declared width is open', async () => {
  const open = model({
    inputs: [value('ids', INT64, ['n', 3])],
    outputs: [value('y', FLOAT, ['n', 'width'])],
    initializers: [floats('t', [7, 2], ramp(14)), ints('wide', [2], [0, -1])],
    nodes: [node('Gather', ['t', 'ids'], ['e']), node('Reshape', ['e', 'wide'], ['y'])],
  });
  const features = { ...FEATURES, dense: undefined, click: { output: 'y', column: 6 } };
  assert.match(await mismatch(features, open), /column 6 is outside the output "y" \[1, 6\]/);
});

test('a graph that also needs the ids keeps them, and slots.json lists their slots', async () => {
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
  const { inputs, spec } = await harness.prune(masked, '--accept', '--features', features);
  assert.deepEqual(inputs, ['ids', 'e']);
  const slots = FEATURES.ids[0]!.slots;
  assert.deepEqual(spec.ids, [{ input: 'ids', dtype: 'int64', columns: 3, slots, kept: true }]);
  const pooled = FEATURES.slots.map((slot) => ({ ...slot, pooling: 'sum' }));
  const message = await mismatch({ ...FEATURES, dense: undefined, slots: pooled }, masked);
  assert.match(
    message,
    /the graph input ids takes the ids themselves, .* one value each, not a bag/,
  );
});

test('a features file that is missing, empty or not JSON gives a one-line error', async () => {
  const absent = harness.path('absent.json');
  assert.match(
    await harness.expectRefusal(smallModel(), 1, '--features', absent),
    /cannot read .*absent.json: no such file/,
  );
  const broken = harness.write('broken.json', '{"format": 1');
  assert.match(
    await harness.expectRefusal(smallModel(), 1, '--features', broken),
    /broken.json: not JSON/,
  );
});
