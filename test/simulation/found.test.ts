/** What the simulation has found once: each in the fewest steps that show it. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { manifestPath } from '../../lib/repository/layout.ts';
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

/** As soon as the version is published. */
async function pointByHand(run: FleetRun, channel: string, version: string): Promise<void> {
  const { world, store, rules } = run;
  const path = manifestPath(BUNDLE, version);
  await world.run(world.nowMs + SOON_MS, () => store.objects.has(path));
  operate(run, `somebody at ${channel}`, (repository, by) =>
    repository.activate(BUNDLE, channel, { version, by, reason: 'by hand' }),
  );
  const isThere = (): boolean => rules.pointers.get(channel)?.version === version;
  await world.run(world.nowMs + SOON_MS, isThere);
  assert.ok(isThere());
}

async function settle(run: FleetRun): Promise<void> {
  await run.world.run(run.world.nowMs + SOON_MS);
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
  await pointByHand(run, 'stable', damaged);
  await settle(run);
  await converge(run, publish(run, 'good'));
});

test('a first version that turns out badly holds up no better one', async () => {
  const run = new FleetRun(1, HOSTS);
  const sick = publish(run, 'sick');
  await settle(run);
  assert.equal(run.rules.rollouts.get(sick)?.state, 'failed');
  await converge(run, publish(run, 'good'));
  await settle(run);
  assert.equal(run.rules.rollouts.get(sick)?.state, 'quarantined');
});

test('nor does one that only a canary could leave', async () => {
  const run = new FleetRun(1, HOSTS);
  const damaged = publish(run, 'damaged');
  const isBegun = (): boolean => run.rules.rollouts.get(damaged)?.state === 'staging';
  await run.world.run(SOON_MS, isBegun);
  await pointByHand(run, 'stable', damaged);
  await settle(run);
  assert.equal(run.rules.rollouts.get(damaged)?.state, 'failed');
  await pointByHand(run, 'canary', publish(run, 'good'));
  await pointByHand(run, 'canary', damaged);
  await settle(run);
  await converge(run, publish(run, 'good'));
});

test('a channel that points to what is gone holds up no rollout', async () => {
  const run = new FleetRun(1, HOSTS);
  const gone = publish(run, 'good');
  await converge(run, gone);
  await converge(run, publish(run, 'good'));
  await pointByHand(run, 'stable', gone);
  await settle(run);
  run.store.objects.delete(manifestPath(BUNDLE, gone));
  const refused = publish(run, 'fails the gate');
  await settle(run);
  assert.equal(run.rules.rollouts.get(refused)?.state, 'quarantined');
  await converge(run, publish(run, 'good'));
});

test('nor does one that points to what another channel condemned', async () => {
  const run = new FleetRun(1, HOSTS);
  const condemned = publish(run, 'good');
  await converge(run, condemned);
  await converge(run, publish(run, 'good'));
  await pointByHand(run, 'stable', condemned);
  await pointByHand(run, 'canary', condemned);
  operate(run, 'somebody at canary', (repository, by) =>
    repository.rollback(BUNDLE, 'canary', by, 'looks bad'),
  );
  await settle(run);
  assert.ok(run.rules.quarantined.has(condemned));
  assert.equal(run.rules.pointers.get('stable')?.version, condemned);
  const refused = publish(run, 'fails the gate');
  await settle(run);
  assert.equal(run.rules.rollouts.get(refused)?.state, 'quarantined');
  await converge(run, publish(run, 'good'));
});

test('a clock that was hours ahead holds up no rollout for hours', async () => {
  const run = new FleetRun(1, HOSTS);
  const step = (stepMs: number): void => {
    for (const process of run.mortals.values()) process.clockStepMs = stepMs;
  };
  step(4 * 3_600_000);
  await converge(run, publish(run, 'good'));
  step(0);
  await converge(run, publish(run, 'good'));
});
