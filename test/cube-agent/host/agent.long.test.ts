/** A real agent with stand-in servers, without faults. */
import assert from 'node:assert/strict';
import { existsSync, renameSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { HostData } from '../../../cube-agent/host/host-data.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { getBaseLayer } from '../../repository/support/fixtures.ts';
import { startAgentProcess, waitFor } from '../../support/processes.ts';
import { startServers } from '../support/control-server.ts';
import {
  AUDIT,
  areAllActive,
  createHost,
  listLayers,
  listVersions,
  publish,
  startAgent,
} from '../support/host.ts';

test('versions are loaded, rolled back and retired', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1', table: 'a' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));

  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('all at 2', areAllActive('2', host.servers));
  assert.deepEqual(host.servers[0]?.loaded, ['1', '2']);

  await publish(host, { version: '3', table: 'c' });
  await host.repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
  await waitFor('all at 3', areAllActive('3', host.servers));
  await waitFor('1 retired', () => listVersions(host).join() === '2,3' || listVersions(host));
  await waitFor('its layers removed', () => listLayers(host).length === 4 || listLayers(host));

  const loads = host.servers[0]?.calls.filter((call) => call.startsWith('load'));
  await host.repository.rollback('ctr', 'stable', 'test', 'bad');
  await waitFor('all back at 2', areAllActive('2', host.servers));
  assert.equal(host.servers[0]?.calls.filter((call) => call.startsWith('load 2')).length, 1);
  assert.deepEqual(loads, ['load 1', 'load 2', 'load 3']);
  await waitFor('3 retired, 1 is back', () => listVersions(host).join() === '1,2');
});

test('one server after another unloads a version that is no longer wanted', async (t) => {
  const host = await createHost(t, 4);
  let running = 0;
  let most = 0;
  for (const server of host.servers) {
    server.beforeUnload = async () => {
      most = Math.max(most, ++running);
      await new Promise((resolve) => setTimeout(resolve, 50));
      running--;
    };
  }
  startAgent(t, host);
  for (const version of ['1', '2']) {
    await publish(host, { version, shardNum: 4, table: `of-${version}` });
    await host.repository.activate('ctr', 'stable', { version, ...AUDIT });
    await waitFor(`all at ${version}`, areAllActive(version, host.servers));
  }
  await host.repository.rollback('ctr', 'stable', 'test', 'bad');
  const areUnloaded = (): boolean => host.servers.every(({ loaded }) => loaded.join() === '1');
  await waitFor('2 unloaded everywhere', areUnloaded);
  assert.equal(most, 1);
});

test("only layers of the host's shards are fetched, also for a server added later", async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const [first] = host.servers;
  assert.ok(first !== undefined);
  const before = startAgent(t, host, [first]);
  await waitFor('first at 1', areAllActive('1', [first]));
  const manifest = await host.repository.readManifest('ctr', '1');
  assert.deepEqual(listLayers(host), [`${getBaseLayer(manifest, 0).contentId}.cube`]);
  await before.kill();
  startAgent(t, host);
  await waitFor('both at 1', areAllActive('1', host.servers));
  assert.equal(listLayers(host).length, 2);
});

test('a version with the same tables fetches no layer', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1', graph: 'one' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));
  const fetches = () => running.messages().filter((message) => message.startsWith('fetch')).length;
  assert.equal(fetches(), 2);
  await publish(host, { version: '2', graph: 'two' });
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('all at 2', areAllActive('2', host.servers));
  assert.equal(fetches(), 2);
});

test('a restarted server is loaded from disk while the repository is unavailable', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1', table: 'a' });
  await publish(host, { version: '2', table: 'b' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('all at 1', areAllActive('1', host.servers));
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('all at 2', areAllActive('2', host.servers));

  renameSync(host.location, `${host.location}.away`);
  host.servers[1]?.restart();
  await waitFor('again at 2', areAllActive('2', host.servers));
  await waitFor('both loaded', () => host.servers[1]?.loaded.join() === '1,2');

  await running.kill();
  for (const server of host.servers) server.restart();
  startAgent(t, host);
  await waitFor('a new agent knows what was wanted', areAllActive('2', host.servers));
});

test('a server that is down or hangs does not block the others', async (t) => {
  const host = await createHost(t, 3);
  const [first, second, third] = host.servers;
  assert.ok(first !== undefined && second !== undefined && third !== undefined);
  second.hang();
  await publish(host, { version: '1', shardNum: 3 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const addresses = [...host.servers.map(({ address }) => address), '127.0.0.1:2'];
  startAgentProcess(t, { repository: host.location, dataDir: host.dataDir, servers: addresses });
  await waitFor('the others at 1', areAllActive('1', [first, third]));
  second.resume();
  await waitFor('all at 1', areAllActive('1', host.servers));
});

test('the problem of a server stays reported while the server does not answer', async (t) => {
  const host = await createHost(t, 2);
  const [first, second] = host.servers;
  assert.ok(first !== undefined && second !== undefined);
  second.loadError = new CubeError('OVERLOADED', 'there is no memory');
  await publish(host, { version: '1' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  startAgent(t, host);
  const state = new HostData(host.dataDir, 'ctr');
  const isReported = (): boolean =>
    state.readSavedState('stable')?.problems.some(({ code }) => code === 'OVERLOADED') === true;
  await waitFor('reported', isReported);
  second.hang();
  await publish(host, { version: '2' });
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('the other server at 2', areAllActive('2', [first]));
  assert.ok(isReported());
  second.loadError = undefined;
  second.resume();
  await waitFor('both at 2', areAllActive('2', host.servers));
  await waitFor('resolved', () => !isReported());
});

test('a server that comes up is loaded at once, also with a long poll interval', async (t) => {
  const host = await createHost(t, 2);
  await publish(host, { version: '1' });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  for (const server of host.servers) server.isUnreachable = true;
  const running = startAgent(t, host, host.servers, '--poll-ms', '3600000');
  const isRefused = (message: string): boolean => message.startsWith('cannot contact');
  await waitFor('refused', () => running.messages().filter(isRefused).length === 2);
  for (const server of host.servers) server.isUnreachable = false;
  await waitFor('all at 1', areAllActive('1', host.servers));
});

test('two shard counts coexist on one host', async (t) => {
  const host = await createHost(t, 2);
  const more = await startServers(t, 3, host.dataDir);
  await publish(host, { version: '1', shardNum: 2 });
  await publish(host, { version: '2', shardNum: 3 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  startAgent(t, host, [...host.servers, ...more]);
  await waitFor('the two at 1', areAllActive('1', host.servers));
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('the three at 2', areAllActive('2', more));
  assert.deepEqual(
    host.servers.map(({ loaded }) => loaded.join()),
    ['1', '1'],
  );
  assert.ok(areAllActive('1', host.servers)() === true);
});

test('an idle agent writes nothing, and SIGTERM ends it with exit code 0', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('at 1', areAllActive('1', host.servers));
  await waitFor('the last action is logged', () =>
    running.messages().some((m) => m.startsWith('activate')),
  );
  const lines = running.lines.length;
  await new Promise((resolve) => setTimeout(resolve, 600));
  assert.deepEqual(running.messages().slice(lines), []);
  running.child.kill('SIGTERM');
  assert.equal(await running.exit, 0);
  assert.ok(existsSync(join(host.dataDir, 'ctr', 'agent', 'stable.json')));
});
