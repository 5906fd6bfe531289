import assert from 'node:assert/strict';
import { readFileSync, renameSync, writeFileSync } from 'node:fs';
import { request } from 'node:http';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import type { CubeError } from '../../lib/core/errors.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { freePort } from '../platform/support/free-port.ts';
import { waitFor } from '../support/processes.ts';
import { DataFolder } from './support/data-folder.ts';
import { lookup } from './support/lookups.ts';
import { control, killServers, ServerProcess } from './support/server-process.ts';

/** Versions of some 3 MiB, in two bundles. */
const folder = new DataFolder();
const keys = Array.from({ length: 60_000 }, (_, i) => BigInt(i * i + 1));
const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path];

before(() => {
  for (const [bundle, version] of [
    ['ctr', '1'],
    ['ctr', '2'],
    ['ctr', '3'],
    ['ads', '1'],
  ] as const) {
    const offset = 10_000 * Number(version) + (bundle === 'ads' ? 5000 : 0);
    const tables = [
      { name: 'dict', dim: 8, keys, value: (key: bigint) => Number(key % 1000n) + offset },
    ];
    folder.write({ bundle, version, shardNum: 1, tables });
  }
});

after(() => {
  killServers();
  folder.remove();
});

async function call(server: ServerProcess, name: string, bundle: string, version: string) {
  const reply = await server.control(name, { bundle, version });
  assert.equal(reply.status, 200, JSON.stringify(reply.body));
  return reply.body;
}

async function outcome(channel: Channel, version = '1', bundle = 'ctr'): Promise<string> {
  const groups = [{ table: 'dict', keys: [1n, 3n] }];
  return lookup(channel, { bundle, version, groups }).then(
    ({ version: answered, groups: [group] }) => `${answered} hits ${group?.hits}`,
    (error: CubeError) => error.code,
  );
}

test('a version in use is unloaded only by force; callers may set the idle time', async () => {
  const server = await ServerProcess.start(flags);
  const channel = new Channel(server.address);
  for (const version of ['1', '2', '3']) await call(server, 'load', 'ctr', version);
  await call(server, 'activate', 'ctr', '3');
  assert.equal(await outcome(channel, '1'), '1 hits 1');
  const unload = (fields: object) =>
    server.control('unload', { bundle: 'ctr', version: '1', ...fields });
  for (const fields of [{}, { ifIdleMs: 60_000 }, { force: false }]) {
    const refused = await unload(fields);
    assert.deepEqual([refused.status, refused.body.code], [409, 'CONFLICT']);
    assert.match(refused.body.error, /was looked up \d+ ms ago/);
  }
  assert.equal((await unload({ ifIdleMs: -1 })).status, 400);
  assert.equal((await unload({ force: 'yes' })).status, 400);
  assert.equal(await outcome(channel, '1'), '1 hits 1');
  assert.deepEqual((await unload({ force: true })).body, { unloaded: true });
  assert.equal(await outcome(channel, '1'), 'VERSION_ABSENT');
  assert.deepEqual((await server.control('unload', { bundle: 'ctr', version: '2' })).body, {
    unloaded: true,
  });
  channel.close();
  await server.stop();
});

test('a load without room unloads and reports unused versions, or is refused', async () => {
  const room = ['--memory', '8MiB', '--retire-grace-ms', '0'];
  const server = await ServerProcess.start([...flags, ...room]);
  const channel = new Channel(server.address);
  for (const version of ['1', '2']) await call(server, 'load', 'ctr', version);
  await call(server, 'activate', 'ctr', '2');
  const request = { bundle: 'ctr', version: '3' };
  assert.equal((await server.control('load', { ...request, keep: 'ctr/1' })).status, 400);
  const kept = await server.control('load', { ...request, keep: ['ctr/1'] });
  assert.deepEqual([kept.status, kept.body.code], [429, 'OVERLOADED']);
  assert.equal(await outcome(channel, '1'), '1 hits 1');
  const third = await call(server, 'load', 'ctr', '3');
  assert.deepEqual(third.gaveUp, ['ctr/1']);
  assert.equal(await outcome(channel, '1'), 'VERSION_ABSENT');
  await call(server, 'activate', 'ctr', '3');
  // Another bundle may take the memory of ctr 2, but not that of the active version.
  assert.deepEqual((await call(server, 'load', 'ads', '1')).gaveUp, ['ctr/2']);
  await call(server, 'activate', 'ads', '1');
  const refused = await server.control('load', { bundle: 'ctr', version: '1' });
  assert.deepEqual([refused.status, refused.body.code], [429, 'OVERLOADED']);
  assert.match(refused.body.error, /Unload a version first/);
  assert.equal(await outcome(channel, '3'), '3 hits 1');
  assert.equal(await outcome(channel, '', 'ads'), '1 hits 1');
  const exit = await server.stop();
  assert.match(exit.stderr, /"gaveUp":\["ctr\/1"\].*"msg":"loaded"/);
  const grace = await ServerProcess.start([...flags, '--memory', '8MiB']);
  for (const version of ['1', '2']) await call(grace, 'load', 'ctr', version);
  await call(grace, 'activate', 'ctr', '2');
  const fresh = await grace.control('load', { bundle: 'ctr', version: '3' });
  assert.equal(fresh.body.code, 'OVERLOADED', 'what was just loaded is not given up');
  await grace.stop();
  const small = await ServerProcess.start([...flags, '--memory', '1MiB']);
  const never = await small.control('load', { bundle: 'ctr', version: '1' });
  assert.deepEqual([never.status, never.body.code], [413, 'TOO_LARGE']);
  channel.close();
  await small.stop();
});

