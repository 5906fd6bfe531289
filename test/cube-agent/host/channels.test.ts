/**
 * One agent with several channels: all versions are loaded, the first channel decides the active
 * one, and the retention policy holds.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import {
  AUDIT,
  areAllActive,
  createHost,
  listLayers,
  listVersions,
  publish,
  startAgent,
} from '../support/host.ts';

test('a canary version is loaded beside the stable one and never activated', async (t) => {
  const host = await createHost(t, 2);
  for (const version of ['1', '2', '3']) await publish(host, { version, table: version });
  const { repository, servers } = host;
  await repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  startAgent(t, host, servers, '--channel', 'stable', '--channel', 'canary');
  await waitFor('all at 1', areAllActive('1', servers));
  await repository.activate('ctr', 'canary', { version: '2', ...AUDIT });
  await waitFor('2 is held', () => servers.every(({ loaded }) => loaded.join() === '1,2'));
  await repository.activate('ctr', 'canary', { version: '3', ...AUDIT });
  await waitFor('3 is held', () => servers.every(({ loaded }) => loaded.join() === '1,2,3'));
  assert.ok(areAllActive('1', servers)() === true);
  await repository.activate('ctr', 'stable', { version: '3', ...AUDIT });
  await waitFor('all at 3', areAllActive('3', servers));
  await waitFor('all that is wanted', () =>
    servers.every(({ loaded }) => loaded.join() === '1,2,3'),
  );
  const calls = servers.flatMap((server) => server.calls);
  assert.ok(!calls.includes('activate 2') && !calls.some((call) => call.startsWith('unload')));
});

test('an unreadable channel removes nothing from the host', async (t) => {
  const host = await createHost(t, 1);
  for (const version of ['1', '2', '3']) {
    await publish(host, { version, shardNum: 1, table: version });
    await host.repository.activate('ctr', 'canary', { version, ...AUDIT });
  }
  const [server] = host.servers;
  const first = startAgent(t, host, host.servers, '--channel', 'canary');
  await waitFor('held', () => server?.loaded.join() === '2,3');
  await first.kill();
  const entry = join(host.location, 'ctr/channels/stable/0000000001.json');
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  writeFileSync(entry, '{');
  const more = ['--channel', 'stable', '--channel', 'canary'];
  const second = startAgent(t, host, host.servers, ...more);
  await waitFor('reported', () => second.messages().includes('cannot read channel stable'));
  assert.deepEqual(server?.loaded, ['2', '3']);
  writeFileSync(entry, JSON.stringify({ version: '1', at: '', by: 'hand', reason: 'repaired' }));
  await waitFor('all', () => server?.loaded.join() === '1,2,3');
  await waitFor('stable is active', () => server?.active === '1');
});

test('a version whose quarantine was lifted is active again, also after a restart', async (t) => {
  const host = await createHost(t, 1);
  const { repository, servers } = host;
  for (const version of ['1', '2']) {
    await publish(host, { version, shardNum: 1, table: version });
    await repository.activate('ctr', 'stable', { version, ...AUDIT });
  }
  const first = startAgent(t, host, servers);
  await waitFor('at 2', areAllActive('2', servers));
  await repository.rollback('ctr', 'stable', 'test', 'bad');
  await waitFor('back at 1', areAllActive('1', servers));
  await repository.liftQuarantine('ctr', '2', { channel: 'stable', ...AUDIT });
  await repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('at 2 again', areAllActive('2', servers));
  await repository.rollback('ctr', 'stable', 'test', 'bad');
  await waitFor('back at 1 again', areAllActive('1', servers));
  await first.kill();
  await repository.liftQuarantine('ctr', '2', { channel: 'stable', ...AUDIT });
  await repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  startAgent(t, host, servers);
  await waitFor('at 2 after the restart', areAllActive('2', servers));
});

test('versions stay on disk within the retention policy', async (t) => {
  const host = await createHost(t, 1);
  startAgent(t, host, host.servers, '--keep-versions', '3', '--keep-bytes', '3500');
  for (const version of ['1', '2', '3', '4', '5']) {
    await publish(host, { version, shardNum: 1, table: version });
    await host.repository.activate('ctr', 'stable', { version, ...AUDIT });
    await waitFor(`at ${version}`, areAllActive(version, host.servers));
  }
  await waitFor('three are kept', () => listVersions(host).join() === '3,4,5');
  const large = { version: '6', shardNum: 1, table: '6', layerBytes: 2000 };
  await publish(host, large);
  await host.repository.activate('ctr', 'stable', { version: '6', ...AUDIT });
  await waitFor('two are kept', () => listVersions(host).join() === '5,6' || listVersions(host));
  await waitFor('layers too', () => listLayers(host).length === 2 || listLayers(host));
});

test('a second agent on a host is refused and told about the first', async (t) => {
  const host = await createHost(t, 1);
  const first = startAgent(t, host);
  await waitFor('running', () => first.messages().includes('running'));
  const second = startAgent(t, host);
  assert.equal(await second.exit, 1);
  assert.match(second.messages().join(), /is in use by process \d+ of host/);
});

test('an agent with agent.yaml serves a bundle while another is not yet published', async (t) => {
  const host = await createHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const config = join(host.folder, 'agent.yaml');
  const lines = [
    'repository: repository',
    'data-dir: data',
    'poll-ms: 50',
    'bundles: [{ name: none, channels: live }, { name: ctr }]',
    `servers: ["${host.servers[0]?.address}"]`,
  ];
  writeFileSync(config, lines.join('\n'));
  const running = new RunningProcess(t, 'cube-agent/main.js', ['run', '--config', config]);
  await waitFor('at 1', areAllActive('1', host.servers));
  running.child.kill('SIGTERM');
  assert.equal(await running.exit, 0);
  writeFileSync(config, [...lines, 'poll: 50'].join('\n'));
  const { code, stderr } = await runAgentCommand('run', '--config', config);
  assert.equal(code, 1);
  assert.match(stderr, /agent\.yaml:6:1: unknown field "poll" \(did you mean "poll-ms"\?\)/);
});
