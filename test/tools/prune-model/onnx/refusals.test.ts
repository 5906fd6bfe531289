import assert from 'node:assert/strict';
import { test } from 'node:test';
import { WireWriter } from '../../../../proto/wire.ts';
import {
  type Attribute,
  FLOAT,
  FLOAT16,
  floats,
  graph,
  INT64,
  ints,
  type ModelParts,
  model,
  node,
  ramp,
  tensor,
  UINT8,
  value,
} from '../onnx-builder.ts';
import { Harness } from '../prune-harness.ts';

const harness = new Harness();

/** ids [n, 2] and a table t [8, 3]; the nodes make y. */
function lookupModel(nodes: readonly Uint8Array[], parts: Partial<ModelParts> = {}): Uint8Array {
  return model({
    nodes,
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('y', FLOAT, ['n', 2, 3])],
    initializers: [
      floats('t', [8, 3], ramp(24)),
      ...[ints('offsets', [1, 2], [0, 4]), ints('seven', [], [7]), ints('flat', [1], [-1])],
      ...[ints('one', [1], [1]), ints('zero', [1], [0]), ints('square', [2], [2, -1])],
    ],
    ...parts,
  });
}

const lookup = node('Gather', ['t', 'k'], ['y'], { name: 'lookup' });
const step = (
  op: string,
  inputs: string[],
  attributes: Record<string, Attribute> = {},
): Uint8Array => node(op, ['ids', ...inputs], ['k'], { name: 'step', attributes });

test('ids that are changed, or mixed, on their way are refused naming operator and tensor', () => {
  const cases: [string, Uint8Array, string][] = [
    ['Add', step('Add', ['offsets']), 'Add, which is not supported'],
    ['Mod', step('Mod', ['seven']), 'Mod, which is not supported'],
    ['Abs', step('Abs', []), 'Abs, which is not supported'],
    ['Transpose', step('Transpose', []), 'Transpose, which is not supported'],
    ['Reshape', step('Reshape', ['flat']), 'Reshape to \\[-1\\] mixes rows and columns'],
    ['Reshape', step('Reshape', ['square']), 'Reshape does not keep the batch first'],
    ['Squeeze', step('Squeeze', []), 'may also drop the batch'],
    ['Squeeze', step('Squeeze', ['one']), 'drops an axis that is not 1'],
    ['Gather', step('Gather', ['one']), 'along another axis than the columns'],
    ['Gather', step('Gather', ['seven'], { axis: 1 }), 'selects column 7 of 2'],
    ['Slice', step('Slice', ['zero', 'one', 'zero']), 'along another axis than the columns'],
    ['Slice', step('Slice', ['one', 'zero', 'one']), 'selects no column'],
    ['Cast', step('Cast', [], { to: 11 }), 'cast to float64'],
  ];
  for (const [op, bytes, why] of cases) {
    const message = harness.refuse(lookupModel([bytes, lookup]), 4);
    assert.match(message, new RegExp(`cannot prune node "step" \\(${op}\\), tensor "k": .*${why}`));
    assert.match(message, /node "lookup" \(Gather\)/);
  }
  const unsqueeze = node('Unsqueeze', ['ids', 'zero'], ['k'], { name: 'step' });
  assert.match(
    harness.refuse(lookupModel([unsqueeze, lookup]), 4),
    /first axis of its ids is not the batch/,
  );
});

test('ids inputs of another type or shape are refused', () => {
  const direct = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup' });
  const message = (elemType: number, shape: (string | number)[]): string =>
    harness.refuse(lookupModel([direct], { inputs: [value('ids', elemType, shape)] }), 4);
  assert.match(message(INT64, ['n', 'm']), /"lookup".*"ids".*shape of its ids input is \[n, m\]/);
  assert.match(message(INT64, []), /shape of its ids input is \[\]/);
  assert.match(
    message(INT64, ['n', 2, 2]),
    /\[n, 2, 2\]; supported are \[batch\] and \[batch, n\]/,
  );
  assert.match(message(INT64, ['n', 2 ** 40]), /shape of its ids input is \[n, 1099511627776\]/);
  const cast = node('Cast', ['ids'], ['k'], { attributes: { to: INT64 } });
  const mixed = lookupModel([cast, lookup], { inputs: [value('ids', FLOAT, ['n', 2])] });
  assert.match(harness.refuse(mixed, 4), /ids come from an input of float32/);
});

test('tables of another kind are refused by name', () => {
  const direct = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup' });
  const message = (table: Uint8Array, gather: Uint8Array = direct): string =>
    harness.refuse(lookupModel([gather], { initializers: [table] }), 4);
  const half = new Uint16Array(24);
  assert.match(
    message(tensor('t', FLOAT16, [8, 3], half)),
    /tensor "t": tables of float16 .*float32/,
  );
  assert.match(
    message(tensor('t', UINT8, [8, 3], new Uint8Array(24))),
    /quantised tables \(uint8\)/,
  );
  assert.match(message(floats('t', [8], ramp(8))), /its table has rank 1/);
  assert.match(message(floats('t', [2, 2, 2], ramp(8))), /its table has rank 3/);
  assert.match(message(floats('t', [0, 3], [])), /its table is 0 x 3/);
  const columns = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup', attributes: { axis: 1 } });
  assert.match(
    message(floats('t', [3, 8], ramp(24)), columns),
    /gathers along axis 1 of its table/,
  );
  const external = new WireWriter().uint(1, 8).uint(1, 3).uint(2, FLOAT).string(8, 't');
  external.message(13, (entry) => entry.string(1, 'location').string(2, 'weights.bin')).uint(14, 1);
  assert.match(message(external.finish()), /tensor "t" is in another file \(external data\)/);
  const transposed = [
    node('Transpose', ['t'], ['tt']),
    node('Gather', ['tt', 'ids'], ['y'], { name: 'lookup' }),
  ];
  assert.match(harness.refuse(lookupModel(transposed), 4), /"lookup".*"tt": its table is computed/);
});

