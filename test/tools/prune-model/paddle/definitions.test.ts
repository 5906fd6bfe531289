/**
 * What an operator's definition says beyond its name: variables written back, types asked for,
 * tensors in the place of attributes.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { OnnxModel } from '../../../../lib/platform/onnx.ts';
import {
  buildModel,
  FP64,
  INT32,
  INT64,
  type ModelFiles,
  type ModelOptions,
  op,
  type VariableOptions,
} from '../support/paddle-builder.ts';
import { PaddleHarness } from '../support/paddle-harness.ts';

const parameter = (name: string, dims: readonly number[]): VariableOptions => ({
  name,
  dims,
  persistable: true,
});
const row = (name: string, type?: number): VariableOptions => ({
  name,
  dims: [-1, 4],
  ...(type !== undefined && { type }),
});
const statistics = ['s', 'b', 'm', 'v'].map((name) => parameter(name, [4]));

/** A lookup that makes "e" of [batch, 4], and what is behind it. */
function behindLookup(
  ops: readonly Uint8Array[],
  vars: readonly VariableOptions[] = [],
  params: ModelOptions['params'] = {},
): ModelFiles {
  return buildModel({
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

async function verifyBoth(files: ModelFiles): Promise<PaddleHarness> {
  const harness = new PaddleHarness();
  const model = harness.writeModel(files, 'combined');
  assert.equal((await harness.pruneTo(model)).verify!.maxAbsDifference, 0);
  assert.ok((await harness.pruneTo(model, { to: 'onnx' })).verify!.maxAbsDifference <= 1e-5);
  return harness;
}

test('batch_norm that lists mean and variance as outputs is supported', async () => {
  const norm = op(
    'batch_norm',
    { X: 'e', Scale: 's', Bias: 'b', Mean: 'm', Variance: 'v' },
    { Y: 'y', MeanOut: 'm', VarianceOut: 'v', SavedMean: 'sm', SavedVariance: 'sv' },
    { is_test: true, epsilon: { float: 1.5 } },
  );
  const saved = ['sm', 'sv'].map((name) => ({ name, dims: [4] }));
  await verifyBoth(behindLookup([norm], [...statistics, ...saved]));
});

test('tensors of equal dims are added whatever the axis', async () => {
  await verifyBoth(
    behindLookup([op('elementwise_add', { X: 'e', Y: 'e' }, { Out: 'y' }, { axis: 1 })]),
  );
});

test('a reduction adds in the type of out_dtype', async () => {
  const sum = op(
    'reduce_sum',
    { X: 'e' },
    { Out: 'y' },
    { dim: [1], in_dtype: 5, out_dtype: FP64 },
  );
  const harness = await verifyBoth(behindLookup([sum], [{ name: 'y', dims: [-1], type: FP64 }]));
  const loaded = await OnnxModel.load(join(harness.output, 'model.onnx'));
  assert.deepEqual(
    loaded.outputs.map(({ dtype }) => dtype),
    ['float64'],
  );
  await loaded.release();
});

test('float64 and int32 parameters become constants of their types', async () => {
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
    await verifyBoth(files);
  }
});

test('sum also adds integers', async () => {
  const ops = [
    op('cast', { X: 'e' }, { Out: 'n' }, { in_dtype: 5, out_dtype: INT64 }),
    op('sum', { X: ['n', 'n', 'n'] }, { Out: 'sum' }),
    op('cast', { X: 'sum' }, { Out: 'y' }, { in_dtype: INT64, out_dtype: 5 }),
  ];
  await verifyBoth(behindLookup(ops, [row('n', INT64), row('sum', INT64)]));
});

test('a lookup whose declared shape does not match is refused', async () => {
  const harness = new PaddleHarness();
  const cases: [string, number[], number[]][] = [
    ['lookup_table', [-1, 1], [-1, 1, 4]],
    ['lookup_table', [-1, 2], [-1, 2, 4]],
    ['lookup_table_v2', [-1, 1], [-1, 4]],
  ];
  for (const [type, ids, made] of cases) {
    const files = buildModel({
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
      await harness.expectModelRefusal(harness.writeModel(files), 4),
      new RegExp(`the ${type} operator that computes "e": its output is declared as \\[`),
    );
  }
});

test('num of a split takes precedence over sections', async () => {
  const parts = op('split', { X: 'e' }, { Out: ['y', 'z'] }, { axis: 1, num: 2, sections: [1, 3] });
  const both = op('elementwise_sub', { X: 'y', Y: 'z' }, { Out: 'd' });
  await verifyBoth(
    behindLookup(
      [parts, both],
      ['y', 'z', 'd'].map((name) => ({ name, dims: [-1, 2] })),
    ),
  );
});

test('pull_sparse returns zeros for PaddingId, 0 by default', async () => {
  const harness = new PaddleHarness();
  for (const type of ['pull_sparse', 'pull_sparse_v2']) {
    for (const [attrs, paddingId] of [
      [{ EmbeddingDim: 4 }, 0],
      [{ EmbeddingDim: 4, PaddingId: 9 }, 9],
      [{ EmbeddingDim: 4, PaddingId: -1 }, undefined],
    ] as const) {
      const files = buildModel({
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

test('attributes that change an operator are refused by name unless --verify 0', async () => {
  const harness = new PaddleHarness();
  const norm = { X: 'e', Scale: 's', Bias: 'b', Mean: 'm', Variance: 'v' };
  const out = { Out: 'y' };
  const one = parameter('f', [1]);
  const cases: [ModelFiles, RegExp][] = [
    [behindLookup([op('scale', { X: 'e', ScaleTensor: 'f' }, out)], [one]), /its ScaleTensor is/],
    [behindLookup([op('clip', { X: 'e', Min: 'f' }, out)], [one]), /its Min is computed/],
    [
      behindLookup([op('reduce_sum', { X: 'e' }, out, { dim: { variable: 'f' } })], [one]),
      /its attribute dim is a variable/,
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
      /its attribute trainable_statistics is not supported/,
    ],
    [
      behindLookup([op('elementwise_add', { X: 'e', Y: 'e' }, out, { fuse_relu: true })]),
      /its attribute fuse_relu is not supported/,
    ],
  ];
  for (const [files, why] of cases) {
    const model = harness.writeModel(files);
    for (const options of [{}, { to: 'onnx' }] as const) {
      assert.match(await harness.expectModelRefusal(model, 4, options), why);
    }
    assert.equal((await harness.pruneTo(model, { samples: 0 })).verify, undefined);
  }
});
