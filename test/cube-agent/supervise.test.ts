/** An agent that runs the servers of its host itself: kills of either, flapping, and what the endpoint says of it. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { openRepository } from '../../lib/repository/repository.ts';
import { freePort } from '../platform/free-port.ts';
import { build, makePlace, type Place } from './place.ts';
import { Running, until } from './processes.ts';

const by = { by: 'test', reason: 'test' };

interface Supervised {
  readonly config: string;
  readonly endpoint: string;
}

async function configure(place: Place, more: readonly string[] = []): Promise<Supervised> {
  const listen = await freePort(3);
  const [first, second] = [listen + 1, listen + 2];
  const config = join(place.folder, 'agent.yaml');
  const lines = [
    'repository: repository',
    'data-dir: data',
    'poll-ms: 50',
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

const startAgent = (t: TestContext, { config }: Supervised): Running =>
  new Running(t, 'cube-agent/main.js', ['run', '--config', config]);

interface Status {
  readonly servers: {
    readonly pid?: number;
    readonly bundles: { readonly active: string }[];
    readonly process: { readonly state: string; readonly pid?: number; readonly starts: number };
  }[];
  readonly problems: { readonly what: string; readonly message: string }[];
}

const statusOf = async ({ endpoint }: Supervised): Promise<Status> =>
  (await (await fetch(`${endpoint}/agent/v1/status`)).json()) as Status;

const allActive = (place: Supervised, version: string) => async (): Promise<unknown> => {
  try {
    const { servers } = await statusOf(place);
    const active = servers.map(({ bundles }) => bundles[0]?.active);
    return active.every((candidate) => candidate === version) || active;
  } catch (error) {
    return String(error);
  }
};

function lives(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch {
    return false;
  }
}

test('servers come with their agent, come back when killed, and go with it, also when it is killed', async (t) => {
  const place = makePlace(t);
  await build(place, '1');
  await openRepository(place.repository).activate('ctr', 'stable', { version: '1', ...by });
  const host = await configure(place);
  const first = startAgent(t, host);
  await until('active', allActive(host, '1'));
  const before = (await statusOf(host)).servers.map((server) => server.process.pid ?? 0);
  process.kill(before[0] ?? 0, 'SIGKILL');
  await until('restarted', async () => {
    const [server] = (await statusOf(host)).servers;
    return server?.process.starts === 2 && server.process.state === 'listening';
  });
  await until('active again', allActive(host, '1'));

  const pids = (await statusOf(host)).servers.map((server) => server.process.pid ?? 0);
  await first.kill();
  await until('servers end', () => pids.every((pid) => !lives(pid)));
  const second = startAgent(t, host);
  await until('active again', allActive(host, '1'));
  const after = (await statusOf(host)).servers.map((server) => server.process.pid ?? 0);
  second.child.kill('SIGTERM');
  assert.equal(await second.exit, 0);
  assert.ok(after.every((pid) => !lives(pid)));
});

test('a server that cannot start is given up, status says so, and a poke starts it again', async (t) => {
  const place = makePlace(t);
  await build(place, '1');
  await openRepository(place.repository).activate('ctr', 'stable', { version: '1', ...by });
  const host = await configure(place);
  const third = await freePort();
  const line = `  - { shard: 0, shard-num: 2, port: ${third}, flags: [--no-such-flag] }`;
  const extended = await configure(place, [line]);
  startAgent(t, { ...host, ...extended });
  await until('the others are active', async () => {
    const { servers } = await statusOf(extended).catch(() => ({ servers: [] }));
    return servers.filter(({ bundles }) => bundles[0]?.active === '1').length === 2;
  });
  const { servers, problems } = await statusOf(extended);
  assert.deepEqual(
    { state: servers[2]?.process.state, starts: servers[2]?.process.starts },
    { state: 'given up', starts: 1 },
  );
  const why = problems.find(({ what }) => what.startsWith('run the server at'))?.message;
  assert.match(why ?? '', /shard 0 ended \(exit 2\).* given up/);
  const poked = await fetch(`${extended.endpoint}/agent/v1/poke`, { method: 'POST' });
  assert.equal(poked.status, 200);
  await until('tried again', async () => {
    return (await statusOf(extended)).servers[2]?.process.starts === 2;
  });
});
