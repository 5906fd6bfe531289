/** The whole walk with real processes: cube-builder, cube-agent, cube-server. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { layerOf } from '../repository/fixtures.ts';
import { build, makePlace, type Place } from './place.ts';
import { agent, Running, runAgent, until } from './processes.ts';

/** A cube-server, which may be killed and started again on its port. */
class Shard {
  readonly #t: TestContext;
  readonly #options: readonly string[];
  #running: Running;
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
    const place = [
      '--shard',
      String(index),
      '--shard-num',
      String(shardNum),
      '--data-dir',
      dataDir,
    ];
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

  #start(port: string): Running {
    return new Running(this.#t, 'cube-server/main.js', [...this.#options, '--port', port]);
  }

  async #listening(): Promise<void> {
    const line = () => this.#running.lines.find(({ msg }) => msg === 'listening');
    await until('listening', () => line() !== undefined || this.#running.lines);
    this.address = String(line()?.['address']);
  }
}

function startShards(t: TestContext, { dataDir }: Place, shardNum: number): Promise<Shard[]> {
  return Promise.all(
    Array.from({ length: shardNum }, (_, index) => Shard.start(t, dataDir, index, shardNum)),
  );
}

function writeFleet({ folder }: Place, ...maps: (readonly Shard[])[]): string {
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
async function steer(place: Place, fleet: string, ...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await agent(
    ...[...args, '--repository', place.repository, '--bundle', 'ctr', '--reason', 'test'],
    ...['--fleet', fleet, '--wait', '--timeout-ms', '60000'],
  );
  assert.equal(code, 0, stderr);
  return stdout;
}

const addressesOf = (shards: readonly Shard[]): string[] => shards.map(({ address }) => address);

const statusOf = async ({ repository, dataDir }: Place, fleet: string): Promise<string> => {
  const where = ['--repository', repository, '--bundle', 'ctr', '--data-dir', dataDir];
  return (await agent('status', ...where, '--fleet', fleet)).stdout;
};

test('a version comes, a second one too, and back; killed servers are whole again', async (t) => {
  const place = makePlace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await build(place, '1');
  const running = runAgent(t, { ...place, servers: addressesOf(shards) });
  const said = await steer(place, fleet, 'activate', '--version', '1');
  assert.match(said, /entry 1 points to version 1\nall 2 servers have version 1 active/);
  await build(place, '2', { rows: 4000 });
  await steer(place, fleet, 'activate', '--version', '2');
  assert.deepEqual(await shards[0]?.held(), ['1', '2']);

  await shards[0]?.killAndRestart();
  await until('whole again', async () => (await shards[0]?.held())?.join() === '1,2');
  await until('active again', async () => (await shards[0]?.active()) === '2');
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
  const place = makePlace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await build(place, '1');
  const running = runAgent(t, { ...place, servers: addressesOf(shards) });
  await steer(place, fleet, 'activate', '--version', '1');
  await build(place, '2');
  await steer(place, fleet, 'activate', '--version', '2');
  assert.ok(!running.messages().some((message) => message.startsWith('fetch 2')));
  const loads = running.lines.filter(({ msg }) => String(msg).startsWith('load 2 on'));
  assert.equal(loads.length, 2);
  for (const { layersLoaded, layersShared } of loads) {
    assert.deepEqual({ layersLoaded, layersShared }, { layersLoaded: 0, layersShared: 2 });
  }
});

test('a version of another shard count goes to its own servers', async (t) => {
  const place = makePlace(t);
  const two = await startShards(t, place, 2);
  const three = await startShards(t, place, 3);
  const fleet = writeFleet(place, two, three);
  await build(place, '1');
  await build(place, '2', { shardNum: 3 });
  runAgent(t, { ...place, servers: [...addressesOf(two), ...addressesOf(three)] });
  await steer(place, fleet, 'activate', '--version', '1');
  assert.match(
    await steer(place, fleet, 'activate', '--version', '2'),
    /all 3 servers have version 2/,
  );
  assert.equal(await two[1]?.active(), '1');
  await steer(place, fleet, 'rollback');
  assert.equal(await two[0]?.active(), '1');
  assert.match(await statusOf(place, fleet), /1\/2 .* ready +1 +1 /);
});

test('a layer damaged at the source: the old version goes on, and --wait says who is not there', async (t) => {
  const place = makePlace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await build(place, '1');
  await build(place, '2', { rows: 4000 });
  runAgent(t, { ...place, servers: addressesOf(shards) });
  await steer(place, fleet, 'activate', '--version', '1');
  const repository = openRepository(place.repository);
  const layer = layerOf(await repository.manifest('ctr', '2'), 1);
  const path = join(place.repository, layerPath('ctr', 't', layer.contentId));
  const whole = readFileSync(path);
  const damaged = Uint8Array.from(whole);
  damaged[5000] = (damaged[5000] ?? 0) ^ 1;
  writeFileSync(path, damaged);
  const { code, stderr } = await agent(
    ...['activate', '--repository', place.repository, '--bundle', 'ctr', '--version', '2'],
    ...['--reason', 'test', '--fleet', fleet, '--wait', '--timeout-ms', '1000'],
  );
  assert.equal(code, 1);
  assert.match(
    stderr,
    /2 of 2 servers are not at version 2 of ctr after 1000 ms:\n {2}shard 0\/2 at .* has 1 active/,
  );
  await until('the reason is in the status', async () => {
    const status = await statusOf(place, fleet);
    return /fetch 2 t\/.* CORRUPT .*SHA-256/.test(status) || status;
  });
  assert.equal(await shards[1]?.active(), '1');
  writeFileSync(path, whole);
  await until('at 2', async () => (await shards[1]?.active()) === '2');
});

test('a layer that the disk damaged is found by the server and fetched again', async (t) => {
  const place = makePlace(t);
  const shards = await startShards(t, place, 2);
  const fleet = writeFleet(place, shards);
  await build(place, '1');
  runAgent(t, { ...place, servers: addressesOf(shards) });
  await steer(place, fleet, 'activate', '--version', '1');
  const layer = layerOf(await openRepository(place.repository).manifest('ctr', '1'), 0);
  const copy = join(place.dataDir, layerPath('ctr', 't', layer.contentId));
  const whole = readFileSync(copy);
  const LAYER_FORMAT_AT = 8;
  for (const at of [5000, LAYER_FORMAT_AT]) {
    const damaged = Uint8Array.from(whole);
    damaged[at] = (damaged[at] ?? 0) ^ 8;
    writeFileSync(copy, damaged);
    await shards[0]?.killAndRestart();
    await until('whole again', async () => (await shards[0]?.active()) === '1');
    assert.deepEqual(readFileSync(copy), whole);
  }
});
