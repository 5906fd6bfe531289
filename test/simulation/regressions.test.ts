/** Bugs that the simulation has found, each with the fewest steps that reproduce it. */
import assert from 'node:assert/strict';
import { register } from 'node:module';
import { test } from 'node:test';
import { manifestPath } from '../../lib/repository/layout.ts';
import { BUNDLE } from './host-disk.ts';
import { Random } from './random.ts';
import { runOperator, startPublisher } from './scenario.ts';
import type { Health } from './sim-controller.ts';
import { SimulationRun } from './simulation-run.ts';

const HOSTS = 4;
const WAIT_MS = 60_000;
/** Hooks of modules that make importing garbage collection take half a second. */
const SLOW_HOOKS = `
  export async function resolve(name, context, next) {
    if (name.includes('garbage-collection')) await new Promise((done) => setTimeout(done, 500));
    return next(name, context);
  }`;

function publish(run: SimulationRun, health: Health): string {
  return startPublisher(run, `publisher of ${health}`, 'whole', health, new Random(1, health));
}

/** Activates the version as soon as it is published. */
async function pointByHand(run: SimulationRun, channel: string, version: string): Promise<void> {
  const { world, store, invariants } = run;
  const path = manifestPath(BUNDLE, version);
  await world.run(world.nowMs + WAIT_MS, () => store.objects.has(path));
  runOperator(run, `somebody at ${channel}`, (repository, by) =>
    repository.activate(BUNDLE, channel, { version, by, reason: 'by hand' }),
  );
  const isThere = (): boolean => invariants.pointers.get(channel)?.version === version;
  await world.run(world.nowMs + WAIT_MS, isThere);
  assert.ok(isThere());
}

async function runForAWhile(run: SimulationRun): Promise<void> {
  await run.world.run(run.world.nowMs + WAIT_MS);
}

async function converge(run: SimulationRun, version: string): Promise<void> {
  await run.world.run(run.world.nowMs + WAIT_MS, () => run.hasConverged(version));
  assert.equal(run.world.violation?.message, undefined);
  assert.ok(run.hasConverged(version), run.describeState());
}

// First, so that nothing in this process has collected garbage before.
test('the first garbage collection of a process takes no time to load', async () => {
  // Hooks, which tests of pipelines leave in a process, make each `import()` take real time, even
  // of a module that is loaded.
  register(`data:text/javascript,${SLOW_HOOKS}`);
  const run = new SimulationRun(1, HOSTS);
  run.close();
  let isDone = false;
  run.runOnce('collector', async (process, repository) => {
    const policy = { keepVersions: 1, keepMs: 0 };
    await repository.collectGarbage(BUNDLE, policy, { by: process.name, dryRun: false });
    isDone = true;
  });
  await run.world.run(WAIT_MS, () => isDone);
  assert.ok(isDone);
});

test('a version that cannot be fetched blocks no other version', async () => {
  const run = new SimulationRun(1, HOSTS);
  await converge(run, publish(run, 'good'));
  const damaged = publish(run, 'damaged');
  await pointByHand(run, 'stable', damaged);
  await runForAWhile(run);
  await converge(run, publish(run, 'good'));
});

test('a bad first version does not block a better one', async () => {
  const run = new SimulationRun(1, HOSTS);
  const sick = publish(run, 'unhealthy');
  await runForAWhile(run);
  assert.equal(run.invariants.rollouts.get(sick)?.state, 'failed');
  await converge(run, publish(run, 'good'));
  await runForAWhile(run);
  assert.equal(run.invariants.rollouts.get(sick)?.state, 'quarantined');
});

test('a bad version on the canary alone does not block a better one', async () => {
  const run = new SimulationRun(1, HOSTS);
  const damaged = publish(run, 'damaged');
  const isBegun = (): boolean => run.invariants.rollouts.get(damaged)?.state === 'staging';
  await run.world.run(WAIT_MS, isBegun);
  await pointByHand(run, 'stable', damaged);
  await runForAWhile(run);
  assert.equal(run.invariants.rollouts.get(damaged)?.state, 'failed');
  await pointByHand(run, 'canary', publish(run, 'good'));
  await pointByHand(run, 'canary', damaged);
  await runForAWhile(run);
  await converge(run, publish(run, 'good'));
});

test('a channel that points to a deleted version blocks no rollout', async () => {
  const run = new SimulationRun(1, HOSTS);
  const gone = publish(run, 'good');
  await converge(run, gone);
  await converge(run, publish(run, 'good'));
  await pointByHand(run, 'stable', gone);
  await runForAWhile(run);
  run.store.objects.delete(manifestPath(BUNDLE, gone));
  const refused = publish(run, 'fails the gate');
  await runForAWhile(run);
  assert.equal(run.invariants.rollouts.get(refused)?.state, 'quarantined');
  await converge(run, publish(run, 'good'));
});

test('a channel that points to a quarantined version blocks no rollout', async () => {
  const run = new SimulationRun(1, HOSTS);
  const quarantined = publish(run, 'good');
  await converge(run, quarantined);
  await converge(run, publish(run, 'good'));
  await pointByHand(run, 'stable', quarantined);
  await pointByHand(run, 'canary', quarantined);
  runOperator(run, 'somebody at canary', (repository, by) =>
    repository.rollback(BUNDLE, 'canary', by, 'looks bad'),
  );
  await runForAWhile(run);
  assert.ok(run.invariants.quarantined.has(quarantined));
  assert.equal(run.invariants.pointers.get('stable')?.version, quarantined);
  const refused = publish(run, 'fails the gate');
  await runForAWhile(run);
  assert.equal(run.invariants.rollouts.get(refused)?.state, 'quarantined');
  await converge(run, publish(run, 'good'));
});

test('a clock that was hours ahead does not delay a rollout', async () => {
  const run = new SimulationRun(1, HOSTS);
  const step = (stepMs: number): void => {
    for (const process of run.restartingProcesses.values()) process.clockOffsetMs = stepMs;
  };
  step(4 * 3_600_000);
  await converge(run, publish(run, 'good'));
  step(0);
  await converge(run, publish(run, 'good'));
});
