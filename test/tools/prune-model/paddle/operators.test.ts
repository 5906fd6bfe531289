/**
 * Every operator that --to onnx converts, with random shapes and attributes behind a random lookup:
 * the verification compares onnxruntime on the converted graph with the reference interpreter on
 * the full program.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  type AttributeValue,
  buildModel,
  INT64,
  type ModelFiles,
  op,
  type VariableOptions,
} from '../support/paddle-builder.ts';
import { PaddleHarness } from '../support/paddle-harness.ts';

type Attrs = Readonly<Record<string, AttributeValue>>;

interface Case {
  /** Rows of the lookup: [batch, fields, dim], or [batch, dim]. */
  readonly from: 2 | 3;
  readonly fields: number;
  readonly dim: number;
  readonly op: (x: string, y: string) => Uint8Array;
  readonly params?: readonly VariableOptions[];
  /** Axes of the output; those beyond the axes of the rows only add to their number. */
  readonly rank: number;
  readonly outputs?: number;
}

function modelFor({
  from,
  fields,
  dim,
  op: make,
  params = [],
  rank,
  outputs = 1,
}: Case): ModelFiles {
  const row = from === 2 ? [-1, dim] : [-1, fields, dim];
  const declared = Array.from({ length: rank }, () => -1);
  const made = Array.from({ length: outputs }, (_, i) => (i === 0 ? 'y' : `y${i}`));
  const tail = from === 2 ? [-1, 1] : [-1, fields];
  return buildModel({
    vars: [
      { name: 't', dims: [11, dim], persistable: true },
      ...params.map((options) => ({ ...options, persistable: true })),
      { name: 'ids', dims: tail, type: INT64 },
      { name: 'x', dims: row },
      ...made.map((name) => ({ name, dims: declared })),
    ],
    feeds: ['ids'],
    fetches: made,
    ops: [
      op(from === 2 ? 'lookup_table' : 'lookup_table_v2', { W: 't', Ids: 'ids' }, { Out: 'x' }),
      make('x', 'y'),
    ],
  });
}

const size = fc.integer({ min: 1, max: 5 });
const axis3 = fc.integer({ min: -3, max: 2 });
const float = fc.float({ min: -2, max: 2, noNaN: true }).map((value) => ({ float: value }));
const fraction = fc.float({ min: 0, max: 1, noNaN: true }).map((value) => ({ float: value }));
const positive = fc
  .float({ min: Math.fround(0.01), max: 2, noNaN: true })
  .map((v) => ({ float: v }));

/** One input, Out of the same shape. */
const plain = (type: string, attrs: fc.Arbitrary<Attrs> = fc.constant({})): fc.Arbitrary<Case> =>
  fc.record({ fields: size, dim: size, attrs }).map(({ fields, dim, attrs: given }) => ({
    from: 3,
    fields,
    dim,
    rank: 3,
    op: (x, y) => op(type, { X: x }, { Out: y }, given),
  }));

const elementwise = (type: string): fc.Arbitrary<Case> =>
  fc
    .record({ fields: size, dim: size, form: fc.integer({ min: 0, max: 5 }) })
    .map(({ fields, dim, form }) => {
      const forms: [number[], number][] = [
        [[dim], -1],
        [[fields, dim], -1],
        [[fields], 1],
        [[fields, 1], 1],
        [[1], -1],
        [[1, fields, dim], -1],
      ];
      const [dims, axis] = forms[form]!;
      return {
        from: 3 as const,
        fields,
        dim,
        rank: 3,
        params: [{ name: 'w', dims }],
        op: (x: string, y: string) => op(type, { X: x, Y: 'w' }, { Out: y }, { axis }),
      };
    });

const reduce = (type: string): fc.Arbitrary<Case> =>
  fc
    .record({
      fields: size,
      dim: size,
      axes: fc.uniqueArray(axis3, { minLength: 1, maxLength: 2, selector: (a) => (a + 3) % 3 }),
      keep: fc.boolean(),
      all: fc.boolean(),
    })
    .map(({ fields, dim, axes, keep, all }) => {
      const left = all ? 0 : 3 - axes.length;
      return {
        from: 3 as const,
        fields,
        dim,
        rank: keep ? 3 : Math.max(left, 1),
        op: (x: string, y: string) =>
          op(type, { X: x }, { Out: y }, { dim: axes, keep_dim: keep, reduce_all: all }),
      };
    });

const matmul = (type: 'matmul' | 'matmul_v2'): fc.Arbitrary<Case> =>
  fc
    .record({ fields: size, dim: size, out: size, turned: fc.boolean(), alpha: float })
    .map(({ fields, dim, out, turned, alpha }) => ({
      from: 3 as const,
      fields,
      dim,
      rank: 3,
      params: [{ name: 'w', dims: turned ? [out, dim] : [dim, out] }],
      op: (x: string, y: string) =>
        op(
          type,
          { X: x, Y: 'w' },
          { Out: y },
          {
            ...(type === 'matmul' ? { transpose_Y: turned, alpha } : { trans_y: turned }),
          },
        ),
    }));

