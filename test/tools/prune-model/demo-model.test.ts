/** The trained model in data/demo, as torch exported it. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { PruneHarness } from './support/prune-harness.ts';

const demo = join(import.meta.dirname, '..', '..', '..', '..', 'data', 'demo');

test('the demo model gets one input for its 26 slots and loses its table', async () => {
  const harness = new PruneHarness();
  const model = readFileSync(join(demo, 'model.onnx'));
  const features = join(demo, 'features.json');
  const pruned = await harness.prune(model, '--features', features, '--verify', '256');
  const { slots, dense, click } = JSON.parse(readFileSync(features, 'utf8'));
  const [embedding, ...others] = pruned.spec.embeddings;
  assert.deepEqual(others, []);
  assert.deepEqual(embedding?.shape, [-1, 26, 10]);
  assert.deepEqual(
    embedding?.slots,
    slots.map(({ name }: { name: string }) => name),
  );
  assert.deepEqual(pruned.inputs.toSorted(), [dense.input, embedding?.input].toSorted());
  assert.ok(pruned.outputs.includes(click.output));
  const [table] = pruned.spec.tables;
  assert.ok(table);
  assert.deepEqual([table?.rows, table?.dim], [100_001, 10]);
  assert.deepEqual(pruned.table(table.name).shape, [100_001, 10]);
  assert.ok(pruned.report.verify!.maxAbsDifference <= 1e-6);
  assert.ok(pruned.report.bytes.after < pruned.report.bytes.before - 100_001 * 40);
});

test('the demo model truncated at every 256 KiB is not a valid model', async () => {
  const harness = new PruneHarness();
  const model = readFileSync(join(demo, 'model.onnx'));
  for (let at = 0; at < model.length; at += 1 << 18) {
    const cut = harness.write('cut.onnx', model.subarray(0, at));

    const result = await harness.run('--model', cut, '--output', harness.output);
    assert.equal(result.status, 5, result.stderr);
  }
});
