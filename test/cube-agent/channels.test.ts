/** One agent for several channels: both are held, the first decides what is active, and versions are kept as asked. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { allAt, by, layersOnDisk, makeHost, publish, start, versionsOnDisk } from './host.ts';
import { agent, Running, until } from './processes.ts';

test('a canary beside the stable channel is held and never activated', async (t) => {
  const host = await makeHost(t, 2);
  for (const version of ['1', '2', '3']) await publish(host, { version, table: version });
  const { repository, servers } = host;
  await repository.activate('ctr', 'stable', { version: '1', ...by });
  start(t, host, servers, '--channel', 'stable', '--channel', 'canary');
  await until('all at 1', allAt('1', servers));
  await repository.activate('ctr', 'canary', { version: '2', ...by });
  await until('2 is held', () => servers.every(({ held }) => held.join() === '1,2'));
  await repository.activate('ctr', 'canary', { version: '3', ...by });
  await until('3 is held', () => servers.every(({ held }) => held.join() === '1,2,3'));
  assert.ok(allAt('1', servers)() === true);
  await repository.activate('ctr', 'stable', { version: '3', ...by });
  await until('all at 3', allAt('3', servers));
  await until('all that is wanted', () => servers.every(({ held }) => held.join() === '1,2,3'));
  const calls = servers.flatMap((server) => server.calls);
  assert.ok(!calls.includes('activate 2') && !calls.some((call) => call.startsWith('unload')));
});

test('a channel that cannot be read takes nothing away from the host', async (t) => {
  const host = await makeHost(t, 1);
  for (const version of ['1', '2', '3']) {
    await publish(host, { version, shardNum: 1, table: version });
    await host.repository.activate('ctr', 'canary', { version, ...by });
  }
  const [server] = host.servers;
  const first = start(t, host, host.servers, '--channel', 'canary');
  await until('held', () => server?.held.join() === '2,3');
  await first.kill();
  const entry = join(host.location, 'ctr/channels/stable/0000000001.json');
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  writeFileSync(entry, '{');
  const more = ['--channel', 'stable', '--channel', 'canary'];
  const second = start(t, host, host.servers, ...more);
  await until('reported', () => second.messages().includes('cannot read channel stable'));
  assert.deepEqual(server?.held, ['2', '3']);
  writeFileSync(entry, JSON.stringify({ version: '1', at: '', by: 'hand', reason: 'repaired' }));
  await until('all', () => server?.held.join() === '1,2,3');
  await until('stable is active', () => server?.active === '1');
});

test('versions are kept on disk as long as the policy has room', async (t) => {
  const host = await makeHost(t, 1);
  start(t, host, host.servers, '--keep-versions', '3', '--keep-bytes', '3500');
  for (const version of ['1', '2', '3', '4', '5']) {
    await publish(host, { version, shardNum: 1, table: version });
    await host.repository.activate('ctr', 'stable', { version, ...by });
    await until(`at ${version}`, allAt(version, host.servers));
  }
  await until('three are kept', () => versionsOnDisk(host).join() === '3,4,5');
  const large = { version: '6', shardNum: 1, table: '6', layerBytes: 2000 };
  await publish(host, large);
  await host.repository.activate('ctr', 'stable', { version: '6', ...by });
  await until('two are kept', () => versionsOnDisk(host).join() === '5,6' || versionsOnDisk(host));
  await until('layers too', () => layersOnDisk(host).length === 2 || layersOnDisk(host));
});

test('a host has one agent: a second one is told who the first is', async (t) => {
  const host = await makeHost(t, 1);
  const first = start(t, host);
  await until('running', () => first.messages().includes('running'));
  const second = start(t, host);
  assert.equal(await second.exit, 1);
  assert.match(second.messages().join(), /is being worked in by process \d+ of host/);
});

test('agent.yaml says it all; a bundle that nobody has published does not hold up another', async (t) => {
  const host = await makeHost(t, 1);
  await publish(host, { version: '1', shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  const config = join(host.folder, 'agent.yaml');
  const lines = [
    'repository: repository',
    'data-dir: data',
    'poll-ms: 50',
    'bundles: [{ name: none, channels: live }, { name: ctr }]',
    `servers: ["${host.servers[0]?.address}"]`,
  ];
  writeFileSync(config, lines.join('\n'));
  const running = new Running(t, 'cube-agent/main.js', ['run', '--config', config]);
  await until('at 1', allAt('1', host.servers));
  running.child.kill('SIGTERM');
  assert.equal(await running.exit, 0);
  writeFileSync(config, [...lines, 'poll: 50'].join('\n'));
  const { code, stderr } = await agent('run', '--config', config);
  assert.equal(code, 1);
  assert.match(stderr, /agent\.yaml:6:1: unknown field "poll" \(known here: repository, /);
});
