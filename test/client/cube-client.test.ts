/** A healthy fleet: every key gets its row, from one version, with one request per shard. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { CubeClient } from '../../lib/client/cube-client.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import {
  assertLookup,
  createGroup,
  createManifest,
  createOracleTable,
  KEY_MAX,
  type OracleTable,
  type OracleVersion,
  range,
} from './support/oracle.ts';
import { startFleet } from './support/test-fleet.ts';

function createVersion(version: string, shardNum: number, tables: OracleTable[]): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

/** Looks up and compares every row and outcome with the oracle. */
async function lookUp(
  client: CubeClient,
  version: OracleVersion,
  keysByTable: readonly (readonly [OracleTable, readonly bigint[]])[],
): Promise<void> {
  const groups = keysByTable.map(([table, keys]) => ({
    table,
    keys,
    group: createGroup(table, keys),
  }));
  const lookupGroups = groups.map(({ group }) => group);
  const summary = await client.lookup(createManifest(version), lookupGroups, 5_000);
  assertLookup(version, groups, summary);
}

test('tables of several dims are looked up in one request per shard', async () => {
  const small = createOracleTable('small', 1, [...range(0, 50), KEY_MAX], { defaultRow: [0.5] });
  const odd = createOracleTable('odd', 3, range(0, 20));
  const large = createOracleTable('large', 70, [0n, 7n, KEY_MAX], {
    defaultRow: Array(70).fill(-1),
  });
  const version = createVersion('1', 4, [small, odd, large]);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  const keysByTable = [
    [large, [KEY_MAX, 0n, 0n, 5n, 7n, KEY_MAX - 1n]],
    [small, [...range(0, 60), KEY_MAX, 1n << 63n]],
    [odd, []],
    [odd, [19n, 20n, 3n, 3n, 3n]],
  ] as const;
  await lookUp(client, version, keysByTable);
  await lookUp(client, version, keysByTable);
  for (const server of fleet.servers) {
    assert.equal(server.lookups.length, 2);
    for (const head of server.lookups) {
      assert.deepEqual(
        [head.bundle, head.version, head.shardIndex, head.shardNum],
        ['ctr', '1', server.shard, 4],
      );
    }
  }
});

test('shards without keys get no request', async () => {
  const table = createOracleTable('t', 4, range(0, 100));
  const version = createVersion('1', 5, [table]);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  await lookUp(client, version, [[table, [2n, 7n, 102n]]]);
  await lookUp(client, version, [[table, []]]);
  await lookUp(client, version, []);
  assert.deepEqual(
    fleet.servers.map(({ lookups }) => lookups.length),
    [0, 0, 1, 0, 0],
  );
});

test('a batch above the limit of keys is split', async () => {
  const a = createOracleTable('a', 2, range(0, 40));
  const b = createOracleTable('b', 5, range(0, 60));
  const version = createVersion('1', 2, [a, b]);
  const fleet = await startFleet([version]);
  await lookUp(fleet.client({ keysPerRequestMax: 7 }), version, [
    [a, range(0, 45)],
    [b, range(0, 90)],
    [a, [1n, 1n]],
  ]);
  const counts = fleet.servers.map(({ lookups }) =>
    lookups.map(({ groups }) => groups.reduce((sum, { count }) => sum + count, 0)),
  );
  // 23 + 45 + 0 even keys; 22 + 45 + 2 odd keys.
  assert.deepEqual(counts, [
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 5],
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 6],
  ]);
});

test('concurrent lookups do not affect each other', async () => {
  const a = createOracleTable('a', 3, range(0, 500));
  const b = createOracleTable('b', 16, range(0, 300));
  const version = createVersion('1', 3, [a, b]);
  const fleet = await startFleet([version], 2);
  const client = fleet.client();
  const lookups = Array.from({ length: 150 }, (_, i) =>
    lookUp(client, version, [
      [a, range(0, i % 37).map((key) => key * 13n + BigInt(i))],
      [b, range(0, (i * 7) % 53).map((key) => key * 5n + BigInt(i))],
    ]),
  );
  await Promise.all(lookups);
});

test("two shard counts coexist: the manifest's is used", async () => {
  const table = createOracleTable('t', 2, range(0, 64));
  const resharded = createOracleTable('t', 2, range(0, 64), { salt: 2 });
  const four = createVersion('1', 4, [table]);
  const three = createVersion('2', 3, [resharded]);
  const fleet = await startFleet([four]);
  await fleet.addShardMap([three], 1);
  const client = fleet.client();
  await Promise.all([
    lookUp(client, four, [[table, range(0, 80)]]),
    lookUp(client, three, [[resharded, range(0, 80)]]),
  ]);
});

test('lookups rotate among the replicas', async () => {
  const table = createOracleTable('t', 2, range(0, 10));
  const version = createVersion('1', 1, [table]);
  const fleet = await startFleet([version], 3);
  // A pause of this machine during one call would make a replica slow, which then gets fewer calls.
  const clock = { ...systemClock, nowMs: () => 0 };
  const client = fleet.client({ policy: { backupRequest: 'never' }, clock });
  assert.deepEqual(await client.checkLoaded(createManifest(version), 5_000), {
    loaded: true,
    missing: '',
  });
  for (let i = 0; i < 30; i++) await lookUp(client, version, [[table, [BigInt(i)]]]);
  assert.deepEqual(
    fleet.servers.map(({ lookups }) => lookups.length),
    [10, 10, 10],
  );
});

