import assert from 'node:assert/strict';
import { unlinkSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import type { CubeError } from '../../lib/core/errors.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { waitFor } from '../support/processes.ts';
import { getCubeStatus, sendCubeCommand } from './support/cube-commands.ts';
import { DataFolder } from './support/data-folder.ts';
import { lookup } from './support/lookups.ts';
import { killServers, ServerProcess } from './support/server-process.ts';

/** Threads need Node 22.12: this one, or the one in NODE22. */
const [major = 0, minor = 0] = process.versions.node.split('.').map(Number);
const own = major > 22 || (major === 22 && minor >= 12) ? process.execPath : undefined;
const node = process.env['NODE22'] ?? own;
const skip = node === undefined && 'needs Node 22.12 or newer, or its path in NODE22';

const folder = new DataFolder();
const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path];
const keys = Array.from({ length: 2000 }, (_, i) => BigInt(i * i));

before(() => {
  for (const version of [1, 2, 3]) {
    const value = (key: bigint, j: number): number => Number(key % 1000n) + j + 10_000 * version;
    const tables = [{ name: 'dict', dim: 4, keys, value }];
    folder.write({ bundle: 'ctr', version: String(version), shardNum: 1, tables });
  }
});

after(() => {
  killServers();
  folder.remove();
});

const metric = (text: string, name: string): number =>
  Number(new RegExp(`^${name} (\\S+)$`, 'm').exec(text)?.[1]);

/** Every row of a batch must be of the version that answered, or the response is an error. */
async function checkedLookup(channel: Channel, version: string): Promise<string> {
  const groups = [{ table: 'dict', keys: keys.slice(0, 100) }];
  try {
    const answer = await lookup(channel, { bundle: 'ctr', version, groups });
    const offset = 10_000 * Number(answer.version);
    answer.groups[0]!.rows.forEach((row, i) => {
      assert.equal(row[0], Number(keys[i]! % 1000n) + offset);
    });
    return answer.version;
  } catch (error) {
    const { code } = error as CubeError;
    assert.ok(code !== undefined, String(error));
    return code;
  }
}

test('an older Node serves with one thread and logs a warning', {
  skip: own !== undefined,
}, async () => {
  const server = await ServerProcess.start([...flags, '--threads', '3']);
  await server.logged(/--threads needs Node 22.12 or newer; using one thread/);
  assert.equal((await server.stop()).code, 0);
});

test('versions are loaded and unloaded on all threads under traffic, never mixed', {
  skip,
}, async () => {
  const server = await ServerProcess.start([...flags, '--threads', '3'], node);
  // The system spreads connections: with this many, each thread gets some.
  const channels = Array.from({ length: 16 }, () => new Channel(server.address));
  const everywhere = (version: string) =>
    Promise.all(channels.map((channel) => checkedLookup(channel, version)));
  const call = async (name: string, version: string, more: object = {}) => {
    const reply = await server.control(name, { bundle: 'ctr', version, ...more });
    assert.equal(reply.status, 200, JSON.stringify(reply.body));
  };
  await call('load', '1');
  assert.deepEqual(new Set(await everywhere('1')), new Set(['1']));
  assert.deepEqual(new Set(await everywhere('')), new Set(['NOT_READY']));
  await call('activate', '1');
  assert.deepEqual(new Set(await everywhere('')), new Set(['1']));
  let running = true;
  const seen = new Set<string>();
  const traffic = channels.map(async (channel, i) => {
    while (running) seen.add(await checkedLookup(channel, i % 2 === 0 ? '' : '1'));
  });
  for (let round = 0; round < 5; round++) {
    await call('load', '2');
    await call('activate', '2');
    assert.deepEqual(new Set(await everywhere('')), new Set(['2']));
    await call('activate', '1');
    await call('unload', '2', { force: true });
    // Its memory is reused by another version.
    await call('load', '3');
    assert.deepEqual(new Set(await everywhere('2')), new Set(['VERSION_ABSENT']));
    await call('unload', '3');
  }
  running = false;
  await Promise.all(traffic);
  for (const outcome of seen) assert.ok(['1', '2'].includes(outcome), outcome);
  for (const channel of channels) channel.close();
  assert.equal((await server.stop()).code, 0);
});

