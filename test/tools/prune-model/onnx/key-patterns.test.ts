/**
 * What happens to ids on their way to a lookup: every pattern is cut, and full and pruned model
 * agree in onnxruntime.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { JsonReader } from '../../../../lib/core/json.ts';
import { readSlotSpec, type SlotSpec } from '../../../../lib/core/slots.ts';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import type { Report } from '../../../../tools/prune-model/report.ts';
import {
  type Attribute,
  BOOL,
  FLOAT,
  floats,
  INT32,
  INT64,
  ints,
  type ModelParts,
  model,
  node,
  ramp,
  tensor,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();

interface Done {
  readonly report: Report;
  readonly spec: SlotSpec;
}

/** Prunes with a verification, which throws when the models differ. */
async function prune(bytes: Uint8Array): Promise<Done> {
  const report = await pruneModel({
    model: harness.write('model.onnx', bytes),
    output: harness.output,
    features: undefined,
    samples: 48,
    force: true,
    dryRun: false,
    inProcess: true,
  });
  assert.ok(report?.verify !== undefined);
  const text = readFileSync(join(harness.output, 'slots.json'), 'utf8');
  return { report, spec: readSlotSpec(JsonReader.parse(text, 'slots.json')) };
}

const CONSTANTS = [
  floats('t', [12, 3], ramp(36)),
  floats('u', [5, 3], ramp(15, 2)),
  ints('offsets', [1, 3], [0, 4, 8]),
  ints('three', [], [3]),
  ints('four', [], [4]),
  ints('five', [], [5]),
  ints('seven', [], [7]),
  ints('zero', [], [0]),
  ints('one', [], [1]),
  ints('eleven', [], [11]),
  ints('minus', [], [-12]),
  ints('axis1', [1], [1]),
  ints('axis2', [1], [2]),
  ints('row0', [1], [0]),
  ints('end', [1], [1000]),
  ints('wide', [2], [-1, 3]),
  ints('keep', [3], [0, 1, 3]),
  ints('twice', [3], [1, 1, 3]),
  ints('shape3', [2], [1, 3]),
  ints('remap', [8], [3, 1, 4, 1, 5, 9, 2, 6]),
  tensor('no', BOOL, [], Uint8Array.of(0)),
];

/** ids [n, 3] through the nodes to k, and rows of t; the sum of all makes y. */
function through(nodes: readonly Uint8Array[], parts: Partial<ModelParts> = {}): Uint8Array {
  return model({
    nodes: [
      ...nodes,
      node('Gather', ['t', 'k'], ['e'], { name: 'lookup' }),
      node('Sigmoid', ['e'], ['y']),
    ],
    inputs: [value('ids', INT64, ['n', 3])],
    outputs: [value('y', FLOAT, [])],
    initializers: CONSTANTS,
    opset: 13,
    ...parts,
  });
}

const step = (
  op: string,
  inputs: readonly string[],
  output = 'k',
  attributes: Record<string, Attribute> = {},
): Uint8Array => node(op, inputs, [output], { attributes });

const LAYOUT: Readonly<Record<string, readonly Uint8Array[]>> = {
  'Unsqueeze and Squeeze': [
    step('Unsqueeze', ['ids', 'axis1'], 'a'),
    step('Squeeze', ['a', 'axis1']),
  ],
  Reshape: [step('Reshape', ['ids', 'keep'])],
  'Transpose of columns': [
    step('Unsqueeze', ['ids', 'axis1'], 'a'),
    step('Transpose', ['a'], 'k', { perm: [0, 2, 1] }),
  ],
  'Transpose of the batch': [step('Transpose', ['ids'])],
  Flatten: [step('Unsqueeze', ['ids', 'axis1'], 'a'), step('Flatten', ['a'])],
  Expand: [step('Unsqueeze', ['ids', 'axis1'], 'a'), step('Expand', ['a', 'twice'])],
  'Concat of itself': [step('Concat', ['ids', 'ids'], 'k', { axis: 1 })],
  'Split and Concat': [
    node('Split', ['ids'], ['a', 'b', 'c'], { attributes: { axis: 1 } }),
    step('Concat', ['c', 'a', 'b'], 'k', { axis: -1 }),
  ],
  'Slice backwards': [node('Slice', ['ids', 'end', 'back', 'axis1', 'back1'], ['k'])],
  'view(x.size(0), -1)': [
    step('Shape', ['ids'], 's'),
    step('Gather', ['s', 'zero'], 'n'),
    step('Unsqueeze', ['n', 'row0'], 'n1'),
    step('Concat', ['n1', 'row3'], 'shape', { axis: 0 }),
    step('Reshape', ['ids', 'shape']),
  ],
};

