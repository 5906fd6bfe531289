/**
 * A failing fleet: another replica answers, or keys are unavailable; never a wrong row, never
 * "unseen".
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LookupSummary } from '../../lib/core/lookup-group.ts';
import {
  assertLookup,
  createGroup,
  createManifest,
  createOracleTable,
  KEY_MAX,
  type OracleTable,
  type OracleVersion,
} from './support/oracle.ts';
import { type FakeBehavior, FakeShardServer } from './support/shard-server.ts';
import { startFleet } from './support/test-fleet.ts';

const KEYS = [...Array.from({ length: 40 }, (_, i) => BigInt(i)), KEY_MAX];
const TABLE = createOracleTable('t', 3, KEYS.slice(0, 30), { defaultRow: [1, 2, 3] });

function createVersion(shardNum: number, tables: OracleTable[] = [TABLE]): OracleVersion {
  return { bundle: 'ctr', version: '1', shardNum, tables };
}

/** Looks up all keys; those of the `down` shards must be unavailable. */
async function lookUp(
  client: CubeClient,
  version: OracleVersion,
  options: { down?: readonly number[]; timeoutMs?: number } = {},
): Promise<LookupSummary> {
  const { down = [], timeoutMs = 5_000 } = options;
  const groups = version.tables.map((table) => ({
    table,
    keys: KEYS,
    group: createGroup(table, KEYS),
  }));
  const lookupGroups = groups.map(({ group }) => group);
  const summary = await client.lookup(createManifest(version), lookupGroups, timeoutMs);
  assertLookup(version, groups, summary, (shard) => down.includes(shard));
  return summary;
}

/** Looks up until every shard is available again. */
async function untilWhole(client: CubeClient, version: OracleVersion): Promise<void> {
  for (;;) {
    const groups = version.tables.map((table) => ({
      table,
      keys: KEYS,
      group: createGroup(table, KEYS),
    }));
    const lookupGroups = groups.map(({ group }) => group);
    const summary = await client.lookup(createManifest(version), lookupGroups, 5_000);
    if (summary.unavailable === 0) {
      assertLookup(version, groups, summary);
      return;
    }
    await sleep(20);
  }
}

test('a dead shard is unavailable, not unseen, and the reason names it', async () => {
  const version = createVersion(3);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  await lookUp(client, version);
  const dead = fleet.getReplica(3, 1);
  await dead.kill();
  const { reason } = await lookUp(client, version, { down: [1] });
  assert.match(reason ?? '', new RegExp(`shard 1 of 3: ${dead.endpoint}: UNAVAILABLE`));
});

test('a restarted server is used again without intervention', async () => {
  const version = createVersion(2);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  for (let i = 0; i < 3; i++) {
    await lookUp(client, version);
    await fleet.getReplica(2, 0).kill();
    for (let j = 0; j < 20; j++) await lookUp(client, version, { down: [0] });
    await fleet.getReplica(2, 0).start();
    await untilWhole(client, version);
  }
});

test('requests in flight on a killed server are answered by another replica', async () => {
  const version = createVersion(1);
  const fleet = await startFleet([version], 2);
  const client = fleet.client({ policy: { backupRequest: 'never' } });
  const first = fleet.getServer(0);
  const second = fleet.getServer(1);
  assert.equal((await client.checkLoaded(createManifest(version), 5_000)).loaded, true);
  first.nextBehavior = () => 'stay silent';
  const lookups = Array.from({ length: 60 }, () => lookUp(client, version));
  while (first.lookups.length < 30) await sleep(5);
  await first.kill();
  await Promise.all(lookups);
  assert.deepEqual([first.lookups.length, second.lookups.length], [30, 60]);
});

