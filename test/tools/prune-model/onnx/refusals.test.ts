import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  type Attribute,
  FLOAT,
  FLOAT16,
  floats,
  INT64,
  ints,
  type ModelParts,
  model,
  node,
  ramp,
  tensor,
  UINT8,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const harness = new PruneHarness();

/** ids [n, 2] and a table t [8, 3]; the nodes make y. */
function lookupModel(nodes: readonly Uint8Array[], parts: Partial<ModelParts> = {}): Uint8Array {
  return model({
    nodes,
    inputs: [value('ids', INT64, ['n', 2])],
    outputs: [value('y', FLOAT, ['n', 2, 3])],
    initializers: [
      floats('t', [8, 3], ramp(24)),
      ints('offsets', [1, 2], [0, 4]),
      ints('seven', [], [7]),
      ints('flat', [1], [-1]),
      ints('one', [1], [1]),
      ints('zero', [1], [0]),
      ints('square', [2], [2, -1]),
      floats('halves', [1], [0.5]),
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

test('unsupported operators on ids are refused with operator and tensor', async () => {
  const cases: [string, Uint8Array, string][] = [
    ['CumSum', step('CumSum', ['one']), 'CumSum on ids is not supported'],
    ['Mod', step('Mod', ['ids']), 'Mod divides by 0 or by a value that is not constant'],
    ['Add', step('Add', ['halves']), 'a constant of float32'],
    ['Reshape', step('Reshape', ['flat']), 'Reshape to \\[-1\\] mixes rows and columns'],
    ['Reshape', step('Reshape', ['square']), 'Reshape to \\[2, -1\\] mixes rows and columns'],
    ['Squeeze', step('Squeeze', []), 'may drop the batch'],
    ['Squeeze', step('Squeeze', ['one']), 'drops an axis that is not 1'],
    ['Gather', step('Gather', ['one']), 'along an axis of unknown size'],
    ['Gather', step('Gather', ['seven'], { axis: 1 }), 'selects column 7 of 2'],
    ['Slice', step('Slice', ['zero', 'one', 'zero']), 'along an axis of unknown size'],
    ['Slice', step('Slice', ['one', 'zero', 'one']), 'selects no column'],
    ['Cast', step('Cast', [], { to: 11 }), 'Cast turns them into float64'],
  ];
  for (const [op, bytes, why] of cases) {
    const message = await harness.expectRefusal(lookupModel([bytes, lookup]), 4);
    assert.match(message, new RegExp(`cannot prune node "(step|lookup)" \\(.*${why}`), op);
    assert.match(message, /node "lookup" \(Gather\)/);
  }
});

test('ids inputs of another type or shape are refused', async () => {
  const direct = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup' });
  const message = (elemType: number, shape: (string | number)[]): Promise<string> =>
    harness.expectRefusal(lookupModel([direct], { inputs: [value('ids', elemType, shape)] }), 4);
  assert.match(await message(INT64, []), /shape of its ids input is \[\]/);
  assert.match(
    await message(INT64, ['n', 2 ** 40]),
    /shape of its ids input is \[n, 1099511627776\]/,
  );
  assert.match(await message(UINT8, ['n', 2]), /ids come from an input of uint8/);
});

test('unsupported tables are refused by name', async () => {
  const direct = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup' });
  const message = (table: Uint8Array, gather: Uint8Array = direct): Promise<string> =>
    harness.expectRefusal(lookupModel([gather], { initializers: [table] }), 4);
  assert.match(await message(tensor('t', 11, [8, 3], new Float64Array(24))), /tables of float64/);
  assert.match(
    await message(tensor('t', UINT8, [8, 3], new Uint8Array(24))),
    /its table is quantised \(uint8\)/,
  );
  assert.match(await message(floats('t', [0, 3], [])), /its table is 0 x 3/);
  const deep = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup', attributes: { axis: 2 } });
  assert.match(
    await message(floats('t', [2, 2, 2], ramp(8)), deep),
    /gathers along axis 2 of its table/,
  );
  const computed = [
    node('Neg', ['t'], ['tt']),
    node('Gather', ['tt', 'ids'], ['y'], { name: 'lookup' }),
  ];
  assert.match(
    await harness.expectRefusal(lookupModel(computed), 4),
    /"lookup".*"tt": its table is computed/,
  );
});

test('lookups by other operators are refused by name', async () => {
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
      floats('t', [8, 3], ramp(24)),
      ints('zero', [1], [0]),
      ints('seven', [], [8]),
      floats('two', [2], [0, 1]),
    ];
    const message = await harness.expectRefusal(lookupModel(nodes, { initializers }), 4);
    assert.match(
      message,
      new RegExp(
        `cannot prune node "odd" \\(${op}\\), tensor "(t|ids|zero)": ` +
          '.*(not supported|must be an input)',
      ),
    );
  }
});

test('an unnamed node is described by its output', async () => {
  const message = await harness.expectRefusal(
    lookupModel([node('GatherElements', ['t', 'ids'], ['y'])]),
    4,
  );
  assert.match(message, /cannot prune the GatherElements node that computes "y"/);
});

test('inputs without possible samples are refused, and nothing is written', async () => {
  const nodes = [
    node('Gather', ['t', 'ids'], ['e']),
    node('Cast', ['half'], ['f'], { attributes: { to: FLOAT } }),
    node('Mul', ['e', 'f'], ['y']),
  ];
  const inputs = [value('ids', INT64, ['n', 2]), value('half', FLOAT16, [])];
  const message = await harness.expectRefusal(lookupModel(nodes, { inputs }), 4);
  assert.match(message, /no samples for input "half": its type is float16/);
});

test('a model with operators that onnxruntime lacks needs --verify 0', async () => {
  const odd = lookupModel([node('Gather', ['t', 'ids'], ['k']), node('NoSuchOp', ['k'], ['y'])]);
  assert.match(await harness.expectRefusal(odd, 4), /not verified: .*NoSuchOp.*--verify 0/);
  const path = harness.write('odd.onnx', odd);
  const accepted = await harness.run(
    '--model',
    path,
    '--output',
    harness.path('odd'),
    '--verify',
    '0',
  );
  assert.equal(accepted.status, 0, accepted.stderr);
  assert.match(accepted.stdout, /verified no: /);
});

test('models that break the rules of a graph are not valid', async () => {
  const gather = node('Gather', ['t', 'ids'], ['y'], { name: 'lookup' });
  const cases: [Uint8Array, RegExp][] = [
    [
      lookupModel([node('Gather', ['t', 'lost'], ['y'])]),
      /reads "lost", which nothing before it computes/,
    ],
    [lookupModel([gather, gather]), /"y" is computed twice/],
    [lookupModel([node('Gather', ['t', 'ids'], ['z'])]), /nothing computes the output "y"/],
    [
      lookupModel([gather], { initializers: [floats('t', [8, 3], ramp(23))] }),
      /needs 96 bytes, it has 92/,
    ],
    [
      lookupModel([gather], { initializers: [floats('t', [2 ** 40, 2 ** 12], ramp(24))] }),
      /"t" of shape \[1099511627776, 4096\] needs \d+ bytes, it has 96/,
    ],
    [
      lookupModel([node('Gather', ['t', 'ids'], ['k']), node('Reshape', ['k', 'seven'], ['y'])]),
      /Reshape/,
    ],
  ];
  for (const [bytes, pattern] of cases)
    assert.match(await harness.expectRefusal(bytes, 5), pattern);
});
