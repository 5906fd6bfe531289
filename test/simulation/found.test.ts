/** What the simulation has found once: each in the fewest steps that show it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FleetRun } from './fleet-run.ts';
import { BUNDLE } from './host-disk.ts';
import { Random } from './random.ts';
import { operate, publishNow } from './scenario.ts';
import type { Health } from './sim-controller.ts';

const HOSTS = 4;
const SOON_MS = 60_000;

function publish(run: FleetRun, health: Health): string {
  return publishNow(run, `publisher of ${health}`, 'whole', health, new Random(1, health));
}

async function converge(run: FleetRun, version: string): Promise<void> {
  await run.world.run(run.world.nowMs + SOON_MS, () => run.hasConverged(version));
  assert.equal(run.world.violation?.message, undefined);
  assert.ok(run.hasConverged(version), run.whereabouts());
}

test('a version that cannot be fetched holds up no other, though a channel points to it', async () => {
  const run = new FleetRun(1, HOSTS);
  await converge(run, publish(run, 'good'));
  const damaged = publish(run, 'damaged');
  operate(run, 'somebody', (repository, by) =>
    repository.activate(BUNDLE, 'stable', { version: damaged, by, reason: 'by hand' }),
  );
  await run.world.run(run.world.nowMs + SOON_MS);
  await converge(run, publish(run, 'good'));
});

test('a first version that turns out badly holds up no better one', async () => {
  const run = new FleetRun(1, HOSTS);
  const sick = publish(run, 'sick');
  await run.world.run(run.world.nowMs + SOON_MS);
  assert.equal(run.rules.rollouts.get(sick)?.state, 'failed');
  await converge(run, publish(run, 'good'));
  await run.world.run(run.world.nowMs + SOON_MS);
  assert.equal(run.rules.rollouts.get(sick)?.state, 'quarantined');
});
