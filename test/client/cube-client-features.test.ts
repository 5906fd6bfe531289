/**
 * Features of the client beyond plain lookups: backups, dtypes, values, deduplication, connections,
 * statistics.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CONNECTION_TYPES } from '../../lib/client/connections.ts';
import type { CubeClient } from '../../lib/client/cube-client.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import { LOOKUP_GROUPS_MAX } from '../../proto/lookup.ts';
import {
  assertLookup,
  createGroup,
  createManifest,
  createOracleTable,
  type OracleTable,
  type OracleVersion,
  range,
} from './support/oracle.ts';
import type { FakeShardServer } from './support/shard-server.ts';
import { startFleet } from './support/test-fleet.ts';

const TABLE = createOracleTable('t', 3, range(0, 30), { defaultRow: [1, 2, 3] });

function createVersion(
  version: string,
  shardNum: number,
  tables: OracleTable[] = [TABLE],
): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

async function lookUp(
  client: CubeClient,
  version: OracleVersion,
  keys: readonly bigint[] = range(0, 40),
): Promise<void> {
  const groups = version.tables.map((table) => ({ table, keys, group: createGroup(table, keys) }));
  const lookupGroups = groups.map(({ group }) => group);
  assertLookup(version, groups, await client.lookup(createManifest(version), lookupGroups, 5_000));
}

/**
 * Looks up while a server does not read, until a backup answers. The server reads between lookups,
 * so that it is chosen again when it was already known to be slow.
 * @returns lets the server read
 */
async function untilBackupWins(
  client: CubeClient,
  slow: FakeShardServer,
  lookUpOnce: () => Promise<unknown>,
): Promise<() => void> {
  for (;;) {
    let open = (): void => undefined;
    slow.readGate = new Promise((resolve) => {
      open = resolve;
    });
    await lookUpOnce();
    if (client.stats().backupsWon > 0) return open;
    open();
    await sleep(5);
  }
}

test('a backup answers for a slow replica, within the backup budget', async () => {
  const version = createVersion('1', 1);
  const fleet = await startFleet([version], 2);
  const client = fleet.client({ policy: { backupRequest: 5 } });
  assert.equal((await client.checkLoaded(createManifest(version), 5_000)).loaded, true);
  const slow = fleet.getServer(0);
  const fast = fleet.getServer(1);
  const group = createGroup(TABLE, [1n, 50n]);
  const open = await untilBackupWins(client, slow, () =>
    client.lookup(createManifest(version), [group], 5_000),
  );
  assert.ok(client.stats().backups >= 1);
  group.rows.fill(77);
  group.outcomes.fill(77);
  open();
  while (slow.lookups.length === 0 || client.stats().replicas.some((each) => each.inFlight > 0))
    await sleep(5);
  assert.ok(group.rows.every((x) => x === 77) && group.outcomes.every((x) => x === 77));
  assert.equal(client.stats().failures, 0);
  // Neither replica answers: every request is due for a backup, but only the budget is sent.
  const hurried = fleet.client({ policy: { backupRequest: 1, concurrencyLimit: 'never' } });
  await lookUp(hurried, version);
  await lookUp(hurried, version);
  for (const server of fleet.servers) server.nextBehavior = () => 'answer late';
  for (let i = 0; i < 10; i++) {
    await Promise.all(Array.from({ length: 60 }, () => lookUp(hurried, version)));
  }
  const { backups, backupBudgetRefusals, requests } = hurried.stats();
  assert.ok(backups <= 100 + 0.1 * 602, `${backups} backups`);
  assert.ok(backupBudgetRefusals > 0 && requests === 602 + backups);
  assert.ok(fast.lookups.length > 0);
});

test('p95 backups begin once the usual latency is known', async () => {
  const version = createVersion('1', 1);
  const fleet = await startFleet([version], 2);
  const client = fleet.client({ policy: { backupRequest: 'p95' } });
  for (let i = 0; i < 64; i++) await lookUp(client, version);
  (await untilBackupWins(client, fleet.getServer(0), () => lookUp(client, version)))();
});

