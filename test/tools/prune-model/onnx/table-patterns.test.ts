/**
 * Where tables stand and which operators look rows up: every pattern is cut and verified, or
 * refused by name.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { WireWriter } from '../../../../proto/wire.ts';
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
  tensor,
  UINT8,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();
const at = (
  op: string,
  inputs: string[],
  output: string,
  attributes: Record<string, Attribute> = {},
): Uint8Array => node(op, inputs, [output], { attributes });

/** ids [n, 2] and a table under the name `t`; the nodes make y. */
function tableModel(
  nodes: readonly Uint8Array[],
  initializers: readonly Uint8Array[],
  opset = 13,
): Uint8Array {
  return model({
    nodes,
    initializers,
    opset,
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('y', FLOAT, [])],
  });
}

/**
 * In this process, with a verification: many models are quick. @returns undefined when there is
 * nothing to prune
 */
async function pruneHere(bytes: Uint8Array): Promise<Report | undefined> {
  const request = { features: undefined, samples: 24, force: true, dryRun: false, inProcess: true };
  const path = harness.write('model.onnx', bytes);
  return await pruneModel({ ...request, model: path, output: harness.output });
}

const halves = Uint16Array.from({ length: 24 }, (_, i) => 0x3c00 + 37 * i);
const bytes = Uint8Array.from({ length: 24 }, (_, i) => i * 10);

test('float16, cast, quantised, concatenated and transposed tables are exported', async () => {
  const gather = at('Gather', ['t', 'ids'], 'y');
  const inField = new WireWriter().uint(1, 8).uint(1, 3).uint(2, FLOAT16).string(8, 'h');
  inField.message(5, (w) => {
    for (const bits of halves) w.varint(bits);
  });
  const half = tensor('h', FLOAT16, [8, 3], halves);
  const scale = floats('scale', [], [0.5]);
  const zero = tensor('zp', UINT8, [], Uint8Array.of(100));
  const quantised = tensor('q', UINT8, [8, 3], bytes);
  const scaled = at('DequantizeLinear', ['q', 'scale', 'zp'], 't');
  const cases: Record<string, Uint8Array> = {
    'half precision': tableModel(
      [at('Gather', ['h', 'ids'], 'e'), at('Cast', ['e'], 'y', { to: FLOAT })],
      [half],
    ),
    'half in int32_data': tableModel(
      [at('Cast', ['h'], 't', { to: FLOAT }), gather],
      [inField.finish()],
    ),
    'Cast to half': tableModel(
      [
        at('Cast', ['f'], 't', { to: FLOAT16 }),
        at('Gather', ['t', 'ids'], 'e'),
        at('Cast', ['e'], 'y', { to: FLOAT }),
      ],
      [floats('f', [8, 3], ramp(24))],
    ),
    'quantised per tensor': tableModel([scaled, gather], [quantised, scale, zero]),
    'quantised per row': tableModel(
      [at('DequantizeLinear', ['q', 'rows', 'zps'], 't', { axis: 0 }), gather],
      [
        quantised,
        floats('rows', [8], ramp(8)),
        tensor('zps', UINT8, [8], Uint8Array.from(bytes.subarray(0, 8))),
      ],
    ),
    'quantised, scaled after the lookup': tableModel(
      [at('Gather', ['q', 'ids'], 'e'), at('DequantizeLinear', ['e', 'scale', 'zp'], 'y')],
      [quantised, scale, zero],
    ),
  };
  await pruneAll(cases);
});

