import assert from 'node:assert/strict';
import { cpSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { Channel } from '../../lib/rpc/channel.ts';
import { type Entry, floats, writeCubeDict } from '../store/cube-dicts.ts';
import { cmd, cubeStatus, seekFloat } from './cmd.ts';
import { DataFolder } from './data-folder.ts';
import { lookup } from './lookups.ts';
import { killServers, ServerProcess } from './server-process.ts';

/** A folder as Cube's agent leaves it: shard 0 of 2, a directory for each version. */
const folder = new DataFolder();
const data = join(folder.path, 'shard-0', 'data');
const flags = ['--shard', '0', '--shard-num', '2', '--data-dir', join(folder.path, 'work')];
const cubeFlags = [...flags, '--cube-data', join(folder.path, 'shard-{shard}', 'data')];

const rows = (version: number, keys: readonly bigint[]): Entry[] =>
  keys.map((key) => [key, floats(Number(key) + 1000 * version, 7)]);
const base = rows(1, [0n, 2n, 4n, 2n ** 64n - 2n]);

after(() => {
  killServers();
  folder.remove();
});

async function started(): Promise<ServerProcess> {
  const server = await ServerProcess.start(cubeFlags);
  while ((await cubeStatus(server.address))[2] === 1);
  return server;
}

test('it serves what VERSION names, and a directory given by command', async () => {
  writeCubeDict(join(data, '100'), [base]);
  writeFileSync(join(data, 'VERSION'), '100\n');
  const server = await started();
  assert.deepEqual(await cubeStatus(server.address), ['100', '', 0]);
  assert.equal(await seekFloat(server.address, 4), 1004);
  assert.equal(await seekFloat(server.address, 6), undefined);
  writeCubeDict(join(data, '200'), [rows(2, [4n, 6n])]);
  const load = await cmd(server.address, { cmd: 'bg_load_base', version_path: '/200' });
  assert.deepEqual([load.status, load.reason], [200, '']);
  assert.equal(await seekFloat(server.address, 4), 1004);
  assert.equal((await cmd(server.address, { cmd: 'enable', version: '200' })).status, 200);
  assert.deepEqual(await cubeStatus(server.address), ['200', '100', 0]);
  assert.equal(await seekFloat(server.address, 6), 2006);
  const channel = new Channel(server.address);
  const groups = [{ table: 'dict', keys: [2n ** 64n - 2n] }];
  const pinned = { bundle: 'cube', version: '100', shardNum: 2, groups };
  const answer = await lookup(channel, pinned);
  assert.deepEqual(answer.groups[0]?.rows, [[...new Float32Array(base[3]![1].buffer)]]);
  channel.close();
  assert.equal((await cmd(server.address, { cmd: 'bg_unload' })).status, 200);
  await server.stop();
  const left = readdirSync(join(folder.path, 'work', '.cube-0-of-2'), { recursive: true });
  assert.deepEqual(
    left.filter((name) => String(name).endsWith('.cube')),
    [],
  );
});

test('a damaged directory is refused whole and the one before goes on', async () => {
  writeFileSync(join(data, 'VERSION'), '100');
  const server = await started();
  const damaged: [string, (path: string) => void, RegExp][] = [
    ['301', (path) => rmSync(join(path, 'data.0')), /data\.0: no such file/],
    ['302', (path) => rmSync(join(path, 'index.0')), /index\.0: no such file/],
    ['303', (path) => writeFileSync(join(path, 'data.0'), ''), /has 0 bytes/],
    ['304', (path) => writeCubeDict(path, [rows(3, [4n, 5n])]), /key 5 does not belong to shard 0/],
    ['305', (path) => rmSync(path, { recursive: true }), /index\.n: no such file/],
  ];
  for (const [version, damage, reason] of damaged) {
    writeCubeDict(join(data, version), [base]);
    damage(join(data, version));
    const reply = await cmd(server.address, { cmd: 'reload_base', version_path: `/${version}` });
    assert.deepEqual([reply.status, reply.text], [500, 'null'], version);
    assert.match(reply.reason, reason);
    assert.deepEqual(await cubeStatus(server.address), ['100', '', 0]);
  }
  assert.equal(await seekFloat(server.address, 2), 1002);
  writeCubeDict(join(data, '100'), [rows(9, [2n])]);
  const changed = await cmd(server.address, { cmd: 'bg_load_base', version_path: '/100' });
  assert.equal(changed.status, 500);
  assert.match(changed.reason, /version 100 is being served with other rows/);
  await server.stop();
  writeFileSync(join(data, 'VERSION'), '305');
  const empty = await ServerProcess.start(cubeFlags);
  await empty.logged(/no dictionary loaded: not ready/);
  assert.equal((await fetch(`http://${empty.address}/readyz`)).status, 503);
  await empty.stop();
});

test('a patch goes on from the current version, or is refused', async () => {
  writeCubeDict(join(data, '500'), [base]);
  writeFileSync(join(data, 'VERSION'), '500');
  const server = await started();
  const patch = (path: string) =>
    cmd(server.address, { cmd: 'reload_patch', version_path: `/${path}` });
  writeCubeDict(join(data, '500_600'), [base, rows(6, [2n, 8n])]);
  assert.deepEqual(await patch('500_600'), { status: 200, text: 'null', reason: '' });
  assert.deepEqual(await cubeStatus(server.address), ['500_600', '', 0]);
  for (const [key, value] of [
    [0, 1000],
    [2, 6002],
    [8, 6008],
  ] as const) {
    assert.equal(await seekFloat(server.address, key), value);
  }
  // Alone it would replace the base, or lie over it, depending on the version of Cube.
  writeCubeDict(join(data, '700'), [rows(7, [2n])]);
  const alone = await patch('700');
  assert.equal(alone.status, 500);
  assert.match(alone.reason, /no patch of the current version 500_600/);
  cpSync(join(data, '500_600'), join(data, '500_601'), { recursive: true });
  assert.equal((await patch('500_601')).status, 500, 'the same files add nothing');
  assert.deepEqual(await cubeStatus(server.address), ['500_600', '', 0]);
  await server.stop();
});

test('without VERSION the folder itself is the dictionary, named by its content', async () => {
  rmSync(data, { recursive: true });
  const waiting = await started();
  assert.deepEqual(await cubeStatus(waiting.address), ['', '', 0]);
  writeCubeDict(data, [base]);
  const reload = () => cmd(waiting.address, { cmd: 'reload_base', version_path: '' });
  assert.equal((await reload()).status, 200);
  const [first] = await cubeStatus(waiting.address);
  assert.match(first, /^root-[0-9a-f]{8}$/);
  writeCubeDict(data, [rows(2, [0n])]);
  assert.equal((await reload()).status, 200);
  assert.equal(await seekFloat(waiting.address, 0), 2000);
  assert.notEqual((await cubeStatus(waiting.address))[0], first);
  await waiting.stop();
});

test('values of any length, in memory or left on disk', async () => {
  rmSync(data, { recursive: true });
  const values = ['', 'a', 'x'.repeat(5000), '\u0000\u0001', 'four'];
  const entries = values.map((value, i): Entry => [BigInt(2 * i), Buffer.from(value)]);
  writeCubeDict(join(data, '1'), [entries]);
  writeFileSync(join(data, 'VERSION'), '1');
  for (const more of [[], ['--no-in-mem']]) {
    const server = await ServerProcess.start([...cubeFlags, ...more]);
    while ((await cubeStatus(server.address))[2] === 1);
    assert.deepEqual(await cubeStatus(server.address), ['1', '', 0], more.join());
    const response = await fetch(`http://${server.address}/DictService/seek`, {
      method: 'POST',
      body: JSON.stringify({ keys: [0, 2, 4, 6, 8, 10] }),
    });
    const answer = (await response.json()) as { values: { status: number; value: string }[] };
    assert.deepEqual(
      answer.values.map(({ status, value }) =>
        status === 0 ? Buffer.from(value, 'base64').toString() : undefined,
      ),
      [...values, undefined],
    );
    await server.stop();
  }
});
