/** The REDIS store when Redis is not as it should be: down, hanging, emptied, evicting, protected; loads cut off; removals. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { OUTCOME_UNAVAILABLE } from '../../../lib/client/lookup-group.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { RedisStore, type RedisStoreOptions } from '../../../serving/stores/redis-store.ts';
import type { RedisChoice } from '../../../serving/stores/store-choice.ts';
import {
  assertAnswered,
  groupOf,
  type OracleTable,
  type OracleVersion,
  tableWith,
} from '../../client/oracle.ts';
import { RedisServers, redisMissing } from './redis-servers.ts';
import { TestRepository } from './test-repository.ts';

function range(from: number, to: number): bigint[] {
  return Array.from({ length: to - from }, (_, i) => BigInt(from + i));
}

function versionOf(version: string, tables: OracleTable[], shardNum = 4): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

class World {
  readonly repository: TestRepository;
  readonly servers: RedisServers;
  readonly #stores: RedisStore[] = [];

  constructor(repository: TestRepository, servers: RedisServers) {
    this.repository = repository;
    this.servers = servers;
  }

  open(
    choice: Partial<RedisChoice> = {},
    options: Omit<RedisStoreOptions, 'repository'> = {},
  ): RedisStore {
    const { repository } = this.repository;
    const wish = { kind: 'redis' as const, urls: this.servers.urls, fill: true, ...choice };
    const store = new RedisStore(wish, { repository, ...options });
    this.#stores.push(store);
    return store;
  }

  async close(): Promise<void> {
    for (const store of this.#stores) await store.close();
    await this.servers.stop();
    await this.repository.remove();
  }
}

const worlds: World[] = [];
afterEach(async () => {
  for (const world of worlds.splice(0)) await world.close();
});

async function worldOf(servers: Promise<RedisServers>): Promise<World> {
  const world = new World(await TestRepository.make(), await servers);
  worlds.push(world);
  return world;
}

/** Checks every key that was answered. @returns how many were not */
async function lookUp(
  store: RedisStore,
  version: OracleVersion,
  manifest: Manifest,
  keys: readonly bigint[],
  timeoutMs = 5_000,
): Promise<number> {
  const groups = version.tables.map((table) => ({ table, keys, group: groupOf(table, keys) }));
  const asked = groups.map(({ group }) => group);
  const summary = await store.lookup(manifest, asked, timeoutMs);
  const isDown = (_shard: number, outcome: number) => outcome === OUTCOME_UNAVAILABLE;
  assertAnswered(version, groups, summary, isDown);
  return summary.unavailable;
}

async function until(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await sleep(20);
}

const table = tableWith('t', 6, range(0, 2_000), { defaultRow: Array(6).fill(4) });
const KEYS = range(1_000, 3_000);

function redisTest(name: string, run: () => Promise<void> | void): void {
  test(name, { skip: redisMissing ?? false }, run);
}

redisTest('what is not loaded is not prepared, unless the store may load it', async () => {
  const world = await worldOf(RedisServers.one());
  const version = versionOf('1', [table]);
  const manifest = await world.repository.publish(version);
  const reader = world.open({ fill: false });
  await assert.rejects(reader.prepare(manifest), {
    code: 'NOT_READY',
    message: /4 of 4 layers of ctr 1 are not whole in redis 127\.0\.0\.1:\d+: run serving load-/,
  });
  const steps: [number, number][] = [];
  const onProgress = (rows: number, total: number) => steps.push([rows, total]);
  await world.open({}, { onProgress }).prepare(manifest);
  assert.deepEqual(steps.at(-1), [2_000, 2_000]);
  await reader.prepare(manifest);
  assert.equal(await lookUp(reader, version, manifest, KEYS), 0);
});

redisTest(
  'a server that is emptied, or evicts, makes keys unavailable and never unseen',
  async () => {
    const world = await worldOf(RedisServers.one());
    const version = versionOf('1', [table]);
    const manifest = await world.repository.publish(version);
    const store = world.open();
    await store.prepare(manifest);
    const { contentId } = manifest.tables[0]!.shards[2]![0]!;
    await world.servers.send(0, 'DEL', `hc:{ctr/${contentId}/0}`);
    assert.equal(await lookUp(store, version, manifest, KEYS), 500);
    await world.servers.send(0, 'FLUSHALL');
    assert.equal(await lookUp(store, version, manifest, KEYS), 2_000);
    await store.prepare(manifest);
    assert.equal(await lookUp(store, version, manifest, KEYS), 0);
  },
);

