/** The real cube-cli process against real cube-servers: pinned lookups, a dead shard, Cube's seek. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { runCommand } from '../../cube-agent/processes.ts';
import { killServers, ServerProcess } from '../../cube-server/server-process.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { activate, publish, rowsOf, spreadKeys, type TableWish } from '../published.ts';

after(killServers);

const cli = (...args: string[]) => runCommand('tools/cube-cli/main.js', ...args);

const KEYS = spreadKeys(60);
const ROWS = rowsOf(KEYS, 4);
const USERS: TableWish = { name: 'users', dtype: 'f16', dim: 4, layers: [{ rows: ROWS }] };
const TEXTS: TableWish = {
  ...{ name: 'texts', dtype: 'bytes', dim: 0 },
  layers: [{ rows: new Map(KEYS.map((key, i) => [key, [...Buffer.from(`t${i}`)]])) }],
};

test('keys of a version that servers hold, a shard that is dead, and seeks', async (t) => {
  const folder = temporaryFolder(t);
  const root = join(folder, 'repository');
  await publish(root, { version: '1', shardNum: 2, tables: [USERS, TEXTS] });
  await activate(root, '1');
  const servers = await Promise.all(
    [0, 1].map((shard) =>
      ServerProcess.start([
        ...['--shard', String(shard), '--shard-num', '2', '--data-dir', root],
        ...['--cube-table', 'b/users'],
      ]),
    ),
  );
  const version = { bundle: 'b', version: '1' };
  for (const server of servers) {
    assert.equal((await server.control('load', version)).status, 200);
    assert.equal((await server.control('activate', version)).status, 200);
  }
  const addresses = servers.map(({ address }) => address);
  const fleet = join(folder, 'fleet.json');
  const shards = addresses.map((data) => [{ data }]);
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { b: [{ shardNum: 2, shards }] } }));
  const conf = join(folder, 'cube.conf');
  const nodes = addresses.map((address) => ({ ipport_list: `list://${address}` }));
  const dict = {
    dict_name: 'users',
    shard: 2,
    dup: 1,
    timeout: 2000,
    retry: 1,
    backup_request: 100,
  };
  const type = { type: 'ipport_list', load_balancer: 'rr' };
  writeFileSync(conf, JSON.stringify([{ ...dict, ...type, nodes }]));
  const repository = ['--repository', root, '--bundle', 'b'];
  const [even, odd] = [0n, 1n].map((rest) => KEYS.find((key) => key % 2n === rest)!) as [
    bigint,
    bigint,
  ];
  const keys = [String(even), String(odd), '5'];
  const byServers = addresses.flatMap((address) => ['--server', address]);

  type Line = Record<string, unknown>;
  const seek = async (code: number, ...args: string[]): Promise<Line[]> => {
    const done = await cli('seek', ...keys, '--json', ...args);
    assert.equal(done.code, code, done.stdout + done.stderr);
    return done.stdout
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line) as Line);
  };
  const brief = (found: Line[]): string[] =>
    found.map(({ outcome, shard }) => `${outcome} ${shard}`);

  for (const where of [['--fleet', fleet], byServers]) {
    const users = await seek(0, ...repository, ...where, '--table', 'users');
    assert.deepEqual(brief(users), ['hit 0', 'hit 1', 'unseen 1']);
    assert.deepEqual(users[0]!['row'], ROWS.get(even));
    assert.deepEqual([users[0]!['version'], users[0]!['dtype']], ['1', 'f16']);
    const raw = await seek(0, ...repository, ...where, '--table', 'users', '--raw');
    assert.equal((raw[1]!['raw'] as string).length, 16);
    const texts = await seek(0, ...repository, ...where, '--table', 'texts');
    assert.equal(
      Buffer.from(texts[0]!['value'] as string, 'base64').toString(),
      `t${KEYS.indexOf(even)}`,
    );
  }
  for (const where of [
    ['--cube-conf', conf],
    ['--server', addresses[1]!, '--server', addresses[0]!],
  ]) {
    const sought = await seek(0, ...where, '--dict', 'users');
    assert.deepEqual(brief(sought), ['hit 0', 'hit 1', 'unseen 1']);
    assert.deepEqual(sought[1]!['row'], ROWS.get(odd));
  }

  const stat = await cli('stat', ...repository, '--fleet', fleet);
  assert.equal(stat.code, 0, stat.stderr);
  assert.match(stat.stdout, new RegExp(`0 of 2 +${addresses[0]} +yes +1\\* `));
  await publish(join(folder, 'other'), {
    ...{ version: '1', shardNum: 2 },
    tables: [{ ...USERS, layers: [{ rows: rowsOf(KEYS, 4, 3) }] }, TEXTS],
  });
  const foreign = ['--repository', join(folder, 'other'), '--bundle', 'b', '--version', '1'];
  const other = await cli('stat', ...foreign, ...byServers);
  assert.match(other.stdout, /1\* \(other rows than the manifest\)/);
  const refused = await seek(1, ...foreign, '--fleet', fleet, '--table', 'users');
  assert.deepEqual(brief(refused), ['unavailable 0', 'unavailable 1', 'unavailable 1']);

  servers[1]!.child.kill('SIGKILL');
  await servers[1]!.exited;
  for (const where of [
    [...repository, '--fleet', fleet, '--table', 'users'],
    [...repository, ...byServers, '--table', 'users'],
    ['--cube-conf', conf, '--dict', 'users'],
  ]) {
    const found = await seek(1, ...where, '--timeout-ms', '1500');
    assert.deepEqual(brief(found), ['hit 0', 'unavailable 1', 'unavailable 1'], where.join(' '));
    assert.deepEqual(found[0]!['row'], ROWS.get(even));
    assert.equal(found[1]!['row'], undefined);
  }
  const told = await cli('seek', keys[1]!, ...repository, '--fleet', fleet, '--table', 'users');
  assert.match(told.stdout, /users +unavailable +1/);
  assert.match(told.stderr, /^cube-cli: shard 1 of 2: /);
  const half = await cli('stat', '--bundle', 'b', '--fleet', fleet);
  assert.equal(half.code, 1);
  assert.match(half.stdout, /^1 +127.*no answer/m);
});