test('concatenated, transposed and higher-rank tables are exported', async () => {
  const gather = at('Gather', ['t', 'ids'], 'y');
  await pruneAll({
    'parts of one table': tableModel(
      [at('Concat', ['a', 'b', 'c'], 't', { axis: 0 }), gather],
      [
        floats('a', [3, 3], ramp(9)),
        floats('b', [1, 3], ramp(3, 2)),
        floats('c', [4, 3], ramp(12, 3)),
      ],
    ),
    'transposed by a node': tableModel(
      [at('Transpose', ['w'], 't', { perm: [1, 0] }), gather],
      [floats('w', [3, 8], ramp(24))],
    ),
    'rows are columns': tableModel(
      [at('Gather', ['w', 'ids'], 'y', { axis: 1 })],
      [floats('w', [3, 8], ramp(24))],
    ),
    'rank 1': tableModel([gather], [floats('t', [8], ramp(8))]),
    'rank 3': tableModel([gather], [floats('t', [8, 2, 3], ramp(48))]),
    'GatherND with one index': tableModel(
      [at('Unsqueeze', ['ids', 'two'], 'k'), at('GatherND', ['t', 'k'], 'y')],
      [floats('t', [8, 3], ramp(24)), ints('two', [1], [2])],
    ),
  });
});

/** Each has one lookup, is verified, and has nothing to prune afterwards. */
async function pruneAll(cases: Readonly<Record<string, Uint8Array>>): Promise<void> {
  for (const [name, bytes] of Object.entries(cases)) {
    const report = await pruneHere(bytes);
    assert.equal(report?.lookups.length, 1, name);
    assert.deepEqual(report?.inputs, { kept: [], removed: ['ids'] }, name);
    const pruned = readFileSync(join(harness.output, 'model.onnx'));
    assert.equal(await pruneHere(pruned), undefined, name);
  }
}

test('opsets from 9 to the newest are supported', async () => {
  for (const opset of [9, 11, 13, 15, 18, 21, 24, 26]) {
    const parts = [floats('t', [8, 3], ramp(24)), ints('seven', [], [7])];
    const nodes = [
      at('Add', ['ids', 'seven'], 'k'),
      at('Gather', ['t', 'k'], 'e'),
      at('Sigmoid', ['e'], 'y'),
    ];
    const report = await pruneHere(tableModel(nodes, parts, opset));
    assert.equal(report?.lookups.length, 1, String(opset));
  }
});

test('lookups in the branches of If become inputs that the branches read', async () => {
  const branch = (table: string): Uint8Array =>
    graph({
      inputs: [],
      outputs: [value('inner', FLOAT, ['n', 2, 3])],
      nodes: [
        at('Cast', ['ids'], 'k', { to: INT64 }),
        at('Gather', [table, 'k'], 'rows'),
        at('Neg', ['rows'], 'inner'),
      ],
    });
  const bytes = model({
    inputs: [value('ids', INT64, ['n', 2]), value('flag', BOOL, [])],
    outputs: [value('y', FLOAT, ['n', 2, 3])],
    initializers: [floats('t', [8, 3], ramp(24)), floats('u', [9, 3], ramp(27, 2))],
    nodes: [
      node('If', ['flag'], ['y'], {
        attributes: { then_branch: { graph: branch('t') }, else_branch: { graph: branch('u') } },
      }),
    ],
  });
  const { inputs, report } = await harness.prune(bytes);
  assert.deepEqual([...inputs].sort(), ['flag', 'rows_rows', 'rows_rows_2']);
  assert.deepEqual(
    report.tables.map(({ name }) => name),
    ['t', 'u'],
  );
});

test('a lookup of a loop counter is refused by name', async () => {
  const body = graph({
    inputs: [value('i', INT64, []), value('go', BOOL, [])],
    outputs: [value('go2', BOOL, []), value('row', FLOAT, [3])],
    nodes: [
      at('Identity', ['go'], 'go2'),
      at('Identity', ['i'], 'k'),
      node('Gather', ['t', 'k'], ['row'], { name: 'inside' }),
    ],
  });
  const bytes = model({
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('y', FLOAT, ['m', 3])],
    initializers: [
      floats('t', [8, 3], ramp(24)),
      ints('zero', [], [0]),
      ints('three', [], [3]),
      tensor('yes', BOOL, [], Uint8Array.of(1)),
    ],
    nodes: [node('Loop', ['three', 'yes'], ['y'], { attributes: { body: { graph: body } } })],
  });
  assert.match(
    await harness.expectRefusal(bytes, 4),
    /node "inside" \(Gather\).*loop hands to its body/,
  );
});