redisTest('a row that is gone under a marker is found when the version is prepared', async () => {
  const world = await worldOf(RedisServers.one());
  const version = versionOf('1', [table]);
  const manifest = await world.repository.publish(version);
  await world.open().prepare(manifest);
  const { contentId } = manifest.tables[0]!.shards[0]![0]!;
  const key = Buffer.alloc(8);
  key.writeUInt32LE(4, 0);
  assert.equal(
    await world.servers.send(0, 'HDEL', `hc:{ctr/${contentId}/0}`, key.toString('latin1')),
    1,
  );
  await assert.rejects(world.open({ fill: false }).prepare(manifest), { code: 'NOT_READY' });
});

redisTest(
  'a node that is killed takes its own keys with it; started again and loaded it answers',
  async () => {
    const world = await worldOf(RedisServers.cluster());
    const version = versionOf('1', [table], 12);
    const manifest = await world.repository.publish(version);
    const store = world.open();
    await store.prepare(manifest);
    assert.equal(await lookUp(store, version, manifest, KEYS), 0);
    await world.servers.kill(1);
    let lost = 0;
    for (let i = 0; i < 10; i++) lost = await lookUp(store, version, manifest, KEYS);
    assert.ok(lost > 0 && lost < KEYS.length, `${lost} keys unavailable`);
    await world.servers.start(1);
    // It is empty now: still unavailable, not unseen.
    assert.equal(await lookUp(store, version, manifest, KEYS), lost);
    await until(async () => {
      await store.prepare(manifest).catch(() => undefined);
      return (await lookUp(store, version, manifest, KEYS)) === 0;
    });
  },
);

redisTest('a server that hangs costs no more than the deadline', async () => {
  const world = await worldOf(RedisServers.one());
  const version = versionOf('1', [table]);
  const manifest = await world.repository.publish(version);
  const store = world.open();
  await store.prepare(manifest);
  world.servers.signal(0, 'SIGSTOP');
  const group = groupOf(table, KEYS);
  const summary = await store.lookup(manifest, [group], 30);
  assert.equal(summary.unavailable, KEYS.length);
  assert.match(summary.reason!, /did not answer within 30 ms/);
  group.rows.fill(-1);
  world.servers.signal(0, 'SIGCONT');
  await until(async () => (await lookUp(store, version, manifest, KEYS)) === 0);
  assert.ok(
    group.rows.every((value) => value === -1),
    'nothing is written after the deadline',
  );
});

redisTest('a store that is opened before its server waits for it, saying why', async () => {
  const world = await worldOf(RedisServers.one());
  const version = versionOf('1', [table]);
  const manifest = await world.repository.publish(version);
  await world.servers.kill(0);
  const store = world.open();
  await assert.rejects(store.prepare(manifest), {
    code: 'UNAVAILABLE',
    message: /redis 127\.0\.0\.1:\d+ cannot be reached: .*ECONNREFUSED/,
  });
  await world.servers.start(0);
  await until(async () => {
    await store.prepare(manifest).catch(() => undefined);
    return (await lookUp(store, version, manifest, KEYS).catch(() => 1)) === 0;
  });
});

redisTest('a load that was cut off is gone on with, and not from its beginning', async () => {
  const world = await worldOf(RedisServers.one());
  const large = tableWith('large', 1, range(0, 150_000));
  const version = versionOf('1', [large], 1);
  const manifest = await world.repository.publish(version);
  const cut = world.open(
    {},
    {
      onProgress: () => {
        throw new CubeError('STOPPING', 'cut off');
      },
    },
  );
  await assert.rejects(cut.prepare(manifest), { code: 'STOPPING' });
  await assert.rejects(world.open({ fill: false }).prepare(manifest), { code: 'NOT_READY' });
  await world.servers.send(0, 'CONFIG', 'RESETSTAT');
  const store = world.open();
  await store.prepare(manifest);
  const stats = String(await world.servers.send(0, 'INFO', 'commandstats'));
  const writes = Number(/cmdstat_hset:calls=(\d+)/.exec(stats)![1]);
  assert.ok(writes < 60, `${writes} writes; all of it takes 76`);
  assert.equal(await lookUp(store, version, manifest, range(0, 151_000)), 0);
});

redisTest('rows lost between two parts of a load are loaded again', async () => {
  const world = await worldOf(RedisServers.one());
  const large = tableWith('large', 1, range(0, 150_000));
  const version = versionOf('1', [large], 1);
  const manifest = await world.repository.publish(version);
  const { contentId } = manifest.tables[0]!.shards[0]![0]!;
  let calls = 0;
  const store = world.open(
    {},
    {
      onProgress: () => {
        if (++calls === 1) void world.servers.send(0, 'DEL', `hc:{ctr/${contentId}/0}`);
      },
    },
  );
  await store.prepare(manifest);
  assert.equal(await lookUp(store, version, manifest, range(0, 151_000)), 0);
});