test('a server killed during a load can load the version after a restart', async () => {
  const slow = [...flags, '--load-rate', '1MiB', '--port', String(await freePort())];
  const first = await ServerProcess.start(slow);
  await call(first, 'load', 'ctr', '1');
  await call(first, 'activate', 'ctr', '1');
  const load = first.control('load', { bundle: 'ctr', version: '2' }).catch(() => 'cut off');
  const readProgress = async () => (await first.control('status')).body.loading[0];
  await waitFor('the load has read a part', async () => {
    const { bytes = 0, loadedBytes = 0 } = (await readProgress()) ?? {};
    return (loadedBytes > 0 && loadedBytes <= bytes) || `${loadedBytes} of ${bytes}`;
  });
  const [bundle] = (await first.control('status')).body.bundles;
  assert.equal(bundle.versions[0].layers, 1);
  first.child.kill('SIGKILL');
  assert.equal(await load, 'cut off');
  const second = await ServerProcess.start(slow);
  const channel = new Channel(second.address);
  assert.equal(await outcome(channel, '1'), 'VERSION_ABSENT');
  for (const version of ['1', '2']) await call(second, 'load', 'ctr', version);
  assert.equal(await outcome(channel, '2'), '2 hits 1');
  channel.close();
  await second.stop();
});

test('files replaced or overwritten during a load give right rows or an error', async () => {
  const server = await ServerProcess.start([...flags, '--load-rate', '2MiB']);
  const channel = new Channel(server.address);
  await call(server, 'load', 'ctr', '1');
  await call(server, 'activate', 'ctr', '1');
  const manifest = JSON.parse(readFileSync(folder.manifestFile('ctr', '2'), 'utf8'));
  const path = folder.layerFile('ctr', 'dict', manifest.tables[0].shards[0][0].contentId);
  const good = readFileSync(path);
  const during = async (change: () => void) => {
    const load = server.control('load', { bundle: 'ctr', version: '2' });
    let hasEnded = false;
    void load.finally(() => {
      hasEnded = true;
    });
    // Bytes are loaded only after the file was inspected and opened to be read.
    const hasBegun = async (): Promise<boolean> => {
      const { loading } = (await server.control('status')).body;
      return loading.some(({ loadedBytes }: { loadedBytes: number }) => loadedBytes > 0);
    };
    while (!hasEnded && !(await hasBegun())) await sleep(5);
    change();
    return load;
  };
  const replaced = await during(() => {
    writeFileSync(`${path}.new`, Buffer.alloc(good.length));
    renameSync(`${path}.new`, path);
  });
  assert.equal(replaced.status, 200, JSON.stringify(replaced.body));
  assert.equal(await outcome(channel, '2'), '2 hits 1');
  await server.control('unload', { bundle: 'ctr', version: '2', force: true });
  writeFileSync(path, good);
  const overwritten = await during(() => writeFileSync(path, Buffer.alloc(good.length)));
  assert.equal(overwritten.body.code, 'CORRUPT', JSON.stringify(overwritten.body));
  assert.equal(await outcome(channel, '2'), 'VERSION_ABSENT');
  assert.equal(await outcome(channel, ''), '1 hits 1');
  writeFileSync(path, good);
  channel.close();
  await server.stop();
});

test('the answers of load, activate and unload contain the status when asked for', async () => {
  const server = await ServerProcess.start(flags);
  const version = { bundle: 'ctr', version: '1' };
  const other = { bundle: 'ctr', version: '2' };
  for (const [action, request, active, loaded] of [
    ['load', version, '', ['1']],
    ['activate', version, '1', ['1']],
    ['load', other, '1', ['1', '2']],
    ['unload', { ...other, force: true }, '1', ['1']],
  ] as const) {
    const { status, body } = await server.control(action, { ...request, status: true });
    assert.equal(status, 200, JSON.stringify(body));
    const [bundle] = body.status.bundles;
    assert.equal(bundle.active, active, action);
    assert.deepEqual(
      bundle.versions.map((one: { version: string }) => one.version).sort(),
      loaded,
      action,
    );
    const now = (await server.control('status')).body;
    assert.deepEqual(Object.keys(body.status), Object.keys(now));
  }
  assert.ok(!('status' in (await server.control('activate', version)).body));
  const wrong = await server.control('activate', { ...version, status: 'yes' });
  assert.equal(wrong.status, 400, JSON.stringify(wrong.body));
  await server.stop();
});

