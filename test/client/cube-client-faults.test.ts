/** What a failing fleet answers: another replica while one lives, else unavailable; never a wrong row, never "unseen". */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { CubeClient } from '../../lib/client/cube-client.ts';
import type { LookupSummary } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import {
  assertAnswered,
  groupOf,
  KEY_MAX,
  manifestOf,
  type OracleTable,
  type OracleVersion,
  tableWith,
} from './oracle.ts';
import { type Behaviour, ShardServer } from './shard-server.ts';
import { TestFleet } from './test-fleet.ts';

const fleets: TestFleet[] = [];
after(() => Promise.all(fleets.map((fleet) => fleet.stop())));

async function fleetOf(version: OracleVersion, replicas = 1): Promise<TestFleet> {
  const fleet = await TestFleet.start([version], replicas);
  fleets.push(fleet);
  return fleet;
}

const KEYS = [...Array.from({ length: 40 }, (_, i) => BigInt(i)), KEY_MAX];
const TABLE = tableWith('t', 3, KEYS.slice(0, 30), { defaultRow: [1, 2, 3] });

function versionOf(shardNum: number, tables: OracleTable[] = [TABLE]): OracleVersion {
  return { bundle: 'ctr', version: '1', shardNum, tables };
}

/** Looks all keys up; `down` says which shards must be unavailable. */
async function lookUp(
  client: CubeClient,
  version: OracleVersion,
  options: { down?: readonly number[]; timeoutMs?: number } = {},
): Promise<LookupSummary> {
  const { down = [], timeoutMs = 5_000 } = options;
  const groups = version.tables.map((table) => ({
    table,
    keys: KEYS,
    group: groupOf(table, KEYS),
  }));
  const asked = groups.map(({ group }) => group);
  const summary = await client.lookup(manifestOf(version), asked, timeoutMs);
  assertAnswered(version, groups, summary, (shard) => down.includes(shard));
  return summary;
}

/** Until a lookup finds every shard available again. */
async function untilWhole(client: CubeClient, version: OracleVersion): Promise<void> {
  for (;;) {
    const groups = version.tables.map((table) => ({
      table,
      keys: KEYS,
      group: groupOf(table, KEYS),
    }));
    const asked = groups.map(({ group }) => group);
    const summary = await client.lookup(manifestOf(version), asked, 5_000);
    if (summary.unavailable === 0) {
      assertAnswered(version, groups, summary);
      return;
    }
    await sleep(20);
  }
}

test('a dead shard is unavailable, not unseen, and the reason names it', async () => {
  const version = versionOf(3);
  const fleet = await fleetOf(version);
  const client = fleet.client();
  await lookUp(client, version);
  const dead = fleet.shard(3, 1)[0]!;
  await dead.kill();
  const { reason } = await lookUp(client, version, { down: [1] });
  assert.match(reason!, new RegExp(`shard 1 of 3: ${dead.endpoint}: UNAVAILABLE`));
});

test('a restarted server is used again, with nothing else touched', async () => {
  const version = versionOf(2);
  const fleet = await fleetOf(version);
  const client = fleet.client();
  for (let i = 0; i < 3; i++) {
    await lookUp(client, version);
    await fleet.shard(2, 0)[0]!.kill();
    for (let j = 0; j < 20; j++) await lookUp(client, version, { down: [0] });
    await fleet.shard(2, 0)[0]!.start();
    await untilWhole(client, version);
  }
});

test('a server killed while requests are in flight: another replica answers all of them', async () => {
  const version = versionOf(1);
  const fleet = await fleetOf(version, 2);
  const client = fleet.client();
  const [first, second] = fleet.servers;
  assert.equal((await client.holds(manifestOf(version), 5_000)).held, true);
  first!.behave = () => 'stay silent';
  const lookups = Array.from({ length: 60 }, () => lookUp(client, version));
  while (first!.lookups.length < 30) await sleep(5);
  await first!.kill();
  await Promise.all(lookups);
  assert.deepEqual([first!.lookups.length, second!.lookups.length], [30, 60]);
});

const OTHER_REPLICA: Behaviour[] = [
  'answer another version',
  'answer a row too few',
  'answer more hits than there are',
  'answer one key more than asked',
  'answer rows of another dtype',
  'answer garbage',
  'drop the connection',
  'VERSION_ABSENT',
  'STOPPING',
  'OVERLOADED',
  'NOT_READY',
  'UNAVAILABLE',
  'INTERNAL',
  'CORRUPT',
];

for (const behaviour of OTHER_REPLICA) {
  test(`${behaviour}: another replica of the shard answers; without one the keys are unavailable`, async () => {
    const version = versionOf(2);
    const fleet = await fleetOf(version, 2);
    const client = fleet.client();
    const [bad, good] = fleet.shard(2, 1);
    bad!.behave = () => behaviour;
    for (let i = 0; i < 4; i++) await lookUp(client, version);
    assert.ok(bad!.lookups.length > 0, 'it was asked');
    good!.behave = () => behaviour;
    await lookUp(client, version, { down: [1] });
    good!.behave = () => 'answer';
    bad!.behave = () => 'answer';
    await untilWhole(client, version);
  });
}

