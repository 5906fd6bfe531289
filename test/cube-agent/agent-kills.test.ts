/** An agent that is killed, or fails, after each of its steps: the next one converges, and leaves nothing behind. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { allAt, by, type Host, layersOnDisk, makeHost, publish, versionsOnDisk } from './host.ts';
import { Running, until } from './processes.ts';

function startWithFault(t: TestContext, host: Host, fault?: string): Running {
  const flags = [
    ...['run', '--repository', host.location, '--bundle', 'ctr', '--data-dir', host.dataDir],
    ...['--poll-ms', '50', '--retire-grace-ms', '0'],
    ...host.servers.flatMap(({ address }) => ['--server', address]),
  ];
  return new Running(t, 'cube-agent/main.js', flags, fault);
}

async function want(host: Host, version: string): Promise<void> {
  await publish(host, { version, table: version });
  await host.repository.activate('ctr', 'stable', { version, ...by });
}

/** What is on disk is what is wanted, and no piece of anything else. */
function isTidy(host: Host, versions: string): true | readonly string[] {
  const files = readdirSync(host.dataDir, { recursive: true }).map(String);
  const pieces = files.filter((path) => /\.(part|tmp)$/.test(path));
  const isWhole = versionsOnDisk(host).join() === versions && layersOnDisk(host).length === 4;
  return (isWhole && pieces.length === 0) || files;
}

const KILLS = [
  ...['agent.fetched:kill', 'agent.staged:kill', 'agent.loaded:kill'],
  ...['agent.activated:kill', 'agent.unloaded:kill', 'agent.removed:kill'],
];

for (const kill of KILLS) {
  const [point] = kill.split(':');
  test(`killed once at ${point}, then failing there`, async (t) => {
    const host = await makeHost(t, 2);
    for (const version of ['1', '2', '3']) await want(host, version);
    const first = startWithFault(t, host);
    await until('all at 3', allAt('3', host.servers));
    await until('tidy at 3', () => isTidy(host, '2,3'));
    await until('2 is held too', () => host.servers.every(({ held }) => held.join() === '2,3'));
    await first.kill();

    const killed = startWithFault(t, host, kill);
    await want(host, '4');
    await until('killed', () => killed.child.signalCode === 'SIGKILL' || killed.messages());
    const active = host.servers.map((server) => server.active);
    assert.ok(active.every((version) => version === '3' || version === '4'));

    // The failure is the second time round, so that it also meets what the kill had left undone.
    startWithFault(t, host, `${point}:error:2`);
    await until('all at 4', allAt('4', host.servers));
    await want(host, '5');
    await until('all at 5', allAt('5', host.servers));
    await until('tidy at 5', () => isTidy(host, '4,5'));
    await until('held', () => host.servers.every(({ held }) => held.join() === '4,5'));
  });
}