test('layout operators: every column of the ids selects the right row', async () => {
  const initializers = [
    ...CONSTANTS,
    ints('back', [1], [-1000]),
    ints('back1', [1], [-1]),
    ints('row3', [1], [3]),
  ];
  for (const [name, nodes] of Object.entries(LAYOUT)) {
    const { report } = await prune(through(nodes, { initializers }));
    assert.ok(report.lookups[0]?.columns !== null, name);
    assert.deepEqual(report.inputs, { kept: [], removed: ['ids'] }, name);
  }
});

const ARITHMETIC: Readonly<Record<string, readonly Uint8Array[]>> = {
  'offsets of fields': [step('Mod', ['ids', 'four'], 'm'), step('Add', ['m', 'offsets'])],
  'offsets alone': [step('Add', ['ids', 'offsets'])],
  Mod: [step('Mod', ['ids', 'seven'])],
  'Mod as C has it': [step('Mod', ['ids', 'seven'], 'k', { fmod: 1 })],
  Clip: [step('Clip', ['ids', 'zero', 'eleven'])],
  'Min and Max': [step('Min', ['ids', 'eleven'], 'a'), step('Max', ['a', 'minus'])],
  'Where guard': [
    step('Less', ['ids', 'zero'], 'a'),
    step('Greater', ['ids', 'eleven'], 'b'),
    step('Or', ['a', 'b'], 'c'),
    step('Where', ['c', 'zero', 'ids']),
  ],
  'Equal guard': [
    step('Equal', ['ids', 'three'], 'a'),
    step('Not', ['a'], 'b'),
    step('Where', ['b', 'ids', 'five']),
  ],
  'integer map': [step('Mod', ['ids', 'eight'], 'm'), step('Gather', ['remap', 'm'])],
  'int32 arithmetic': [
    step('Cast', ['ids'], 'a', { to: INT32 }),
    step('Mul', ['a', 'big'], 'b'),
    step('Mod', ['b', 'eleven32']),
  ],
  'two columns': [
    node('Split', ['ids'], ['a', 'b', 'c'], { attributes: { axis: 1 } }),
    step('Mul', ['a', 'seven'], 'd'),
    step('Add', ['d', 'b'], 'e1'),
    step('Mod', ['e1', 'eleven']),
  ],
  'bool as number': [
    step('LessOrEqual', ['ids', 'three'], 'a'),
    step('Cast', ['a'], 'k', { to: INT64 }),
  ],
};

test('arithmetic: keys are expressions that serving evaluates', async () => {
  const initializers = [
    ...CONSTANTS,
    ints('eight', [], [8]),
    tensor('big', INT32, [], Int32Array.of(1_000_003)),
    tensor('eleven32', INT32, [], Int32Array.of(11)),
  ];
  for (const [name, nodes] of Object.entries(ARITHMETIC)) {
    const { report, spec } = await prune(through(nodes, { initializers }));
    assert.equal(report.lookups[0]?.columns, null, name);
    assert.ok((spec.embeddings[0]?.keys?.length ?? 0) > 0, name);
  }
});

test("quotient and remainder are traced through PyTorch's floor division", async () => {
  const { spec } = await prune(
    model({
      inputs: [value('ids', INT64, ['n', 1])],
      outputs: [value('y', FLOAT, ['n', 1, 3])],
      initializers: CONSTANTS,
      nodes: [
        step('Div', ['ids', 'five'], 'd'),
        step('Less', ['ids', 'zero'], 'l'),
        step('Xor', ['l', 'no'], 'x'),
        step('Mod', ['ids', 'five'], 'm'),
        step('Equal', ['m', 'zero'], 'z'),
        step('Not', ['z'], 'nz'),
        step('And', ['x', 'nz'], 'a'),
        step('Sub', ['d', 'one'], 'd1'),
        step('Where', ['a', 'd1', 'd'], 'q'),
        step('Gather', ['t', 'q'], 'eq'),
        step('Gather', ['u', 'm'], 'er'),
        step('Mul', ['eq', 'er'], 'y'),
      ],
    }),
  );
  assert.deepEqual(
    spec.embeddings.map(({ table }) => table),
    ['t', 'u'],
  );
});