test('retries are limited by the policy', async () => {
  const version = createVersion('1', 1);
  const fleet = await startFleet([version], 3);
  for (const server of fleet.servers) server.nextBehavior = () => 'INTERNAL';
  for (const retryMax of [0, 1, 2]) {
    const client = fleet.client({ policy: { retryMax, backupRequest: 'never' } });
    const { unavailable } = await client.lookup(
      createManifest(version),
      [createGroup(TABLE, [1n])],
      5_000,
    );
    const { requests, retries } = client.stats();
    assert.deepEqual([unavailable, requests, retries], [1, retryMax + 1, retryMax]);
  }
});

test('rows are returned as stored, with dtype and size, or as f32', async () => {
  const createBytes = (key: bigint, rowBytes: number): Uint8Array =>
    Uint8Array.from({ length: rowBytes }, (_, i) => Number(key) + i);
  const halves = new Map(range(0, 20).map((key) => [key, createBytes(key, 8)]));
  const half = {
    ...createOracleTable('half', 3, range(0, 20)),
    stored: { dtype: 'f16' as const, rows: halves },
  };
  const small = new Map(range(0, 25).map((key) => [key, createBytes(key, 4 + 72)]));
  const int = {
    ...createOracleTable('int', 70, range(0, 25)),
    stored: { dtype: 'i8' as const, rows: small },
  };
  const version = createVersion('1', 2, [half, int]);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  await lookUp(client, version);
  const keys = [3n, 2n, 2n, 30n, 7n];
  const groups = [half, int].map((table) => {
    const { keys: words, count, outcomes } = createGroup(table, keys);
    const rows = new Uint8Array(count * (table === half ? 8 : 76)).fill(99);
    return { table: table.name, keys: words, count, outcomes, rows };
  });
  for (const dedupe of [false, true]) {
    const summary = await client.lookupStored(createManifest(version), groups, 5_000, { dedupe });
    assert.deepEqual(summary.groups, [
      { dtype: 'f16', rowBytes: 8 },
      { dtype: 'i8', rowBytes: 76 },
    ]);
    assert.deepEqual([summary.unseen, summary.unavailable], [2, 0]);
    for (const { table, rows, outcomes } of groups) {
      const rowBytes = table === 'half' ? 8 : 76;
      const expected = keys.map((key) =>
        key === 30n ? new Uint8Array(rowBytes).fill(0x55) : createBytes(key, rowBytes),
      );
      assert.deepEqual(Buffer.from(rows), Buffer.concat(expected));
      assert.deepEqual([...outcomes], [0, 0, 0, 1, 0]);
    }
  }
  await fleet.getReplica(2, 1).kill();
  const { unavailable } = await client.lookupStored(createManifest(version), groups, 5_000);
  assert.equal(unavailable, 4);
  assert.ok(groups[0]!.rows.subarray(0, 8).every((byte) => byte === 0));
  const misaligned = {
    ...groups[0]!,
    rows: new Uint8Array(groups[0]!.rows.length + 4).subarray(1),
  };
  await assert.rejects(
    client.lookupStored(createManifest(version), [misaligned], 5_000),
    /multiple of 4/,
  );
});

