/** A short run of `npm run soak -- damage`. */
import assert from 'node:assert/strict';
import { type TestContext, test } from 'node:test';
import { DamageTrials } from './support/damage-trials.ts';
import { temporaryFolder } from './support/layers.ts';

function createTrials(context: TestContext): DamageTrials {
  const trials = new DamageTrials(temporaryFolder(context), Date.now() % 1e9, 'small');
  context.after(() => trials.close());
  return trials;
}

test('random damage of any layout and dtype gives no wrong row', async (context) => {
  const trials = createTrials(context);
  for (let i = 0; i < 250; i++) await trials.run();
  assert.deepEqual(trials.problems, []);
  const refused = [...trials.counts.values()].reduce((sum, counts) => sum + counts.refused, 0);
  assert.ok(refused > 150, `only ${refused} were refused`);
});

test('damage with correct checksums is counted as wrong', async (context) => {
  const trials = createTrials(context);
  for (const storage of ['memory', 'disk'] as const) await trials.runCanary(storage);
  const wrong = [...trials.counts.values()].map((counts) => counts.wrong);
  assert.deepEqual(wrong, [1, 1]);
  assert.equal(trials.problems.length, 2);
});