for (const code of ['WRONG_SHARD', 'INVALID_ARGUMENT', 'NOT_FOUND', 'UNSUPPORTED'] as const) {
  test(`${code} is a mistake of the caller or the fleet: rejected, with the place`, async () => {
    const version = versionOf(2);
    const fleet = await fleetOf(version, 2);
    const client = fleet.client();
    for (const server of fleet.shard(2, 1)) server.behave = () => code;
    await assert.rejects(lookUp(client, version), (error: unknown) => {
      assert.ok(error instanceof CubeError);
      assert.equal(error.code, code);
      assert.match(error.message, /ctr 1, shard 1 at 127\.0\.0\.1:\d+: told to say/);
      return true;
    });
    for (const server of fleet.shard(2, 1)) server.behave = () => 'answer';
    await lookUp(client, version);
  });
}

test('a fleet file with two shards exchanged is refused, never answered as missing', async () => {
  const version = versionOf(2);
  const fleet = await fleetOf(version);
  fleet.maps.set(2, fleet.maps.get(2)!.toReversed());
  fleet.refresh();
  await assert.rejects(lookUp(fleet.client(), version), { code: 'WRONG_SHARD' });
});

test('the deadline ends a lookup; the time left travels with each request', async () => {
  const version = versionOf(2);
  const fleet = await fleetOf(version);
  const client = fleet.client();
  await lookUp(client, version);
  fleet.shard(2, 0)[0]!.behave = () => 'stay silent';
  const { reason } = await lookUp(client, version, { down: [0], timeoutMs: 1_000 });
  assert.match(reason!, /shard 0 of 2: .*DEADLINE_EXCEEDED/);
  const sent = fleet.servers.flatMap(({ timeoutsMs }) => timeoutsMs.slice(-1));
  assert.ok(sent.every((timeoutMs) => timeoutMs > 0 && timeoutMs <= 1_000));
  await lookUp(client, version, { down: [0, 1], timeoutMs: 0 });
});

test('a dying fleet is not hammered: retries stay within their budget', async () => {
  const version = versionOf(1);
  const fleet = await fleetOf(version, 3);
  const client = fleet.client();
  for (const server of fleet.servers) server.behave = () => 'OVERLOADED';
  const count = 1_000;
  for (let i = 0; i < count; i++) await lookUp(client, version, { down: [0] });
  const asked = fleet.servers.reduce((sum, { lookups }) => sum + lookups.length, 0);
  assert.ok(asked >= count && asked <= 1.1 * count + 100, `${asked} requests for ${count} lookups`);
});

test('a dead replica is probed apart from the lookups until it is back', async () => {
  const version = versionOf(1);
  const fleet = await fleetOf(version, 2);
  const client = fleet.client();
  const [first, second] = fleet.servers;
  await lookUp(client, version);
  await lookUp(client, version);
  first!.behave = () => 'INTERNAL';
  for (let i = 0; i < 3; i++) await lookUp(client, version);
  const asked = first!.lookups.length;
  while (first!.probes < 2) {
    await lookUp(client, version);
    await sleep(5);
  }
  assert.equal(first!.lookups.length, asked, 'no lookup of a user is spent on it');
  first!.behave = () => 'answer';
  second!.behave = () => 'answer';
  while (first!.lookups.length === asked) {
    await lookUp(client, version);
    await sleep(5);
  }
});

test('a changed fleet is taken over: new replicas are used, those that left are closed after use', async () => {
  const version = versionOf(1);
  const fleet = await fleetOf(version);
  const client = fleet.client();
  await lookUp(client, version);
  const old = fleet.servers[0]!;
  const fresh = await new ShardServer(0, 1, [version]).start();
  fleet.maps.set(1, [[old, fresh]]);
  fleet.refresh();
  while (fresh.lookups.length === 0) await lookUp(client, version);
  // Of two lookups one is under way at the replica that leaves: it is still answered there.
  let open = (): void => undefined;
  old.gate = new Promise((resolve) => {
    open = resolve;
  });
  const [arrivals, answered] = [old.arrivals, old.lookups.length];
  const underWay = [lookUp(client, version), lookUp(client, version)];
  while (old.arrivals === arrivals) await sleep(5);
  fleet.maps.set(1, [[fresh]]);
  fleet.refresh();
  for (let i = 0; i < 5; i++) await lookUp(client, version);
  assert.equal(old.connections, 1);
  open();
  await Promise.all(underWay);
  assert.equal(old.lookups.length, answered + 1);
  while (old.connections > 0) await sleep(5);
  await old.kill();
});

test('closing the client ends what is in flight as unavailable', async () => {
  const version = versionOf(2);
  const fleet = await fleetOf(version);
  const client = fleet.client();
  for (const server of fleet.servers) server.behave = () => 'stay silent';
  const lookup = lookUp(client, version, { down: [0, 1] });
  while (fleet.servers.some(({ lookups }) => lookups.length === 0)) await sleep(5);
  client.close();
  await lookup;
});
