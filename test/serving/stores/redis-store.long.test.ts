/**
 * The REDIS store with Redis down, hanging, emptied, evicting or protected; interrupted loads;
 * removals.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterEach, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../../lib/core/errors.ts';
import { OUTCOME_UNAVAILABLE } from '../../../lib/core/lookup-group.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { computeHashSlot, makePartitionKey } from '../../../serving/stores/redis-layout.ts';
import { RedisStore, type RedisStoreOptions } from '../../../serving/stores/redis-store.ts';
import type { RedisChoice } from '../../../serving/stores/store-choice.ts';
import {
  assertLookup,
  createGroup,
  createOracleTable,
  type OracleTable,
  type OracleVersion,
  range,
} from '../../client/support/oracle.ts';
import { RedisServers, redisMissing } from './support/redis-servers.ts';
import { TestRepository } from './support/test-repository.ts';

function makeVersion(version: string, tables: OracleTable[], shardNum = 4): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

class RedisStoreFixture {
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
    const full = { kind: 'redis' as const, urls: this.servers.urls, fill: true, ...choice };
    const store = new RedisStore(full, { repository, ...options });
    this.#stores.push(store);
    return store;
  }

  async close(): Promise<void> {
    for (const store of this.#stores) await store.close();
    await this.servers.stop();
    await this.repository.remove();
  }
}

const fixtures: RedisStoreFixture[] = [];
afterEach(async () => {
  for (const fixture of fixtures.splice(0)) await fixture.close();
});

async function openFixture(servers: Promise<RedisServers>): Promise<RedisStoreFixture> {
  const fixture = new RedisStoreFixture(await TestRepository.create(), await servers);
  fixtures.push(fixture);
  return fixture;
}

/** Checks every key that was answered. @returns how many were not */
async function lookUp(
  store: RedisStore,
  version: OracleVersion,
  manifest: Manifest,
  keys: readonly bigint[],
  timeoutMs = 5_000,
): Promise<number> {
  const groups = version.tables.map((table) => ({ table, keys, group: createGroup(table, keys) }));
  const lookupGroups = groups.map(({ group }) => group);
  const summary = await store.lookup(manifest, lookupGroups, timeoutMs);
  const isDown = (_shard: number, outcome: number) => outcome === OUTCOME_UNAVAILABLE;
  assertLookup(version, groups, summary, isDown);
  return summary.unavailable;
}

async function waitUntil(condition: () => Promise<boolean>): Promise<void> {
  while (!(await condition())) await sleep(20);
}

const table = createOracleTable('t', 6, range(0, 2_000), { defaultRow: Array(6).fill(4) });
const KEYS = range(1_000, 3_000);

function redisTest(name: string, run: () => Promise<void> | void): void {
  test(name, { skip: redisMissing ?? false }, run);
}

redisTest(
  'a version that is not loaded is not prepared, unless the store may load it',
  async () => {
    const fixture = await openFixture(RedisServers.one());
    const version = makeVersion('1', [table]);
    const manifest = await fixture.repository.publish(version);
    const reader = fixture.open({ fill: false });
    await assert.rejects(reader.prepare(manifest), {
      code: 'NOT_READY',
      message: new RegExp(
        '4 of 4 layers of ctr 1 are missing or incomplete in ' +
          'redis 127\\.0\\.0\\.1:\\d+: run serving load-',
      ),
    });
    const steps: [number, number][] = [];
    const onProgress = (rows: number, total: number) => steps.push([rows, total]);
    await fixture.open({}, { onProgress }).prepare(manifest);
    assert.deepEqual(steps.at(-1), [2_000, 2_000]);
    await reader.prepare(manifest);
    assert.equal(await lookUp(reader, version, manifest, KEYS), 0);
  },
);