test('values have the order of the keys; oversized requests are split', async () => {
  const values = new Map(
    range(0, 50).map((key) => [key, Buffer.alloc((Number(key) * 37) % 500, Number(key) + 1)]),
  );
  const table = { ...createOracleTable('v', 1, []), values };
  const version = createVersion('1', 3, [table]);
  const fleet = await startFleet([version]);
  for (const server of fleet.servers) server.responseBytes = 2_000;
  const client = fleet.client();
  const keys = [49n, 0n, 60n, ...range(0, 50), 7n, 7n];
  const { keys: words, count, outcomes } = createGroup(table, keys);
  const group = { table: 'v', keys: words, count, outcomes };
  const look = async (): Promise<Buffer[]> => {
    const summary = await client.lookupValues(
      createManifest(version),
      [group, { ...group, count: 0 }],
      5_000,
    );
    const [found, none] = summary.values;
    assert.ok(found && none);
    assert.deepEqual([none.ends.length, none.values.length], [0, 0]);
    const { values: bytes, ends } = found;
    return keys.map((_, i) => Buffer.from(bytes.subarray(i === 0 ? 0 : ends[i - 1]!, ends[i]!)));
  };
  const found = await look();
  keys.forEach((key, i) => {
    assert.deepEqual(found[i], values.get(key) ?? Buffer.alloc(0), `key ${key}`);
    assert.equal(outcomes[i], values.has(key) ? OUTCOME_HIT : OUTCOME_UNSEEN);
  });
  assert.ok(
    fleet.servers.some(({ lookups }) => lookups.length > 2),
    'asked in pieces',
  );
  await fleet.getReplica(3, 1).kill();
  const left = await look();
  keys.forEach((key, i) => {
    const down = key % 3n === 1n;
    assert.equal(outcomes[i] === OUTCOME_UNAVAILABLE, down);
    assert.deepEqual(left[i], down ? Buffer.alloc(0) : (values.get(key) ?? Buffer.alloc(0)));
  });
  for (const server of fleet.servers) server.responseBytes = 10;
  const refused = client.lookupValues(createManifest(version), [group], 5_000);
  await assert.rejects(
    refused,
    /ctr 1, shard \d at .*: .* bytes of rows: a lookup has at most 10 bytes; split it/,
  );
  await assert.rejects(
    client.lookupValues(createManifest(createVersion('1', 3)), [{ ...group, table: 't' }], 1),
    /use lookup or/,
  );
});

test('a lookup with too many groups for one request is split', async () => {
  const version = createVersion('1', 1);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  const groups = Array.from({ length: LOOKUP_GROUPS_MAX + 3 }, (_, i) => {
    const keys = [BigInt(i % 40)];
    return { table: TABLE, keys, group: createGroup(TABLE, keys) };
  });
  const lookupGroups = groups.map(({ group }) => group);
  assertLookup(version, groups, await client.lookup(createManifest(version), lookupGroups, 5_000));
  const counts = fleet.getServer(0).lookups.map((head) => head.groups.length);
  assert.deepEqual(counts, [LOOKUP_GROUPS_MAX, 3]);
});

test('with dedupe, a repeated key is requested once and answered everywhere', async () => {
  const version = createVersion('1', 2);
  const fleet = await startFleet([version]);
  const client = fleet.client();
  const keys = Array.from({ length: 200 }, (_, i) => BigInt((i * 7) % 40));
  const group = createGroup(TABLE, keys);
  const manifest = createManifest(version);
  const summary = await client.lookup(manifest, [group], 5_000, { dedupe: true });
  assertLookup(version, [{ table: TABLE, keys, group }], summary);
  const sentGroups = fleet.servers.flatMap(({ lookups }) => lookups.flatMap((head) => head.groups));
  assert.equal(
    sentGroups.reduce((sum, { count }) => sum + count, 0),
    40,
  );
  await fleet.getServer(0).kill();
  const half = await client.lookup(manifest, [group], 5_000, { dedupe: true });
  assertLookup(version, [{ table: TABLE, keys, group }], half, (shard) => shard === 0);
  assert.equal(half.unavailable, 100);
});

