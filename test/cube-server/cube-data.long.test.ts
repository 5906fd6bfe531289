import assert from 'node:assert/strict';
import { cpSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { Channel } from '../../lib/rpc/channel.ts';
import { DICT_METHOD, DICT_SERVICE } from '../../proto/dict.ts';
import { type Entry, floats, writeCubeDict } from '../store/support/cube-dicts.ts';
import { BrpcClient } from './support/brpc-client.ts';
import { getCubeStatus, seekFloat, sendCubeCommand } from './support/cube-commands.ts';
import { DataFolder } from './support/data-folder.ts';
import { lookup } from './support/lookups.ts';
import { killServers, ServerProcess } from './support/server-process.ts';

/** A folder as Cube's agent leaves it: shard 0 of 2, one directory per version. */
const folder = new DataFolder();
const data = join(folder.path, 'shard-0', 'data');
const flags = ['--shard', '0', '--shard-num', '2', '--data-dir', join(folder.path, 'work')];
const cubeFlags = [...flags, '--cube-data', join(folder.path, 'shard-{shard}', 'data')];

const NO_BYTES = new Uint8Array(0);

const rows = (version: number, keys: readonly bigint[]): Entry[] =>
  keys.map((key) => [key, floats(Number(key) + 1000 * version, 7)]);
const base = rows(1, [0n, 2n, 4n, 2n ** 64n - 2n]);

after(() => {
  killServers();
  folder.remove();
});

const started = (...more: string[]): Promise<ServerProcess> =>
  ServerProcess.start([...cubeFlags, ...more]);

test('the server loads the version in VERSION, and directories by command', async () => {
  writeCubeDict(join(data, '100'), [base]);
  writeFileSync(join(data, 'VERSION'), '100\n');
  const server = await started();
  assert.deepEqual(await getCubeStatus(server.address), ['100', '', 0]);
  assert.equal(await seekFloat(server.address, 4), 1004);
  assert.equal(await seekFloat(server.address, 6), undefined);
  writeCubeDict(join(data, '200'), [rows(2, [4n, 6n])]);
  const load = await sendCubeCommand(server.address, { cmd: 'bg_load_base', version_path: '/200' });
  assert.deepEqual([load.status, load.reason], [200, '']);
  assert.equal(await seekFloat(server.address, 4), 1004);
  assert.equal(
    (await sendCubeCommand(server.address, { cmd: 'enable', version: '200' })).status,
    200,
  );
  assert.deepEqual(await getCubeStatus(server.address), ['200', '100', 0]);
  assert.equal(await seekFloat(server.address, 6), 2006);
  const channel = new Channel(server.address);
  const groups = [{ table: 'dict', keys: [2n ** 64n - 2n] }];
  const pinned = { bundle: 'cube', version: '100', shardNum: 2, groups };
  const answer = await lookup(channel, pinned);
  assert.deepEqual(answer.groups[0]?.rows, [[...new Float32Array(base[3]![1].buffer)]]);
  channel.close();
  assert.equal((await sendCubeCommand(server.address, { cmd: 'bg_unload' })).status, 200);
  await server.stop();
  const left = readdirSync(join(folder.path, 'work', '.cube-0-of-2'), { recursive: true });
  assert.deepEqual(
    left.filter((name) => String(name).endsWith('.cube')),
    [],
  );
});

test('a damaged directory is refused, and the previous version keeps serving', async () => {
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
    const reply = await sendCubeCommand(server.address, {
      cmd: 'reload_base',
      version_path: `/${version}`,
    });
    assert.deepEqual([reply.status, reply.text], [500, 'null'], version);
    assert.match(reply.reason, reason);
    assert.deepEqual(await getCubeStatus(server.address), ['100', '', 0]);
  }
  assert.equal(await seekFloat(server.address, 2), 1002);
  writeCubeDict(join(data, '100'), [rows(9, [2n])]);
  const changed = await sendCubeCommand(server.address, {
    cmd: 'bg_load_base',
    version_path: '/100',
  });
  assert.equal(changed.status, 500);
  assert.match(changed.reason, /version 100 is active with other rows/);
  await server.stop();
  writeFileSync(join(data, 'VERSION'), '305');
  const empty = await started('--threads', '2');
  const isReady = await fetch(`http://${empty.address}/readyz`);
  const reason = /the load at start failed \(.*305\/index\.n: no such file.*\); load and activate/;
  assert.equal(isReady.status, 503);
  assert.match(await isReady.text(), reason);
  const channels = Array.from({ length: 8 }, () => new Channel(empty.address));
  for (const channel of channels) {
    const seek = channel.call(DICT_SERVICE, DICT_METHOD, Uint8Array.of(8, 2), NO_BYTES, 60_000);
    await assert.rejects(seek, { code: 'NOT_READY', message: reason });
    channel.close();
  }
  const repaired = { cmd: 'reload_base', version_path: '/500' };
  writeCubeDict(join(data, '500'), [base]);
  assert.equal((await sendCubeCommand(empty.address, repaired)).status, 200);
  assert.equal((await fetch(`http://${empty.address}/readyz`)).status, 200);
  await empty.stop();
});

