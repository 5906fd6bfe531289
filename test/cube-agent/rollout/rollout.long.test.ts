/** `cube-agent rollout` on a small fleet: real commands and a real agent with stand-in servers. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { CANDIDATE_CHANNEL } from '../../../lib/core/rollout.ts';
import { AUDIT, areAllActive, publish } from '../support/host.ts';
import { createFleet, listStates, type RolloutHost } from '../support/rollout-fleet.ts';

const WHOLE_WAY = ['seen', 'staging', 'staged', 'activating', 'active'];

test('versions roll out one after another, and the older one is retired', async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  const first = await fleet.rollOut('1', '--dry-run');
  assert.equal(first.code, 0, first.stderr);
  assert.match(first.stdout, /not started: seen/);
  assert.deepEqual(await listStates(fleet, '1'), []);

  const { code, stdout, stderr } = await fleet.rollOut('1');
  assert.equal(code, 0, stderr);
  assert.match(stdout, /version 1 is active/);
  assert.deepEqual(await listStates(fleet, '1'), WHOLE_WAY);
  assert.ok(areAllActive('1', fleet.servers)());

  const canary = await fleet.rollOut('2', '--canary', 'canary', '--json');
  assert.equal(canary.code, 0, canary.stderr);
  const lines = canary.stdout.trim().split('\n');
  const last = JSON.parse(lines.at(-1) ?? '') as Record<string, unknown>;
  assert.deepEqual([last['version'], last['state'], last['step']], ['2', 'active', 'done']);
  assert.ok(areAllActive('2', fleet.servers)());
  for (const channel of ['canary', 'stable', CANDIDATE_CHANNEL]) {
    assert.equal((await fleet.repository.readChannel('ctr', channel)).pointer?.version, '2');
  }
  // The rollout of the older version finds that the channels point to a newer one.
  assert.equal((await fleet.rollOut('1', '--dry-run')).code, 0);
  const again = await fleet.rollOut('1', '--resume');
  assert.equal(again.code, 1, 'exit code 0 means that version 1 is active');
  assert.match(again.stderr, /ctr 1 was overtaken: channel stable points to 2/);
  assert.equal((await listStates(fleet, '1')).at(-1), 'retired');
});

test('a version that the channels left after its rollout is rolled out again', async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2']) {
    await publish(fleet, { version, table: version });
    assert.equal((await fleet.rollOut(version)).code, 0);
  }
  const { code, stderr } = await fleet.rollOut('1', '--wait');
  assert.equal(code, 0, stderr);
  assert.deepEqual((await listStates(fleet, '1')).slice(WHOLE_WAY.length), [
    'retired',
    ...WHOLE_WAY.slice(1),
  ]);
  assert.equal((await fleet.repository.readChannel('ctr', 'stable')).pointer?.version, '1');
});

test('a rollout yields to pins, quarantines and entries of operators', async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2', '3']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  await fleet.repository.pin('ctr', 'stable', { by: 'ann', reason: 'sale' });
  const pinned = await fleet.rollOut('2');
  assert.equal(pinned.code, 1);
  assert.match(pinned.stderr, /pinned to 1 by ann \("sale"\)/);
  assert.deepEqual(await listStates(fleet, '2'), []);
  await fleet.repository.unpin('ctr', 'stable', AUDIT);

  await fleet.repository.quarantine('ctr', '3', AUDIT);
  const bad = await fleet.rollOut('3');
  assert.equal(bad.code, 1);
  assert.match(bad.stderr, /quarantined/);

  // Another rollout uses the candidate channel.
  const log = fleet.repository.rolloutLog('ctr', '3');
  await log.append(0, { state: 'seen', holder: 'bob', reason: 'his' });
  await assert.rejects(
    fleet.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '3', ...AUDIT }),
    /quarantined/,
  );
  await publish(fleet, { version: '4', table: '4' });
  await fleet.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '4', ...AUDIT });
  await fleet.repository
    .rolloutLog('ctr', '4')
    .append(0, { state: 'seen', holder: 'bob', reason: 'his' });
  const busy = await fleet.rollOut('2');
  assert.equal(busy.code, 1);
  assert.match(busy.stderr, /rollout of 4 is seen, by bob/);
  assert.equal((await fleet.rollOut('4', '--abort', '--reason', 'not now')).code, 1);
  assert.deepEqual(await listStates(fleet, '4'), ['seen', 'failed']);
  const { code, stderr } = await fleet.rollOut('2');
  assert.equal(code, 0, stderr);
  assert.ok(areAllActive('2', fleet.servers)());
  const resumed = await fleet.rollOut('4', '--resume');
  assert.equal(resumed.code, 0, resumed.stderr);
});

test('a replica that is down stops only rollouts that need all replicas', async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  fleet.servers[3]!.isUnreachable = true;
  const stuck = await fleet.rollOut('2', '--staging-ms', '5000');
  assert.equal(stuck.code, 1, stuck.stderr);
  assert.match(
    stuck.stdout,
    /not staged within 5000 ms: 3 of 4 replicas have loaded the version; shard 1: 1 of 2/,
  );
  assert.deepEqual(await listStates(fleet, '2'), ['seen', 'staging', 'failed']);
  assert.equal((await fleet.repository.readChannel('ctr', 'stable')).pointer?.version, '1');
  assert.equal((await fleet.repository.listQuarantined('ctr')).size, 0);
  assert.equal(
    (await fleet.repository.readChannel('ctr', CANDIDATE_CHANNEL)).pointer?.version,
    '1',
    'what failed is staged no more',
  );
  const refused = await fleet.rollOut('2', '--replicas', '1');
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /retry it with --resume/);
  const { code, stderr } = await fleet.rollOut('2', '--replicas', '1', '--resume');
  assert.equal(code, 0, stderr);
  assert.equal((await fleet.repository.readChannel('ctr', 'stable')).pointer?.version, '2');
});

test('a modified log stops the rollout with the position of the change', async (t) => {
  const fleet = await createFleet(t);
  await publish(fleet, { version: '1' });
  await fleet.rollOutWithFault('rollout.staging:kill', '1');
  const entry = join(fleet.location, 'ctr/rollouts/1/0000000002.json');
  const fields = { state: 'activating', at: '', holder: 'eve', reason: '', sha256: '00' };
  writeFileSync(entry, JSON.stringify(fields));
  const { code, stderr } = await fleet.rollOut('1', '--resume');
  assert.equal(code, 1);
  assert.match(stderr, /0000000002\.json is damaged: its fields do not match its SHA-256/);
  assert.equal((await fleet.repository.readChannel('ctr', 'stable')).pointer, undefined);
});

test('a gate that cannot run ends the rollout without a quarantine', async (t) => {
  const fleet = await createFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  const config = writeConfig(fleet, 'gate-flags: [--golden, missing.jsonl]');
  const unable = await fleet.rollOut('2', '--config', config);
  assert.equal(unable.code, 1, unable.stderr);
  assert.match(unable.stdout, /the gate could not run: cannot read missing\.jsonl/);
  assert.deepEqual((await listStates(fleet, '2')).at(-1), 'failed');
  assert.equal((await fleet.repository.listQuarantined('ctr')).size, 0);
});

test('a version without golden rows is refused before it is staged', async (t) => {
  const fleet = await createFleet(t);
  await publish(fleet, { version: '1' });
  const config = writeConfig(fleet, 'gate: true');
  for (const more of [[], ['--dry-run']]) {
    const { code, stderr } = await fleet.rollOut('1', '--config', config, ...more);
    assert.equal(code, 1, stderr);
    assert.match(stderr, /version 1 of ctr has no golden\.jsonl, so the gate cannot compare it/);
    assert.match(stderr, /gate: false/);
  }
  assert.deepEqual(await listStates(fleet, '1'), []);
  const { code, stderr } = await fleet.rollOut('1', '--config', writeConfig(fleet, 'gate: false'));
  assert.equal(code, 0, stderr);
});

/** @returns the path of a controller.yaml whose bundle has these additional fields */
function writeConfig({ folder, location, fleetFile }: RolloutHost, fields: string): string {
  const config = join(folder, 'controller.yaml');
  const bundle = `{name: ctr, watch-ms: 0, ${fields}}`;
  writeFileSync(config, `repository: ${location}\nfleet: ${fleetFile}\nbundles: [${bundle}]\n`);
  return config;
}
