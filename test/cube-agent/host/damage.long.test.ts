/**
 * Damage in transit, in the repository and on disk. Real agents with stand-in servers: one reads
 * the repository folder, one reads it over HTTP with injected faults. In each case the old version
 * stays active, the status gives the reason, the fetch is retried, and nothing is quarantined.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import {
  appendFileSync,
  copyFileSync,
  mkdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import {
  fetchHostReport,
  type HostProblem,
  pokeAgents,
} from '../../../cube-agent/fleet/agent-client.ts';
import { formatFleet } from '../../../lib/core/fleet.ts';
import { layerPath, manifestPath } from '../../../lib/repository/layout.ts';
import { NO_CREDENTIALS } from '../../../lib/rpc/credentials.ts';
import { freePort } from '../../platform/support/free-port.ts';
import { getBaseLayer, onTestEnd } from '../../repository/support/fixtures.ts';
import { type ServerFaults, StaticServer } from '../../repository/support/static-server.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { type RunningProcess, waitFor } from '../../support/processes.ts';
import { type ControlServer, startServers } from '../support/control-server.ts';
import { AUDIT, createHost, type Host, publish, startAgent } from '../support/host.ts';

const HUGE_BYTES = (64 << 20) + 1;

/** A host with one server and one agent. */
class Reader {
  readonly server: ControlServer;
  readonly agent: string;
  readonly running: RunningProcess;

  constructor(server: ControlServer, agent: string, running: RunningProcess) {
    this.server = server;
    this.agent = agent;
    this.running = running;
  }

  static async start(t: TestContext, host: Host, repository: string): Promise<Reader> {
    const address = `127.0.0.1:${await freePort()}`;
    const from = { ...host, location: repository };
    const running = startAgent(t, from, host.servers, '--listen', address);
    return new Reader(host.servers[0]!, address, running);
  }

  async problems(): Promise<readonly HostProblem[]> {
    return (await fetchHostReport(this.agent, 'ctr', NO_CREDENTIALS)).problems;
  }

  /** What has failed is tried at once. */
  async reaches(version: string): Promise<void> {
    await pokeAgents([this.agent], NO_CREDENTIALS);
    await waitFor(`${this.agent} is at ${version}`, () => this.server.active === version);
  }

  /** It has tried more than once, and has the version before. */
  async isStuckBefore(version: string, why: RegExp): Promise<void> {
    await waitFor(`${this.agent} says ${why}`, async () => {
      const problems = await this.problems();
      const told = problems.filter(({ attempts }) => attempts > 1);
      return told.some((p) => why.test(`${p.what}: ${p.code} ${p.message}`)) || problems;
    });
    assert.equal(this.server.active, String(Number(version) - 1));
  }
}

/** Two hosts of one repository: the far one reads it through a web server. */
class Pair {
  readonly host: Host;
  readonly web: StaticServer;
  readonly near: Reader;
  readonly far: Reader;
  #versions = 0;

  constructor(host: Host, web: StaticServer, near: Reader, far: Reader) {
    this.host = host;
    this.web = web;
    this.near = near;
    this.far = far;
  }

  static async start(t: TestContext): Promise<Pair> {
    const host = await createHost(t, 1);
    const web = await StaticServer.start(t, host.location);
    const dataDir = join(host.folder, 'far');
    const elsewhere = { ...host, dataDir, servers: await startServers(t, 1, dataDir) };
    const near = await Reader.start(t, host, host.location);
    const pair = new Pair(host, web, near, await Reader.start(t, elsewhere, web.url));
    await pair.point(await pair.publish());
    for (const reader of [pair.near, pair.far]) await reader.reaches('1');
    return pair;
  }

