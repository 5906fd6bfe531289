/** The LOCAL store between starts: kept, completed after a kill, cleared when retired, refused when damaged or in use. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { CubeError } from '../../../lib/core/errors.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import {
  assertAnswered,
  groupOf,
  KEY_MAX,
  type OracleTable,
  type OracleVersion,
  tableWith,
} from '../../client/oracle.ts';
import { chainedTable } from './chained-table.ts';
import { TestRepository } from './test-repository.ts';

const worlds: World[] = [];
afterEach(async () => {
  for (const world of worlds.splice(0)) await world.remove();
});

/** A repository, and stores in one folder; counts what they fetch. */
class World {
  readonly repository: TestRepository;
  readonly folder: string;
  readonly fetched: string[] = [];
  #store: LocalStore | undefined;

  private constructor(repository: TestRepository) {
    this.repository = repository;
    this.folder = join(repository.folder, 'local');
  }

  static async make(): Promise<World> {
    const world = new World(await TestRepository.make());
    worlds.push(world);
    return world;
  }

  async open(onProgress?: (rows: number, rowsTotal: number) => void): Promise<LocalStore> {
    const { repository } = this.repository;
    const counting = {
      fetchLayer: (...layer: Parameters<typeof repository.fetchLayer>) => {
        this.fetched.push(layer[1]);
        return repository.fetchLayer(...layer);
      },
      bundles: () => repository.bundles(),
      channels: (bundle: string) => repository.channels(bundle),
      channel: (bundle: string, channel: string) => repository.channel(bundle, channel),
      manifest: (bundle: string, version: string) => repository.manifest(bundle, version),
    };
    const options = { repository: counting, folder: this.folder };
    this.#store = await LocalStore.open({ ...options, ...(onProgress && { onProgress }) });
    return this.#store;
  }

  async close(): Promise<void> {
    await this.#store?.close();
    this.#store = undefined;
  }

  async remove(): Promise<void> {
    await this.close();
    await this.repository.remove();
  }
}

function range(from: number, to: number): bigint[] {
  return Array.from({ length: to - from }, (_, i) => BigInt(from + i));
}

function versionOf(version: string, tables: OracleTable[], shardNum = 3): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

async function lookUp(
  store: LocalStore,
  version: OracleVersion,
  manifest: Manifest,
  keys: readonly bigint[],
): Promise<void> {
  const groups = version.tables.map((table) => ({ table, keys, group: groupOf(table, keys) }));
  const asked = groups.map(({ group }) => group);
  assertAnswered(version, groups, await store.lookup(manifest, asked, 10_000));
}

function startFill(
  folder: string,
  version?: string,
): { child: ChildProcess; lines: AsyncIterator<string> } {
  const script = join(dirname(fileURLToPath(import.meta.url)), 'fill-process.js');
  const args = version === undefined ? [script, folder] : [script, folder, version];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  return { child, lines: createInterface({ input: child.stdout! })[Symbol.asyncIterator]() };
}

async function kill(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL');
  await once(child, 'exit');
}

test('it is filled at the first start, with progress, and kept', async () => {
  const world = await World.make();
  const version = versionOf('1', [
    tableWith('a', 4, range(0, 5_000)),
    tableWith('b', 2, range(0, 9)),
  ]);
  const manifest = await world.repository.publish(version);
  const steps: [number, number][] = [];
  const store = await world.open((rows, rowsTotal) => steps.push([rows, rowsTotal]));
  await store.prepare(manifest);
  assert.deepEqual(steps.at(-1), [5_009, 5_009]);
  assert.ok(steps.every(([rows], i) => i === 0 || rows > steps[i - 1]![0]));
  assert.equal(world.fetched.length, 6);
  await lookUp(store, version, manifest, [...range(0, 6_000), KEY_MAX]);
  assert.deepEqual(await readdir(world.folder), ['rows'], 'nothing fetched is left over');
  await world.close();

  const again = await world.open();
  await assert.rejects(lookUp(again, version, manifest, [1n]), { code: 'VERSION_ABSENT' });
  await again.prepare(manifest);
  assert.equal(world.fetched.length, 6, 'nothing is fetched again');
  await lookUp(again, version, manifest, range(0, 6_000));
});

