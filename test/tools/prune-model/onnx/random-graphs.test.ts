/**
 * Random CTR graphs: full and pruned model, run side by side by this test, give the same scores.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { decodeNpy } from '../../../../lib/core/npy.ts';
import { OnnxModel, type OnnxTensor } from '../../../../lib/platform/onnx.ts';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import type { Report } from '../../../../tools/prune-model/report.ts';
import {
  FLOAT,
  floats,
  INT32,
  INT64,
  ints,
  model,
  node,
  ramp,
  value,
} from '../support/onnx-builder.ts';
import { PruneHarness } from '../support/prune-harness.ts';

interface TableShape {
  readonly rows: number;
  readonly dim: number;
}

interface SlotChoice {
  /** Which table, modulo the number of tables. */
  readonly table: number;
  /** Own input [n], own input [n, 1], or a column of the shared matrix. */
  readonly form: 'flat' | 'tall' | 'column';
  readonly narrow: boolean;
}

const shapes = fc.array(
  fc.record({ rows: fc.integer({ min: 1, max: 9 }), dim: fc.integer({ min: 1, max: 6 }) }),
  {
    minLength: 1,
    maxLength: 4,
  },
);
const slotChoices = fc.array(
  fc.record({
    table: fc.nat(3),
    form: fc.constantFrom('flat' as const, 'tall' as const, 'column' as const),
    narrow: fc.boolean(),
  }),
  { minLength: 1, maxLength: 8 },
);

interface Built {
  readonly bytes: Uint8Array;
  readonly ids: ReadonlyMap<
    string,
    { readonly dims: readonly number[]; readonly rows: readonly number[]; narrow: boolean }
  >;
}

/** Every slot to [n, dim], concatenated with dense [n, 2], through one Gemm. */
function build(tables: readonly TableShape[], slots: readonly SlotChoice[], batch: number): Built {
  const matrix = slots.filter(({ form }) => form === 'column').length;
  const ids = new Map<string, { dims: number[]; rows: number[]; narrow: boolean }>();
  const inputs: Uint8Array[] = [];
  const nodes: Uint8Array[] = [];
  const initializers = tables.map(({ rows, dim }, t) =>
    floats(`t${t}`, [rows, dim], ramp(rows * dim, t + 1)),
  );
  const matrixRows: number[] = [];
  let width = 2;
  slots.forEach(({ table, form, narrow }, s) => {
    const t = table % tables.length;
    const { rows, dim } = tables[t]!;
    width += dim;
    initializers.push(ints(`flat${s}`, [2], [-1, dim]));
    if (form === 'column') {
      initializers.push(ints(`at${s}`, [], [matrixRows.length]));
      matrixRows.push(rows);
      nodes.push(node('Gather', ['matrix', `at${s}`], [`ids${s}`], { attributes: { axis: 1 } }));
    } else {
      const tail = form === 'tall' ? [1] : [];
      inputs.push(value(`ids${s}`, narrow ? INT32 : INT64, ['n', ...tail]));
      ids.set(`ids${s}`, { dims: [batch, ...tail], rows: [rows], narrow });
    }
    nodes.push(node('Gather', [`t${t}`, `ids${s}`], [`e${s}`]));
    nodes.push(node('Reshape', [`e${s}`, `flat${s}`], [`f${s}`]));
  });
  if (matrix > 0) {
    inputs.push(value('matrix', INT64, ['n', matrix]));
    ids.set('matrix', { dims: [batch, matrix], rows: matrixRows, narrow: false });
  }
  const parts = [...slots.map((_, s) => `f${s}`), 'dense'];
  nodes.push(node('Concat', parts, ['x'], { attributes: { axis: 1 } }));
  nodes.push(
    node('Gemm', ['x', 'w', 'b'], ['z']),
    node('Softmax', ['z'], ['y'], { attributes: { axis: 1 } }),
  );
  initializers.push(floats('w', [width, 2], ramp(width * 2)), floats('b', [2], [0.1, -0.2]));
  const bytes = model({
    inputs: [...inputs, value('dense', FLOAT, ['n', 2])],
    outputs: [value('y', FLOAT, ['n', 2])],
    initializers,
    nodes,
  });
  return { bytes, ids };
}

/** Ids spread over each table, the last row first. */
function drawIds(ids: Built['ids'], seed: number): Map<string, OnnxTensor> {
  const tensors = new Map<string, OnnxTensor>();
  let state = seed;
  for (const [name, { dims, rows, narrow }] of ids) {
    const count = dims.reduce((product, dim) => product * dim, 1);
    const values = Array.from({ length: count }, (_, i) => {
      state = (state * 48_271 + 11) % 2_147_483_647;
      const limit = rows[i % rows.length]!;
      return i < rows.length ? limit - 1 : state % limit;
    });
    const data = narrow ? Int32Array.from(values) : BigInt64Array.from(values, BigInt);
    tensors.set(name, { dtype: narrow ? 'int32' : 'int64', data, dims });
  }
  return tensors;
}

/**
 * What a server does: for each lookup of the report, the table file's rows of the ids in its
 * columns.
 */
function embeddings(
  report: Report,
  output: string,
  ids: ReadonlyMap<string, OnnxTensor>,
): [string, OnnxTensor][] {
  return report.lookups.map((lookup) => {
    const table = decodeNpy(
      readFileSync(join(output, 'tables', `${lookup.table}.npy`)),
      lookup.table,
    );
    const dim = table.shape[1]!;
    const { data, dims } = ids.get(lookup.ids)!;
    const [batch = 0, width = 1] = dims;
    const rows: number[] = [];
    for (let row = 0; row < batch; row++) {
      for (const column of lookup.columns!) {
        const id = Number(data[row * width + column]);
        for (let d = 0; d < dim; d++) rows.push(Number(table.data[id * dim + d]));
      }
    }
    const shape = lookup.shape.map((d) => (typeof d === 'number' ? d : batch));
    return [lookup.input, { dtype: 'float32', data: Float32Array.from(rows), dims: shape }];
  });
}

test('full and pruned model agree on random graphs', async () => {
  const harness = new PruneHarness();
  const batches = fc.integer({ min: 1, max: 5 });
  await fc.assert(
    fc.asyncProperty(
      shapes,
      slotChoices,
      batches,
      fc.nat(1000),
      async (tables, slots, batch, seed) => {
        const { bytes, ids } = build(tables, slots, batch);
        const report = await pruneModel({
          model: harness.write('model.onnx', bytes),
          output: harness.output,
          features: undefined,
          samples: 8,
          force: true,
          dryRun: false,
          inProcess: true,
        });
        assert.equal(report?.lookups.length, slots.length);
        const drawn = drawIds(ids, seed + 1);
        const dense: OnnxTensor = {
          dtype: 'float32',
          data: Float32Array.from(ramp(batch * 2)),
          dims: [batch, 2],
        };
        const full = await OnnxModel.load(bytes);
        const pruned = await OnnxModel.load(readFileSync(join(harness.output, 'model.onnx')));
        const expected = await full.run({ ...Object.fromEntries(drawn), dense });
        const rows = embeddings(report, harness.output, drawn);
        const actual = await pruned.run({ ...Object.fromEntries(rows), dense });
        await Promise.all([full.release(), pruned.release()]);
        assert.deepEqual(actual, expected);
        const sizes = report.tables.map((t) => [t.source, t.rows, t.dim]);
        for (const [source, tableRows, dim] of sizes) {
          const shape = tables[Number(String(source).slice(1))];
          assert.deepEqual([tableRows, dim], [shape?.rows, shape?.dim]);
        }
      },
    ),
    { numRuns: 120 },
  );
});