for (const connectionType of CONNECTION_TYPES) {
  test(`connections: ${connectionType}`, async () => {
    const version = createVersion('1', 1);
    const fleet = await startFleet([version]);
    const client = fleet.client({ connectionType });
    const server = fleet.getServer(0);
    for (let i = 0; i < 3; i++) await lookUp(client, version);
    const resting = { single: 1, pooled: 1, short: 0 }[connectionType];
    while (server.connections !== resting) await sleep(5);
    let open = (): void => undefined;
    server.readGate = new Promise((resolve) => {
      open = resolve;
    });
    const lookups = Array.from({ length: 8 }, () => lookUp(client, version));
    const busy = connectionType === 'single' ? 1 : 8;
    while (server.connections !== busy || server.chunksReceived < 3 + busy) await sleep(5);
    open();
    await Promise.all(lookups);
    while (server.connections !== { single: 1, pooled: 8, short: 0 }[connectionType])
      await sleep(5);
    await server.kill();
    const { unavailable } = await client.lookup(
      createManifest(version),
      [createGroup(TABLE, [1n])],
      5_000,
    );
    assert.equal(unavailable, 1);
    await server.start();
    const group = createGroup(TABLE, [1n]);
    while ((await client.lookup(createManifest(version), [group], 5_000)).unavailable > 0)
      await sleep(20);
    client.close();
    while (server.connections > 0) await sleep(5);
  });
}

test('a replica is not asked for versions that it does not report as loaded', async () => {
  const [one, two] = [createVersion('1', 1), createVersion('2', 1)];
  const fleet = await startFleet([one, two], 2);
  const behind = fleet.getServer(0);
  const ahead = fleet.getServer(1);
  behind.versions.pop();
  behind.reportsLoadedVersions = true;
  const client = fleet.client();
  for (let i = 0; i < 3; i++) await lookUp(client, two);
  assert.equal(client.stats().versionAbsentErrors, 1);
  const known = new Map(
    client.stats().replicas.map(({ endpoint, versions }) => [endpoint, versions]),
  );
  assert.deepEqual(known.get(behind.endpoint), ['ctr/1']);
  assert.deepEqual(known.get(ahead.endpoint), ['ctr/2']);
});

test('stats count events and show replica states; only changes are logged', async () => {
  const version = createVersion('1', 2);
  const fleet = await startFleet([version], 2);
  const lines: string[] = [];
  const tell = (_fields: object, text: string): void => void lines.push(text);
  const client = fleet.client({ logger: { info: tell, warn: tell } });
  for (let i = 0; i < 4; i++) await lookUp(client, version);
  const quiet = client.stats();
  assert.deepEqual([quiet.calls, quiet.keys, quiet.requests, quiet.unseenKeys], [4, 160, 8, 40]);
  assert.ok(quiet.replicas.every(({ state, latencyMs }) => state === 'answering' && latencyMs > 0));
  const dead = fleet.getReplica(2, 0);
  await dead.kill();
  for (let i = 0; i < 20; i++) await lookUp(client, version);
  const { failures, retries, unavailableKeys, replicas } = client.stats();
  assert.ok(failures > 0 && retries > 0 && unavailableKeys === 0);
  assert.equal(replicas.find(({ endpoint }) => endpoint === dead.endpoint)?.state, 'failed');
  await dead.start();
  while (client.stats().replicas.some(({ state }) => state === 'failed')) {
    await lookUp(client, version);
    await sleep(10);
  }
  assert.deepEqual(lines, ['replica failed', 'replica recovered']);
});

test('an invalid policy is rejected', async () => {
  const fleet = await startFleet([createVersion('1', 1)]);
  const policy = (value: object) => () => fleet.client({ policy: value });
  assert.throws(policy({ loadBalancer: 'best' }), /loadBalancer: expected one of rr, wrr/);
  assert.throws(policy({ retryMax: -1 }), /retryMax: expected an integer ≥ 0, got -1/);
  assert.throws(
    policy({ backupRequest: 0 }),
    /backupRequest: expected milliseconds > 0, p95 or never, got 0/,
  );
  const many = (): CubeClient => fleet.client({ connectionType: 'many' as 'single' });
  assert.throws(many, /connectionType: expected one of single, pooled, short, got "many"/);
});
