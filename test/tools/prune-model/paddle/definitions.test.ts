/** What an operator's definition says beyond its name: variables written back, types asked for, tensors in the place of attributes. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { OnnxModel } from '../../../../lib/platform/onnx.ts';
import {
  FP64,
  INT32,
  INT64,
  type ModelFiles,
  type ModelWish,
  modelOf,
  op,
  type VarWish,
} from '../paddle-builder.ts';
import { PaddleHarness } from '../paddle-harness.ts';

const parameter = (name: string, dims: readonly number[]): VarWish => ({
  name,
  dims,
  persistable: true,
});
const row = (name: string, type?: number): VarWish => ({
  name,
  dims: [-1, 4],
  ...(type !== undefined && { type }),
});
const statistics = ['s', 'b', 'm', 'v'].map((name) => parameter(name, [4]));

/** A lookup that makes "e" of [batch, 4], and what is behind it. */
function behindLookup(
  ops: readonly Uint8Array[],
  vars: readonly VarWish[] = [],
  params: ModelWish['params'] = {},
): ModelFiles {
  return modelOf({
    vars: [
      parameter('t', [7, 4]),
      { name: 'ids', dims: [-1, 1], type: INT64 },
      row('e'),
      ...(vars.some(({ name }) => name === 'y') ? vars : [row('y'), ...vars]),
    ],
    feeds: ['ids'],
    fetches: ['y'],
    ops: [op('lookup_table', { W: 't', Ids: 'ids' }, { Out: 'e' }), ...ops],
    params,
  });
}

async function proveBoth(files: ModelFiles): Promise<PaddleHarness> {
  const harness = new PaddleHarness();
  const model = harness.writeModel(files, 'combined');
  assert.equal((await harness.pruneTo(model)).verify!.maxAbsDifference, 0);
  assert.ok((await harness.pruneTo(model, { to: 'onnx' })).verify!.maxAbsDifference <= 1e-5);
  return harness;
}

test('batch_norm as it is exported: mean and variance are also its outputs', async () => {
  const norm = op(
    'batch_norm',
    { X: 'e', Scale: 's', Bias: 'b', Mean: 'm', Variance: 'v' },
    { Y: 'y', MeanOut: 'm', VarianceOut: 'v', SavedMean: 'sm', SavedVariance: 'sv' },
    { is_test: true, epsilon: { float: 1.5 } },
  );
  const saved = ['sm', 'sv'].map((name) => ({ name, dims: [4] }));
  await proveBoth(behindLookup([norm], [...statistics, ...saved]));
});

test('tensors of the same dims are added whatever the axis says', async () => {
  await proveBoth(
    behindLookup([op('elementwise_add', { X: 'e', Y: 'e' }, { Out: 'y' }, { axis: 1 })]),
  );
});

test('a reduction adds in the type that out_dtype asks for', async () => {
  const sum = op(
    'reduce_sum',
    { X: 'e' },
    { Out: 'y' },
    { dim: [1], in_dtype: 5, out_dtype: FP64 },
  );
  const harness = await proveBoth(behindLookup([sum], [{ name: 'y', dims: [-1], type: FP64 }]));
  const loaded = await OnnxModel.load(join(harness.output, 'model.onnx'));
  assert.deepEqual(
    loaded.outputs.map(({ dtype }) => dtype),
    ['float64'],
  );
  await loaded.release();
});

test('parameters of float64 and int32 become constants of their types', async () => {
  for (const type of [FP64, INT32]) {
    const values = type === INT32 ? [1, -2, 3, 4] : [0.5, -1.5, 2.25, 0];
    const files = behindLookup(
      [
        op('cast', { X: 'e' }, { Out: 'wide' }, { in_dtype: 5, out_dtype: type }),
        op('elementwise_add', { X: 'wide', Y: 'w' }, { Out: 'sum' }, { axis: 1 }),
        op('cast', { X: 'sum' }, { Out: 'y' }, { in_dtype: type, out_dtype: 5 }),
      ],
      [row('wide', type), row('sum', type), { ...parameter('w', [4]), type }],
      { w: { dims: [4], values, type } },
    );
    await proveBoth(files);
  }
});

test('integers are added too', async () => {
  const ops = [
    op('cast', { X: 'e' }, { Out: 'n' }, { in_dtype: 5, out_dtype: INT64 }),
    op('sum', { X: ['n', 'n', 'n'] }, { Out: 'sum' }),
    op('cast', { X: 'sum' }, { Out: 'y' }, { in_dtype: INT64, out_dtype: 5 }),
  ];
  await proveBoth(behindLookup(ops, [row('n', INT64), row('sum', INT64)]));
});