test('lookups by other operators are refused by name', () => {
  const cases: [string, Uint8Array[]][] = [
    ['GatherND', [node('GatherND', ['t', 'ids'], ['y'], { name: 'odd' })]],
    ['GatherElements', [node('GatherElements', ['t', 'ids'], ['y'], { name: 'odd' })]],
    [
      'org.pytorch.aten.ATen',
      [
        node('ATen', ['t', 'ids', 'zero'], ['y'], {
          name: 'odd',
          domain: 'org.pytorch.aten',
          attributes: { operator: 'embedding_bag' },
        }),
      ],
    ],
    [
      'com.microsoft.EmbedLayerNormalization',
      [
        node('EmbedLayerNormalization', ['ids', '', 't'], ['y'], {
          name: 'odd',
          domain: 'com.microsoft',
        }),
      ],
    ],
    [
      'MatMul',
      [
        node('OneHot', ['ids', 'seven', 'two'], ['hot'], { name: 'hot' }),
        node('Identity', ['hot'], ['hotter']),
        node('MatMul', ['hotter', 't'], ['y'], { name: 'odd' }),
      ],
    ],
  ];
  for (const [op, nodes] of cases) {
    const initializers = [
      ...[floats('t', [8, 3], ramp(24)), ints('zero', [1], [0]), ints('seven', [], [8])],
      floats('two', [2], [0, 1]),
    ];
    const message = harness.refuse(lookupModel(nodes, { initializers }), 4);
    assert.match(
      message,
      new RegExp(`cannot prune node "odd" \\(${op}\\), tensor "t": .*not supported`),
    );
  }
});

test('lookups inside bodies and functions are refused, at any depth', () => {
  const gather = node('Gather', ['t', 'ids'], ['inner'], { name: 'inside' });
  const body = (nodes: Uint8Array[]): Uint8Array =>
    graph({ inputs: [], outputs: [value('inner', FLOAT, ['n', 2, 3])], nodes });
  const wrap = (inner: Uint8Array, output: string): Uint8Array =>
    node('If', ['flag'], [output], {
      attributes: { then_branch: { graph: inner }, else_branch: { graph: inner } },
    });
  const inputs = [value('ids', INT64, ['n', 2]), value('flag', 9, [])];
  for (const nodes of [
    [wrap(body([gather]), 'y')],
    [wrap(body([wrap(body([gather]), 'inner')]), 'y')],
  ]) {
    const message = harness.refuse(lookupModel(nodes, { inputs }), 4);
    assert.match(message, /node "inside" \(Gather\), tensor "t": .*body of If, Loop or Scan/);
  }
  const functions = [
    new WireWriter()
      .string(1, 'Field')
      .string(4, 'i')
      .string(4, 'w')
      .string(5, 'o')
      .bytes(7, node('Gather', ['w', 'i'], ['o']))
      .message(9, (opset) => opset.string(1, '').uint(2, 13))
      .string(10, 'torch.nn')
      .finish(),
  ];
  const call = node('Field', ['ids', 't'], ['y'], { name: 'call', domain: 'torch.nn' });
  const parts = { functions, functionDomain: 'torch.nn' };
  const message = harness.refuse(lookupModel([call], parts), 4);
  assert.match(message, /node "call" \(torch.nn.Field\), tensor "t": .*function/);
});

test('a nameless node is named by what it makes', () => {
  const message = harness.refuse(lookupModel([node('GatherND', ['t', 'ids'], ['y'])]), 4);
  assert.match(message, /cannot prune the GatherND node that makes "y"/);
});

test('inputs of which no samples can be made are refused, after nothing was written', () => {
  const nodes = [
    node('Gather', ['t', 'ids'], ['e']),
    node('Cast', ['half'], ['f'], { attributes: { to: FLOAT } }),
    node('Mul', ['e', 'f'], ['y']),
  ];
  const inputs = [value('ids', INT64, ['n', 2]), value('half', FLOAT16, [])];
  const message = harness.refuse(lookupModel(nodes, { inputs }), 4);
  assert.match(message, /no samples for input "half": its type is float16/);
});

test('models that break the rules of a graph are not valid', () => {
  const gather = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup' });
  const cases: [Uint8Array, RegExp][] = [
    [
      lookupModel([node('Gather', ['t', 'lost'], ['y'])]),
      /reads "lost", which nothing before it makes/,
    ],
    [lookupModel([gather, gather]), /"y" is made twice/],
    [lookupModel([node('Gather', ['t', 'ids'], ['z'])]), /nothing makes the output "y"/],
    [
      lookupModel([gather], { initializers: [floats('t', [8, 3], ramp(23))] }),
      /needs 96 bytes, it has 92/,
    ],
    [
      lookupModel([gather], { initializers: [floats('t', [2 ** 40, 2 ** 12], ramp(24))] }),
      /"t" of shape \[1099511627776, 4096\] needs \d+ bytes, it has 96/,
    ],
    [
      lookupModel([node('Gather', ['t', 'ids'], ['k']), node('NoSuchOp', ['k'], ['y'])]),
      /NoSuchOp/,
    ],
    [
      lookupModel([node('Gather', ['t', 'ids'], ['k']), node('Reshape', ['k', 'seven'], ['y'])]),
      /Reshape/,
    ],
  ];
  for (const [bytes, pattern] of cases) assert.match(harness.refuse(bytes, 5), pattern);
});