redisTest('what no channel wants is removed, and nothing else', async () => {
  const world = await worldOf(RedisServers.one());
  const manifests: Manifest[] = [];
  const versions = [1, 2, 3].map((salt) =>
    versionOf(String(salt), [table, tableWith('own', 2, range(0, 50), { salt })]),
  );
  for (const version of versions) manifests.push(await world.repository.publish(version));
  const store = world.open();
  for (const manifest of manifests) await store.prepare(manifest);
  const { repository } = world.repository;
  await repository.activate('ctr', 'stable', { version: '2', by: 'test', reason: 'test' });
  await store.retire(manifests[0]!);
  await store.retire(manifests[1]!);
  assert.equal((await store.removeUnwanted('ctr')).length, 4, "version 1's own layers");
  assert.deepEqual(await store.removeUnwanted('ctr'), []);
  const reader = world.open({ fill: false });
  await reader.prepare(manifests[1]!);
  await reader.prepare(manifests[2]!);
  await assert.rejects(reader.prepare(manifests[0]!), { code: 'NOT_READY' });
  assert.equal(await lookUp(reader, versions[1]!, manifests[1]!, KEYS), 0);
});

redisTest('serving load-redis loads what the channel wants, and removes the rest', async () => {
  const world = await worldOf(RedisServers.one());
  const { repository, folder } = world.repository;
  const versions = [1, 2].map((salt) =>
    versionOf(String(salt), [tableWith('t', 3, range(0, 500), { salt })], 2),
  );
  const manifests = [];
  for (const version of versions) manifests.push(await world.repository.publish(version));
  const run = (...flags: string[]) => {
    const own = ['--repository', join(folder, 'repo'), '--bundle', 'ctr'];
    const redis = ['--redis-url', world.servers.urls.join(',')];
    return runServing('load-redis', ...own, ...redis, ...flags);
  };
  assert.deepEqual(await run(), {
    code: 1,
    text: `serving: ${join(folder, 'repo')} has no channel stable for bundle ctr: give --version\n`,
  });
  const first = await run('--version', '1', '--rate-limit', '1MiB');
  assert.deepEqual(first, { code: 0, text: 'ctr 1 is there, 500 rows were loaded\n' });
  await repository.activate('ctr', 'stable', { version: '2', by: 'test', reason: 'test' });
  const second = await run('--remove');
  const removed = '2 layers that nobody wants were removed\n';
  assert.deepEqual(second, { code: 0, text: `ctr 2 is there, 500 rows were loaded\n${removed}` });
  assert.deepEqual(await run(), { code: 0, text: 'ctr 2 was there\n' });
  const store = world.open({ fill: false });
  await store.prepare(manifests[1]!);
  assert.equal(await lookUp(store, versions[1]!, manifests[1]!, range(0, 600)), 0);
});

redisTest('user and password: of the address, or from a file; never in a message', async () => {
  const world = await worldOf(RedisServers.one('--requirepass', 'kept-secret'));
  const manifest = await world.repository.publish(versionOf('1', [table]));
  const [url] = world.servers.urls;
  const passwordFile = join(world.repository.folder, 'password');
  await writeFile(passwordFile, 'kept-secret\n');
  await world.open({ passwordFile }).prepare(manifest);
  await world.open({ urls: [url!.replace('//', '//:kept-secret@')] }).prepare(manifest);
  const wrong = world.open({ urls: [url!.replace('//', '//me:another-secret@')] });
  await assert.rejects(wrong.prepare(manifest), (error: CubeError) => {
    assert.match(error.message, /WRONGPASS/);
    assert.doesNotMatch(error.message, /secret/);
    return error.code === 'UNAVAILABLE';
  });
});

redisTest('addresses that are none are refused without being repeated', () => {
  const bad = [
    [],
    ['localhost:6379'],
    ['http://me:secret@h:1'],
    ['redis://me:secret@h:99999'],
    ['redis://h/one'],
    ['redis://a:1', 'rediss://b:1'],
    ['redis://a:1/2', 'redis://b:1'],
  ];
  for (const urls of bad) {
    assert.throws(
      () => new RedisStore({ kind: 'redis', urls }, { repository: {} as never }),
      (error: CubeError) => error.code === 'INVALID_ARGUMENT' && !/secret/.test(error.message),
      String(urls),
    );
  }
});

/** @returns stdout, or stderr when it failed */
async function runServing(...args: string[]): Promise<{ code: number; text: string }> {
  const main = join(import.meta.dirname, ...['..', '..', '..'], 'serving', 'main.js');
  const child = spawn(process.execPath, [main, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  const said = { out: '', error: '' };
  child.stdout.on('data', (chunk) => {
    said.out += chunk;
  });
  child.stderr.on('data', (chunk) => {
    said.error += chunk;
  });
  const [code] = (await once(child, 'close')) as [number];
  return { code, text: code === 0 ? said.out : said.error };
}