test('a fill that was killed is completed by the next start', async () => {
  const world = await World.make();
  const table = tableWith('t', 8, range(0, 60_000));
  const version = versionOf('1', [table, tableWith('u', 3, range(0, 100))], 2);
  const manifest = await world.repository.publish(version);
  for (let killed = 0; killed < 3; killed++) {
    const { child, lines } = startFill(world.repository.folder, '1');
    for (let line = 0; line <= killed * 3; line++) assert.equal((await lines.next()).done, false);
    await kill(child);
  }
  const store = await world.open();
  await store.prepare(manifest);
  await lookUp(store, version, manifest, range(0, 70_000));
});

test('closing during a fill stops it; the next start completes it', async () => {
  const world = await World.make();
  const version = versionOf('1', [tableWith('t', 8, range(0, 30_000))], 2);
  const manifest = await world.repository.publish(version);
  let closing: Promise<void> | undefined;
  const store = await world.open(() => {
    closing ??= world.close();
  });
  await assert.rejects(store.prepare(manifest), { code: 'STOPPING' });
  await closing;
  await assert.rejects(store.prepare(manifest), { code: 'STOPPING' });
  const again = await world.open();
  await again.prepare(manifest);
  await lookUp(again, version, manifest, range(0, 31_000));
});

test('a version of the same layers fetches nothing; retiring keeps what others need', async () => {
  const world = await World.make();
  const shared = tableWith('shared', 4, range(0, 500));
  const [oldest, own] = [
    tableWith('own', 2, range(0, 99)),
    tableWith('own', 2, range(0, 99), { salt: 2 }),
  ];
  const versions = [
    versionOf('1', [shared, oldest]),
    versionOf('2', [shared, oldest]),
    versionOf('3', [shared, own]),
  ];
  const manifests: Manifest[] = [];
  for (const version of versions) manifests.push(await world.repository.publish(version));
  const store = await world.open();
  await store.prepare(manifests[0]!);
  assert.equal(world.fetched.length, 6);
  await store.prepare(manifests[1]!);
  assert.equal(world.fetched.length, 6);
  await store.prepare(manifests[2]!);
  assert.deepEqual(world.fetched.slice(6), ['own', 'own', 'own']);

  await store.retire(manifests[0]!);
  await store.retire(manifests[1]!);
  await lookUp(store, versions[2]!, manifests[2]!, range(0, 600));
  await store.prepare(manifests[0]!);
  assert.deepEqual(world.fetched.slice(9), ['own', 'own', 'own'], 'only what was removed');
  await lookUp(store, versions[0]!, manifests[0]!, range(0, 600));
});

test('retiring gives the disk back', async () => {
  const world = await World.make();
  const store = await world.open();
  const sizes: number[] = [];
  for (let salt = 1; salt <= 4; salt++) {
    const table = tableWith('t', 16, range(0, 20_000), { salt });
    const manifest = await world.repository.publish(versionOf(String(salt), [table], 1));
    await store.prepare(manifest);
    await store.retire(manifest);
    sizes.push(await folderBytes(join(world.folder, 'rows')));
  }
  const rowsBytes = 20_000 * 64;
  assert.ok(
    sizes.every((bytes) => bytes < rowsBytes / 2),
    `${sizes} bytes after each version`,
  );
});

async function folderBytes(folder: string): Promise<number> {
  let bytes = 0;
  // The log is given back when it is next changed; it holds what was written since.
  const names = (await readdir(folder)).filter((name) => name.endsWith('.ldb'));
  for (const name of names) bytes += (await readFile(join(folder, name))).length;
  return bytes;
}

test('a version waiting to be filled keeps what it shares with one being retired', async () => {
  const world = await World.make();
  const shared = tableWith('shared', 4, range(0, 500));
  const [one, two] = [
    versionOf('1', [shared]),
    versionOf('2', [shared, tableWith('more', 2, range(0, 50))]),
  ];
  const [first, second] = [
    await world.repository.publish(one),
    await world.repository.publish(two),
  ];
  const store = await world.open();
  await store.prepare(first);
  await Promise.all([store.retire(first), store.prepare(second)]);
  assert.equal(world.fetched.length, 6);
  await lookUp(store, two, second, range(0, 600));
});

test('lookups of one version go on while another is filled and retired', async () => {
  const world = await World.make();
  const one = versionOf('1', [tableWith('t', 4, range(0, 2_000))]);
  const two = versionOf('2', [tableWith('t', 4, range(0, 20_000), { salt: 2 })]);
  const [first, second] = [
    await world.repository.publish(one),
    await world.repository.publish(two),
  ];
  const store = await world.open();
  await store.prepare(first);
  let busy = true;
  const rollout = store
    .prepare(second)
    .then(() => lookUp(store, two, second, range(0, 21_000)))
    .then(() => store.retire(second))
    .finally(() => {
      busy = false;
    });
  for (let i = 0; busy; i++) await lookUp(store, one, first, range(i % 1_900, (i % 1_900) + 300));
  await rollout;
});