test('replicas that restart one after the other fail no call of a brpc client', async () => {
  rmSync(data, { recursive: true, force: true });
  const many = Array.from({ length: 20_000 }, (_, i) => 2n * BigInt(i));
  writeCubeDict(join(data, '1'), [rows(1, many)]);
  writeFileSync(join(data, 'VERSION'), '1');
  const start = (port: number, name: string): Promise<ServerProcess> =>
    started('--port', String(port), '--data-dir', join(folder.path, name));
  const servers = [await start(0, 'work-a'), await start(0, 'work-b')];
  const client = new BrpcClient(servers.map(({ address }) => address));
  const failures: string[] = [];
  let calls = 0;
  let isDone = false;
  const call = async (): Promise<void> => {
    while (!isDone) {
      const { payload } = await client.seek([4n]).catch((error: Error) => {
        failures.push(error.message);
        return { payload: NO_BYTES };
      });
      const isHit = payload.length > 0 && Buffer.from(payload).readFloatLE(6) === 1004;
      if (!isHit && failures.length === 0) failures.push('a miss');
      calls++;
    }
  };
  const callers = Array.from({ length: 16 }, call);
  for (const [i, server] of servers.entries()) {
    const { port } = server;
    await server.stop();
    servers[i] = await start(port, i === 0 ? 'work-a' : 'work-b');
    const before = calls;
    await servers[i].until(() => calls > before + 1000 || failures.length > 0 || undefined);
  }
  isDone = true;
  await Promise.all(callers);
  client.close();
  assert.deepEqual([failures, calls > 2000], [[], true], JSON.stringify([...client.retries]));
  await Promise.all(servers.map((server) => server.stop()));
});

test('a server that is not ready makes brpc clients ask another, and is used later', async () => {
  const ready = await started();
  const isDraining = await started('--data-dir', join(folder.path, 'work-a'));
  assert.equal((await isDraining.control('drain', {})).status, 200);
  const client = new BrpcClient([ready.address, isDraining.address]);
  for (let i = 0; i < 20; i++) await client.seek([4n]);
  assert.deepEqual([...client.retries], [[2003, 1]], 'no call after ELOGOFF');
  assert.equal((await isDraining.control('undrain', {})).status, 200);
  await ready.stop();
  await isDraining.until(() => client.seek([4n]).catch(() => undefined));
  client.close();
  await isDraining.stop();
});

test('a server that is stopped while it loads ends at once', async () => {
  const preload = join(import.meta.dirname, 'support', 'endless-load-process.js');
  const ports = ['--port', '0', '--admin-port', '0'];
  const loading = new ServerProcess([...cubeFlags, ...ports], process.execPath, { preload });
  const admin = await loading.logged(/"adminAddress":"([^"]+)"/);
  const isReady = await fetch(`http://${admin}/readyz`);
  assert.equal(isReady.status, 503);
  assert.match(await isReady.text(), /loading .*shard-0\/data/);
  assert.equal((await fetch(`http://${admin}/healthz`)).status, 200);
  assert.equal(loading.address, '', 'the data port is not open yet');
  assert.equal((await loading.stop()).code, 0);
});

test('a patch must extend the current version', async () => {
  writeCubeDict(join(data, '500'), [base]);
  writeFileSync(join(data, 'VERSION'), '500');
  const server = await started();
  const patch = (path: string) =>
    sendCubeCommand(server.address, { cmd: 'reload_patch', version_path: `/${path}` });
  writeCubeDict(join(data, '500_600'), [base, rows(6, [2n, 8n])]);
  assert.deepEqual(await patch('500_600'), { status: 200, text: 'null', reason: '' });
  assert.deepEqual(await getCubeStatus(server.address), ['500_600', '', 0]);
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
  assert.match(alone.reason, /not a patch of the current version 500_600/);
  cpSync(join(data, '500_600'), join(data, '500_601'), { recursive: true });
  assert.equal((await patch('500_601')).status, 500, 'the same files add nothing');
  assert.deepEqual(await getCubeStatus(server.address), ['500_600', '', 0]);
  await server.stop();
});

test('without VERSION the folder itself is the dictionary, named after its content', async () => {
  rmSync(data, { recursive: true, force: true });
  const waiting = await started();
  assert.deepEqual(await getCubeStatus(waiting.address), ['', '', 0]);
  writeCubeDict(data, [base]);
  const reload = () => sendCubeCommand(waiting.address, { cmd: 'reload_base', version_path: '' });
  assert.equal((await reload()).status, 200);
  const [first] = await getCubeStatus(waiting.address);
  assert.match(first, /^root-[0-9a-f]{8}$/);
  writeCubeDict(data, [rows(2, [0n])]);
  assert.equal((await reload()).status, 200);
  assert.equal(await seekFloat(waiting.address, 0), 2000);
  assert.notEqual((await getCubeStatus(waiting.address))[0], first);
  await waiting.stop();
});

test('variable-length values, in memory or on disk', async () => {
  rmSync(data, { recursive: true, force: true });
  const values = ['', 'a', 'x'.repeat(5000), '\u0000\u0001', 'four'];
  const entries = values.map((value, i): Entry => [BigInt(2 * i), Buffer.from(value)]);
  writeCubeDict(join(data, '1'), [entries]);
  writeFileSync(join(data, 'VERSION'), '1');
  for (const more of [[], ['--no-in-mem']]) {
    const server = await started(...more);
    assert.deepEqual(await getCubeStatus(server.address), ['1', '', 0], more.join());
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