test('invalid arguments are rejected before a request is sent', async () => {
  const table = createOracleTable('t', 4, range(0, 10));
  const version = createVersion('1', 2, [table]);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  const manifest = createManifest(version);
  const group = createGroup(table, [1n, 2n]);
  const refused = (code: string, text: RegExp) => (error: unknown) =>
    error instanceof CubeError && error.code === code && text.test(error.message);
  await assert.rejects(
    client.lookup(manifest, [{ ...group, table: 'other' }], 1_000),
    refused('NOT_FOUND', /has no table "other" \(it has: t\)/),
  );
  await assert.rejects(
    client.lookup(manifest, [{ ...group, rows: new Float32Array(7) }], 1_000),
    refused('INVALID_ARGUMENT', /rows has 7 elements, this lookup needs 8/),
  );
  await assert.rejects(
    client.lookup(manifest, [{ ...group, count: -1 }], 1_000),
    refused('INVALID_ARGUMENT', /count of -1/),
  );
  const elsewhere = createManifest({ ...version, shardNum: 9 });
  await assert.rejects(
    client.lookup(elsewhere, [group], 1_000),
    refused('NOT_FOUND', /no 9-shard servers for bundle ctr \(known shard counts: 2\)/),
  );
  const values = {
    ...manifest,
    tables: manifest.tables.map((t) => ({ ...t, dtype: 'bytes' as const })),
  };
  await assert.rejects(
    client.lookup(values, [group], 1_000),
    refused('UNSUPPORTED', /lookupValues/),
  );
  assert.ok(fleet.servers.every(({ lookups }) => lookups.length === 0));
  client.close();
  await assert.rejects(client.lookup(manifest, [group], 1_000), refused('STOPPING', /closed/));
});

test('checkLoaded names the shards and replicas without a version, and why', async () => {
  const table = createOracleTable('t', 2, range(0, 10));
  const version = createVersion('7', 3, [table]);
  const fleet = await startFleet([version], 2);
  const client = fleet.client();
  fleet.getReplica(3, 1).versions.length = 0;
  assert.equal((await client.checkLoaded(createManifest(version), 5_000)).loaded, true);
  fleet.getReplica(3, 1, 1).versions.length = 0;
  await fleet.getReplica(3, 2).kill();
  fleet.getReplica(3, 2, 1).nextBehavior = () => 'NOT_READY';
  const { loaded, missing } = await client.checkLoaded(createManifest(version), 5_000);
  assert.equal(loaded, false);
  const [lacking, dead] = fleet.servers.slice(3, 5).map(({ endpoint }) => endpoint);
  assert.match(missing, new RegExp(`shard 1 of 3: .*; ${lacking} VERSION_ABSENT \\(no version 7`));
  assert.match(missing, new RegExp(`shard 2 of 3: ${dead} UNAVAILABLE .*; .* NOT_READY`));
  assert.doesNotMatch(missing, /shard 0/);
  const unknown = await client.checkLoaded(createManifest({ ...version, shardNum: 8 }), 5_000);
  assert.equal(unknown.loaded, false);
  assert.match(unknown.missing, /no 8-shard servers/);
});

test('during a rollout, lookups go to replicas that have loaded the version', async () => {
  const table = createOracleTable('t', 2, range(0, 10));
  const [one, two] = [createVersion('1', 1, [table]), createVersion('2', 1, [table])];
  const fleet = await startFleet([one, two], 2);
  const behind = fleet.getServer(0);
  const ahead = fleet.getServer(1);
  behind.versions.pop();
  const client = fleet.client();
  assert.equal((await client.checkLoaded(createManifest(two), 5_000)).loaded, true);
  for (let i = 0; i < 10; i++) await lookUp(client, two, [[table, [1n]]]);
  assert.deepEqual([behind.lookups.length, ahead.lookups.length], [0, 10]);
  for (let i = 0; i < 10; i++) await lookUp(client, one, [[table, [1n]]]);
  assert.ok(behind.lookups.length > 0);
});

test("a burst above the connection's limit does not mark the replica as failed", async () => {
  const table = createOracleTable('t', 4, range(0, 10));
  const version = createVersion('1', 1, [table]);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  await lookUp(client, version, [[table, range(0, 3)]]);
  const calls = Array.from({ length: 3000 }, () =>
    client.lookup(createManifest(version), [createGroup(table, range(0, 3))], 10_000),
  );
  const summaries = await Promise.all(calls);
  const refused = summaries.filter(({ unavailable }) => unavailable > 0);
  assert.ok(refused.length > 0 && refused.length < 3000);
  for (const { reason } of refused) assert.match(reason ?? '', /in flight already/);
  assert.equal(client.stats().replicas[0]?.state, 'answering');
  await lookUp(client, version, [[table, range(0, 10)]]);
});
