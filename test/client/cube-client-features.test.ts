/** What a client can be asked beyond plain lookups: backups, dtypes, values, deduplication, connections, figures. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CONNECTION_TYPES } from '../../lib/client/connections.ts';
import type { CubeClient } from '../../lib/client/cube-client.ts';
import { OUTCOME_HIT, OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from '../../lib/client/lookup-group.ts';
import { LOOKUP_GROUPS_MAX } from '../../proto/lookup.ts';
import {
  assertAnswered,
  groupOf,
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

const TABLE = tableWith('t', 3, range(30), { defaultRow: [1, 2, 3] });

function versionOf(
  version: string,
  shardNum: number,
  tables: OracleTable[] = [TABLE],
): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

async function lookUp(
  client: CubeClient,
  version: OracleVersion,
  keys: readonly bigint[] = range(40),
): Promise<void> {
  const groups = version.tables.map((table) => ({ table, keys, group: groupOf(table, keys) }));
  const asked = groups.map(({ group }) => group);
  assertAnswered(version, groups, await client.lookup(manifestOf(version), asked, 5_000));
}

test('a slow replica: the backup answers, the late answer writes nothing, the budget bounds both', async () => {
  const version = versionOf('1', 1);
  const fleet = await fleetOf([version], 2);
  const client = fleet.client({ policy: { backupRequest: 5 } });
  assert.equal((await client.holds(manifestOf(version), 5_000)).held, true);
  const [slow, fast] = fleet.servers;
  let open = (): void => undefined;
  slow!.gate = new Promise((resolve) => {
    open = resolve;
  });
  const group = groupOf(TABLE, [1n, 50n]);
  while (client.stats().backupsWon === 0) {
    await client.lookup(manifestOf(version), [group], 5_000);
  }
  assert.equal(client.stats().backups, 1);
  group.rows.fill(77);
  group.outcomes.fill(77);
  open();
  while (slow!.lookups.length === 0 || client.stats().replicas.some((each) => each.inFlight > 0))
    await sleep(5);
  assert.ok(group.rows.every((x) => x === 77) && group.outcomes.every((x) => x === 77));
  assert.equal(client.stats().failures, 0);
  // Both silent: every request wants a backup, a tenth and a burst of them get one.
  const hurried = fleet.client({ policy: { backupRequest: 1 } });
  await lookUp(hurried, version);
  await lookUp(hurried, version);
  for (const server of fleet.servers) server.behave = () => 'answer late';
  for (let i = 0; i < 10; i++) {
    await Promise.all(Array.from({ length: 60 }, () => lookUp(hurried, version)));
  }
  const { backups, budgetRefusals, requests } = hurried.stats();
  assert.ok(backups <= 100 + 0.1 * 602, `${backups} backups`);
  assert.ok(budgetRefusals > 0 && requests === 602 + backups);
  assert.ok(fast!.lookups.length > 0);
});

test('p95: backups begin once the usual latency is known', async () => {
  const version = versionOf('1', 1);
  const fleet = await fleetOf([version], 2);
  const client = fleet.client({ policy: { backupRequest: 'p95' } });
  for (let i = 0; i < 64; i++) await lookUp(client, version);
  const [slow] = fleet.servers;
  let open = (): void => undefined;
  slow!.gate = new Promise((resolve) => {
    open = resolve;
  });
  while (client.stats().backupsWon === 0) await lookUp(client, version);
  open();
});

test('retries are as many as the policy says', async () => {
  const version = versionOf('1', 1);
  const fleet = await fleetOf([version], 3);
  for (const server of fleet.servers) server.behave = () => 'INTERNAL';
  for (const retryMax of [0, 1, 2]) {
    const client = fleet.client({ policy: { retryMax } });
    const { unavailable } = await client.lookup(manifestOf(version), [groupOf(TABLE, [1n])], 5_000);
    const { requests, retries } = client.stats();
    assert.deepEqual([unavailable, requests, retries], [1, retryMax + 1, retryMax]);
  }
});

test('rows as stored: the bytes of the table, with dtype and size; as f32 otherwise', async () => {
  const bytesOf = (key: bigint, rowBytes: number): Uint8Array =>
    Uint8Array.from({ length: rowBytes }, (_, i) => Number(key) + i);
  const halves = new Map(range(20).map((key) => [key, bytesOf(key, 8)]));
  const half = {
    ...tableWith('half', 3, range(20)),
    stored: { dtype: 'f16' as const, rows: halves },
  };
  const small = new Map(range(25).map((key) => [key, bytesOf(key, 4 + 72)]));
  const int = { ...tableWith('int', 70, range(25)), stored: { dtype: 'i8' as const, rows: small } };
  const version = versionOf('1', 2, [half, int]);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  await lookUp(client, version);
  const keys = [3n, 2n, 2n, 30n, 7n];
  const groups = [half, int].map((table) => {
    const { keys: words, count, outcomes } = groupOf(table, keys);
    const rows = new Uint8Array(count * (table === half ? 8 : 76)).fill(99);
    return { table: table.name, keys: words, count, outcomes, rows };
  });
  for (const dedupe of [false, true]) {
    const summary = await client.lookupStored(manifestOf(version), groups, 5_000, { dedupe });
    assert.deepEqual(summary.groups, [
      { dtype: 'f16', rowBytes: 8 },
      { dtype: 'i8', rowBytes: 76 },
    ]);
    assert.deepEqual([summary.unseen, summary.unavailable], [2, 0]);
    for (const { table, rows, outcomes } of groups) {
      const rowBytes = table === 'half' ? 8 : 76;
      const expected = keys.map((key) =>
        key === 30n ? new Uint8Array(rowBytes).fill(0x55) : bytesOf(key, rowBytes),
      );
      assert.deepEqual(Buffer.from(rows), Buffer.concat(expected));
      assert.deepEqual([...outcomes], [0, 0, 0, 1, 0]);
    }
  }
  await fleet.shard(2, 1)[0]!.kill();
  const { unavailable } = await client.lookupStored(manifestOf(version), groups, 5_000);
  assert.equal(unavailable, 4);
  assert.ok(groups[0]!.rows.subarray(0, 8).every((byte) => byte === 0));
  const crooked = { ...groups[0]!, rows: new Uint8Array(groups[0]!.rows.length + 4).subarray(1) };
  await assert.rejects(client.lookupStored(manifestOf(version), [crooked], 5_000), /multiple of 4/);
});

test('values of any length, in the order of the keys; what is too much for one answer is asked for in two', async () => {
  const values = new Map(
    range(50).map((key) => [key, Buffer.alloc((Number(key) * 37) % 500, Number(key) + 1)]),
  );
  const table = { ...tableWith('v', 1, []), values };
  const version = versionOf('1', 3, [table]);
  const fleet = await fleetOf([version]);
  for (const server of fleet.servers) server.responseBytes = 2_000;
  const client = fleet.client();
  const keys = [49n, 0n, 60n, ...range(50), 7n, 7n];
  const { keys: words, count, outcomes } = groupOf(table, keys);
  const group = { table: 'v', keys: words, count, outcomes };
  const look = async (): Promise<Buffer[]> => {
    const summary = await client.lookupValues(
      manifestOf(version),
      [group, { ...group, count: 0 }],
      5_000,
    );
    const [found, none] = summary.values;
    assert.deepEqual([none!.ends.length, none!.values.length], [0, 0]);
    const { values: bytes, ends } = found!;
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
  await fleet.shard(3, 1)[0]!.kill();
  const left = await look();
  keys.forEach((key, i) => {
    const down = key % 3n === 1n;
    assert.equal(outcomes[i] === OUTCOME_UNAVAILABLE, down);
    assert.deepEqual(left[i], down ? Buffer.alloc(0) : (values.get(key) ?? Buffer.alloc(0)));
  });
  for (const server of fleet.servers) server.responseBytes = 10;
  const refused = client.lookupValues(manifestOf(version), [group], 5_000);
  await assert.rejects(
    refused,
    /ctr 1, shard \d at .*: .* bytes of rows: a lookup has at most 10 bytes; split it/,
  );
  await assert.rejects(
    client.lookupValues(manifestOf(versionOf('1', 3)), [{ ...group, table: 't' }], 1),
    /use lookup or/,
  );
});

test('more groups than one request may have are asked in several', async () => {
  const version = versionOf('1', 1);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  const groups = Array.from({ length: LOOKUP_GROUPS_MAX + 3 }, (_, i) => {
    const keys = [BigInt(i % 40)];
    return { table: TABLE, keys, group: groupOf(TABLE, keys) };
  });
  const asked = groups.map(({ group }) => group);
  assertAnswered(version, groups, await client.lookup(manifestOf(version), asked, 5_000));
  const counts = fleet.servers[0]!.lookups.map((head) => head.groups.length);
  assert.deepEqual(counts, [LOOKUP_GROUPS_MAX, 3]);
});

test('dedupe: a key is asked once, and answered everywhere', async () => {
  const version = versionOf('1', 2);
  const fleet = await fleetOf([version]);
  const client = fleet.client();
  const keys = Array.from({ length: 200 }, (_, i) => BigInt((i * 7) % 40));
  const group = groupOf(TABLE, keys);
  const manifest = manifestOf(version);
  const summary = await client.lookup(manifest, [group], 5_000, { dedupe: true });
  assertAnswered(version, [{ table: TABLE, keys, group }], summary);
  const asked = fleet.servers.flatMap(({ lookups }) => lookups.flatMap((head) => head.groups));
  assert.equal(
    asked.reduce((sum, { count }) => sum + count, 0),
    40,
  );
  await fleet.servers[0]!.kill();
  const half = await client.lookup(manifest, [group], 5_000, { dedupe: true });
  assertAnswered(version, [{ table: TABLE, keys, group }], half, (shard) => shard === 0);
  assert.equal(half.unavailable, 100);
});

for (const connectionType of CONNECTION_TYPES) {
  test(`connections: ${connectionType}`, async () => {
    const version = versionOf('1', 1);
    const fleet = await fleetOf([version]);
    const client = fleet.client({ connectionType });
    const [server] = fleet.servers;
    for (let i = 0; i < 3; i++) await lookUp(client, version);
    const resting = { single: 1, pooled: 1, short: 0 }[connectionType];
    while (server!.connections !== resting) await sleep(5);
    let open = (): void => undefined;
    server!.gate = new Promise((resolve) => {
      open = resolve;
    });
    const lookups = Array.from({ length: 8 }, () => lookUp(client, version));
    const busy = connectionType === 'single' ? 1 : 8;
    while (server!.connections !== busy || server!.arrivals < 3 + busy) await sleep(5);
    open();
    await Promise.all(lookups);
    while (server!.connections !== { single: 1, pooled: 8, short: 0 }[connectionType])
      await sleep(5);
    await server!.kill();
    const { unavailable } = await client.lookup(manifestOf(version), [groupOf(TABLE, [1n])], 5_000);
    assert.equal(unavailable, 1);
    await server!.start();
    const group = groupOf(TABLE, [1n]);
    while ((await client.lookup(manifestOf(version), [group], 5_000)).unavailable > 0)
      await sleep(20);
    client.close();
    while (server!.connections > 0) await sleep(5);
  });
}

test('what a replica says it holds is remembered: it is not asked for what it lacks', async () => {
  const [one, two] = [versionOf('1', 1), versionOf('2', 1)];
  const fleet = await fleetOf([one, two], 2);
  const [behind, ahead] = fleet.servers;
  behind!.versions.pop();
  behind!.saysHeld = true;
  const client = fleet.client();
  for (let i = 0; i < 3; i++) await lookUp(client, two);
  assert.equal(client.stats().versionsAbsent, 1);
  const known = new Map(
    client.stats().replicas.map(({ endpoint, versions }) => [endpoint, versions]),
  );
  assert.deepEqual(known.get(behind!.endpoint), ['ctr/1']);
  assert.deepEqual(known.get(ahead!.endpoint), ['ctr/2']);
});

test('figures count what happened; replicas show their state; only changes of state are told', async () => {
  const version = versionOf('1', 2);
  const fleet = await fleetOf([version], 2);
  const lines: string[] = [];
  const tell = (_fields: object, text: string): void => void lines.push(text);
  const client = fleet.client({ logger: { info: tell, warn: tell } });
  for (let i = 0; i < 4; i++) await lookUp(client, version);
  const quiet = client.stats();
  assert.deepEqual([quiet.calls, quiet.keys, quiet.requests, quiet.unseenKeys], [4, 160, 8, 40]);
  assert.ok(quiet.replicas.every(({ state, latencyMs }) => state === 'answering' && latencyMs > 0));
  const [dead] = fleet.shard(2, 0);
  await dead!.kill();
  for (let i = 0; i < 20; i++) await lookUp(client, version);
  const { failures, retries, unavailableKeys, replicas } = client.stats();
  assert.ok(failures > 0 && retries > 0 && unavailableKeys === 0);
  assert.equal(replicas.find(({ endpoint }) => endpoint === dead!.endpoint)!.state, 'failed');
  await dead!.start();
  while (client.stats().replicas.some(({ state }) => state === 'failed')) {
    await lookUp(client, version);
    await sleep(10);
  }
  assert.deepEqual(lines, ['replica failed', 'replica answers again']);
});

test('a policy that is none is refused', async () => {
  const fleet = await fleetOf([versionOf('1', 1)]);
  const policy = (value: object) => () => fleet.client({ policy: value });
  assert.throws(policy({ loadBalancer: 'best' }), /loadBalancer: expected one of rr, wrr/);
  assert.throws(policy({ retryMax: -1 }), /retryMax: expected an integer ≥ 0, got -1/);
  assert.throws(policy({ backupRequest: 0 }), /backupRequest: expected milliseconds > 0, or p95/);
  const many = (): CubeClient => fleet.client({ connectionType: 'many' as 'single' });
  assert.throws(many, /connectionType: expected one of single, pooled, short, got "many"/);
});
