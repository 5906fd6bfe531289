/** The whole path with real processes: cube-builder, cube-agent, cube-server. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { layerPath } from '../../../lib/repository/layout.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { getBaseLayer } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { RunningProcess, startAgentProcess, waitFor } from '../../support/processes.ts';
import { buildVersion, createWorkspace, type Workspace } from '../support/workspace.ts';

/** A cube-server, which may be killed and started again on its port. */
class Shard {
  readonly #t: TestContext;
  readonly #options: readonly string[];
  #running: RunningProcess;
  address = '';

  private constructor(t: TestContext, options: readonly string[]) {
    this.#t = t;
    this.#options = options;
    this.#running = this.#start('0');
  }

  static async start(
    t: TestContext,
    dataDir: string,
    index: number,
    shardNum: number,
  ): Promise<Shard> {
    const place = toArguments({ shard: index, shardNum, dataDir });
    const shard = new Shard(t, place);
    await shard.#listening();
    return shard;
  }

  async killAndRestart(): Promise<void> {
    await this.#running.kill();
    this.#running = this.#start(this.address.split(':')[1] ?? '');
    await this.#listening();
  }

  async active(): Promise<string> {
    const { bundles } = await new ControlClient(this.address).status();
    return bundles.find(({ bundle }) => bundle === 'ctr')?.active ?? '';
  }

  async held(): Promise<string[]> {
    const { bundles } = await new ControlClient(this.address).status();
    const versions = bundles.find(({ bundle }) => bundle === 'ctr')?.versions ?? [];
    return versions.map(({ version }) => version).sort();
  }

  #start(port: string): RunningProcess {
    return new RunningProcess(this.#t, 'cube-server/main.js', [...this.#options, '--port', port]);
  }

  async #listening(): Promise<void> {
    const line = () => this.#running.lines.find(({ msg }) => msg === 'listening');
    await waitFor('listening', () => line() !== undefined || this.#running.lines);
    this.address = String(line()?.['address']);
  }
}

function startShards(t: TestContext, { dataDir }: Workspace, shardNum: number): Promise<Shard[]> {
  return Promise.all(
    Array.from({ length: shardNum }, (_, index) => Shard.start(t, dataDir, index, shardNum)),
  );
}

function writeFleet({ folder }: Workspace, ...maps: (readonly Shard[])[]): string {
  const path = join(folder, 'fleet.json');
  const bundles = {
    ctr: maps.map((shards) => ({
      shardNum: shards.length,
      shards: shards.map(({ address }) => [{ data: address }]),
    })),
  };
  writeFileSync(path, JSON.stringify({ format: 1, bundles }));
  return path;
}

/** `cube-agent <command> … --wait`, which must end well. */
async function steer(place: Workspace, fleet: string, ...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await runAgentCommand(
    ...args,
    ...toArguments({
      repository: place.repository,
      bundle: 'ctr',
      reason: 'test',
      fleet,
      wait: true,
      timeoutMs: 60_000,
    }),
  );
  assert.equal(code, 0, stderr);
  return stdout;
}

const listAddresses = (shards: readonly Shard[]): string[] => shards.map(({ address }) => address);

const readStatus = async ({ repository, dataDir }: Workspace, fleet: string): Promise<string> => {
  const where = ['--repository', repository, '--bundle', 'ctr', '--data-dir', dataDir];
  return (await runAgentCommand('status', ...where, '--fleet', fleet)).stdout;
};

test('versions are activated and rolled back; killed servers are loaded again', async (t) => {
  const place = createWorkspace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await buildVersion(place, '1');
  const running = startAgentProcess(t, { ...place, servers: listAddresses(shards) });
  const said = await steer(place, fleet, 'activate', '--version', '1');
  assert.match(said, /entry 1 points to version 1\nall 2 servers have version 1 active/);
  await buildVersion(place, '2', { rows: 4000 });
  await steer(place, fleet, 'activate', '--version', '2');
  assert.deepEqual(await shards[0]?.held(), ['1', '2']);

  await shards[0]?.killAndRestart();
  await waitFor('whole again', async () => (await shards[0]?.held())?.join() === '1,2');
  await waitFor('active again', async () => (await shards[0]?.active()) === '2');
  const fetched = running.messages().filter((message) => message.startsWith('fetch')).length;

  assert.match(
    await steer(place, fleet, 'rollback'),
    /points back to version 1; version 2 is quarantined/,
  );
  assert.equal(await shards[1]?.active(), '1');
  const after = running.messages().filter((message) => message.startsWith('fetch')).length;
  assert.equal(after, fetched);
});

