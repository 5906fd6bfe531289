/** Real controllers on a small fleet: versions roll out by themselves, whoever is killed, and however many controllers there are. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { isUnderWay, mayFollow, type RolloutState } from '../../../lib/core/rollout.ts';
import { freePort } from '../../platform/free-port.ts';
import { allAt, by, publish } from '../host.ts';
import { agent, Running, until } from '../processes.ts';
import { makeFleet, type RolloutFleet, statesOf } from './fleet.ts';

/** `retired` is the state of the version before. */
const GOING = [
  ...['rollout.seen:kill', 'rollout.pointed:kill', 'rollout.staging:kill', 'rollout.staged:kill'],
  ...['rollout.activating:kill', 'rollout.moved:kill', 'rollout.active:kill'],
  'rollout.retired:kill',
];
const COMING_BACK = [
  ...['rollout.failed:kill', 'rollout.back:kill', 'rollout.rolled-back:kill'],
  'rollout.quarantined:kill',
];

function startController(
  t: TestContext,
  { folder, location, fleetFile }: RolloutFleet,
  { listen, fault }: { listen?: string; fault?: string } = {},
): Running {
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
  return new Running(t, 'cube-agent/main.js', ['controller', '--config', config], fault);
}

test('new versions roll out by themselves, with two controllers as with one', async (t) => {
  const fleet = await makeFleet(t);
  const listen = `127.0.0.1:${await freePort()}`;
  await publish(fleet, { version: '1', table: 'a' });
  const controller = startController(t, fleet, { listen });
  startController(t, fleet);
  await until('all at 1', allAt('1', fleet.servers));
  await publish(fleet, { version: '2', table: 'b' });
  await until('all at 2', allAt('2', fleet.servers));
  await until('1 is retired', async () => (await statesOf(fleet, '1')).at(-1) === 'retired');
  const way = ['seen', 'staging', 'staged', 'activating', 'active'];
  await until('2 is active', async () => (await statesOf(fleet, '2')).length === way.length);
  assert.deepEqual(await statesOf(fleet, '2'), way);
  for (const channel of ['canary', 'stable']) {
    assert.equal((await fleet.repository.channel('ctr', channel)).history.length, 2);
  }
  const status = await fetch(`http://${listen}/controller/v1/status`).then((r) => r.json());
  assert.match(JSON.stringify(status), /"version":"2","state":"active"/);
  const metrics = await fetch(`http://${listen}/metrics`).then((r) => r.text());
  assert.match(metrics, /hypercube_rollouts\{bundle="ctr",state="active"\} 1/);
  assert.match(metrics, /hypercube_rollout_problems\{bundle="ctr"\} 0/);

  // A person goes back: the controllers close the books, and do not return.
  await fleet.repository.rollback('ctr', 'stable', 'ann', 'AUC fell', '2');
  await until('all back at 1', allAt('1', fleet.servers));
  await until('2 is done', async () => (await statesOf(fleet, '2')).at(-1) === 'quarantined');
  assert.equal((await fleet.repository.channel('ctr', 'canary')).pointer?.version, '1');
  assert.equal((await fleet.repository.channel('ctr', 'stable')).pointer?.version, '1');
  controller.child.kill('SIGTERM');
  assert.equal(await controller.exit, 0);
});

test('killed at every step, the next controller goes on', async (t) => {
  const fleet = await makeFleet(t);
  await publish(fleet, { version: '100', table: 'first' });
  await fleet.rollOut('100');
  for (const [i, fault] of [...GOING, ...COMING_BACK].entries()) {
    const version = String(101 + i);
    const isBad = COMING_BACK.includes(fault);
    await publish(fleet, { version, table: version });
    const killed = startController(t, fleet, { fault });
    if (isBad) {
      await until(`${version} is active`, async () =>
        (await statesOf(fleet, version)).includes('active'),
      );
      const { pointer } = await fleet.repository.channel('ctr', 'stable');
      assert.equal(pointer?.version, version);
      await fleet.repository.rollback('ctr', 'stable', by.by, by.reason, version);
    }
    assert.equal(await killed.exit, null, fault);
    const next = startController(t, fleet);
    const end = isBad ? 'quarantined' : 'active';
    await until(`${version} is ${end} after ${fault}`, async () => {
      const states = await statesOf(fleet, version);
      return states.at(-1) === end || states;
    });
    const { pointer } = await fleet.repository.channel('ctr', 'stable');
    await until(`servers follow after ${fault}`, allAt(pointer?.version ?? '', fleet.servers));
    await next.kill();
    checkWay(await statesOf(fleet, version));
  }
});

test('killed as it begins the gate, which then cannot run: the fleet stays as it was', async (t) => {
  const fleet = await makeFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  const config = join(fleet.folder, 'gated.yaml');
  const bundle = '{name: ctr, gating-ms: 0, watch-ms: 0}';
  const lines = [`repository: ${fleet.location}`, `fleet: ${fleet.fleetFile}`, 'poll-ms: 50'];
  writeFileSync(config, [...lines, `bundles: [${bundle}]`].join('\n'));
  const start = (fault?: string): Running =>
    new Running(t, 'cube-agent/main.js', ['controller', '--config', config], fault);
  assert.equal(await start('rollout.gating:kill').exit, null);
  start();
  await until('given up', async () => {
    const states = await statesOf(fleet, '2');
    return states.at(-1) === 'failed' || states;
  });
  const candidate = async () => (await fleet.repository.channel('ctr', 'candidate')).pointer;
  await until('staged no more', async () => (await candidate())?.version === '1');
  assert.ok(allAt('1', fleet.servers)());
  assert.equal((await fleet.repository.quarantined('ctr')).size, 0);
});

function checkWay(states: readonly RolloutState[]): void {
  states.forEach((state, i) => {
    assert.ok(mayFollow(states[i - 1], state), `${states.join(' ')}`);
  });
  assert.ok(!isUnderWay(states.at(-1)!));
}

test('a configuration that says something unknown is refused with its place', async (t) => {
  const fleet = await makeFleet(t);
  const config = join(fleet.folder, 'bad.yaml');
  writeFileSync(config, 'repository: r\nfleet: f\nbundles: [{name: ctr, watch: 3}]\n');
  const { code, stderr } = await agent('controller', '--config', config);
  assert.equal(code, 1);
  assert.match(stderr, /bad\.yaml.*watch/);
});
