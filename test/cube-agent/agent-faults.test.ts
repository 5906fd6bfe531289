/** A real agent process before stand-in servers: kills, damage, restarts. */
import assert from 'node:assert/strict';
import {
  existsSync,
  mkdirSync,
  readFileSync,
  renameSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { layerPath, manifestPath } from '../../lib/repository/layout.ts';
import { layerOf, sha256, temporaryFolder } from '../repository/fixtures.ts';
import { allAt, by, type Host, layersOnDisk, makeHost, publish, start } from './host.ts';
import { agent, until } from './processes.ts';

async function layerFiles(host: Host, version: string, shard: number) {
  const layer = layerOf(await host.repository.manifest('ctr', version), shard);
  const path = layerPath('ctr', 't', layer.contentId);
  return { layer, source: join(host.location, path), copy: join(host.dataDir, path) };
}

function damage(path: string): Uint8Array {
  const whole = readFileSync(path);
  const damaged = Uint8Array.from(whole);
  damaged[500] = (damaged[500] ?? 0) ^ 1;
  writeFileSync(path, damaged);
  return whole;
}

async function problemsOf(host: Host): Promise<string> {
  const { stdout } = await agent(
    ...['status', '--repository', host.location, '--bundle', 'ctr', '--data-dir', host.dataDir],
    ...['--server', host.servers[0]?.address ?? ''],
  );
  return stdout;
}

test('kill -9 in the middle of a fetch: the next agent resumes and completes it', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1, layerBytes: 400_000 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const { copy, layer } = await layerFiles(host, '1', 0);
  const slow = start(t, host, host.servers, '--rate-limit', '200KB');
  await until(
    'a part has come',
    () => existsSync(`${copy}.part`) && statSync(`${copy}.part`).size > 40_000,
  );
  await slow.kill();
  const part = statSync(`${copy}.part`).size;
  assert.ok(part > 0 && part < 400_000 && !existsSync(copy));
  assert.ok(!existsSync(join(host.dataDir, manifestPath('ctr', '1'))));
  start(t, host);
  await until('at 1', allAt('1', host.servers));
  assert.equal(sha256(readFileSync(copy)), layer.sha256);
  assert.deepEqual(layersOnDisk(host), [`${layer.contentId}.cube`]);
});

test('kill -9 at any moment: the next agent goes on from there', async (t) => {
  const host = await makeHost(t, 2);
  for (const version of ['1', '2', '3', '4', '5', '6']) {
    await publish(host, { version, table: version });
    await host.repository.activate('ctr', 'stable', { version, ...by });
    const running = start(t, host);
    const moment = 120 + Number(version) * 25;
    await new Promise((resolve) => setTimeout(resolve, moment));
    await running.kill();
  }
  start(t, host);
  await until('all at 6', allAt('6', host.servers));
  await until('tidy', () => layersOnDisk(host).length === 4 || layersOnDisk(host));
});

test('SIGTERM ends an agent in the middle of a fetch, and keeps what has come', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1, layerBytes: 400_000 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const { copy } = await layerFiles(host, '1', 0);
  const running = start(t, host, host.servers, '--rate-limit', '100KB');
  await until('a part has come', () => existsSync(`${copy}.part`));
  running.child.kill('SIGTERM');
  assert.equal(await running.exit, 0);
  assert.ok(existsSync(`${copy}.part`) && !existsSync(copy));
});

test('a layer that is damaged at the source is reported, and the old version goes on', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1', table: 'a' });
  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('all at 1', allAt('1', host.servers));
  const { source, copy } = await layerFiles(host, '2', 1);
  const whole = damage(source);
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('reported', () => running.messages().some((m) => m.startsWith('cannot fetch 2')));
  assert.ok(allAt('1', host.servers)() === true);
  assert.ok(!existsSync(copy) && !existsSync(`${copy}.part`));
  assert.ok(!existsSync(join(host.dataDir, manifestPath('ctr', '2'))));
  await until('status says so', async () =>
    /fetch 2 t\/.*CORRUPT .*SHA-256/.test(await problemsOf(host)),
  );
  writeFileSync(source, whole);
  await until('all at 2', allAt('2', host.servers));
  await until('nothing to report', async () => !(await problemsOf(host)).includes('CORRUPT'));
});

test('a layer that the disk damaged is fetched again', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('at 1', allAt('1', host.servers));
  const { copy, layer } = await layerFiles(host, '1', 0);
  damage(copy);
  host.servers[0]?.restart();
  await until('again at 1', allAt('1', host.servers));
  assert.equal(sha256(readFileSync(copy)), layer.sha256);
  assert.ok(running.messages().some((message) => message.startsWith('removed damaged layers')));
});