redisTest(
  'a server that is emptied, or evicts, makes keys unavailable and never unseen',
  async () => {
    const fixture = await openFixture(RedisServers.one());
    const version = makeVersion('1', [table]);
    const manifest = await fixture.repository.publish(version);
    const store = fixture.open();
    await store.prepare(manifest);
    const { contentId } = manifest.tables[0]!.shards[2]![0]!;
    await fixture.servers.send(0, 'DEL', `hc:{ctr/${contentId}/0}`);
    assert.equal(await lookUp(store, version, manifest, KEYS), 500);
    await fixture.servers.send(0, 'FLUSHALL');
    assert.equal(await lookUp(store, version, manifest, KEYS), 2_000);
    await store.prepare(manifest);
    assert.equal(await lookUp(store, version, manifest, KEYS), 0);
  },
);

redisTest('a row that is missing under a marker is detected by prepare', async () => {
  const fixture = await openFixture(RedisServers.one());
  const version = makeVersion('1', [table]);
  const manifest = await fixture.repository.publish(version);
  await fixture.open().prepare(manifest);
  const { contentId } = manifest.tables[0]!.shards[0]![0]!;
  const key = Buffer.alloc(8);
  key.writeUInt32LE(4, 0);
  assert.equal(
    await fixture.servers.send(0, 'HDEL', `hc:{ctr/${contentId}/0}`, key.toString('latin1')),
    1,
  );
  await assert.rejects(fixture.open({ fill: false }).prepare(manifest), { code: 'NOT_READY' });
});

redisTest(
  'a node that is killed takes its own keys with it; started again and loaded it answers',
  async () => {
    const fixture = await openFixture(RedisServers.cluster());
    const version = makeVersion('1', [table], 12);
    const manifest = await fixture.repository.publish(version);
    const store = fixture.open();
    await store.prepare(manifest);
    assert.equal(await lookUp(store, version, manifest, KEYS), 0);
    await fixture.servers.kill(1);
    let lost = 0;
    for (let i = 0; i < 10; i++) lost = await lookUp(store, version, manifest, KEYS);
    assert.ok(lost > 0 && lost < KEYS.length, `${lost} keys unavailable`);
    await fixture.servers.start(1);
    // It is empty now: still unavailable, not unseen.
    assert.equal(await lookUp(store, version, manifest, KEYS), lost);
    await waitUntil(async () => {
      await store.prepare(manifest).catch(() => undefined);
      return (await lookUp(store, version, manifest, KEYS)) === 0;
    });
  },
);

redisTest('a server that hangs delays a lookup no longer than its deadline', async () => {
  const fixture = await openFixture(RedisServers.one());
  const version = makeVersion('1', [table]);
  const manifest = await fixture.repository.publish(version);
  const store = fixture.open();
  await store.prepare(manifest);
  fixture.servers.signal(0, 'SIGSTOP');
  const group = createGroup(table, KEYS);
  const summary = await store.lookup(manifest, [group], 30);
  assert.equal(summary.unavailable, KEYS.length);
  assert.match(summary.reason!, /did not answer within 30 ms/);
  group.rows.fill(-1);
  fixture.servers.signal(0, 'SIGCONT');
  await waitUntil(async () => (await lookUp(store, version, manifest, KEYS)) === 0);
  assert.ok(
    group.rows.every((value) => value === -1),
    'nothing is written after the deadline',
  );
});

redisTest(
  'a node that hangs is only probed, and the others answer, until it continues',
  async () => {
    const fixture = await openFixture(RedisServers.cluster());
    const version = makeVersion('1', [table], 8);
    const manifest = await fixture.repository.publish(version);
    const store = fixture.open();
    await store.prepare(manifest);
    for (const { contentId } of manifest.tables[0]!.shards.flat()) {
      const key = makePartitionKey('ctr', contentId, 0);
      assert.equal(computeHashSlot(key), await fixture.servers.send(0, 'CLUSTER', 'KEYSLOT', key));
    }
    const { contentId } = manifest.tables[0]!.shards[0]![0]!;
    const slot = computeHashSlot(makePartitionKey('ctr', contentId, 0));
    const node = Math.floor((slot * 3) / 16_384);
    fixture.servers.signal(node, 'SIGSTOP');
    const group = createGroup(table, KEYS);
    const unsent = /nothing is sent until a probe is answered/;
    await waitUntil(async () => {
      const { reason } = await store.lookup(manifest, [group], 250);
      return unsent.test(reason ?? '');
    });
    // The lookup does not wait for its deadline.
    const { reason = '' } = await store.lookup(manifest, [group], 120_000);
    assert.match(reason, unsent);
    const unavailable = await lookUp(store, version, manifest, KEYS);
    assert.ok(unavailable > 0 && unavailable < KEYS.length, `${unavailable} keys are unavailable`);
    assert.equal(store.servers.circuitsOpen, 1);
    fixture.servers.signal(node, 'SIGCONT');
    await waitUntil(async () => (await lookUp(store, version, manifest, KEYS)) === 0);
  },
);

