import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { readHugePageMode } from '../../lib/platform/machine.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { LOOKUP_GROUPS_MAX } from '../../proto/lookup.ts';
import { lintMetrics } from '../support/metrics-lint.ts';
import { DataFolder } from './support/data-folder.ts';
import {
  decodeLookupAnswer,
  encodeLookupCall,
  type LookupCall,
  lookup,
} from './support/lookups.ts';
import { killServers, ServerProcess } from './support/server-process.ts';

/**
 * A real process that serves shard 1 of 3 of a bundle with three tables of different dims, in two
 * versions.
 */
const folder = new DataFolder();
const MAX = 2n ** 64n - 1n; // MAX mod 3 = 0, MAX - 2 mod 3 = 1
const spread = Array.from(
  { length: 300 },
  (_, i) => (BigInt(i) * 0x9e37_79b9_7f4a_7c15n) % 2n ** 64n,
);
let server: ServerProcess;
let channel: Channel;

const value = (version: number) => (key: bigint, j: number) =>
  Math.fround(Number(key % 1000n) + j / 8 + 10_000 * version);

function writeVersion(version: number): void {
  const tables = [
    {
      name: 'narrow',
      dim: 1,
      keys: [1n, 4n, 7n, MAX - 2n, ...spread.slice(1)],
      value: value(version),
    },
    { name: 'wide', dim: 64, keys: spread, value: value(version), defaultRow: Array(64).fill(0.5) },
    { name: 'empty', dim: 3, keys: [0n, 3n], value: value(version) },
  ];
  folder.write({ bundle: 'ctr', version: String(version), shardNum: 3, tables });
}

before(async () => {
  writeVersion(1);
  writeVersion(2);
  const flags = toArguments({ shard: 1, shardNum: 3, dataDir: folder.path, memory: '64MiB' });
  server = await ServerProcess.start(flags);
  channel = new Channel(server.address);
});

after(async () => {
  channel.close();
  await server.stop();
  killServers();
  folder.remove();
});

const own = (keys: readonly bigint[]): bigint[] => keys.filter((key) => key % 3n === 1n);
const call = (fields: Partial<LookupCall>): LookupCall => ({
  bundle: 'ctr',
  shardIndex: 1,
  shardNum: 3,
  groups: [],
  ...fields,
});

async function refusal(fields: Partial<LookupCall>): Promise<CubeError> {
  try {
    await lookup(channel, call(fields));
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error;
  }
  throw new Error('was not refused');
}

test('an empty server is alive, not ready, and refuses lookups', async () => {
  assert.equal((await fetch(`http://${server.address}/healthz`)).status, 200);
  const ready = await fetch(`http://${server.address}/readyz`);
  assert.equal(ready.status, 503);
  assert.match(await ready.text(), /no version is active/);
  assert.equal((await refusal({})).code, 'NOT_READY');
  assert.equal((await refusal({ version: '1' })).code, 'VERSION_ABSENT');
  const { body } = await server.control('status');
  assert.equal(body.ready, false);
  assert.deepEqual([body.shardIndex, body.shardNum, body.bundles], [1, 3, []]);
  assert.equal(body.pid, server.child.pid);
});

test('a loaded version answers pinned lookups before any activation', async () => {
  const loaded = await server.control('load', { bundle: 'ctr', version: '1' });
  assert.equal(loaded.status, 200, JSON.stringify(loaded.body));
  assert.equal(loaded.body.layersLoaded, 3);
  const again = await server.control('load', { bundle: 'ctr', version: '1' });
  assert.deepEqual([again.status, again.body.layersLoaded, again.body.bytes], [200, 0, 0]);
  const groups = [{ table: 'narrow', keys: [1n] }];
  const answer = await lookup(channel, call({ version: '1', groups }));
  assert.deepEqual(answer.groups[0]?.rows, [[value(1)(1n, 0)]]);
  assert.equal((await fetch(`http://${server.address}/readyz`)).status, 503);
  assert.equal((await refusal({ groups })).code, 'NOT_READY');
});