test('a manifest that the disk damaged is written again, also one that still reads like a manifest', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('at 1', allAt('1', host.servers));
  const path = join(host.dataDir, manifestPath('ctr', '1'));
  const whole = readFileSync(path, 'utf8');
  const layer = layerOf(await host.repository.manifest('ctr', '1'), 0);
  const flipped = layer.sha256.replace(/^./, (digit) => (digit === '0' ? '1' : '0'));
  for (const text of [whole.slice(0, 100), whole.replace(layer.sha256, flipped)]) {
    writeFileSync(path, text);
    host.servers[0]?.restart();
    await until('again at 1', allAt('1', host.servers));
    assert.equal(readFileSync(path, 'utf8'), whole);
  }
  await running.kill();
  writeFileSync(path, whole.replace(layer.sha256, flipped));
  host.servers[0]?.restart();
  start(t, host);
  await until('a new agent too', allAt('1', host.servers));
  assert.equal(readFileSync(path, 'utf8'), whole);
});

test('a channel that is gone is reported, and nothing goes', async (t) => {
  const host = await makeHost(t, 1);
  for (const version of ['1', '2']) {
    await publish(host, { version, table: version, shardNum: 1 });
    await host.repository.activate('ctr', 'stable', { version, ...by });
  }
  const running = start(t, host);
  await until('at 2', allAt('2', host.servers));
  await until('1 is held too', () => host.servers[0]?.held.join() === '1,2');
  renameSync(join(host.location, 'ctr/channels'), join(host.location, 'ctr/gone'));
  await until('reported', () => running.messages().includes('cannot read channel stable'));
  const line = running.lines.find(({ msg }) => msg === 'cannot read channel stable');
  assert.match(String(line?.['error']), /channel stable of ctr is gone from .* pointed to 2/);
  assert.deepEqual(host.servers[0]?.held, ['1', '2']);
});

test('notes that cannot be written are a problem once, and none when they can', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  mkdirSync(join(host.dataDir, 'ctr'), { recursive: true });
  const notes = join(host.dataDir, 'ctr/agent');
  writeFileSync(notes, 'in the way');
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('at 1', allAt('1', host.servers));
  await until('reported', () => running.messages().includes('cannot write notes'));
  rmSync(notes);
  await until(
    'written',
    async () => /^(?!.*PROBLEM)/s.test(await problemsOf(host)) && existsSync(notes),
  );
  assert.ok(!readFileSync(join(notes, 'stable.json'), 'utf8').includes('write notes'));
});

test('a channel that points to a version without a manifest changes nothing until it is there', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1' });
  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('all at 1', allAt('1', host.servers));
  const manifest = join(host.location, manifestPath('ctr', '2'));
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('all at 2', allAt('2', host.servers));
  await publish(host, { version: '3', table: 'c' });
  renameSync(manifest.replace('/2/', '/3/'), `${manifest}.away`);
  writeFileSync(
    join(host.location, 'ctr/channels/stable/0000000003.json'),
    JSON.stringify({ version: '3', at: '', by: 'hand', reason: 'by hand' }),
  );
  await until('reported', () => running.messages().includes('cannot read the manifest of 3'));
  assert.ok(allAt('2', host.servers)() === true);
  renameSync(`${manifest}.away`, manifest.replace('/2/', '/3/'));
  await until('all at 3', allAt('3', host.servers));
});

test('a damaged channel entry is reported and changes nothing', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('at 1', allAt('1', host.servers));
  writeFileSync(join(host.location, 'ctr/channels/stable/0000000002.json'), '{"version":');
  await until('reported', () => running.messages().includes('cannot read channel stable'));
  const line = running.lines.find(({ msg }) => msg === 'cannot read channel stable');
  assert.match(String(line?.['error']), /0000000002\.json: not JSON/);
  assert.deepEqual(host.servers[0]?.held, ['1']);
});

test('a first start without a repository ends with what to do', async (t) => {
  const folder = temporaryFolder(t);
  const { code, stderr } = await agent(
    ...['run', '--repository', join(folder, 'none'), '--bundle', 'ctr'],
    ...['--data-dir', join(folder, 'data'), '--server', '127.0.0.1:2'],
  );
  assert.equal(code, 1);
  assert.match(stderr, /^cube-agent: no repository at .*none: no such folder/);
});
