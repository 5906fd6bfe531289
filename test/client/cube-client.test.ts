/** What a healthy fleet answers: every key's row, from one version, one request a shard. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { CubeClient } from '../../lib/client/cube-client.ts';
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
import { TestFleet } from './test-fleet.ts';

const fleets: TestFleet[] = [];
after(() => Promise.all(fleets.map((fleet) => fleet.stop())));

async function fleetOf(versions: readonly OracleVersion[], replicas = 1): Promise<TestFleet> {
  const fleet = await TestFleet.start(versions, replicas);
  fleets.push(fleet);
  return fleet;
}

function range(count: number): bigint[] {
  return Array.from({ length: count }, (_, i) => BigInt(i));
}

function versionOf(version: string, shardNum: number, tables: OracleTable[]): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

/** Looks up and compares every row and outcome with the oracle. */
async function lookUp(
  client: CubeClient,
  version: OracleVersion,
  wanted: readonly (readonly [OracleTable, readonly bigint[]])[],
): Promise<void> {
  const groups = wanted.map(([table, keys]) => ({ table, keys, group: groupOf(table, keys) }));
  const asked = groups.map(({ group }) => group);
  const summary = await client.lookup(manifestOf(version), asked, 5_000);
  assertAnswered(version, groups, summary);
}

test('tables of several dims are answered in one request a shard', async () => {
  const small = tableWith('small', 1, [...range(50), KEY_MAX], { defaultRow: [0.5] });
  const odd = tableWith('odd', 3, range(20));
  const large = tableWith('large', 70, [0n, 7n, KEY_MAX], { defaultRow: Array(70).fill(-1) });
  const version = versionOf('1', 4, [small, odd, large]);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  const wanted = [
    [large, [KEY_MAX, 0n, 0n, 5n, 7n, KEY_MAX - 1n]],
    [small, [...range(60), KEY_MAX, 1n << 63n]],
    [odd, []],
    [odd, [19n, 20n, 3n, 3n, 3n]],
  ] as const;
  await lookUp(client, version, wanted);
  await lookUp(client, version, wanted);
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

test('shards without keys are not asked, nor is anybody for no keys at all', async () => {
  const table = tableWith('t', 4, range(100));
  const version = versionOf('1', 5, [table]);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  await lookUp(client, version, [[table, [2n, 7n, 102n]]]);
  await lookUp(client, version, [[table, []]]);
  await lookUp(client, version, []);
  assert.deepEqual(
    fleet.servers.map(({ lookups }) => lookups.length),
    [0, 0, 1, 0, 0],
  );
});

test('a batch over the limit of keys is split', async () => {
  const a = tableWith('a', 2, range(40));
  const b = tableWith('b', 5, range(60));
  const version = versionOf('1', 2, [a, b]);
  const fleet = await fleetOf([version]);
  await lookUp(fleet.client({ keysPerRequestMax: 7 }), version, [
    [a, range(45)],
    [b, range(90)],
    [a, [1n, 1n]],
  ]);
  const counts = fleet.servers.map(({ lookups }) =>
    lookups.map(({ groups }) => groups.reduce((sum, { count }) => sum + count, 0)),
  );
  // 23 + 45 + 0 even keys; 22 + 45 + 2 odd ones.
  assert.deepEqual(counts, [
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 5],
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 6],
  ]);
});

test('many lookups in flight do not disturb each other', async () => {
  const a = tableWith('a', 3, range(500));
  const b = tableWith('b', 16, range(300));
  const version = versionOf('1', 3, [a, b]);
  const fleet = await fleetOf([version], 2);
  const client = fleet.client();
  const lookups = Array.from({ length: 150 }, (_, i) =>
    lookUp(client, version, [
      [a, range(i % 37).map((key) => key * 13n + BigInt(i))],
      [b, range((i * 7) % 53).map((key) => key * 5n + BigInt(i))],
    ]),
  );
  await Promise.all(lookups);
});

test('two shard counts coexist: the map is that of the manifest', async () => {
  const table = tableWith('t', 2, range(64));
  const resharded = tableWith('t', 2, range(64), { salt: 2 });
  const four = versionOf('1', 4, [table]);
  const three = versionOf('2', 3, [resharded]);
  const fleet = await fleetOf([four]);
  await fleet.addMap([three], 1);
  const client = fleet.client();
  await Promise.all([
    lookUp(client, four, [[table, range(80)]]),
    lookUp(client, three, [[resharded, range(80)]]),
  ]);
});

