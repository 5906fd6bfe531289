/**
 * Models as PyTorch's exporter writes them (examples/prune-patterns/export.py): each is pruned and
 * verified.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { pruneModel } from '../../../../tools/prune-model/prune.ts';
import { PruneHarness } from '../support/prune-harness.ts';

const folder = join(import.meta.dirname, '..', '..', '..', '..', '..', 'data', 'golden', 'models');

/** Lookups and, of each, how its rows are pooled; inputs that stay. */
const EXPECTED: Readonly<Record<string, readonly [pooling: string, kept: string]>> = {
  'bag-mean-11': ['mean', ''],
  'bag-mean-13': ['mean', ''],
  'bag-sum-11': ['sum', ''],
  'bag-sum-13': ['sum', ''],
  'fields-16': ['none none', ''],
  'fields-9': ['none none', ''],
  'float-matrix': ['none none', 'x'],
  functions: ['none none', 'x'],
  history: ['none', 'ids'],
  interaction: ['sum sum', 'dense'],
  'quotient-remainder': ['none none', ''],
};

test('every exported model is pruned, verified, and then has nothing to prune', async () => {
  const harness = new PruneHarness();
  const names = readdirSync(folder)
    .filter((name) => name.endsWith('.onnx'))
    .sort();
  assert.deepEqual(
    names,
    Object.keys(EXPECTED)
      .map((name) => `${name}.onnx`)
      .sort(),
  );
  const request = { features: undefined, samples: 64, force: true, dryRun: false, inProcess: true };
  for (const name of names) {
    const report = await pruneModel({
      ...request,
      model: join(folder, name),
      output: harness.output,
    });
    const pooling = report?.lookups.map((lookup) => lookup.pooling).join(' ');
    const expected = EXPECTED[name.replace('.onnx', '')];
    assert.deepEqual([pooling, report?.inputs.kept.join()], expected, name);
    assert.ok(report?.verify !== undefined && report.verify.maxAbsDifference < 1e-6, name);
    const again = {
      ...request,
      model: join(harness.output, 'model.onnx'),
      output: harness.path('again'),
    };
    assert.equal(await pruneModel(again), undefined, name);
  }
});