test('lookups in model functions are found, also through nested calls', async () => {
  const fn = (name: string, inner: Uint8Array): Uint8Array =>
    new WireWriter()
      .string(1, name)
      .string(4, 'i')
      .string(4, 'w')
      .string(5, 'o')
      .bytes(7, inner)
      .message(9, (opset) => opset.string(1, '').uint(2, 13))
      .message(9, (opset) => opset.string(1, 'torch.nn').uint(2, 1))
      .string(10, 'torch.nn')
      .finish();
  const call = (name: string, inputs: string[], output: string): Uint8Array =>
    node(name, inputs, [output], { domain: 'torch.nn', name: output });
  const bytes = model({
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('y', FLOAT, [])],
    initializers: [floats('t', [8, 3], ramp(24)), floats('u', [5, 3], ramp(15))],
    nodes: [
      call('Outer', ['ids', 't'], 'a'),
      call('Field', ['ids', 'u'], 'b'),
      at('Add', ['a', 'b'], 'y'),
    ],
    functions: [
      fn('Field', node('Gather', ['w', 'i'], ['o'])),
      fn('Outer', call('Field', ['i', 'w'], 'o')),
    ],
    functionDomain: 'torch.nn',
  });
  const { inputs } = await harness.prune(bytes);
  assert.deepEqual(inputs, ['a', 'b']);
});

test('bags by ATen are cut at the pooled rows and need --verify 0', async () => {
  const bytes = model({
    inputs: [value('ids', INT64, ['l']), value('offsets', INT64, ['n'])],
    outputs: [value('y', FLOAT, ['n', 3])],
    initializers: [floats('t', [8, 3], ramp(24))],
    nodes: [
      node('ATen', ['t', 'ids', 'offsets'], ['e', 'e1', 'e2', 'e3'], {
        domain: 'org.pytorch.aten',
        attributes: { operator: 'embedding_bag', mode: 1, include_last_offset: 0 },
      }),
      at('Sigmoid', ['e'], 'y'),
    ],
  });
  assert.match(await harness.expectRefusal(bytes, 4), /not verified/);
  const path = harness.write('aten.onnx', bytes);
  const outcome = await harness.run(
    '--model',
    path,
    '--output',
    harness.output,
    '--verify',
    '0',
    '--force',
  );
  assert.equal(outcome.status, 0, outcome.stderr);
  const slots = JSON.parse(readFileSync(join(harness.output, 'slots.json'), 'utf8'));
  assert.deepEqual(slots.embeddings[0].bags, {
    pooling: 'mean',
    offsets: 'offsets',
    includesLast: false,
  });
});

test('--fetch keeps what the chosen outputs need and removes label and loss', async () => {
  const bytes = model({
    inputs: [value('ids', INT64, ['n', 2]), value('label', FLOAT, ['n', 2, 3])],
    outputs: [value('loss', FLOAT, [])],
    initializers: [floats('t', [8, 3], ramp(24))],
    nodes: [
      at('Gather', ['t', 'ids'], 'e'),
      at('Sigmoid', ['e'], 'predict'),
      at('Sub', ['predict', 'label'], 'd'),
      at('ReduceSum', ['d'], 'loss', { keepdims: 0 }),
    ],
  });
  const { inputs, outputs, report } = await harness.prune(bytes, '--fetch', 'predict');
  assert.deepEqual(
    [inputs, outputs, report.inputs.removed],
    [['e'], ['predict'], ['ids', 'label']],
  );
  assert.match(
    await harness.expectRefusal(bytes, 1, '--fetch', 'nothing'),
    /--fetch nothing: the model computes no such value/,
  );
});