redisTest('a store that is opened before its server reports why it waits', async () => {
  const fixture = await openFixture(RedisServers.one());
  const version = makeVersion('1', [table]);
  const manifest = await fixture.repository.publish(version);
  await fixture.servers.kill(0);
  const store = fixture.open();
  await assert.rejects(store.prepare(manifest), {
    code: 'UNAVAILABLE',
    message: /redis 127\.0\.0\.1:\d+ cannot be reached: .*ECONNREFUSED/,
  });
  await fixture.servers.start(0);
  await waitUntil(async () => {
    await store.prepare(manifest).catch(() => undefined);
    return (await lookUp(store, version, manifest, KEYS).catch(() => 1)) === 0;
  });
});

redisTest('an interrupted load continues where it stopped', async () => {
  const fixture = await openFixture(RedisServers.one());
  const large = createOracleTable('large', 1, range(0, 150_000));
  const version = makeVersion('1', [large], 1);
  const manifest = await fixture.repository.publish(version);
  const cut = fixture.open(
    {},
    {
      onProgress: () => {
        throw new CubeError('STOPPING', 'cut off');
      },
    },
  );
  await assert.rejects(cut.prepare(manifest), { code: 'STOPPING' });
  await assert.rejects(fixture.open({ fill: false }).prepare(manifest), { code: 'NOT_READY' });
  await fixture.servers.send(0, 'CONFIG', 'RESETSTAT');
  const store = fixture.open();
  await store.prepare(manifest);
  const stats = String(await fixture.servers.send(0, 'INFO', 'commandstats'));
  const writes = Number(/cmdstat_hset:calls=(\d+)/.exec(stats)![1]);
  assert.ok(writes < 60, `${writes} writes; all of it takes 76`);
  assert.equal(await lookUp(store, version, manifest, range(0, 151_000)), 0);
});

redisTest('rows that are lost between two parts of a load are loaded again', async () => {
  const fixture = await openFixture(RedisServers.one());
  const large = createOracleTable('large', 1, range(0, 150_000));
  const version = makeVersion('1', [large], 1);
  const manifest = await fixture.repository.publish(version);
  const { contentId } = manifest.tables[0]!.shards[0]![0]!;
  let calls = 0;
  const store = fixture.open(
    {},
    {
      onProgress: () => {
        if (++calls === 1) void fixture.servers.send(0, 'DEL', `hc:{ctr/${contentId}/0}`);
      },
    },
  );
  await store.prepare(manifest);
  assert.equal(await lookUp(store, version, manifest, range(0, 151_000)), 0);
});

redisTest('only layers that no channel needs are removed', async () => {
  const fixture = await openFixture(RedisServers.one());
  const manifests: Manifest[] = [];
  const versions = [1, 2, 3].map((salt) =>
    makeVersion(String(salt), [table, createOracleTable('own', 2, range(0, 50), { salt })]),
  );
  for (const version of versions) manifests.push(await fixture.repository.publish(version));
  const store = fixture.open();
  for (const manifest of manifests) await store.prepare(manifest);
  const { repository } = fixture.repository;
  await repository.activate('ctr', 'stable', { version: '2', by: 'test', reason: 'test' });
  await store.retire(manifests[0]!);
  await store.retire(manifests[1]!);
  assert.equal((await store.removeUnused('ctr')).length, 4, "version 1's own layers");
  assert.deepEqual(await store.removeUnused('ctr'), []);
  const reader = fixture.open({ fill: false });
  await reader.prepare(manifests[1]!);
  await reader.prepare(manifests[2]!);
  await assert.rejects(reader.prepare(manifests[0]!), { code: 'NOT_READY' });
  assert.equal(await lookUp(reader, versions[1]!, manifests[1]!, KEYS), 0);
});