test('a float matrix of ids and dense values stays an input', async () => {
  const { report, spec } = await prune(
    model({
      inputs: [value('X', FLOAT, ['n', 4])],
      outputs: [value('y', FLOAT, ['n', 3])],
      initializers: [
        ...CONSTANTS,
        ints('two1', [1], [2]),
        ints('four1', [1], [4]),
        floats('w', [2, 3], ramp(6)),
      ],
      nodes: [
        node('Slice', ['X', 'axis1', 'two1', 'axis1'], ['s']),
        step('Cast', ['s'], 'k', { to: INT64 }),
        step('Gather', ['t', 'k'], 'e'),
        step('Squeeze', ['e', 'axis1'], 'f'),
        node('Slice', ['X', 'two1', 'four1', 'axis1'], ['dense']),
        step('MatMul', ['dense', 'w'], 'g'),
        step('Add', ['f', 'g'], 'y'),
      ],
    }),
  );
  assert.deepEqual(report.inputs, { kept: ['X'], removed: [] });
  assert.deepEqual(spec.ids, [{ input: 'X', dtype: 'float32', columns: 4, slots: [], kept: true }]);
});

test('sequences of any length and two inputs of different lengths are pruned', async () => {
  const { report } = await prune(
    model({
      inputs: [value('a', INT64, ['n', 'l']), value('b', INT32, ['n', 'm'])],
      outputs: [value('y', FLOAT, ['n', 3])],
      initializers: CONSTANTS,
      nodes: [
        step('Gather', ['t', 'a'], 'ea'),
        step('ReduceSum', ['ea', 'axis1'], 'sa', { keepdims: 0 }),
        step('Gather', ['u', 'b'], 'eb'),
        step('ReduceMean', ['eb'], 'sb', { keepdims: 0, axes: [1] }),
        step('Add', ['sa', 'sb'], 'y'),
      ],
    }),
  );
  assert.deepEqual(
    report.lookups.map(({ shape }) => shape),
    [
      ['n', 'l', 3],
      ['n', 'm', 3],
    ],
  );
});

test('a mask of the ids keeps the ids input; their shape alone does not', async () => {
  const masked = (last: readonly Uint8Array[], opset: number): Uint8Array =>
    model({
      inputs: [value('ids', INT64, ['n', 3])],
      outputs: [value('y', FLOAT, [])],
      initializers: [...CONSTANTS, floats('ones', [1], [1])],
      opset,
      nodes: [step('Gather', ['t', 'ids'], 'e'), ...last],
    });
  const mask = [
    step('Equal', ['ids', 'zero'], 'p'),
    step('Cast', ['p'], 'f', { to: FLOAT }),
    step('Unsqueeze', ['f', 'axis2'], 'g'),
    step('Mul', ['e', 'g'], 'y'),
  ];
  const sized = [
    step('Shape', ['ids'], 's'),
    step('Expand', ['ones', 's'], 'o'),
    step('Unsqueeze', ['o', 'axis2'], 'g'),
    step('Mul', ['e', 'g'], 'y'),
  ];
  assert.deepEqual((await prune(masked(mask, 13))).report.inputs.kept, ['ids']);
  for (const opset of [13, 17]) {
    assert.deepEqual((await prune(masked(sized, opset))).report.inputs.kept, [], String(opset));
  }
});

const STEPS: readonly ((from: string, to: string) => Uint8Array[])[] = [
  (from, to) => [step('Mod', [from, 'seven'], to)],
  (from, to) => [step('Add', [from, 'offsets'], to)],
  (from, to) => [step('Sub', [from, 'three'], `${to}s`), step('Abs', [`${to}s`], to)],
  (from, to) => [step('Mul', [from, 'five'], to)],
  (from, to) => [step('Max', [from, 'offsets'], to)],
  (from, to) => [
    step('Less', [from, 'four'], `${to}c`),
    step('Where', [`${to}c`, from, 'one'], to),
  ],
  (from, to) => [step('Reshape', [from, 'wide'], to)],
  (from, to) => [step('Div', [from, 'three'], to)],
  (from, to) => [
    step('Cast', [from], `${to}c`, { to: INT32 }),
    step('Cast', [`${to}c`], to, { to: INT64 }),
  ],
];

test('random chains of operators on ids agree with the full model', async () => {
  const chains = fc.array(fc.constantFrom(...STEPS), { minLength: 1, maxLength: 6 });
  await fc.assert(
    fc.asyncProperty(chains, async (chain) => {
      const nodes = chain.flatMap((make, i) => make(i === 0 ? 'ids' : `s${i}`, `s${i + 1}`));
      nodes.push(step('Mod', [`s${chain.length}`, 'eleven']));
      await prune(through(nodes));
    }),
    { numRuns: 60 },
  );
});