test('control, metrics, limits and draining are those of one server', { skip }, async () => {
  const server = await ServerProcess.start(
    [...flags, '--threads', '4', '--cube-table', 'ctr/dict', '--limit', 'keysPerRequest=100'],
    node,
  );
  // One connection per call, so that every thread gets some.
  const once = { connection: 'close' };
  for (let i = 0; i < 12; i++) {
    const { body } = await server.control('status', undefined, once);
    assert.equal(body.pid, server.child.pid);
    assert.equal((await fetch(`http://${server.address}/readyz`, { headers: once })).status, 503);
  }
  assert.equal((await server.control('load', { bundle: 'ctr' }, once)).status, 400);
  assert.equal(
    (await sendCubeCommand(server.address, { cmd: 'reload_base', version_path: '/1' })).status,
    200,
  );
  assert.deepEqual(await getCubeStatus(server.address), ['1', '', 0]);
  const channels = Array.from({ length: 12 }, () => new Channel(server.address));
  await Promise.all(channels.map((channel) => checkedLookup(channel, '1')));
  const over = [{ table: 'dict', keys: keys.slice(0, 101) }];
  for (const channel of channels) {
    await assert.rejects(lookup(channel, { bundle: 'ctr', groups: over }), /at most 100 keys/);
  }
  const text = await (await fetch(`http://${server.address}/metrics`)).text();
  assert.equal(metric(text, 'hypercube_keys_total\\{bundle="ctr",table="dict"\\}'), 1200);
  const service = 'protocol="baidu_std",service="hypercube.LookupService",method="lookup"';
  assert.equal(metric(text, `hypercube_requests_total\\{${service}\\}`), 24);
  assert.ok(metric(text, 'hypercube_connections') >= 12);
  assert.equal(metric(text, 'hypercube_ready'), 1);
  assert.equal(metric(text, 'hypercube_version_active\\{bundle="ctr",version="1"\\}'), 1);
  await server.control('load', { bundle: 'ctr', version: '2' });
  await server.control('activate', { bundle: 'ctr', version: '2' });
  const inUse = await server.control('unload', { bundle: 'ctr', version: '1' });
  assert.equal(inUse.body.code, 'CONFLICT', 'lookups of every thread count');
  await server.control('drain', {});
  for (const channel of channels) assert.equal(await checkedLookup(channel, ''), 'STOPPING');
  await server.control('undrain', {});
  // Connections that were told STOPPING are closed, so that brpc clients use the server again.
  for (const channel of channels) {
    await waitFor('answers', async () => (await checkedLookup(channel, '')) === '2');
  }
  for (const channel of channels) channel.close();
  const exit = await server.stop();
  assert.deepEqual([exit.code, exit.signal], [0, null], exit.stderr);
});

test('connections spread over threads; a dead thread is replaced with all versions', {
  skip,
}, async () => {
  const tables = [{ name: 'wide', dim: 40, keys, value: (key: bigint) => Number(key % 1000n) }];
  const wide = folder.write({ bundle: 'wide', version: '1', shardNum: 1, tables });
  const preload = join(import.meta.dirname, 'support', 'crashing-threads-process.js');
  const server = await ServerProcess.start([...flags, '--threads', '3', '--no-in-mem'], node, {
    preload,
  });
  for (const [bundle, version] of [
    ['ctr', '1'],
    ['ctr', '2'],
    ['wide', '1'],
  ]) {
    assert.equal((await server.control('load', { bundle, version })).status, 200);
  }
  await server.control('activate', { bundle: 'ctr', version: '2' });
  await server.control('activate', { bundle: 'wide', version: '1' });
  // The server has its files open: an agent may have removed them since.
  unlinkSync(folder.layerFile('wide', 'wide', wide.tables[0]!.shards[0]![0]!.contentId));
  const channels = Array.from({ length: 24 }, () => new Channel(server.address));
  const wideRows = async (channel: Channel): Promise<void> => {
    const groups = [{ table: 'wide', keys: keys.slice(0, 100) }];
    const answer = await lookup(channel, { bundle: 'wide', groups });
    answer.groups[0]!.rows.forEach((row, i) => {
      assert.equal(row[39], Number(keys[i]! % 1000n));
    });
  };
  await Promise.all(channels.map(wideRows));
  const served = async (thread: number): Promise<number> => {
    const text = await (await fetch(`http://${server.address}/metrics`)).text();
    return metric(text, `hypercube_thread_requests_total\\{thread="${thread}"\\}`);
  };
  for (const thread of [0, 1, 2]) assert.ok((await served(thread)) > 0, `thread ${thread}`);
  server.child.kill('SIGUSR2');
  await server.logged(/serving thread ended; restarting it/);
  // Other threads take over; calls in flight on the dead thread may fail with an error.
  for (const channel of channels) {
    assert.ok(['2', 'UNAVAILABLE'].includes(await checkedLookup(channel, '')));
  }
  const reply = await server.control('load', { bundle: 'ctr', version: '3' });
  assert.equal(reply.status, 200, JSON.stringify(reply.body));
  const back = Number(await server.logged(/"thread":(\d),"msg":"serving thread restarted"/));
  const again = Array.from({ length: 48 }, () => new Channel(server.address));
  await Promise.all(again.map(wideRows));
  assert.ok((await served(back)) > 0, 'the new thread serves');
  for (const version of ['', '1', '2', '3']) {
    const answers = await Promise.all(again.map((channel) => checkedLookup(channel, version)));
    assert.deepEqual(new Set(answers), new Set([version || '2']));
  }
  for (const channel of [...channels, ...again]) channel.close();
  assert.equal((await server.stop()).code, 0);
});