test('lookups go round the replicas', async () => {
  const table = tableWith('t', 2, range(10));
  const version = versionOf('1', 1, [table]);
  const fleet = await fleetOf([version], 3);
  const client = fleet.client();
  assert.deepEqual(await client.holds(manifestOf(version), 5_000), { held: true, missing: '' });
  for (let i = 0; i < 30; i++) await lookUp(client, version, [[table, [BigInt(i)]]]);
  assert.deepEqual(
    fleet.servers.map(({ lookups }) => lookups.length),
    [10, 10, 10],
  );
});

test('the callers mistakes are refused before anything is sent', async () => {
  const table = tableWith('t', 4, range(10));
  const version = versionOf('1', 2, [table]);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  const manifest = manifestOf(version);
  const group = groupOf(table, [1n, 2n]);
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
  const elsewhere = manifestOf({ ...version, shardNum: 9 });
  await assert.rejects(
    client.lookup(elsewhere, [group], 1_000),
    refused('NOT_FOUND', /no 9-shard servers for bundle ctr \(shard counts known: 2\)/),
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

test('holds names the shards and replicas that lack a version, and why', async () => {
  const table = tableWith('t', 2, range(10));
  const version = versionOf('7', 3, [table]);
  const fleet = await fleetOf([version], 2);
  const client = fleet.client();
  fleet.shard(3, 1)[0]!.versions.length = 0;
  assert.equal((await client.holds(manifestOf(version), 5_000)).held, true);
  fleet.shard(3, 1)[1]!.versions.length = 0;
  await fleet.shard(3, 2)[0]!.kill();
  fleet.shard(3, 2)[1]!.behave = () => 'NOT_READY';
  const { held, missing } = await client.holds(manifestOf(version), 5_000);
  assert.equal(held, false);
  const [lacking, dead] = fleet.servers.slice(3, 5).map(({ endpoint }) => endpoint);
  assert.match(missing, new RegExp(`shard 1 of 3: .*; ${lacking} VERSION_ABSENT \\(no version 7`));
  assert.match(missing, new RegExp(`shard 2 of 3: ${dead} UNAVAILABLE .*; .* NOT_READY`));
  assert.doesNotMatch(missing, /shard 0/);
  const unknown = await client.holds(manifestOf({ ...version, shardNum: 8 }), 5_000);
  assert.equal(unknown.held, false);
  assert.match(unknown.missing, /no 8-shard servers/);
});

test('during a rollout lookups go to the replicas that hold the version', async () => {
  const table = tableWith('t', 2, range(10));
  const [one, two] = [versionOf('1', 1, [table]), versionOf('2', 1, [table])];
  const fleet = await fleetOf([one, two], 2);
  const [behind, ahead] = fleet.servers;
  behind!.versions.pop();
  const client = fleet.client();
  assert.equal((await client.holds(manifestOf(two), 5_000)).held, true);
  for (let i = 0; i < 10; i++) await lookUp(client, two, [[table, [1n]]]);
  assert.deepEqual([behind!.lookups.length, ahead!.lookups.length], [0, 10]);
  for (let i = 0; i < 10; i++) await lookUp(client, one, [[table, [1n]]]);
  assert.ok(behind!.lookups.length > 0);
});

test('a burst beyond what one connection carries fails by itself: the replica is not taken for broken', async () => {
  const table = tableWith('t', 4, range(10));
  const version = versionOf('1', 1, [table]);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  await lookUp(client, version, [[table, range(3)]]);
  const calls = Array.from({ length: 3000 }, () =>
    client.lookup(manifestOf(version), [groupOf(table, range(3))], 10_000),
  );
  const summaries = await Promise.all(calls);
  const refused = summaries.filter(({ unavailable }) => unavailable > 0);
  assert.ok(refused.length > 0 && refused.length < 3000);
  for (const { reason } of refused) assert.match(reason ?? '', /in flight already/);
  assert.equal(client.stats().replicas[0]!.state, 'answering');
  await lookUp(client, version, [[table, range(10)]]);
});