test('a drained server is not ready and refuses lookups until undrained', async () => {
  const server = await ServerProcess.start(flags);
  const channel = new Channel(server.address);
  await call(server, 'load', 'ctr', '1');
  await call(server, 'activate', 'ctr', '1');
  const ready = async (): Promise<number> =>
    (await fetch(`http://${server.address}/readyz`)).status;
  const seek = () => fetch(`http://${server.address}/DictService/seek`);
  assert.deepEqual([await ready(), (await seek()).status], [200, 200]);
  assert.deepEqual((await server.control('drain', {})).body, { draining: true });
  assert.deepEqual([await ready(), (await seek()).status], [503, 503]);
  assert.equal(await outcome(channel), 'STOPPING');
  await call(server, 'activate', 'ctr', '1');
  assert.equal(await outcome(channel), 'STOPPING', 'activating does not end it');
  assert.deepEqual((await server.control('undrain', {})).body, { draining: false });
  assert.equal(await ready(), 200);
  // Its connection was closed, because brpc's clients would send nothing more on it.
  while ((await outcome(channel)) === 'UNAVAILABLE');
  assert.equal(await outcome(channel), '1 hits 1');
  server.child.kill('SIGHUP');
  while ((await ready()) === 200);
  assert.equal((await server.control('status')).body.draining, true);
  assert.equal(await outcome(channel), 'STOPPING');
  channel.close();
  assert.equal((await server.stop()).code, 0);
});

test('with an admin port the data port refuses control, metrics and commands', async () => {
  const server = await ServerProcess.start([...flags, '--admin-port', '0']);
  const admin = await server.logged(/"adminAddress":"([^"]+)"/);
  for (const path of ['metrics', 'hypercube.ControlService/status', 'ControlService/cmd']) {
    const refused = await fetch(`http://${server.address}/${path}`);
    assert.equal(refused.status, 403, path);
    assert.match(await refused.text(), /admin port/);
  }
  const version = { bundle: 'ctr', version: '1' };
  assert.equal((await server.control('load', version)).status, 403);
  assert.equal((await control(admin, 'load', version)).status, 200);
  assert.equal((await control(admin, 'activate', version)).status, 200);
  for (const address of [admin, server.address]) {
    assert.equal((await fetch(`http://${address}/readyz`)).status, 200);
  }
  const metrics = await (await fetch(`http://${admin}/metrics`)).text();
  assert.match(metrics, /^hypercube_version_active\{bundle="ctr",version="1"\} 1$/m);
  assert.equal((await fetch(`http://${admin}/DictService/seek`)).status, 404);
  assert.equal((await server.stop()).code, 0);
});

/** fetch does not allow its callers to set these headers. */
function statusWith(address: string, headers: Record<string, string>): Promise<number> {
  return new Promise((resolve, reject) => {
    const url = `http://${address}/hypercube.ControlService/status`;
    request(url, { headers, setHost: false }, (response) => {
      response.resume();
      resolve(response.statusCode ?? 0);
    })
      .on('error', reject)
      .end();
  });
}

test('web pages cannot make control calls, also after DNS rebinding', async () => {
  const server = await ServerProcess.start(flags);
  for (const host of ['127.0.0.1', 'localhost:8000', '[::1]:80', '10.1.2.3']) {
    assert.equal(await statusWith(server.address, { host }), 200, host);
  }
  for (const host of ['evil.example', 'localhost.evil.example:80', '']) {
    assert.equal(await statusWith(server.address, { host }), 403, host);
  }
  const page = { host: 'localhost', origin: 'http://localhost:3000' };
  assert.equal(await statusWith(server.address, page), 403);
  await server.stop();
});

test('a changed token file takes effect', async () => {
  const tokenFile = join(folder.path, 'token');
  writeFileSync(tokenFile, 'the first of two tokens');
  const server = await ServerProcess.start([...flags, '--control-token-file', tokenFile]);
  const status = async (token: string): Promise<number> =>
    (await server.control('status', undefined, { authorization: `Bearer ${token}` })).status;
  assert.equal(await status('the first of two tokens'), 200);
  writeFileSync(tokenFile, 'the second token, longer than the first');
  assert.equal(await status('the first of two tokens'), 403);
  assert.equal(await status('the second token, longer than the first'), 200);
  writeFileSync(tokenFile, 'short');
  assert.equal(await status('short'), 403);
  assert.equal(await status('the second token, longer than the first'), 200);
  await server.stop();
});