test('a source that fails leaves nothing prepared, and is asked again the next time', async () => {
  const world = await World.make();
  const version = versionOf('1', [
    tableWith('a', 2, range(0, 30)),
    tableWith('b', 2, range(0, 30)),
  ]);
  const manifest = await world.repository.publish(version);
  const { contentId } = manifest.tables[1]!.shards[1]![0]!;
  const file = world.repository.repository.layerTarget('ctr', 'b', contentId);
  const bytes = await readFile(file);
  const store = await world.open();
  await rm(file);
  await assert.rejects(store.prepare(manifest), { code: 'NOT_FOUND' });
  const flipped = Uint8Array.from(bytes);
  flipped[5_000]! ^= 1;
  await writeFile(file, flipped);
  await assert.rejects(store.prepare(manifest), { code: 'CORRUPT' });
  await assert.rejects(lookUp(store, version, manifest, [1n]), { code: 'VERSION_ABSENT' });
  await writeFile(file, bytes);
  await store.prepare(manifest);
  await lookUp(store, version, manifest, range(0, 60));
});

test('a folder that another store has open is refused, with what to do', async () => {
  const world = await World.make();
  const inUse = (error: unknown) =>
    error instanceof CubeError &&
    error.code === 'CONFLICT' &&
    error.message.includes(world.folder) &&
    /another process .* has the local store open; stop it/.test(error.message);
  const { child, lines } = startFill(world.repository.folder);
  await lines.next();
  await assert.rejects(world.open(), inUse);
  await kill(child);
  await world.open();
  const { repository } = world.repository;
  await assert.rejects(LocalStore.open({ repository, folder: world.folder }), inUse);
});

test('values of any length are refused by name', async () => {
  const world = await World.make();
  const manifest = await world.repository.publish(
    versionOf('1', [tableWith('t', 2, range(0, 9))], 1),
  );
  const table = manifest.tables[0]!;
  const store = await world.open();
  const values: Manifest = { ...manifest, tables: [{ ...table, dtype: 'bytes', dim: 0 }] };
  await assert.rejects(store.prepare(values), {
    code: 'UNSUPPORTED',
    message: /table t has values/,
  });
});

test('a delta costs itself, and is kept between starts with what it deletes', async () => {
  const world = await World.make();
  const steps = [{ put: range(0, 3_000) }, { put: range(10, 20), deleted: range(50, 60) }];
  const [base, both] = [chainedTable('t', 4, steps.slice(0, 1)), chainedTable('t', 4, steps)];
  const [one, two] = [versionOf('1', [base], 2), versionOf('2', [both], 2)];
  const first = await world.repository.publish(one);
  const second = await world.repository.publish(two);
  const store = await world.open();
  await store.prepare(first);
  assert.equal(world.fetched.length, 2);
  await store.prepare(second);
  assert.equal(world.fetched.length, 4, 'the deltas alone');
  await world.close();
  const again = await world.open();
  await again.prepare(second);
  assert.equal(world.fetched.length, 4);
  await lookUp(again, two, second, range(0, 3_100));
  await again.prepare(first);
  await lookUp(again, one, first, range(0, 3_100));
});

test('retiring a target that failed keeps the rows of what the channel wants beside it', async () => {
  const world = await World.make();
  const tables = [1, 2, 3].map((salt) => tableWith('t', 2, range(0, 50), { salt }));
  const manifests: Manifest[] = [];
  for (const [i, table] of tables.entries()) {
    manifests.push(await world.repository.publish(versionOf(String(i + 1), [table])));
  }
  const { repository } = world.repository;
  for (const version of ['1', '2']) {
    await repository.activate('ctr', 'stable', { version, by: 'test', reason: 'test' });
  }
  const before = await world.open();
  for (const manifest of manifests) await before.prepare(manifest);
  await world.close();

  // A start: the target 2 is filled, its graph fails, and nobody has asked for 1 yet.
  const store = await world.open();
  const fetched = world.fetched.length;
  await store.prepare(manifests[1]!);
  await store.retire(manifests[1]!);
  await store.prepare(manifests[0]!);
  await store.prepare(manifests[1]!);
  assert.equal(world.fetched.length, fetched, 'nothing is fetched again');
  await store.prepare(manifests[2]!);
  assert.equal(world.fetched.length, fetched + 3, 'what no channel wants went');
});