  async publish(): Promise<string> {
    const version = String(++this.#versions);
    await publish(this.host, { version, table: version, shardNum: 1 });
    return version;
  }

  /** By hand: nobody points to what is damaged knowingly. */
  async point(version: string): Promise<void> {
    const { location, repository } = this.host;
    if (version === '1') await repository.activate('ctr', 'stable', { version, ...AUDIT });
    const path = `ctr/channels/stable/${version.padStart(10, '0')}.json`;
    const entry = { version, at: '', ...AUDIT };
    if (version !== '1') writeFileSync(join(location, path), JSON.stringify(entry));
  }

  async layer(version: string): Promise<string> {
    const { contentId } = getBaseLayer(await this.host.repository.readManifest('ctr', version), 0);
    return layerPath('ctr', 't', contentId);
  }

  file(path: string): string {
    return join(this.host.location, path);
  }
}

test('damaged data is never loaded; the old version stays, with a reason in status', async (t) => {
  const pair = await Pair.start(t);
  await t.test('damage in transit affects one host only', () => onItsWay(pair));
  await t.test('a very slow fetch is stopped when another version is desired', () =>
    dripping(pair),
  );
  await t.test('damage in the repository affects all hosts', () => atItsSource(pair));
  assert.equal((await pair.host.repository.listQuarantined('ctr')).size, 0);
});

async function onItsWay(pair: Pair): Promise<void> {
  const { near, far, web } = pair;
  const first = await pair.layer('1');
  let etags = 0;
  const always = Number.POSITIVE_INFINITY;
  const layers: [Partial<ServerFaults>, RegExp][] = [
    [{ flip: always }, /^fetch .*: CORRUPT .*SHA-256/],
    [{ cut: always }, /^fetch .*: UNAVAILABLE /],
    [{ instead: () => first }, /^fetch .*: CORRUPT .*SHA-256/],
    [{ ignoresRange: true }, /^fetch .*: UNSUPPORTED .*does not honour Range/],
    [{ etag: () => `"${++etags}"` }, /^fetch .*: CORRUPT .*has changed/],
  ];
  const manifests: typeof layers = [
    [{ instead: () => manifestPath('ctr', '1') }, /^read the manifest .*: CORRUPT .*of ctr 1/],
    [{ cut: always }, /^read the manifest .*: UNAVAILABLE /],
  ];
  for (const [faults, why] of [...layers, ...manifests]) {
    const version = await pair.publish();
    const path = why.source.startsWith('^fetch')
      ? await pair.layer(version)
      : manifestPath('ctr', version);
    Object.assign(web.faults, { paths: new RegExp(path), ...faults });
    await pair.point(version);
    await near.reaches(version);
    await far.isStuckBefore(version, why);
    web.heal();
    await far.reaches(version);
  }
}

async function dripping(pair: Pair): Promise<void> {
  const { near, far, web } = pair;
  const slow = await pair.publish();
  Object.assign(web.faults, { paths: new RegExp(await pair.layer(slow)), drips: true });
  await pair.point(slow);
  await near.reaches(slow);
  await waitFor('fetching', async () => {
    const { fetching } = await fetchHostReport(far.agent, 'ctr', NO_CREDENTIALS);
    return fetching.bytes === 1000 || fetching;
  });
  assert.equal(far.server.active, String(Number(slow) - 1));
  const next = await pair.publish();
  await pair.point(next);
  for (const reader of [near, far]) await reader.reaches(next);
  web.heal();
}

async function atItsSource(pair: Pair): Promise<void> {
  const { near, far } = pair;
  const flip = (path: string): void => {
    const bytes = readFileSync(path);
    bytes[500] = bytes[500]! ^ 1;
    writeFileSync(path, bytes);
  };
  const first = pair.file(await pair.layer('1'));
  const layers: [(path: string) => void, RegExp][] = [
    [(path) => truncateSync(path, 10), /^fetch .*: CORRUPT .*10 bytes, but the manifest says 1000/],
    [flip, /^fetch .*: CORRUPT .*SHA-256/],
    [(path) => copyFileSync(first, path), /^fetch .*: CORRUPT .*SHA-256/],
    [(path) => rmSync(path), /^fetch .*: NOT_FOUND /],
  ];
  const one = pair.file(manifestPath('ctr', '1'));
  const manifests: typeof layers = [
    [(path) => copyFileSync(one, path), /^read the manifest .*: CORRUPT .*of ctr 1/],
    [(path) => truncateSync(path, 100), /^read the manifest .*: CORRUPT .*not JSON/],
    [(path) => truncateSync(path, HUGE_BYTES), /^read the manifest .*: TOO_LARGE /],
    [(path) => writeFileSync(path, '{"format": 99}'), /^read the manifest .*: CORRUPT .*format/],
  ];
  for (const [damage, why] of [...layers, ...manifests]) {
    const version = await pair.publish();
    const isLayer = why.source.startsWith('^fetch');
    const path = pair.file(isLayer ? await pair.layer(version) : manifestPath('ctr', version));
    const whole = readFileSync(path);
    // Copies may be hard links: write a new file, so that only the repository's file is damaged.
    rmSync(path);
    writeFileSync(path, whole);
    damage(path);
    await pair.point(version);
    for (const reader of [near, far]) await reader.isStuckBefore(version, why);
    if (damage === flip) await assertStatus(pair, new RegExp(`fetch ${version} .*SHA-256`));
    writeFileSync(path, whole);
    for (const reader of [near, far]) await reader.reaches(version);
  }
}

/**
 * The command shows people and programs both hosts' reasons, how often it was tried, and that the
 * servers answer.
 */
async function assertStatus({ host, near, far }: Pair, why: RegExp): Promise<void> {
  const replicas = [near, far].map(({ server: { address }, agent }) => {
    return { data: address, control: address, group: 'default', agent };
  });
  const file = join(host.folder, 'fleet.json');
  const bundles = new Map([['ctr', [{ shardNum: 1, shards: [replicas] }]]]);
  writeFileSync(file, formatFleet({ bundles }));
  const args = ['status', '--repository', host.location, '--bundle', 'ctr', '--fleet', file];
  const [text, json] = await Promise.all([
    runAgentCommand(...args),
    runAgentCommand(...args, '--json'),
  ]);
  const lines = text.stdout.split('\n').filter((line) => why.test(line));
  assert.equal(lines.length, 2, text.stdout);
  const { problems, servers } = JSON.parse(json.stdout) as Record<string, HostProblem[]>;
  assert.deepEqual(
    problems?.map(({ host: of, code, attempts }) => [of, code, attempts > 1]),
    [near, far].map((reader) => [reader.agent, 'CORRUPT', true]),
  );
  assert.equal(servers?.length, 2);
}

test('a layer damaged on disk before its load is fetched again', async (t) => {
  const host = await createHost(t, 1);
  const [server] = host.servers;
  assert.ok(server);
  for (const version of ['1', '2']) await publish(host, { version, table: version, shardNum: 1 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const running = startAgent(t, host);
  await waitFor('at 1', () => server.active === '1');
  server.isUnreachable = true;
  await waitFor('the server is away', () =>
    running.messages().some((message) => message.startsWith('cannot contact server')),
  );
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('2 is staged', () => running.messages().includes('stage 2'));
  const { contentId } = getBaseLayer(await host.repository.readManifest('ctr', '2'), 0);
  writeFileSync(join(host.dataDir, layerPath('ctr', 't', contentId)), new Uint8Array(1000));
  server.isUnreachable = false;
  await waitFor('at 2', () => server.active === '2' || running.messages());
  assert.ok(running.messages().some((message) => message.startsWith('removed damaged layers')));
});

test('a fetch continues when a full disk has room again; the old version stays', async (t) => {
  const host = await createHost(t, 1);
  mkdirSync(host.dataDir);
  const mount = ['-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', host.dataDir];
  if (spawnSync('mount', mount).status !== 0) {
    t.skip('a small disk needs the right to mount one');
    return;
  }
  onTestEnd(t, () => spawnSync('umount', ['-l', host.dataDir]));
  await publish(host, { version: '1', shardNum: 1 });
  await publish(host, { version: '2', table: '2', shardNum: 1, layerBytes: 600_000 });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  const address = `127.0.0.1:${await freePort()}`;
  const slow = ['--rate-limit', '200KB', '--keep-free', '0', '--listen', address];
  const reader = new Reader(host.servers[0]!, address, startAgent(t, host, host.servers, ...slow));
  await reader.reaches('1');
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  await waitFor('a part is here', async () => {
    const { fetching } = await fetchHostReport(address, 'ctr', NO_CREDENTIALS);
    return fetching.arrivedBytes > 0;
  });
  const ballast = join(host.dataDir, 'ballast');
  assert.throws(
    () => {
      for (;;) appendFileSync(ballast, new Uint8Array(4096));
    },
    { code: 'ENOSPC' },
  );
  await waitFor('told', async () => {
    const problems = await reader.problems();
    const told = problems.filter(({ what, code }) => what.startsWith('fetch 2') && code === 'IO');
    return told.some(({ message }) => /ENOSPC|no space/i.test(message)) || problems;
  });
  assert.equal(reader.server.active, '1');
  rmSync(ballast);
  await reader.reaches('2');
});