test('after activation the server is ready and answers unpinned lookups', async () => {
  const activated = await server.control('activate', { bundle: 'ctr', version: '1' });
  assert.deepEqual(activated.body, { active: '1' });
  assert.equal((await fetch(`http://${server.address}/readyz`)).status, 200);
  assert.equal((await lookup(channel, call({}))).version, '1');
});

test('a lookup with another digest of the same version is refused', async () => {
  const { body } = await server.control('status');
  const { tablesDigest } = body.bundles[0].versions[0];
  assert.equal((await lookup(channel, call({ tablesDigest }))).version, '1');
  const { code, message } = await refusal({ version: '1', tablesDigest: '0123456789abcdef' });
  assert.equal(code, 'VERSION_ABSENT');
  assert.match(
    message,
    /ctr 1 has other rows on this server \(.{16}\) than requested \(0123456789abcdef\)/,
  );
});

test('several tables of different dims in one call, over both protocols', async () => {
  const wide = [...own(spread), 10n ** 15n * 3n + 1n, 4n];
  const groups = [
    { table: 'wide', keys: wide },
    { table: 'narrow', keys: [7n, MAX - 2n, 10n, 1n, 7n] },
    { table: 'empty', keys: [1n, 4n] },
    { table: 'narrow', keys: [] },
  ];
  const answer = await lookup(channel, call({ groups }));
  assert.equal(answer.version, '1');
  const [first, second, third, fourth] = answer.groups;
  wide.forEach((key, i) => {
    const known = spread.includes(key);
    assert.equal(first?.found[i], known);
    const row = Array.from({ length: 64 }, (_, j) => (known ? value(1)(key, j) : 0.5));
    assert.deepEqual(first?.rows[i], row, `key ${key}`);
  });
  assert.equal(first?.hits, own(spread).length);
  assert.deepEqual(second?.found, [true, true, false, true, true]);
  assert.deepEqual(second?.rows[1], [value(1)(MAX - 2n, 0)]);
  assert.deepEqual(second?.rows[2], [0]);
  assert.deepEqual(third, {
    hits: 0,
    found: [false, false],
    rows: [
      [0, 0, 0],
      [0, 0, 0],
    ],
  });
  assert.deepEqual(fourth, { hits: 0, found: [], rows: [] });
  const response = await fetch(`http://${server.address}/hypercube.LookupService/lookup`, {
    method: 'POST',
    headers: { 'content-type': 'application/proto' },
    body: encodeLookupCall(call({ groups }), true).head,
  });
  assert.equal(response.headers.get('content-type'), 'application/proto');
  assert.deepEqual(decodeLookupAnswer(new Uint8Array(await response.arrayBuffer())), answer);
});

test('a lookup for another shard is refused, never answered as missing', async () => {
  for (const [shardIndex, shardNum] of [
    [0, 3],
    [1, 4],
    [0, 0],
  ] as const) {
    const error = await refusal({ shardIndex, shardNum });
    assert.equal(error.code, 'WRONG_SHARD');
    assert.match(error.message, /this replica serves shard 1 of 3/);
  }
  const groups = [{ table: 'wide', keys: [...own(spread), 4n, 5n, 7n] }];
  const error = await refusal({ groups });
  assert.equal(error.code, 'WRONG_SHARD');
  assert.match(error.message, /key 5 .*for table wide.* belongs to shard 2/);
  assert.equal((await refusal({ groups: [{ table: 'empty', keys: [MAX] }] })).code, 'WRONG_SHARD');
});

