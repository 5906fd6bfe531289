/** The cube-cli process against cube-server processes: lookups, a dead shard, Cube's seek. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { killServers, ServerProcess } from '../../cube-server/support/server-process.ts';
import { onTestEnd, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';
import { activate, makeKeys, makeRows, publish, type TableSpec } from '../publish-version.ts';

after(killServers);

const cli = (...args: string[]) => runCommand('tools/cube-cli/main.js', ...args);

const KEYS = makeKeys(60);
const ROWS = makeRows(KEYS, 4);
const USERS: TableSpec = { name: 'users', dtype: 'f16', dim: 4, layers: [{ rows: ROWS }] };
const TEXTS: TableSpec = {
  name: 'texts',
  dtype: 'bytes',
  dim: 0,
  layers: [{ rows: new Map(KEYS.map((key, i) => [key, [...Buffer.from(`t${i}`)]])) }],
};

const EVEN = KEYS.find((key) => key % 2n === 0n) ?? 0n;
const ODD = KEYS.find((key) => key % 2n === 1n) ?? 0n;
const PROBES = [String(EVEN), String(ODD), '5'];

type Line = Record<string, unknown>;

async function seek(code: number, ...args: string[]): Promise<Line[]> {
  const done = await cli('seek', ...PROBES, '--json', ...args);
  assert.equal(done.code, code, done.stdout + done.stderr);
  const lines = done.stdout.trimEnd().split('\n');
  return lines.map((line) => JSON.parse(line) as Line);
}

const summarize = (found: Line[]): string[] =>
  found.map(({ outcome, shard }) => `${outcome} ${shard}`);

interface Cluster {
  readonly folder: string;
  readonly servers: readonly ServerProcess[];
  /** Options that select the version, and the servers in three ways. */
  readonly version: readonly string[];
  readonly byFleet: readonly string[];
  readonly byServers: readonly string[];
  readonly byConf: readonly string[];
}

/** Starts two servers with version 1 active and writes a fleet.json and a cube.conf for them. */
async function start(t: TestContext): Promise<Cluster> {
  const folder = temporaryFolder(t);
  const root = join(folder, 'repository');
  await publish(root, { version: '1', shardNum: 2, tables: [USERS, TEXTS] });
  await activate(root, '1');
  const servers = await Promise.all(
    ['0', '1'].map((shard) => {
      const flags = ['--shard', shard, '--shard-num', '2', '--data-dir', root];
      return ServerProcess.start([...flags, '--cube-table', 'b/users']);
    }),
  );
  for (const server of servers) {
    onTestEnd(t, () => server.child.kill('SIGKILL'));
    for (const call of ['load', 'activate']) {
      assert.equal((await server.control(call, { bundle: 'b', version: '1' })).status, 200);
    }
  }
  const addresses = servers.map(({ address }) => address);
  const shards = addresses.map((data) => [{ data }]);
  const fleet = { format: 1, bundles: { b: [{ shardNum: 2, shards }] } };
  writeFileSync(join(folder, 'fleet.json'), JSON.stringify(fleet));
  const nodes = addresses.map((address) => ({ ipport_list: `list://${address}` }));
  const limits = { shard: 2, dup: 1, timeout: 20_000, retry: 1, backup_request: 100 };
  const dict = { dict_name: 'users', type: 'ipport_list', load_balancer: 'rr', ...limits, nodes };
  writeFileSync(join(folder, 'cube.conf'), JSON.stringify([dict]));
  return {
    folder,
    servers,
    version: ['--repository', root, '--bundle', 'b'],
    byFleet: ['--fleet', join(folder, 'fleet.json')],
    byServers: addresses.flatMap((address) => ['--server', address]),
    byConf: ['--cube-conf', join(folder, 'cube.conf'), '--dict', 'users'],
  };
}

test('looks up keys of a loaded version, and by Cube’s seek', async (t) => {
  const { version, byFleet, byServers, byConf } = await start(t);
  for (const location of [byFleet, byServers]) {
    const users = await seek(0, ...version, ...location, '--table', 'users');
    assert.deepEqual(summarize(users), ['hit 0', 'hit 1', 'unseen 1']);
    assert.deepEqual(users[0]!['row'], ROWS.get(EVEN));
    assert.deepEqual([users[0]!['version'], users[0]!['dtype']], ['1', 'f16']);
    const raw = await seek(0, ...version, ...location, '--table', 'users', '--raw');
    assert.equal((raw[1]!['raw'] as string).length, 16);
    const texts = await seek(0, ...version, ...location, '--table', 'texts');
    const value = Buffer.from(texts[0]!['value'] as string, 'base64').toString();
    assert.equal(value, `t${KEYS.indexOf(EVEN)}`);
  }
  for (const location of [byConf, [...byServers, '--dict', 'users']]) {
    const found = await seek(0, ...location);
    assert.deepEqual(summarize(found), ['hit 0', 'hit 1', 'unseen 1']);
    assert.deepEqual(found[1]!['row'], ROWS.get(ODD));
  }
});

test('reports servers whose rows differ from the manifest and never reads from them', async (t) => {
  const { folder, servers, version, byFleet, byServers } = await start(t);
  const stat = await cli('stat', ...version, ...byFleet);
  assert.equal(stat.code, 0, stat.stderr);
  assert.match(stat.stdout, new RegExp(`0 of 2 +${servers[0]!.address} +yes +1\\* `));
  const other = join(folder, 'other');
  const salted = { ...USERS, layers: [{ rows: makeRows(KEYS, 4, 3) }] };
  await publish(other, { version: '1', shardNum: 2, tables: [salted, TEXTS] });
  const foreign = ['--repository', other, '--bundle', 'b', '--version', '1'];
  const stats = await cli('stat', ...foreign, ...byServers);
  assert.match(stats.stdout, /1\* \(rows differ from the manifest\)/);
  const refused = await seek(1, ...foreign, ...byFleet, '--table', 'users');
  assert.deepEqual(summarize(refused), ['unavailable 0', 'unavailable 1', 'unavailable 1']);
});

test('reports keys of a dead shard as unavailable, with the reason and exit code 1', async (t) => {
  const { servers, version, byFleet, byServers, byConf } = await start(t);
  servers[1]!.child.kill('SIGKILL');
  await servers[1]!.exited;
  const users = ['--table', 'users'];
  for (const location of [
    [...version, ...byFleet, ...users],
    [...version, ...byServers, ...users],
    byConf,
  ]) {
    const found = await seek(1, ...location, '--timeout-ms', '60000');
    assert.deepEqual(
      summarize(found),
      ['hit 0', 'unavailable 1', 'unavailable 1'],
      location.join(' '),
    );
    assert.deepEqual(found[0]!['row'], ROWS.get(EVEN));
    assert.equal(found[1]!['row'], undefined);
  }
  const unavailable = await cli('seek', PROBES[1]!, ...version, ...byFleet, ...users);
  assert.equal(unavailable.code, 1);
  assert.match(unavailable.stdout, /users +unavailable +1/);
  assert.match(unavailable.stderr, /^cube-cli: shard 1 of 2: /);
  const half = await cli('stat', '--bundle', 'b', ...byFleet);
  assert.equal(half.code, 1);
  assert.match(half.stdout, /^1 +127.*no cube-server answers at/m);
});
