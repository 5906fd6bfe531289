/** `cube-agent rollout` on a small fleet: real commands and a real agent before stand-in servers. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { CANDIDATE_CHANNEL } from '../../../lib/core/rollout.ts';
import { allAt, by, publish } from '../host.ts';
import { makeFleet, statesOf } from './fleet.ts';

const WHOLE_WAY = ['seen', 'staging', 'staged', 'activating', 'active'];

test('versions go the whole way, one after another, and the older one retires', async (t) => {
  const fleet = await makeFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  const first = await fleet.rollOut('1', '--dry-run');
  assert.equal(first.code, 0, first.stderr);
  assert.match(first.stdout, /not begun: seen/);
  assert.deepEqual(await statesOf(fleet, '1'), []);

  const { code, stdout, stderr } = await fleet.rollOut('1');
  assert.equal(code, 0, stderr);
  assert.match(stdout, /version 1 is active/);
  assert.deepEqual(await statesOf(fleet, '1'), WHOLE_WAY);
  assert.ok(allAt('1', fleet.servers)());

  const canary = await fleet.rollOut('2', '--canary', 'canary', '--json');
  assert.equal(canary.code, 0, canary.stderr);
  const lines = canary.stdout.trim().split('\n');
  const last = JSON.parse(lines.at(-1) ?? '') as Record<string, unknown>;
  assert.deepEqual([last['version'], last['state'], last['step']], ['2', 'active', 'done']);
  assert.ok(allAt('2', fleet.servers)());
  for (const channel of ['canary', 'stable', CANDIDATE_CHANNEL]) {
    assert.equal((await fleet.repository.channel('ctr', channel)).pointer?.version, '2');
  }
  // Whoever looks at the older one again finds that the channels have moved on.
  assert.equal((await fleet.rollOut('1', '--dry-run')).code, 0);
  const again = await fleet.rollOut('1', '--resume');
  assert.equal(again.code, 0, again.stderr);
  assert.equal((await statesOf(fleet, '1')).at(-1), 'retired');
});

test('pinned, quarantined and foreign: a rollout gives way to people', async (t) => {
  const fleet = await makeFleet(t);
  for (const version of ['1', '2', '3']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  await fleet.repository.pin('ctr', 'stable', { by: 'ann', reason: 'sale' });
  const pinned = await fleet.rollOut('2');
  assert.equal(pinned.code, 1);
  assert.match(pinned.stderr, /pinned to 1 by ann \("sale"\)/);
  assert.deepEqual(await statesOf(fleet, '2'), []);
  await fleet.repository.unpin('ctr', 'stable', by);

  await fleet.repository.quarantine('ctr', '3', by);
  const bad = await fleet.rollOut('3');
  assert.equal(bad.code, 1);
  assert.match(bad.stderr, /quarantined/);

  // Another rollout has the candidate channel.
  const log = fleet.repository.rollout('ctr', '3');
  await log.append(0, { state: 'seen', holder: 'bob', reason: 'his' });
  await assert.rejects(
    fleet.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '3', ...by }),
    /quarantined/,
  );
  await publish(fleet, { version: '4', table: '4' });
  await fleet.repository.activate('ctr', CANDIDATE_CHANNEL, { version: '4', ...by });
  await fleet.repository
    .rollout('ctr', '4')
    .append(0, { state: 'seen', holder: 'bob', reason: 'his' });
  const busy = await fleet.rollOut('2');
  assert.equal(busy.code, 1);
  assert.match(busy.stderr, /rollout of 4 is seen, by bob/);
  assert.equal((await fleet.rollOut('4', '--abort', '--reason', 'not now')).code, 1);
  assert.deepEqual(await statesOf(fleet, '4'), ['seen', 'failed']);
  const { code, stderr } = await fleet.rollOut('2');
  assert.equal(code, 0, stderr);
  assert.ok(allAt('2', fleet.servers)());
  const resumed = await fleet.rollOut('4', '--resume');
  assert.equal(resumed.code, 0, resumed.stderr);
});

test('a replica that is down stops a rollout that needs all, and not one that needs fewer', async (t) => {
  const fleet = await makeFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  fleet.servers[3]!.isAway = true;
  const stuck = await fleet.rollOut('2', '--staging-ms', '5000');
  assert.equal(stuck.code, 1, stuck.stderr);
  assert.match(stuck.stdout, /not staged within 5000 ms: 3 of 4 replicas hold it; shard 1: 1 of 2/);
  assert.deepEqual(await statesOf(fleet, '2'), ['seen', 'staging', 'failed']);
  assert.equal((await fleet.repository.channel('ctr', 'stable')).pointer?.version, '1');
  assert.equal((await fleet.repository.quarantined('ctr')).size, 0);
  assert.equal(
    (await fleet.repository.channel('ctr', CANDIDATE_CHANNEL)).pointer?.version,
    '1',
    'what failed is staged no more',
  );
  const refused = await fleet.rollOut('2', '--replicas', '1');
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /--resume tries it again/);
  const { code, stderr } = await fleet.rollOut('2', '--replicas', '1', '--resume');
  assert.equal(code, 0, stderr);
  assert.equal((await fleet.repository.channel('ctr', 'stable')).pointer?.version, '2');
});

test('a log that somebody has changed stops the rollout, and says where', async (t) => {
  const fleet = await makeFleet(t);
  await publish(fleet, { version: '1' });
  await fleet.rollOutWithFault('rollout.staging:kill', '1');
  const entry = join(fleet.location, 'ctr/rollouts/1/0000000002.json');
  const fields = { state: 'activating', at: '', holder: 'eve', reason: '', sha256: '00' };
  writeFileSync(entry, JSON.stringify(fields));
  const { code, stderr } = await fleet.rollOut('1', '--resume');
  assert.equal(code, 1);
  assert.match(stderr, /0000000002\.json: its fields are not those of its SHA-256/);
  assert.equal((await fleet.repository.channel('ctr', 'stable')).pointer, undefined);
});

test('a gate that cannot run ends the rollout, and condemns nothing', async (t) => {
  const fleet = await makeFleet(t);
  for (const version of ['1', '2']) await publish(fleet, { version, table: version });
  await fleet.rollOut('1');
  const config = join(fleet.folder, 'controller.yaml');
  writeFileSync(
    config,
    `repository: ${fleet.location}\nfleet: ${fleet.fleetFile}\nbundles: [{name: ctr, watch-ms: 0}]\n`,
  );
  // These versions have no golden rows: a gate that cannot run is no verdict, and never will run.
  const unable = await fleet.rollOut('2', '--config', config);
  assert.equal(unable.code, 1, unable.stderr);
  assert.match(
    unable.stdout,
    /the gate could not run: version 2 of ctr has no golden\.jsonl: give --golden/,
  );
  assert.deepEqual((await statesOf(fleet, '2')).at(-1), 'failed');
  assert.equal((await fleet.repository.quarantined('ctr')).size, 0);
});
