/** Every form of a lookup in a Paddle program: what it becomes, and what is refused by name. */
import assert from 'node:assert/strict';
import { existsSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { test } from 'node:test';
import {
  type AttributeValue,
  buildModel,
  FP16,
  INT32,
  INT64,
  type ModelFiles,
  type ModelOptions,
  op,
  type ParameterContent,
  type VariableOptions,
  variable,
  wave,
} from '../support/paddle-builder.ts';
import { PaddleHarness } from '../support/paddle-harness.ts';

const table: VariableOptions = { name: 't', dims: [7, 4], persistable: true };
const ids: VariableOptions = { name: 'ids', dims: [-1, 1], type: INT64 };
const sequence: VariableOptions = { ...ids, lodLevel: 1 };

function lookUp(
  type = 'lookup_table',
  attrs: Readonly<Record<string, AttributeValue>> = {},
  from = 'ids',
  to = 'e',
): Uint8Array {
  return op(type, { W: 't', Ids: from }, { Out: to }, attrs);
}

/** One lookup and a scale behind it, so that something is left. */
function model(
  options: Partial<ModelOptions> & { row?: readonly number[]; lod?: number } = {},
): ModelFiles {
  const { row = [-1, 4], lod = 0 } = options;
  return buildModel({
    vars: [
      ...(options.vars ?? [table, ids]),
      { name: 'e', dims: row, lodLevel: lod },
      { name: 'y', dims: row, lodLevel: lod },
    ],
    feeds: options.feeds ?? ['ids'],
    fetches: options.fetches ?? ['y'],
    ops: [
      ...(options.ops ?? [lookUp()]),
      op('scale', { X: 'e' }, { Out: 'y' }, { scale: { float: 3 } }),
    ],
    ...(options.params && { params: options.params }),
    ...(options.blocks && { blocks: options.blocks }),
  });
}

test('ids of [batch, 1], several axes, int32 and columns of one matrix are supported', async () => {
  const harness = new PaddleHarness();
  const matrix: VariableOptions = { name: 'ids', dims: [-1, 3], type: INT64 };
  const part = (name: string, columns: number): VariableOptions => ({
    name,
    dims: [-1, columns],
    type: INT64,
  });
  const v2 = 'lookup_table_v2';
  const cases: [ModelFiles, number[], number[]][] = [
    [model(), [-1, 4], [0]],
    [model({ vars: [table, { ...ids, type: INT32 }] }), [-1, 4], [0]],
    [model({ vars: [table, matrix], ops: [lookUp(v2)], row: [-1, 3, 4] }), [-1, 3, 4], [0, 1, 2]],
    [
      model({
        vars: [table, matrix, part('a', 1), part('b', 2)],
        ops: [
          op('split', { X: 'ids' }, { Out: ['a', 'b'] }, { axis: 1, sections: [1, -1] }),
          lookUp(v2, {}, 'b'),
        ],
        row: [-1, 2, 4],
      }),
      [-1, 2, 4],
      [1, 2],
    ],
    [
      model({
        vars: [table, matrix, part('a', 2), { name: 'flat', dims: [-1, 2, 1], type: INT64 }],
        ops: [
          op('slice', { Input: 'ids' }, { Out: 'a' }, { axes: [1], starts: [-2], ends: [99] }),
          op('unsqueeze2', { X: 'a' }, { Out: 'flat' }, { axes: [2] }),
          lookUp(v2, {}, 'flat'),
        ],
        row: [-1, 2, 1, 4],
      }),
      [-1, 2, 1, 4],
      [1, 2],
    ],
    [
      model({
        vars: [table, matrix, part('a', 1), part('b', 2), part('c', 3)],
        ops: [
          op('split', { X: 'ids' }, { Out: ['a', 'b'] }, { axis: 1, sections: [1, 2] }),
          op('concat', { X: ['b', 'a'] }, { Out: 'c' }, { axis: 1 }),
          lookUp(v2, {}, 'c'),
        ],
        row: [-1, 3, 4],
      }),
      [-1, 3, 4],
      [1, 2, 0],
    ],
  ];
  for (const [files, shape, columns] of cases) {
    const { spec, feeds } = await harness.pruneProgram(harness.writeModel(files));
    assert.deepEqual(feeds, ['e']);
    assert.deepEqual(spec.embeddings[0]!.shape, shape);
    assert.deepEqual(spec.embeddings[0]!.columns, columns);
  }
});

test('sequences give rows for a pool in the graph, or sums for a pooling lookup', async () => {
  const harness = new PaddleHarness();
  for (const pooltype of ['SUM', 'AVERAGE', 'SQRT', 'MAX', 'LAST', 'FIRST']) {
    const files = buildModel({
      vars: [
        table,
        sequence,
        { name: 'e', dims: [-1, 4], lodLevel: 1 },
        { name: 'y', dims: [-1, 4] },
      ],
      feeds: ['ids'],
      fetches: ['y'],
      ops: [
        lookUp(),
        op('sequence_pool', { X: 'e' }, { Out: 'y' }, { pooltype, pad_value: { float: 0.5 } }),
      ],
    });
    const { spec, report } = await harness.pruneProgram(harness.writeModel(files));
    assert.equal(spec.embeddings[0]?.lodLevel, 1);
    assert.equal(report.verify!.maxAbsDifference, 0, pooltype);
  }
  const pooled = model({
    vars: [table, sequence],
    ops: [lookUp('fused_embedding_seq_pool', { combiner: 'sum', padding_idx: { long: 2 } })],
  });
  const { spec } = await harness.pruneProgram(harness.writeModel(pooled));
  assert.deepEqual(spec.embeddings[0]?.bags, {
    pooling: 'sum',
    offsets: 'ids',
    includesLast: true,
  });
  assert.equal(spec.embeddings[0]?.paddingId, 2);
});

test('the row of padding_idx is zeros; another padding_idx gives another table', async () => {
  const harness = new PaddleHarness();
  const padded = lookUp('lookup_table', { padding_idx: { long: 6 } });
  const { spec } = await harness.pruneProgram(harness.writeModel(model({ ops: [padded] })));
  const rows = Array.from(wave(28, 1));
  assert.deepEqual(harness.npy('t.npy').values, [...rows.slice(0, 24), 0, 0, 0, 0]);
  assert.equal(spec.embeddings[0]?.paddingId, 6);
  const two = buildModel({
    vars: [table, ids, ...['e', 'f', 'y'].map((name) => ({ name, dims: [-1, 4] }))],
    feeds: ['ids'],
    fetches: ['y'],
    ops: [
      lookUp(),
      lookUp('lookup_table', { padding_idx: { long: 0 } }, 'ids', 'f'),
      op('elementwise_sub', { X: 'e', Y: 'f' }, { Out: 'y' }),
    ],
  });
  const { spec: both } = await harness.pruneProgram(harness.writeModel(two));
  assert.deepEqual(
    both.tables.map(({ name }) => name),
    ['t', 't_with_padding_0'],
  );
  assert.deepEqual(harness.npy('t.npy').values, rows);
  assert.deepEqual(harness.npy('t_with_padding_0.npy').values, [0, 0, 0, 0, ...rows.slice(4)]);
});

test('a table with other readers, also in a block, is written and stays', async () => {
  const harness = new PaddleHarness();
  const tied = buildModel({
    vars: [table, ids, { name: 'e', dims: [-1, 4] }, { name: 'y', dims: [-1, 7] }],
    feeds: ['ids'],
    fetches: ['y'],
    ops: [lookUp(), op('matmul', { X: 'e', Y: 't' }, { Out: 'y' }, { transpose_Y: true })],
  });
  const { report } = await harness.pruneProgram(harness.writeModel(tied, 'combined'));
  assert.deepEqual(report.tables[0]?.keptFor, ['matmul']);
  assert.deepEqual(harness.npy('t.npy').values, Array.from(wave(28, 1)));
  const inBlock = model({
    vars: [table, ids, { name: 'z', dims: [7, 4] }],
    ops: [lookUp(), op('conditional_block', {}, { Out: 'z' }, { sub_block: { block: 1 } })],
    fetches: ['y', 'z'],
    blocks: [{ vars: [], ops: [op('scale', { X: 't' }, { Out: 'z' })], parent: 0 }],
  });
  const model1 = harness.writeModel(inBlock);
  assert.match(
    await harness.expectModelRefusal(model1, 4),
    /not verified: the operator conditional_block/,
  );
  const kept = await harness.pruneProgram(model1, { samples: 0 });
  assert.deepEqual(kept.report.tables[0]?.keptFor, ['conditional_block']);
  assert.ok(existsSync(join(harness.output, 't')));
});

test('SelectedRows of both layouts are exported with their keys', async () => {
  const harness = new PaddleHarness();
  const keys = [5, 1_000_000_007, 3];
  for (const isNewer of [false, true]) {
    const rows: ParameterContent = { dims: [3, 4], values: wave(12, 9), keys, isNewer };
    const files = model({ vars: [{ ...table, isSelectedRows: true }, ids], params: { t: rows } });
    const { spec } = await harness.pruneProgram(harness.writeModel(files));
    assert.equal(spec.tables[0]?.rows, 3);
    assert.deepEqual(harness.npy('t.keys.npy'), { shape: [3], values: keys });
    assert.deepEqual(harness.npy('t.npy').values, Array.from(wave(12, 9)));
  }
});

test('tables on a parameter server are cut and listed but not written', async () => {
  const harness = new PaddleHarness();
  const vars = (rank: 2 | 3): VariableOptions[] => [
    ...['a', 'b'].map((name) => ({ name, dims: [-1, 1], type: INT64 })),
    ...['e', 'f', 'y'].map((name) => ({ name, dims: rank === 2 ? [-1, 4] : [-1, 1, 4] })),
  ];
  const add = op('elementwise_add', { X: 'e', Y: 'f' }, { Out: 'y' });
  const forms: [string, string, Readonly<Record<string, AttributeValue>>, 2 | 3][] = [
    ['pull_sparse', 'pull_sparse_7', { EmbeddingDim: 4, TableId: 7 }, 2],
    ['pull_sparse_v2', 'pull_sparse_v2_0', { EmbeddingDim: 4 }, 3],
    ['pull_box_sparse', 'pull_box_sparse_0', { size: 4 }, 2],
    ['pull_gpups_sparse', 'pull_gpups_sparse_0_4', { size: [4, 4] }, 2],
  ];
  for (const [type, name, attrs, rank] of forms) {
    const files = buildModel({
      vars: vars(rank),
      feeds: ['a', 'b'],
      fetches: ['y'],
      ops: [op(type, { Ids: ['a', 'b'] }, { Out: ['e', 'f'] }, attrs), add],
    });
    const { spec, feeds, report } = await harness.pruneProgram(harness.writeModel(files));
    assert.deepEqual(feeds, ['e', 'f']);
    assert.deepEqual(spec.tables, [{ name, rows: 0, dim: 4, dtype: 'f32', external: true }]);
    assert.equal(report.verify!.samples, 64);
    assert.ok(!existsSync(join(harness.output, 'tables', `${name}.npy`)));
  }
  const distributed = buildModel({
    vars: [...vars(2), table],
    feeds: ['a', 'b'],
    fetches: ['y'],
    ops: [
      op('distributed_lookup_table', { Ids: ['a', 'b'], W: 't' }, { Outputs: ['e', 'f'] }),
      add,
    ],
  });
  for (const layout of ['separate', 'combined'] as const) {
    const model1 = harness.writeModel(distributed, layout);
    const here = await harness.pruneProgram(model1);
    assert.deepEqual(here.spec.tables, [{ name: 't', rows: 7, dim: 4, dtype: 'f32' }]);
    const { t: _, ...others } = distributed.params;
    rmSync(dirname(model1), { recursive: true });
    const away = harness.writeModel({ ...distributed, params: others }, layout);
    assert.equal((await harness.pruneProgram(away)).spec.tables[0]!.external, true);
  }
});

test('ids with other readers stay an input; a lookup may be an output', async () => {
  const harness = new PaddleHarness();
  const files = model({
    vars: [table, ids, { name: 'mask', dims: [-1, 1] }],
    ops: [lookUp(), op('cast', { X: 'ids' }, { Out: 'mask' }, { in_dtype: 3, out_dtype: 5 })],
    fetches: ['y', 'mask', 'e'],
  });
  const { feeds, fetches, report } = await harness.pruneProgram(harness.writeModel(files));
  assert.deepEqual(
    [feeds, fetches],
    [
      ['ids', 'e'],
      ['y', 'mask', 'e'],
    ],
  );
  assert.deepEqual(report.inputs, { kept: ['ids'], removed: [] });
});

test('operators that only resemble a lookup are left alone', async () => {
  const harness = new PaddleHarness();
  const constant = model({ vars: [table, { ...ids, persistable: true, dims: [3, 1] }], feeds: [] });
  const long: ParameterContent = { dims: [3, 1], values: [0, 2, 6], type: INT64 };
  const files = { ...constant, params: { ...constant.params, ids: long } };
  const outcome = await harness.run(
    '--model',
    harness.writeModel(files),
    '--output',
    harness.output,
  );
  assert.equal(outcome.status, 3, outcome.stderr);
});

test('unsupported lookups are refused with operator and reason', async () => {
  const harness = new PaddleHarness();
  const between = (
    type: string,
    attrs: Readonly<Record<string, AttributeValue>> = {},
  ): ModelFiles =>
    model({
      vars: [table, ids, { name: 'h', dims: [-1, 1], type: INT64 }],
      ops: [op(type, { X: 'ids' }, { Out: 'h' }, attrs), lookUp('lookup_table', {}, 'h')],
    });
  const inner = { vars: [variable({ name: 'e', dims: [-1, 4] })], ops: [lookUp()], parent: 0 };
  const cases: [ModelFiles, RegExp][] = [
    [model({ ops: [lookUp('lookup_table_dequant')] }), /lookup_table_dequant.*quantised/],
    [
      model({ ops: [lookUp('c_embedding', { start_index: { long: 3 } })] }),
      /c_embedding.*start_index/,
    ],
    [
      between('hash', { num_hash: 1, mod_by: 7 }),
      /the hash operator that computes "h": it computes the ids/,
    ],
    [between('transpose2', { axis: [1, 0] }), /the transpose2 operator/],
    [
      model({
        ops: [op('while', { X: 'ids' }, { Out: 'e' }, { sub_block: { block: 1 } })],
        blocks: [inner],
      }),
      /the lookup_table operator that computes "e": it is inside a block of while/,
    ],
    [
      model({ vars: [{ ...table, type: FP16 }, ids], params: {} }),
      /not a Paddle|float16|missing|bytes/,
    ],
    [model({ ops: [lookUp('lookup_table', { padding_idx: { long: -2 } })] }), /padding_idx is -2/],
    [model({ vars: [table, { ...ids, type: 5 }] }), /ids input "ids" is of float32/],
    [model({ vars: [table, { ...ids, dims: [-1, -1] }] }), /only its first axis may be open/],
    [
      model({ ops: [lookUp('fused_embedding_seq_pool', { combiner: 'mean' })] }),
      /combiner is "mean"/,
    ],
    [model({ ops: [lookUp(), lookUp()] }), /"e" is computed twice/],
    [model({ row: [-1, 5] }), /its output is declared as \[-1, 5\], but its rows have 4/],
    [
      model({
        vars: [table, ids, { name: 'w0', dims: [7, 4], persistable: true }],
        ops: [op('scale', { X: 'w0' }, { Out: 't' }), lookUp()],
      }),
      /its table "t" is computed by scale/,
    ],
  ];
  for (const [files, why] of cases) {
    const type = why.source.includes('float16') ? 5 : 4;
    assert.match(await harness.expectModelRefusal(harness.writeModel(files), type), why);
  }
});
