/** Programs converted to ONNX: sequences of one length, and the CTR network of both styles. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { OnnxModel } from '../../../../lib/platform/onnx.ts';
import { buildCtrDnn } from '../support/ctr-programs.ts';
import { buildModel, INT64, type ModelFiles, op } from '../support/paddle-builder.ts';
import { PaddleHarness } from '../support/paddle-harness.ts';

test('sequence_pool is converted for one and several ids, with a length per input', async () => {
  const harness = new PaddleHarness();
  for (const pooltype of ['SUM', 'AVERAGE', 'SQRT', 'MAX', 'LAST', 'FIRST']) {
    const files = pools(pooltype);
    for (const [a, b] of [
      [1, 1],
      [4, 2],
    ] as const) {
      const report = await harness.pruneTo(harness.writeModel(files), {
        to: 'onnx',
        sequenceLengths: [String(b), `a=${a}`],
      });
      assert.ok(report.verify!.maxAbsDifference <= 1e-5);
      const loaded = await OnnxModel.load(join(harness.output, 'model.onnx'));
      const shapes = loaded.inputs.map(({ name, shape }) => [name, ...shape]);
      const rows = (name: string, length: number): unknown[] =>
        length === 1 ? [name, 'batch', 3] : [name, 'batch', length, 3];
      assert.deepEqual(shapes, [rows('e', a), rows('f', b), ['dense', 'batch', 3]]);
      await loaded.release();
    }
  }
});

test('--sequence-length for an input without sequences is refused', async () => {
  const harness = new PaddleHarness();
  const model = harness.writeModel(pools('SUM'));
  for (const name of ['dense', 'nobody']) {
    assert.match(
      await harness.expectModelRefusal(model, 1, { to: 'onnx', sequenceLengths: [`${name}=3`] }),
      new RegExp(`--sequence-length ${name}=3: no input of that name takes sequences; .*"a", "b"`),
    );
  }
});

/** A lookup with a pool behind it, one that pools itself, and dense values. */
function pools(pooltype: string): ModelFiles {
  return buildModel({
    vars: [
      { name: 't', dims: [9, 3], persistable: true },
      ...['a', 'b'].map((name) => ({ name, dims: [-1, 1], type: INT64, lodLevel: 1 })),
      { name: 'dense', dims: [-1, 3] },
      { name: 'e', dims: [-1, 3], lodLevel: 1 },
      ...['f', 'p', 'y'].map((name) => ({ name, dims: [-1, 3] })),
    ],
    feeds: ['a', 'b', 'dense'],
    fetches: ['y'],
    ops: [
      op('lookup_table', { W: 't', Ids: 'a' }, { Out: 'e' }),
      op('fused_embedding_seq_pool', { W: 't', Ids: 'b' }, { Out: 'f' }, { combiner: 'sum' }),
      op('sequence_pool', { X: 'e' }, { Out: 'p' }, { pooltype }),
      op('sum', { X: ['p', 'f', 'dense'] }, { Out: 'y' }),
    ],
  });
}

test('both styles of the CTR network are converted with the same input names', async () => {
  const harness = new PaddleHarness();
  for (const style of [1, 2] as const) {
    const files = buildCtrDnn({ slots: 26, rows: 101, dim: 10, hidden: [40, 40], style });
    const report = await harness.pruneTo(harness.writeModel(files, 'combined'), { to: 'onnx' });
    assert.ok(report.verify!.maxAbsDifference <= 1e-5);
    const loaded = await OnnxModel.load(join(harness.output, 'model.onnx'));
    const rows = Array.from({ length: 26 }, (_, i) => `embedding_${i}.tmp_0`);
    assert.deepEqual(
      loaded.inputs.map(({ name }) => name),
      ['dense_input', ...rows],
    );
    await loaded.release();
  }
});
