/**
 * An agent that is killed or fails after each of its steps: the next one converges and leaves no
 * files behind.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import {
  AUDIT,
  areAllActive,
  createHost,
  type Host,
  listLayers,
  listVersions,
  publish,
} from '../support/host.ts';

function startWithFault(t: TestContext, host: Host, fault?: string): RunningProcess {
  const flags = [
    'run',
    ...toArguments({
      repository: host.location,
      bundle: 'ctr',
      dataDir: host.dataDir,
      pollMs: 50,
      retireGraceMs: 0,
    }),
    ...host.servers.flatMap(({ address }) => ['--server', address]),
  ];
  return new RunningProcess(t, 'cube-agent/main.js', flags, fault);
}

async function want(host: Host, version: string): Promise<void> {
  await publish(host, { version, table: version });
  await host.repository.activate('ctr', 'stable', { version, ...AUDIT });
}

/** What is on disk is what is wanted, and no piece of anything else. */
function isTidy(host: Host, versions: string): true | readonly string[] {
  const files = readdirSync(host.dataDir, { recursive: true }).map(String);
  const pieces = files.filter((path) => /\.(part|tmp)$/.test(path));
  const isWhole = listVersions(host).join() === versions && listLayers(host).length === 4;
  return (isWhole && pieces.length === 0) || files;
}

const KILLS = [
  'agent.fetched:kill',
  'agent.staged:kill',
  'agent.loaded:kill',
  'agent.activated:kill',
  'agent.unloaded:kill',
  'agent.removed:kill',
];

for (const kill of KILLS) {
  const [point] = kill.split(':');
  test(`killed once at ${point}, then failing there`, async (t) => {
    const host = await createHost(t, 2);
    for (const version of ['1', '2', '3']) await want(host, version);
    const first = startWithFault(t, host);
    await waitFor('all at 3', areAllActive('3', host.servers));
    await waitFor('tidy at 3', () => isTidy(host, '2,3'));
    await waitFor('2 is held too', () =>
      host.servers.every(({ loaded }) => loaded.join() === '2,3'),
    );
    await first.kill();

    const killed = startWithFault(t, host, kill);
    await want(host, '4');
    await waitFor('killed', () => killed.child.signalCode === 'SIGKILL' || killed.messages());
    const active = host.servers.map((server) => server.active);
    assert.ok(active.every((version) => version === '3' || version === '4'));

    // The second agent fails at the same point, after it has found unfinished work of the first.
    startWithFault(t, host, `${point}:error:2`);
    await waitFor('all at 4', areAllActive('4', host.servers));
    await want(host, '5');
    await waitFor('all at 5', areAllActive('5', host.servers));
    await waitFor('tidy at 5', () => isTidy(host, '4,5'));
    await waitFor('held', () => host.servers.every(({ loaded }) => loaded.join() === '4,5'));
  });
}