redisTest('serving load-redis loads the version of the channel, removes the rest', async () => {
  const fixture = await openFixture(RedisServers.one());
  const { repository, folder } = fixture.repository;
  const versions = [1, 2].map((salt) =>
    makeVersion(String(salt), [createOracleTable('t', 3, range(0, 500), { salt })], 2),
  );
  const manifests = [];
  for (const version of versions) manifests.push(await fixture.repository.publish(version));
  const run = (...flags: string[]) => {
    const own = ['--repository', join(folder, 'repo'), '--bundle', 'ctr'];
    const redis = ['--redis-url', fixture.servers.urls.join(',')];
    return runServing('load-redis', ...own, ...redis, ...flags);
  };
  assert.deepEqual(await run(), {
    code: 1,
    text: `serving: ${join(folder, 'repo')} has no channel stable for bundle ctr: give --version\n`,
  });
  // 12 bytes a row, and 90 for Redis.
  const planned = await run('--version', '1', '--dry-run');
  assert.match(planned.text, /would be loaded \(500 rows, about 49\.8 KiB of Redis\)/);
  const first = await run('--version', '1', '--rate-limit', '1MiB');
  assert.deepEqual(first, { code: 0, text: 'ctr 1 is loaded (500 rows written)\n' });
  await repository.activate('ctr', 'stable', { version: '2', by: 'test', reason: 'test' });
  const second = await run('--remove');
  const removed = '2 unneeded layers removed\n';
  assert.deepEqual(second, {
    code: 0,
    text: `ctr 2 is loaded (500 rows written)\n${removed}`,
  });
  assert.deepEqual(await run(), { code: 0, text: 'ctr 2 was already loaded\n' });
  const store = fixture.open({ fill: false });
  await store.prepare(manifests[1]!);
  assert.equal(await lookUp(store, versions[1]!, manifests[1]!, range(0, 600)), 0);
});

redisTest(
  'user and password come from the address or a file, and are never in a message',
  async () => {
    const fixture = await openFixture(RedisServers.one('--requirepass', 'kept-secret'));
    const manifest = await fixture.repository.publish(makeVersion('1', [table]));
    const [url] = fixture.servers.urls;
    assert.ok(url);
    const passwordFile = join(fixture.repository.folder, 'password');
    await writeFile(passwordFile, 'kept-secret\n');
    await fixture.open({ passwordFile }).prepare(manifest);
    await fixture.open({ urls: [url.replace('//', '//:kept-secret@')] }).prepare(manifest);
    const wrong = fixture.open({ urls: [url.replace('//', '//me:another-secret@')] });
    await assert.rejects(wrong.prepare(manifest), (error: CubeError) => {
      assert.match(error.message, /WRONGPASS/);
      assert.doesNotMatch(error.message, /secret/);
      return error.code === 'UNAVAILABLE';
    });
  },
);

redisTest('invalid addresses are rejected and not repeated', () => {
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
  const main = join(import.meta.dirname, '..', '..', '..', 'serving', 'main.js');
  const child = spawn(process.execPath, [main, ...args], { stdio: ['ignore', 'pipe', 'pipe'] });
  const output = { out: '', error: '' };
  child.stdout.on('data', (chunk) => {
    output.out += chunk;
  });
  child.stderr.on('data', (chunk) => {
    output.error += chunk;
  });
  const [code] = (await once(child, 'close')) as [number];
  return { code, text: code === 0 ? output.out : output.error };
}