test('impossible requests are refused with a reason', async () => {
  const unknown = await refusal({ groups: [{ table: 'absent', keys: [1n] }] });
  assert.equal(unknown.code, 'NOT_FOUND');
  assert.match(unknown.message, /it has: narrow, wide, empty/);
  const absent = await refusal({ version: '9' });
  assert.equal(absent.code, 'VERSION_ABSENT');
  const details = { bundle: 'ctr', shard: 1, loadedVersions: ['1'], version: '9' };
  assert.match(absent.message, /loaded: 1\)/);
  assert.deepEqual(absent.details, details);
  assert.equal((await refusal({ bundle: 'nobody' })).code, 'NOT_READY');
  const groups = Array.from({ length: LOOKUP_GROUPS_MAX + 1 }, () => ({
    table: 'narrow',
    keys: [],
  }));
  assert.match((await refusal({ groups })).message, /at most 4096 groups/);
  const { head } = encodeLookupCall(call({ groups: [{ table: 'narrow', keys: [1n, 4n] }] }), false);
  const short = channel.call('hypercube.LookupService', 'lookup', head, new Uint8Array(15), 1000);
  await assert.rejects(short, /count 2 keys of 8 bytes, but there are 15 bytes/);
  const many = encodeLookupCall(
    call({ groups: [{ table: 'narrow', keys: Array(1 << 20).fill(1n) }] }),
    false,
  );
  const longer = new Uint8Array(many.keys.length + 8);
  const over = call({ groups: [{ table: 'narrow', keys: Array((1 << 20) + 1).fill(1n) }] });
  const tooMany = channel.call(
    'hypercube.LookupService',
    'lookup',
    encodeLookupCall(over, false).head,
    longer,
    5000,
  );
  await assert.rejects(tooMany, /at most 1048576 keys/);
});

test('two versions are resident and each answers for itself', async () => {
  const loaded = await server.control('load', { bundle: 'ctr', version: '2' });
  assert.equal(loaded.status, 200);
  const groups = [{ table: 'narrow', keys: own(spread) }];
  for (const version of ['1', '2', '1']) {
    const answer = await lookup(channel, call({ version, groups }));
    assert.equal(answer.version, version);
    const expected = own(spread).map((key) => [value(Number(version))(key, 0)]);
    assert.deepEqual(answer.groups[0]?.rows, expected);
  }
  assert.equal((await lookup(channel, call({ groups }))).version, '1');
  await server.control('activate', { bundle: 'ctr', version: '2' });
  assert.equal((await lookup(channel, call({ groups }))).version, '2');
  await server.control('activate', { bundle: 'ctr', version: '1' });
  const { body } = await server.control('status');
  assert.equal(body.bundles[0].active, '1');
  assert.deepEqual(
    body.bundles[0].versions.map((v: { version: string }) => v.version),
    ['1', '2'],
  );
  assert.ok(body.bundles[0].versions[0].idleMs < 60_000);
  assert.ok(body.memory.usedBytes > 0 && body.memory.usedBytes <= body.memory.budgetBytes);
  assert.equal(body.memory.hugePages, readHugePageMode());
});

test('impossible control calls change nothing', async () => {
  const refused = [
    ['load', { bundle: 'ctr', version: '9' }, 404, 'NOT_FOUND'],
    ['load', { bundle: '../../etc', version: '1' }, 400, 'INVALID_ARGUMENT'],
    ['load', { bundle: 'ctr' }, 400, 'INVALID_ARGUMENT'],
    ['load', 'no json', 400, 'INVALID_ARGUMENT'],
    ['activate', { bundle: 'ctr', version: '9' }, 412, 'VERSION_ABSENT'],
    ['unload', { bundle: 'ctr', version: '1' }, 409, 'CONFLICT'],
  ] as const;
  for (const [name, body, status, code] of refused) {
    const reply = await server.control(name, body);
    assert.deepEqual([reply.status, reply.body.code], [status, code], JSON.stringify(reply.body));
  }
  const absent = await server.control('activate', { bundle: 'ctr', version: '9' });
  assert.deepEqual(absent.body.details.loadedVersions, ['1', '2']);
  const plain = await server.control('activate', '{}', { 'content-type': 'text/plain' });
  assert.match(plain.body.error, /need "Content-Type: application\/json"/);
  const status = await server.control('status');
  assert.deepEqual(status.body.failed[0], {
    bundle: 'ctr',
    version: '9',
    code: 'NOT_FOUND',
    message: status.body.failed[0].message,
  });
  await server.control('unload', { bundle: 'ctr', version: '9' });
  const left = (await server.control('status')).body.failed;
  assert.ok(!left.some((failure: { version: string }) => failure.version === '9'));
  assert.equal((await lookup(channel, call({}))).version, '1');
});