const shapes = fc.record({ fields: size, dim: size });

const CASES: Readonly<Record<string, fc.Arbitrary<Case>>> = {
  relu: plain('relu'),
  sigmoid: plain('sigmoid'),
  tanh: plain('tanh'),
  leaky_relu: plain('leaky_relu', fc.record({ alpha: fraction })),
  softmax: plain('softmax', fc.record({ axis: axis3.filter((axis) => axis % 3 !== 0) })),
  scale: plain('scale', fc.record({ scale: float, bias: float, bias_after_scale: fc.boolean() })),
  clip: plain('clip', fc.record({ min: fc.constant({ float: -0.5 }), max: positive })),
  assign: plain('assign'),
  dropout: plain(
    'dropout',
    fc.record({
      is_test: fc.constant(true),
      dropout_prob: fc.constantFrom({ float: 0.25 }, { float: 0.5 }),
      dropout_implementation: fc.constantFrom('downgrade_in_infer', 'upscale_in_train'),
    }),
  ),
  cast: plain('cast', fc.record({ out_dtype: fc.constantFrom(0, 2, 3, 5, 6) })),
  elementwise_add: elementwise('elementwise_add'),
  elementwise_sub: elementwise('elementwise_sub'),
  elementwise_mul: elementwise('elementwise_mul'),
  reduce_sum: reduce('reduce_sum'),
  reduce_mean: reduce('reduce_mean'),
  reduce_max: reduce('reduce_max'),
  matmul: matmul('matmul'),
  matmul_v2: matmul('matmul_v2'),
  elementwise_div: shapes.map(({ fields, dim }) => ({
    from: 3,
    fields,
    dim,
    rank: 3,
    params: [{ name: 'w', dims: [dim] }],
    op: (x, y) => op('elementwise_div', { X: 'w', Y: x }, { Out: y }),
  })),
  mul: fc
    .record({ fields: size, dim: size, out: size, split: fc.integer({ min: 1, max: 2 }) })
    .map(({ fields, dim, out, split }) => ({
      from: 3,
      fields,
      dim,
      rank: split + 1,
      params: [{ name: 'w', dims: split === 1 ? [fields, dim, out] : [dim, out] }],
      op: (x, y) =>
        op(
          'mul',
          { X: x, Y: 'w' },
          { Out: y },
          { x_num_col_dims: split, y_num_col_dims: 3 - split },
        ),
    })),
  fc: fc
    .record({ fields: size, dim: size, out: size, split: fc.integer({ min: 1, max: 2 }) })
    .map(({ fields, dim, out, split }) => ({
      from: 3,
      fields,
      dim,
      rank: split + 1,
      params: [
        { name: 'w', dims: [split === 1 ? fields * dim : dim, out] },
        { name: 'b', dims: out % 2 === 0 ? [out] : [1, out] },
      ],
      op: (x, y) =>
        op(
          'fc',
          { Input: x, W: 'w', Bias: 'b' },
          { Out: y },
          {
            in_num_col_dims: split,
            activation_type: out % 2 === 0 ? 'relu' : '',
          },
        ),
    })),
  sum: shapes.map(({ fields, dim }) => ({
    from: 3,
    fields,
    dim,
    rank: 3,
    op: (x, y) => op('sum', { X: [x, x, x] }, { Out: y }),
  })),
  concat: fc.record({ fields: size, dim: size, axis: axis3 }).map(({ fields, dim, axis }) => ({
    from: 3,
    fields,
    dim,
    rank: 3,
    op: (x, y) => op('concat', { X: [x, x] }, { Out: y }, { axis }),
  })),
  split: fc.record({ fields: size, num: size, dim: size }).map(({ fields, num, dim }) => ({
    from: 3,
    fields,
    dim: num * dim,
    rank: 3,
    outputs: num,
    op: (x, y) => {
      const out = Array.from({ length: num }, (_, i) => (i === 0 ? y : `y${i}`));
      const attrs = dim % 2 === 0 ? { num, axis: -1 } : { sections: out.map(() => dim), axis: 2 };
      return op('split', { X: x }, { Out: out }, attrs);
    },
  })),
  slice: fc
    .record({ fields: size, dim: size, start: fc.integer({ min: -9, max: 0 }), gone: fc.boolean() })
    .map(({ fields, dim, start, gone }) => ({
      from: 3,
      fields,
      dim,
      rank: gone ? 2 : 3,
      op: (x, y) =>
        op(
          'slice',
          { Input: x },
          { Out: y },
          {
            axes: gone ? [1] : [1, 2],
            starts: gone ? [0] : [start, -1],
            ends: gone ? [1] : [99, 99],
            decrease_axis: gone ? [1] : [],
          },
        ),
    })),
  reshape2: fc
    .record({ fields: size, dim: size, form: fc.integer({ min: 0, max: 3 }) })
    .map(({ fields, dim, form }) => {
      const targets = [
        [-1, fields * dim],
        [0, -1],
        [0, 0, dim, 1],
        [-1, dim],
      ];
      const shape = targets[form]!;
      return {
        from: 3,
        fields,
        dim,
        rank: shape.length,
        op: (x, y) => op('reshape2', { X: x }, { Out: y }, { shape }),
      };
    }),
  flatten: fc
    .record({ fields: size, dim: size, axis: fc.integer({ min: 1, max: 2 }) })
    .map(({ fields, dim, axis }) => ({
      from: 3,
      fields,
      dim,
      rank: 2,
      op: (x, y) => op(axis === 1 ? 'flatten' : 'flatten2', { X: x }, { Out: y }, { axis }),
    })),
  flatten_contiguous_range: fc
    .record({
      fields: size,
      dim: size,
      start: fc.integer({ min: 0, max: 1 }),
      stop: fc.integer({ min: 1, max: 2 }),
    })
    .map(({ fields, dim, start, stop }) => ({
      from: 3,
      fields,
      dim,
      rank: 3 - (stop - start),
      op: (x, y) =>
        op(
          'flatten_contiguous_range',
          { X: x },
          { Out: y },
          { start_axis: start, stop_axis: stop },
        ),
    })),
  squeeze2: fc.record({ dim: size, named: fc.boolean() }).map(({ dim, named }) => ({
    from: 3,
    fields: 1,
    dim: dim + 1,
    rank: 2,
    op: (x, y) => op('squeeze2', { X: x }, { Out: y }, { axes: named ? [1, -1] : [1] }),
  })),
  unsqueeze2: fc
    .record({ dim: size, axes: fc.constantFrom([1], [-1], [0, 1], [-1, 1]) })
    .map(({ dim, axes }) => ({
      from: 2,
      fields: 1,
      dim,
      rank: 2 + axes.length,
      op: (x, y) => op('unsqueeze2', { X: x }, { Out: y }, { axes }),
    })),
  transpose2: fc
    .record({ fields: size, dim: size, axis: fc.shuffledSubarray([0, 1, 2], { minLength: 3 }) })
    .map(({ fields, dim, axis }) => ({
      from: 3,
      fields,
      dim,
      rank: 3,
      op: (x, y) => op('transpose2', { X: x }, { Out: y }, { axis }),
    })),
  batch_norm: fc
    .record({ fields: size, dim: size, layout: fc.constantFrom('NCHW', 'NHWC') })
    .map(({ fields, dim, layout }) => {
      const dims = [layout === 'NCHW' ? fields : dim];
      return {
        from: 3,
        fields,
        dim,
        rank: 3,
        params: ['s', 'b', 'm', 'v'].map((name) => ({ name, dims })),
        // The variance is what a wave gives: epsilon makes it positive.
        op: (x, y) =>
          op(
            'batch_norm',
            { X: x, Scale: 's', Bias: 'b', Mean: 'm', Variance: 'v' },
            { Y: y },
            {
              data_layout: layout,
              is_test: true,
              epsilon: { float: 1.5 },
            },
          ),
      };
    }),
  layer_norm: fc
    .record({ fields: size, dim: size, begin: fc.integer({ min: 1, max: 2 }), bare: fc.boolean() })
    .map(({ fields, dim, begin, bare }) => {
      const dims = [begin === 1 ? fields * dim : dim];
      const factors = bare ? {} : { Scale: 's', Bias: 'b' };
      return {
        from: 3,
        fields,
        dim,
        rank: 3,
        params: bare ? [] : ['s', 'b'].map((name) => ({ name, dims })),
        op: (x, y) =>
          op(
            'layer_norm',
            { X: x, ...factors },
            { Y: y },
            {
              begin_norm_axis: begin,
              epsilon: { float: 0.01 },
            },
          ),
      };
    }),
};

for (const [type, cases] of Object.entries(CASES)) {
  test(`${type}: onnxruntime gives what the interpreter gives`, async () => {
    const harness = new PaddleHarness();
    await fc.assert(
      fc.asyncProperty(cases, async (options) => {
        const model = harness.writeModel(modelFor(options), 'combined');
        const report = await harness.pruneTo(model, { to: 'onnx', samples: 5 });
        assert.ok(report.verify!.maxAbsDifference <= 1e-4);
      }),
      { numRuns: 5 },
    );
  });
}

test('an unsupported operator is refused by name', async () => {
  const harness = new PaddleHarness();
  const files = modelFor({
    from: 3,
    fields: 2,
    dim: 3,
    rank: 3,
    op: (x, y) => op('conv2d', { Input: x }, { Output: y }),
  });
  const model = harness.writeModel(files);
  assert.match(
    await harness.expectModelRefusal(model, 4, { to: 'onnx' }),
    /cannot convert the conv2d operator that computes "y" to ONNX: this operator is not supported/,
  );
  assert.match(
    await harness.expectModelRefusal(model, 4),
    /not verified: the operator conv2d is not supported/,
  );
});