const OTHER_REPLICA: FakeBehavior[] = [
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

for (const behavior of OTHER_REPLICA) {
  test(`${behavior}: another replica answers, else keys are unavailable`, async () => {
    const version = createVersion(2);
    const fleet = await startFleet([version], 2);
    const client = fleet.client();
    const bad = fleet.getReplica(2, 1);
    const good = fleet.getReplica(2, 1, 1);
    bad.nextBehavior = () => behavior;
    for (let i = 0; i < 4; i++) await lookUp(client, version);
    assert.ok(bad.lookups.length > 0, 'it was called');
    good.nextBehavior = () => behavior;
    await lookUp(client, version, { down: [1] });
    good.nextBehavior = () => 'answer';
    bad.nextBehavior = () => 'answer';
    await untilWhole(client, version);
  });
}

for (const code of ['WRONG_SHARD', 'INVALID_ARGUMENT', 'NOT_FOUND', 'UNSUPPORTED'] as const) {
  test(`${code} rejects the lookup, with the location`, async () => {
    const version = createVersion(2);
    const fleet = await startFleet([version], 2);
    const client = fleet.client();
    for (const server of fleet.getReplicas(2, 1)) server.nextBehavior = () => code;
    await assert.rejects(lookUp(client, version), (error: unknown) => {
      assert.ok(error instanceof CubeError);
      assert.equal(error.code, code);
      assert.match(error.message, /ctr 1, shard 1 at 127\.0\.0\.1:\d+: told to say/);
      return true;
    });
    for (const server of fleet.getReplicas(2, 1)) server.nextBehavior = () => 'answer';
    await lookUp(client, version);
  });
}

test('a fleet file with swapped shards is rejected, not answered as missing', async () => {
  const version = createVersion(2);
  const fleet = await startFleet([version]);
  fleet.shardMaps.set(2, fleet.shardMaps.get(2)!.toReversed());
  fleet.refresh();
  await assert.rejects(lookUp(fleet.client(), version), { code: 'WRONG_SHARD' });
});

test('the deadline ends a lookup; the remaining time travels with requests', async () => {
  const version = createVersion(2);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  await lookUp(client, version);
  fleet.getReplica(2, 0).nextBehavior = () => 'stay silent';
  const { reason } = await lookUp(client, version, { down: [0], timeoutMs: 1_000 });
  assert.match(reason ?? '', /shard 0 of 2: .*DEADLINE_EXCEEDED/);
  const sent = fleet.servers.flatMap(({ timeoutsMs }) => timeoutsMs.slice(-1));
  assert.ok(sent.every((timeoutMs) => timeoutMs > 0 && timeoutMs <= 1_000));
  await lookUp(client, version, { down: [0, 1], timeoutMs: 0 });
});

test('retries and backups to a failing fleet stay within their budgets', async () => {
  const version = createVersion(1);
  const fleet = await startFleet([version], 3);
  const client = fleet.client();
  for (const server of fleet.servers) server.nextBehavior = () => 'OVERLOADED';
  const count = 1_000;
  for (let i = 0; i < count; i++) await lookUp(client, version, { down: [0] });
  const requests = fleet.servers.reduce((sum, { lookups }) => sum + lookups.length, 0);
  assert.ok(
    requests >= count && requests <= 1.2 * count + 200,
    `${requests} requests for ${count} lookups`,
  );
});

test('a dead replica is probed in the background until it recovers', async () => {
  const version = createVersion(1);
  const fleet = await startFleet([version], 2);
  const client = fleet.client();
  const first = fleet.getServer(0);
  const second = fleet.getServer(1);
  await lookUp(client, version);
  await lookUp(client, version);
  first.nextBehavior = () => 'INTERNAL';
  for (let i = 0; i < 3; i++) await lookUp(client, version);
  const lookupsBefore = first.lookups.length;
  while (first.probes < 2) {
    await lookUp(client, version);
    await sleep(5);
  }
  assert.equal(first.lookups.length, lookupsBefore, 'no lookup is sent to it');
  first.nextBehavior = () => 'answer';
  second.nextBehavior = () => 'answer';
  while (first.lookups.length === lookupsBefore) {
    await lookUp(client, version);
    await sleep(5);
  }
});

test('a changed fleet takes effect; replicas that left are closed after use', async () => {
  const version = createVersion(1);
  const fleet = await startFleet([version]);
  const client = fleet.client({ policy: { backupRequest: 'never' } });
  await lookUp(client, version);
  const old = fleet.getServer(0);
  const fresh = await new FakeShardServer(0, 1, [version]).start();
  fleet.shardMaps.set(1, [[old, fresh]]);
  fleet.refresh();
  while (fresh.lookups.length === 0) await lookUp(client, version);
  // A lookup in progress at the replica that leaves is still answered there. The other replica is
  // new, and gets a part of its calls only.
  let open = (): void => undefined;
  old.readGate = new Promise((resolve) => {
    open = resolve;
  });
  const [arrivals, answered] = [old.chunksReceived, old.lookups.length];
  const underWay = [lookUp(client, version), lookUp(client, version)];
  while (old.chunksReceived === arrivals) await sleep(5);
  fleet.shardMaps.set(1, [[fresh]]);
  fleet.refresh();
  for (let i = 0; i < 5; i++) await lookUp(client, version);
  assert.equal(old.connections, 1);
  open();
  await Promise.all(underWay);
  assert.ok(old.lookups.length > answered);
  while (old.connections > 0) await sleep(5);
  await old.kill();
});

test('closing the client ends calls in flight with their keys unavailable', async () => {
  const version = createVersion(2);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  for (const server of fleet.servers) server.nextBehavior = () => 'stay silent';
  const lookup = lookUp(client, version, { down: [0, 1] });
  while (fleet.servers.some(({ lookups }) => lookups.length === 0)) await sleep(5);
  client.close();
  await lookup;
});