test('a lookup that declares another shape than it makes is refused', async () => {
  const harness = new PaddleHarness();
  const cases: [string, number[], number[]][] = [
    ['lookup_table', [-1, 1], [-1, 1, 4]],
    ['lookup_table', [-1, 2], [-1, 2, 4]],
    ['lookup_table_v2', [-1, 1], [-1, 4]],
  ];
  for (const [type, ids, made] of cases) {
    const files = modelOf({
      vars: [
        parameter('t', [7, 4]),
        { name: 'ids', dims: ids, type: INT64 },
        ...['e', 'y'].map((name) => ({ name, dims: made })),
      ],
      feeds: ['ids'],
      fetches: ['y'],
      ops: [
        op(type, { W: 't', Ids: 'ids' }, { Out: 'e' }),
        op('softmax', { X: 'e' }, { Out: 'y' }, { axis: 1 }),
      ],
    });
    assert.match(
      await harness.refuseModel(harness.writeModel(files), 4),
      new RegExp(`the ${type} operator that makes "e": it makes \\[`),
    );
  }
});

test('num of a split goes before its sections', async () => {
  const parts = op('split', { X: 'e' }, { Out: ['y', 'z'] }, { axis: 1, num: 2, sections: [1, 3] });
  const both = op('elementwise_sub', { X: 'y', Y: 'z' }, { Out: 'd' });
  await proveBoth(
    behindLookup(
      [parts, both],
      ['y', 'z', 'd'].map((name) => ({ name, dims: [-1, 2] })),
    ),
  );
});

test('the padding of pull_sparse is zeros, 0 when it is not said', async () => {
  const harness = new PaddleHarness();
  for (const type of ['pull_sparse', 'pull_sparse_v2']) {
    for (const [attrs, paddingId] of [
      [{ EmbeddingDim: 4 }, 0],
      [{ EmbeddingDim: 4, PaddingId: 9 }, 9],
      [{ EmbeddingDim: 4, PaddingId: -1 }, undefined],
    ] as const) {
      const files = modelOf({
        vars: [
          { name: 'ids', dims: [-1, 1], type: INT64 },
          ...['e', 'y'].map((name) => ({
            name,
            dims: type === 'pull_sparse' ? [-1, 4] : [-1, 1, 4],
          })),
        ],
        feeds: ['ids'],
        fetches: ['y'],
        ops: [
          op(type, { Ids: 'ids' }, { Out: 'e' }, attrs),
          op('scale', { X: 'e' }, { Out: 'y' }, { scale: { float: 2 } }),
        ],
      });
      const { spec } = await harness.pruneProgram(harness.writeModel(files));
      assert.equal(spec.embeddings[0]!.paddingId, paddingId);
    }
  }
});

test('what changes an operator without its name is named, not passed over; --verify 0 prunes it unproved', async () => {
  const harness = new PaddleHarness();
  const norm = { X: 'e', Scale: 's', Bias: 'b', Mean: 'm', Variance: 'v' };
  const out = { Out: 'y' };
  const one = parameter('f', [1]);
  const cases: [ModelFiles, RegExp][] = [
    [behindLookup([op('scale', { X: 'e', ScaleTensor: 'f' }, out)], [one]), /its ScaleTensor is/],
    [behindLookup([op('clip', { X: 'e', Min: 'f' }, out)], [one]), /its Min is computed/],
    [
      behindLookup([op('reduce_sum', { X: 'e' }, out, { dim: { variable: 'f' } })], [one]),
      /its attribute dim is not a plain value/,
    ],
    [
      behindLookup([op('leaky_relu', { X: 'e' }, out, { alpha: { float: -0.5 } })]),
      /its alpha is -0.5, which versions of Paddle compute differently/,
    ],
    [behindLookup([op('reshape2', { X: 'e', Shape: 'f' }, out)], [one]), /its Shape is computed/],
    [
      behindLookup(
        [op('batch_norm', norm, { Y: 'y' }, { is_test: true, trainable_statistics: true })],
        statistics,
      ),
      /its attribute trainable_statistics is set/,
    ],
    [
      behindLookup([op('elementwise_add', { X: 'e', Y: 'e' }, out, { fuse_relu: true })]),
      /its attribute fuse_relu is set/,
    ],
  ];
  for (const [files, why] of cases) {
    const model = harness.writeModel(files);
    for (const options of [{}, { to: 'onnx' }] as const) {
      assert.match(await harness.refuseModel(model, 4, options), why);
    }
    assert.equal((await harness.pruneTo(model, { samples: 0 })).verify, undefined);
  }
});