test('a damaged or foreign layer fails to load; other versions keep serving', async () => {
  const tables = [{ name: 'narrow', dim: 2, keys: own(spread), value: value(3) }];
  const manifest = folder.write({ bundle: 'ctr', version: '3', shardNum: 3, tables });
  const path = folder.layerFile('ctr', 'narrow', manifest.tables[0]!.shards[1]![0]!.contentId);
  const good = readFileSync(path);
  const flipped = Buffer.from(good);
  flipped[5000]! ^= 1;
  for (const damaged of [flipped, good.subarray(0, 4096), Buffer.alloc(0)]) {
    writeFileSync(path, damaged);
    const reply = await server.control('load', { bundle: 'ctr', version: '3' });
    assert.equal(reply.body.code, 'CORRUPT', JSON.stringify(reply.body));
    const { body } = await server.control('status');
    assert.equal(body.failed.at(-1).code, 'CORRUPT');
    assert.equal((await lookup(channel, call({}))).version, '1');
  }
  folder.write({ bundle: 'ctr', version: '4', shardNum: 3, tables });
  writeFileSync(folder.manifestFile('ctr', '4'), '{"format":1');
  assert.equal(
    (await server.control('load', { bundle: 'ctr', version: '4' })).body.code,
    'CORRUPT',
  );
  folder.write({ bundle: 'ctr', version: '5', shardNum: 4, tables });
  const other = await server.control('load', { bundle: 'ctr', version: '5' });
  assert.equal(other.body.code, 'WRONG_SHARD');
  assert.match(other.body.error, /has 4 shards; this server serves shard 1 of 3/);
  writeFileSync(path, good);
  assert.equal((await server.control('load', { bundle: 'ctr', version: '3' })).status, 200);
  assert.deepEqual(
    (await server.control('status')).body.failed
      .map((f: { version: string }) => f.version)
      .includes('3'),
    false,
  );
  assert.deepEqual((await server.control('unload', { bundle: 'ctr', version: '3' })).body, {
    unloaded: true,
  });
  assert.deepEqual((await server.control('unload', { bundle: 'ctr', version: '3' })).body, {
    unloaded: false,
  });
  assert.equal((await refusal({ version: '3' })).code, 'VERSION_ABSENT');
});

test('seek with several tables needs --cube-table', async () => {
  const response = await fetch(`http://${server.address}/DictService/seek`, {
    method: 'POST',
    body: '{"keys":[1]}',
  });
  assert.equal(response.status, 409);
  assert.match(
    await response.text(),
    /3 \(ctr\/narrow, ctr\/wide, ctr\/empty\); start it with --cube-table/,
  );
});

test('metrics count keys, hits and errors', async () => {
  const response = await fetch(`http://${server.address}/metrics`);
  assert.match(response.headers.get('content-type') ?? '', /text\/plain/);
  const text = await response.text();
  assert.deepEqual(lintMetrics(text), []);
  const metric = (name: string): number => {
    const line = text.split('\n').find((candidate) => candidate.startsWith(name));
    assert.ok(line, `${name} in\n${text}`);
    return Number(line.slice(line.lastIndexOf(' ') + 1));
  };
  const keys = metric('hypercube_keys_total{bundle="ctr",table="narrow"}');
  const hits = metric('hypercube_hits_total{bundle="ctr",table="narrow"}');
  const misses = metric('hypercube_misses_total{bundle="ctr",table="narrow"}');
  assert.ok(hits > 0 && misses > 0 && hits + misses === keys);
  const service = 'protocol="baidu_std",service="hypercube.LookupService",method="lookup"';
  assert.ok(metric(`hypercube_requests_total{${service}}`) > 10);
  assert.ok(metric(`hypercube_request_errors_total{${service},code="WRONG_SHARD"}`) >= 5);
  assert.equal(metric('hypercube_version_active{bundle="ctr",version="1"}'), 1);
  assert.equal(metric('hypercube_version_active{bundle="ctr",version="2"}'), 0);
  assert.ok(metric('hypercube_resident_bytes{bundle="ctr",version="1"}') > 0);
  assert.ok(metric('hypercube_connections') >= 1);
  assert.equal(metric('hypercube_ready'), 1);
  assert.ok(metric('process_cpu_seconds_total') > 0);
});
