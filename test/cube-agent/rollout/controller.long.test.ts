/**
 * Real controllers on a small fleet: versions roll out automatically, with kills at every step and
 * with several controllers.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { canTransition, isInProgress, type RolloutState } from '../../../lib/core/rollout.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import { AUDIT, areAllActive, publish } from '../support/host.ts';
import { createFleet, listStates, type RolloutHost } from '../support/rollout-fleet.ts';

/** `retired` is the state of the version before. */
const GOING = [
  'rollout.seen:kill',
  'rollout.pointed:kill',
  'rollout.staging:kill',
  'rollout.staged:kill',
  'rollout.activating:kill',
  'rollout.moved:kill',
  'rollout.active:kill',
  'rollout.retired:kill',
];
const COMING_BACK = [
  'rollout.failed:kill',
  'rollout.back:kill',
  'rollout.rolled-back:kill',
  'rollout.quarantined:kill',
];

function startController(
  t: TestContext,
  { folder, location, fleetFile }: RolloutHost,
  { listen, fault }: { listen?: string; fault?: string } = {},
): RunningProcess {
  const config = join(folder, `controller-${fault ?? listen ?? 'plain'}.yaml`);
  const lines = [
    `repository: ${location}`,
    `fleet: ${fleetFile}`,
    'poll-ms: 50',
    ...(listen === undefined ? [] : [`listen: ${listen}`]),
    'bundles:',
    '  - name: ctr',
    '    channels: [{name: canary}, {name: stable}]',
    '    gate: false',
    '    watch-ms: 0',
  ];
  writeFileSync(config, `${lines.join('\n')}\n`);
  return new RunningProcess(t, 'cube-agent/main.js', ['controller', '--config', config], fault);
}

test('new versions roll out automatically, also with two controllers', async (t) => {
  const fleet = await createFleet(t);
  const listen = `127.0.0.1:${await freePort()}`;
  await publish(fleet, { version: '1', table: 'a' });
  const controller = startController(t, fleet, { listen });
  startController(t, fleet);
  await waitFor('all at 1', areAllActive('1', fleet.servers));
  await publish(fleet, { version: '2', table: 'b' });
  await waitFor('all at 2', areAllActive('2', fleet.servers));
  await waitFor('1 is retired', async () => (await listStates(fleet, '1')).at(-1) === 'retired');
  const way = ['seen', 'staging', 'staged', 'activating', 'active'];
  await waitFor('2 is active', async () => (await listStates(fleet, '2')).length === way.length);
  assert.deepEqual(await listStates(fleet, '2'), way);
  for (const channel of ['canary', 'stable']) {
    assert.equal((await fleet.repository.readChannel('ctr', channel)).history.length, 2);
  }
  const status = await fetch(`http://${listen}/controller/v1/status`).then((r) => r.json());
  assert.match(JSON.stringify(status), /"version":"2","state":"active"/);
  const metrics = await fetch(`http://${listen}/metrics`).then((r) => r.text());
  assert.match(metrics, /hypercube_rollouts\{bundle="ctr",state="active"\} 1/);
  assert.match(metrics, /hypercube_rollout_problems\{bundle="ctr"\} 0/);

  // An operator rolls back: the controllers end the rollout and do not start it again.
  await fleet.repository.rollback('ctr', 'stable', 'ann', 'AUC fell', '2');
  await waitFor('all back at 1', areAllActive('1', fleet.servers));
  await waitFor('2 is done', async () => (await listStates(fleet, '2')).at(-1) === 'quarantined');
  assert.equal((await fleet.repository.readChannel('ctr', 'canary')).pointer?.version, '1');
  assert.equal((await fleet.repository.readChannel('ctr', 'stable')).pointer?.version, '1');
  controller.child.kill('SIGTERM');
  assert.equal(await controller.exit, 0);
});

test('a controller killed at any step is continued by the next one', async (t) => {
  const fleet = await createFleet(t);
  await publish(fleet, { version: '100', table: 'first' });
  await fleet.rollOut('100');
  for (const [i, fault] of [...GOING, ...COMING_BACK].entries()) {
    const version = String(101 + i);
    const isBad = COMING_BACK.includes(fault);
    await publish(fleet, { version, table: version });
    const killed = startController(t, fleet, { fault });
    if (isBad) {
      await waitFor(`${version} is active`, async () =>
        (await listStates(fleet, version)).includes('active'),
      );
      const { pointer } = await fleet.repository.readChannel('ctr', 'stable');
      assert.equal(pointer?.version, version);
      await fleet.repository.rollback('ctr', 'stable', AUDIT.by, AUDIT.reason, version);
    }
    assert.equal(await killed.exit, null, fault);
    const next = startController(t, fleet);
    const end = isBad ? 'quarantined' : 'active';
    await waitFor(`${version} is ${end} after ${fault}`, async () => {
      const states = await listStates(fleet, version);
      return states.at(-1) === end || states;
    });
    const { pointer } = await fleet.repository.readChannel('ctr', 'stable');
    await waitFor(
      `servers follow after ${fault}`,
      areAllActive(pointer?.version ?? '', fleet.servers),
    );
    await next.kill();
    checkWay(await listStates(fleet, version));
  }
});

test('a controller killed before a gate that cannot run leaves the fleet unchanged', async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  const config = join(fleet.folder, 'gated.yaml');
  const bundle = '{name: ctr, gating-ms: 0, watch-ms: 0}';
  const lines = [`repository: ${fleet.location}`, `fleet: ${fleet.fleetFile}`, 'poll-ms: 50'];
  writeFileSync(config, [...lines, `bundles: [${bundle}]`].join('\n'));
  const start = (fault?: string): RunningProcess =>
    new RunningProcess(t, 'cube-agent/main.js', ['controller', '--config', config], fault);
  assert.equal(await start('rollout.gating:kill').exit, null);
  start();
  await waitFor('given up', async () => {
    const states = await listStates(fleet, '2');
    return states.at(-1) === 'failed' || states;
  });
  const candidate = async () => (await fleet.repository.readChannel('ctr', 'candidate')).pointer;
  await waitFor('staged no more', async () => (await candidate())?.version === '1');
  assert.ok(areAllActive('1', fleet.servers)());
  assert.equal((await fleet.repository.listQuarantined('ctr')).size, 0);
});

function checkWay(states: readonly RolloutState[]): void {
  states.forEach((state, i) => {
    assert.ok(canTransition(states[i - 1], state), `${states.join(' ')}`);
  });
  assert.ok(!isInProgress(states.at(-1)!));
}

test('a configuration with an unknown field is refused with its position', async (t) => {
  const fleet = await createFleet(t);
  const config = join(fleet.folder, 'bad.yaml');
  writeFileSync(config, 'repository: r\nfleet: f\nbundles: [{name: ctr, watch: 3}]\n');
  const { code, stderr } = await runAgentCommand('controller', '--config', config);
  assert.equal(code, 1);
  assert.match(stderr, /bad\.yaml.*watch/);
});
