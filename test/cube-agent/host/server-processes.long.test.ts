/** An agent that runs its servers itself: kills of either, repeated failures, and their status. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import { freePort } from '../../platform/support/free-port.ts';
import {
  onlyWhereItReturns,
  readPolicy,
  SCHED_IDLE,
  SCHED_OTHER,
} from '../../platform/support/thread-policy.ts';
import { RunningProcess, waitFor } from '../../support/processes.ts';
import { buildVersion, createWorkspace, type Workspace } from '../support/workspace.ts';

const by = { by: 'test', reason: 'test' };

interface Supervised {
  readonly config: string;
  readonly endpoint: string;
}

async function configure(
  place: Workspace,
  more: readonly string[] = [],
  pollMs = 50,
): Promise<Supervised> {
  const listen = await freePort(3);
  const [first, second] = [listen + 1, listen + 2];
  const config = join(place.folder, 'agent.yaml');
  const lines = [
    'repository: repository',
    'data-dir: data',
    `poll-ms: ${pollMs}`,
    'retire-grace-ms: 0',
    'bundles: [{ name: ctr }]',
    `listen: 127.0.0.1:${listen}`,
    'supervise: true',
    'servers:',
    `  - { shard: 0, shard-num: 2, port: ${first}, flags: [--memory, 64MiB] }`,
    `  - { shard: 1, shard-num: 2, port: ${second} }`,
    ...more,
  ];
  writeFileSync(config, lines.join('\n'));
  return { config, endpoint: `http://127.0.0.1:${listen}` };
}

const startAgent = (t: TestContext, { config }: Supervised): RunningProcess =>
  new RunningProcess(t, 'cube-agent/main.js', ['run', '--config', config]);

interface Status {
  readonly servers: {
    readonly pid?: number;
    readonly bundles: { readonly active: string }[];
    readonly process: { readonly state: string; readonly pid?: number; readonly starts: number };
  }[];
  readonly problems: { readonly action: string; readonly message: string }[];
}

const readStatus = async ({ endpoint }: Supervised): Promise<Status> =>
  (await (await fetch(`${endpoint}/agent/v1/status`)).json()) as Status;

const allActive = (place: Supervised, version: string) => async (): Promise<unknown> => {
  try {
    const { servers } = await readStatus(place);
    const active = servers.map(({ bundles }) => bundles[0]?.active);
    return active.every((candidate) => candidate === version) || active;
  } catch (error) {
    return String(error);
  }
};

function isAlive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test('servers start with their agent, restart when killed, and end with the agent', async (t) => {
  const place = createWorkspace(t);
  await buildVersion(place, '1');
  await openRepository(place.repository).activate('ctr', 'stable', { version: '1', ...by });
  const host = await configure(place);
  const first = startAgent(t, host);
  await waitFor('active', allActive(host, '1'));
  const before = (await readStatus(host)).servers.map((server) => server.process.pid ?? 0);
  process.kill(before[0] ?? 0, 'SIGKILL');
  await waitFor('restarted', async () => {
    const [server] = (await readStatus(host)).servers;
    return server?.process.starts === 2 && server.process.state === 'listening';
  });
  await waitFor('active again', allActive(host, '1'));

  const pids = (await readStatus(host)).servers.map((server) => server.process.pid ?? 0);
  await first.kill();
  await waitFor('servers end', () => pids.every((pid) => !isAlive(pid)));
  const second = startAgent(t, host);
  await waitFor('active again', allActive(host, '1'));
  const after = (await readStatus(host)).servers.map((server) => server.process.pid ?? 0);
  second.child.kill('SIGTERM');
  assert.equal(await second.exit, 0);
  assert.ok(after.every((pid) => !isAlive(pid)));
});

test(
  'an agent runs in idle time after its start, and servers that it restarts do not',
  onlyWhereItReturns,
  async (t) => {
    const place = createWorkspace(t);
    await buildVersion(place, '1');
    await openRepository(place.repository).activate('ctr', 'stable', { version: '1', ...by });
    const host = await configure(place);
    const agent = startAgent(t, host);
    await waitFor('active', allActive(host, '1'));
    await waitFor('idle', () => readPolicy(agent.child.pid) === SCHED_IDLE);
    const [killed, kept] = (await readStatus(host)).servers.map((server) => server.process.pid);
    process.kill(killed ?? 0, 'SIGKILL');
    await waitFor('restarted', async () => {
      const [server] = (await readStatus(host)).servers;
      return server?.process.starts === 2 && server.process.state === 'listening';
    });
    const [restarted] = (await readStatus(host)).servers.map((server) => server.process.pid);
    assert.deepEqual([kept, restarted].map(readPolicy), [SCHED_OTHER, SCHED_OTHER]);
    agent.child.kill('SIGTERM');
    assert.equal(await agent.exit, 0);
  },
);

test('a server that cannot start is given up and reported; a poke starts it again', async (t) => {
  const place = createWorkspace(t);
  await buildVersion(place, '1');
  await openRepository(place.repository).activate('ctr', 'stable', { version: '1', ...by });
  const host = await configure(place);
  const third = await freePort();
  const line = `  - { shard: 0, shard-num: 2, port: ${third}, flags: [--no-such-flag] }`;
  const extended = await configure(place, [line]);
  startAgent(t, { ...host, ...extended });
  await waitFor('the others are active', async () => {
    const { servers } = await readStatus(extended).catch(() => ({ servers: [] }));
    return servers.filter(({ bundles }) => bundles[0]?.active === '1').length === 2;
  });
  const { servers, problems } = await readStatus(extended);
  assert.deepEqual(
    { state: servers[2]?.process.state, starts: servers[2]?.process.starts },
    { state: 'given up', starts: 1 },
  );
  const why = problems.find(({ action }) => action === 'run-server')?.message;
  assert.match(why ?? '', /shard 0 ended \(exit 2\).* given up/);
  const poked = await fetch(`${extended.endpoint}/agent/v1/poke`, { method: 'POST' });
  assert.equal(poked.status, 200);
  await waitFor('tried again', async () => {
    return (await readStatus(extended)).servers[2]?.process.starts === 2;
  });
});

test('a server that starts is loaded at once, not at the next poll', async (t) => {
  const place = createWorkspace(t);
  await buildVersion(place, '1');
  await openRepository(place.repository).activate('ctr', 'stable', { version: '1', ...by });
  const supervised = await configure(place, [], 3_600_000);
  startAgent(t, supervised);
  await waitFor('loaded after the start', allActive(supervised, '1'));
  const [first] = (await readStatus(supervised)).servers;
  const pid = first?.process.pid;
  assert.ok(pid !== undefined);
  process.kill(pid, 'SIGKILL');
  await waitFor('loaded after the kill', async () => {
    const { servers } = await readStatus(supervised);
    return servers[0]?.process.pid !== pid && (await allActive(supervised, '1')()) === true;
  });
});
