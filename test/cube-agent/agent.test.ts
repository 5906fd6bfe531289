/** A real agent process before stand-in servers: what it does when all goes well. */
import assert from 'node:assert/strict';
import { existsSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { layerOf } from '../repository/fixtures.ts';
import { startServers } from './control-server.ts';
import { allAt, by, layersOnDisk, makeHost, publish, start, versionsOnDisk } from './host.ts';
import { runAgent, until } from './processes.ts';

test('versions come, go back and are retired', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1', table: 'a' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  start(t, host);
  await until('all at 1', allAt('1', host.servers));

  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('all at 2', allAt('2', host.servers));
  assert.deepEqual(host.servers[0]?.held, ['1', '2']);

  await publish(host, { version: '3', table: 'c' });
  await host.repository.activate('ctr', 'stable', { version: '3', ...by });
  await until('all at 3', allAt('3', host.servers));
  await until('1 retired', () => versionsOnDisk(host).join() === '2,3' || versionsOnDisk(host));
  await until('its layers removed', () => layersOnDisk(host).length === 4 || layersOnDisk(host));

  const loads = host.servers[0]?.calls.filter((call) => call.startsWith('load'));
  await host.repository.rollback('ctr', 'stable', 'test', 'bad');
  await until('all back at 2', allAt('2', host.servers));
  assert.equal(host.servers[0]?.calls.filter((call) => call.startsWith('load 2')).length, 1);
  assert.deepEqual(loads, ['load 1', 'load 2', 'load 3']);
  await until('3 retired, 1 is back', () => versionsOnDisk(host).join() === '1,2');
});

test('only the layers of the host come, and a server that comes later gets its own', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const [first] = host.servers;
  assert.ok(first !== undefined);
  const before = start(t, host, [first]);
  await until('first at 1', allAt('1', [first]));
  const manifest = await host.repository.manifest('ctr', '1');
  assert.deepEqual(layersOnDisk(host), [`${layerOf(manifest, 0).contentId}.cube`]);
  await before.kill();
  start(t, host);
  await until('both at 1', allAt('1', host.servers));
  assert.equal(layersOnDisk(host).length, 2);
});

test('a version over the same table fetches no layer', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1', graph: 'one' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('all at 1', allAt('1', host.servers));
  const fetches = () => running.messages().filter((message) => message.startsWith('fetch')).length;
  assert.equal(fetches(), 2);
  await publish(host, { version: '2', graph: 'two' });
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('all at 2', allAt('2', host.servers));
  assert.equal(fetches(), 2);
});

test('a restarted server is loaded again from disk while the repository is away', async (t) => {
  const host = await makeHost(t, 2);
  await publish(host, { version: '1', table: 'a' });
  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('all at 1', allAt('1', host.servers));
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('all at 2', allAt('2', host.servers));

  renameSync(host.location, `${host.location}.away`);
  host.servers[1]?.restart();
  await until('again at 2', allAt('2', host.servers));
  await until('both loaded', () => host.servers[1]?.held.join() === '1,2');

  await running.kill();
  for (const server of host.servers) server.restart();
  start(t, host);
  await until('a new agent knows what was wanted', allAt('2', host.servers));
});

test('a server that is down or hangs does not stop the others', async (t) => {
  const host = await makeHost(t, 3);
  const [first, second, third] = host.servers;
  assert.ok(first !== undefined && second !== undefined && third !== undefined);
  second.hangs = true;
  await publish(host, { version: '1', shardNum: 3 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const addresses = [...host.servers.map(({ address }) => address), '127.0.0.1:2'];
  runAgent(t, { repository: host.location, dataDir: host.dataDir, servers: addresses });
  await until('the others at 1', allAt('1', [first, third]));
  second.hangs = false;
  await until('all at 1', allAt('1', host.servers));
});

test('two shard counts live side by side', async (t) => {
  const host = await makeHost(t, 2);
  const more = await startServers(t, 3, host.dataDir);
  await publish(host, { version: '1', shardNum: 2 });
  await publish(host, { version: '2', shardNum: 3 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  start(t, host, [...host.servers, ...more]);
  await until('the two at 1', allAt('1', host.servers));
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  await until('the three at 2', allAt('2', more));
  assert.deepEqual(
    host.servers.map(({ held }) => held.join()),
    ['1', '1'],
  );
  assert.ok(allAt('1', host.servers)() === true);
});

test('an idle agent writes nothing, and SIGTERM ends it well', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const running = start(t, host);
  await until('at 1', allAt('1', host.servers));
  await until('the last action is logged', () =>
    running.messages().some((m) => m.startsWith('activate')),
  );
  const lines = running.lines.length;
  await new Promise((resolve) => setTimeout(resolve, 600));
  assert.deepEqual(running.messages().slice(lines), []);
  running.child.kill('SIGTERM');
  assert.equal(await running.exit, 0);
  assert.ok(existsSync(join(host.dataDir, 'ctr', 'agent', 'stable.json')));
});