test('a graph-only version fetches and loads no layer', async (t) => {
  const place = createWorkspace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await buildVersion(place, '1');
  const running = startAgentProcess(t, { ...place, servers: listAddresses(shards) });
  await steer(place, fleet, 'activate', '--version', '1');
  await buildVersion(place, '2');
  await steer(place, fleet, 'activate', '--version', '2');
  assert.ok(!running.messages().some((message) => message.startsWith('fetch 2')));
  const loads = running.lines.filter(({ msg }) => String(msg).startsWith('load 2 on'));
  assert.equal(loads.length, 2);
  for (const { layersLoaded, layersShared } of loads) {
    assert.deepEqual({ layersLoaded, layersShared }, { layersLoaded: 0, layersShared: 2 });
  }
});

test('a version of another shard count is loaded by its own servers only', async (t) => {
  const place = createWorkspace(t);
  const two = await startShards(t, place, 2);
  const three = await startShards(t, place, 3);
  const fleet = writeFleet(place, two, three);
  await buildVersion(place, '1');
  await buildVersion(place, '2', { shardNum: 3 });
  startAgentProcess(t, { ...place, servers: [...listAddresses(two), ...listAddresses(three)] });
  await steer(place, fleet, 'activate', '--version', '1');
  assert.match(
    await steer(place, fleet, 'activate', '--version', '2'),
    /all 3 servers have version 2/,
  );
  assert.equal(await two[1]?.active(), '1');
  await steer(place, fleet, 'rollback');
  assert.equal(await two[0]?.active(), '1');
  assert.match(await readStatus(place, fleet), /1\/2 .* ready +1 +1 /);
});

test('with a damaged layer the old version stays active; --wait names the servers', async (t) => {
  const place = createWorkspace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await buildVersion(place, '1');
  await buildVersion(place, '2', { rows: 4000 });
  startAgentProcess(t, { ...place, servers: listAddresses(shards) });
  await steer(place, fleet, 'activate', '--version', '1');
  const repository = openRepository(place.repository);
  const layer = getBaseLayer(await repository.readManifest('ctr', '2'), 1);
  const path = join(place.repository, layerPath('ctr', 't', layer.contentId));
  const whole = readFileSync(path);
  const damaged = Uint8Array.from(whole);
  damaged[5000] = (damaged[5000] ?? 0) ^ 1;
  writeFileSync(path, damaged);
  const { code, stderr } = await runAgentCommand(
    'activate',
    ...toArguments({
      repository: place.repository,
      bundle: 'ctr',
      version: 2,
      reason: 'test',
      fleet,
      wait: true,
      timeoutMs: 1000,
    }),
  );
  assert.equal(code, 1);
  assert.match(
    stderr,
    /2 of 2 servers do not have version 2 of ctr active after .*\n {2}shard 0\/2 .* has 1 active/,
  );
  await waitFor('the reason is in the status', async () => {
    const status = await readStatus(place, fleet);
    return /fetch 2 t\/.* CORRUPT .*SHA-256/.test(status) || status;
  });
  assert.equal(await shards[1]?.active(), '1');
  writeFileSync(path, whole);
  await waitFor('at 2', async () => (await shards[1]?.active()) === '2');
});

test('a server detects a layer damaged on disk, and it is fetched again', async (t) => {
  const place = createWorkspace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await buildVersion(place, '1');
  startAgentProcess(t, { ...place, servers: listAddresses(shards) });
  await steer(place, fleet, 'activate', '--version', '1');
  const layer = getBaseLayer(await openRepository(place.repository).readManifest('ctr', '1'), 0);
  const copy = join(place.dataDir, layerPath('ctr', 't', layer.contentId));
  const whole = readFileSync(copy);
  const LAYER_FORMAT_AT = 8;
  for (const at of [5000, LAYER_FORMAT_AT]) {
    const damaged = Uint8Array.from(whole);
    damaged[at] = (damaged[at] ?? 0) ^ 8;
    writeFileSync(copy, damaged);
    await shards[0]?.killAndRestart();
    await waitFor('whole again', async () => (await shards[0]?.active()) === '1');
    assert.deepEqual(readFileSync(copy), whole);
  }
});
