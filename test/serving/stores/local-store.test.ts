/**
 * The LOCAL store between starts: kept, completed after a kill, cleaned after retire, rejected when
 * in use.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { afterEach, test } from 'node:test';
import { CubeError } from '../../../lib/core/errors.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import { LayerDatabase } from '../../../serving/stores/layer-database.ts';
import { LOCAL_KEY_BYTES, readLocalRow, writeLocalKey } from '../../../serving/stores/local-row.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import {
  assertLookup,
  createGroup,
  createOracleTable,
  KEY_MAX,
  type OracleTable,
  type OracleVersion,
  range,
} from '../../client/support/oracle.ts';
import { chainedTable } from './support/chained-table.ts';
import { TestRepository } from './support/test-repository.ts';

const fixtures: LocalStoreFixture[] = [];
afterEach(async () => {
  for (const fixture of fixtures.splice(0)) await fixture.remove();
});

/** A repository and stores in one folder; records the layers that they fetch. */
class LocalStoreFixture {
  readonly repository: TestRepository;
  readonly folder: string;
  readonly fetched: string[] = [];
  #store: LocalStore | undefined;

  private constructor(repository: TestRepository) {
    this.repository = repository;
    this.folder = join(repository.folder, 'local');
  }

  static async make(): Promise<LocalStoreFixture> {
    const fixture = new LocalStoreFixture(await TestRepository.create());
    fixtures.push(fixture);
    return fixture;
  }

  async open(onProgress?: (rows: number, rowsTotal: number) => void): Promise<LocalStore> {
    const { repository } = this.repository;
    const counting = {
      fetchLayer: (...layer: Parameters<typeof repository.fetchLayer>) => {
        this.fetched.push(layer[1]);
        return repository.fetchLayer(...layer);
      },
      listBundles: () => repository.listBundles(),
      listChannels: (bundle: string) => repository.listChannels(bundle),
      readChannel: (bundle: string, channel: string) => repository.readChannel(bundle, channel),
      readManifest: (bundle: string, version: string) => repository.readManifest(bundle, version),
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

function makeVersion(version: string, tables: OracleTable[], shardNum = 3): OracleVersion {
  return { bundle: 'ctr', version, shardNum, tables };
}

async function lookUp(
  store: LocalStore,
  version: OracleVersion,
  manifest: Manifest,
  keys: readonly bigint[],
): Promise<void> {
  const groups = version.tables.map((table) => ({ table, keys, group: createGroup(table, keys) }));
  const lookupGroups = groups.map(({ group }) => group);
  assertLookup(version, groups, await store.lookup(manifest, lookupGroups, 10_000));
}

function startFill(
  folder: string,
  version?: string,
): { child: ChildProcess; lines: AsyncIterator<string> } {
  const script = join(import.meta.dirname, 'support', 'fill-process.js');
  const args = version === undefined ? [script, folder] : [script, folder, version];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  return { child, lines: createInterface({ input: child.stdout! })[Symbol.asyncIterator]() };
}

async function killProcess(child: ChildProcess): Promise<void> {
  child.kill('SIGKILL');
  await once(child, 'exit');
}

test('the store is filled at the first start, with progress, and kept', async () => {
  const fixture = await LocalStoreFixture.make();
  const version = makeVersion('1', [
    createOracleTable('a', 4, range(0, 5_000)),
    createOracleTable('b', 2, range(0, 9)),
  ]);
  const manifest = await fixture.repository.publish(version);
  const steps: [number, number][] = [];
  const store = await fixture.open((rows, rowsTotal) => steps.push([rows, rowsTotal]));
  await store.prepare(manifest);
  assert.deepEqual(steps.at(-1), [5_009, 5_009]);
  assert.ok(steps.every(([rows], i) => i === 0 || rows > steps[i - 1]![0]));
  assert.equal(fixture.fetched.length, 6);
  await lookUp(store, version, manifest, [...range(0, 6_000), KEY_MAX]);
  assert.deepEqual(await readdir(fixture.folder), ['rows'], 'no fetched file remains');
  await fixture.close();

  const again = await fixture.open();
  await assert.rejects(lookUp(again, version, manifest, [1n]), { code: 'VERSION_ABSENT' });
  await again.prepare(manifest);
  assert.equal(fixture.fetched.length, 6, 'nothing is fetched again');
  await lookUp(again, version, manifest, range(0, 6_000));
});

test('layers filled at the same time have different numbers and keep their rows', async () => {
  const { folder } = await LocalStoreFixture.make();
  const database = await LayerDatabase.open(folder);
  try {
    const ids = ['0', '1', '2'].map((digit) => digit.repeat(32));
    // More rows than are sorted and written at once, in descending order of their keys.
    const count = 40_000;
    const keys = Uint32Array.from({ length: 2 * count }, (_, i) => count - (i >> 1));
    const rows = new Uint8Array(Uint32Array.from({ length: count }, (_, i) => i).buffer);
    let written = 0;
    await Promise.all(
      ids.map((contentId) =>
        database.fill(
          { contentId, rows: count, rowBytes: 4, kind: 'base' },
          { rows: [{ count, keys, rows }], deleted: [] },
          (added) => {
            written += added;
          },
        ),
      ),
    );
    assert.equal(written, ids.length * count);
    const numbers = ids.map((id) => database.getNumber(id));
    assert.equal(new Set(numbers).size, ids.length);
    for (const layer of numbers) {
      for (const row of [0, 1, 16_384, count - 1]) {
        const [low = 0, high = 0] = [keys[2 * row], keys[2 * row + 1]];
        const key = new Uint8Array(LOCAL_KEY_BYTES);
        writeLocalKey(key, 0, layer, low, high);
        const [value] = await database.getMany([key]);
        const words = new Uint32Array(1);
        assert.ok(value && readLocalRow(value, words, 0, 1, layer, low, high));
        assert.equal(words[0], row);
      }
    }
  } finally {
    await database.close();
  }
});

test('a fill that was killed is completed by the next start', async () => {
  const fixture = await LocalStoreFixture.make();
  const table = createOracleTable('t', 8, range(0, 60_000));
  const version = makeVersion('1', [table, createOracleTable('u', 3, range(0, 100))], 2);
  const manifest = await fixture.repository.publish(version);
  for (let killed = 0; killed < 3; killed++) {
    const { child, lines } = startFill(fixture.repository.folder, '1');
    for (let line = 0; line <= killed * 3; line++) assert.equal((await lines.next()).done, false);
    await killProcess(child);
  }
  const store = await fixture.open();
  await store.prepare(manifest);
  await lookUp(store, version, manifest, range(0, 70_000));
});

test('closing during a fill stops it; the next start completes it', async () => {
  const fixture = await LocalStoreFixture.make();
  const version = makeVersion('1', [createOracleTable('t', 8, range(0, 30_000))], 2);
  const manifest = await fixture.repository.publish(version);
  let closing: Promise<void> | undefined;
  const store = await fixture.open(() => {
    closing ??= fixture.close();
  });
  await assert.rejects(store.prepare(manifest), { code: 'STOPPING' });
  await closing;
  await assert.rejects(store.prepare(manifest), { code: 'STOPPING' });
  const again = await fixture.open();
  await again.prepare(manifest);
  await lookUp(again, version, manifest, range(0, 31_000));
});

test('equal layers are fetched once; retiring keeps layers that others need', async () => {
  const fixture = await LocalStoreFixture.make();
  const shared = createOracleTable('shared', 4, range(0, 500));
  const [oldest, own] = [
    createOracleTable('own', 2, range(0, 99)),
    createOracleTable('own', 2, range(0, 99), { salt: 2 }),
  ];
  const versions = [
    makeVersion('1', [shared, oldest]),
    makeVersion('2', [shared, oldest]),
    makeVersion('3', [shared, own]),
  ];
  const manifests: Manifest[] = [];
  for (const version of versions) manifests.push(await fixture.repository.publish(version));
  const store = await fixture.open();
  await store.prepare(manifests[0]!);
  assert.equal(fixture.fetched.length, 6);
  await store.prepare(manifests[1]!);
  assert.equal(fixture.fetched.length, 6);
  await store.prepare(manifests[2]!);
  assert.deepEqual(fixture.fetched.slice(6), ['own', 'own', 'own']);

  await store.retire(manifests[0]!);
  await store.retire(manifests[1]!);
  await lookUp(store, versions[2]!, manifests[2]!, range(0, 600));
  await store.prepare(manifests[0]!);
  assert.deepEqual(fixture.fetched.slice(9), ['own', 'own', 'own'], 'only what was removed');
  await lookUp(store, versions[0]!, manifests[0]!, range(0, 600));
});

test('retiring frees disk space', async () => {
  const fixture = await LocalStoreFixture.make();
  const store = await fixture.open();
  const sizes: number[] = [];
  for (let salt = 1; salt <= 4; salt++) {
    const table = createOracleTable('t', 16, range(0, 20_000), { salt });
    const manifest = await fixture.repository.publish(makeVersion(String(salt), [table], 1));
    await store.prepare(manifest);
    await store.retire(manifest);
    sizes.push(await folderBytes(join(fixture.folder, 'rows')));
  }
  const rowsBytes = 20_000 * 64;
  assert.ok(
    sizes.every((bytes) => bytes < rowsBytes / 2),
    `${sizes} bytes after each version`,
  );
});

async function folderBytes(folder: string): Promise<number> {
  let bytes = 0;
  // The log is not counted: its space is freed when it is next replaced.
  const names = (await readdir(folder)).filter((name) => name.endsWith('.ldb'));
  for (const name of names) bytes += (await readFile(join(folder, name))).length;
  return bytes;
}

test('a version that waits to be filled keeps layers shared with one being retired', async () => {
  const fixture = await LocalStoreFixture.make();
  const shared = createOracleTable('shared', 4, range(0, 500));
  const [one, two] = [
    makeVersion('1', [shared]),
    makeVersion('2', [shared, createOracleTable('more', 2, range(0, 50))]),
  ];
  const [first, second] = [
    await fixture.repository.publish(one),
    await fixture.repository.publish(two),
  ];
  const store = await fixture.open();
  await store.prepare(first);
  await Promise.all([store.retire(first), store.prepare(second)]);
  assert.equal(fixture.fetched.length, 6);
  await lookUp(store, two, second, range(0, 600));
});

test('lookups of one version continue while another is filled and retired', async () => {
  const fixture = await LocalStoreFixture.make();
  const one = makeVersion('1', [createOracleTable('t', 4, range(0, 2_000))]);
  const two = makeVersion('2', [createOracleTable('t', 4, range(0, 20_000), { salt: 2 })]);
  const [first, second] = [
    await fixture.repository.publish(one),
    await fixture.repository.publish(two),
  ];
  const store = await fixture.open();
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

test('a fetch that fails leaves nothing prepared, and is repeated the next time', async () => {
  const fixture = await LocalStoreFixture.make();
  const version = makeVersion('1', [
    createOracleTable('a', 2, range(0, 30)),
    createOracleTable('b', 2, range(0, 30)),
  ]);
  const manifest = await fixture.repository.publish(version);
  const { contentId } = manifest.tables[1]!.shards[1]![0]!;
  const file = fixture.repository.repository.layerWritePath('ctr', 'b', contentId);
  const bytes = await readFile(file);
  const store = await fixture.open();
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

test('a folder that another store has open is rejected, with a remedy', async () => {
  const fixture = await LocalStoreFixture.make();
  const inUse = (error: unknown) =>
    error instanceof CubeError &&
    error.code === 'CONFLICT' &&
    error.message.includes(fixture.folder) &&
    /another process .* has the local store open; stop it/.test(error.message);
  const { child, lines } = startFill(fixture.repository.folder);
  await lines.next();
  await assert.rejects(fixture.open(), inUse);
  await killProcess(child);
  await fixture.open();
  const { repository } = fixture.repository;
  await assert.rejects(LocalStore.open({ repository, folder: fixture.folder }), inUse);
});

test('values of any length are rejected by table name', async () => {
  const fixture = await LocalStoreFixture.make();
  const manifest = await fixture.repository.publish(
    makeVersion('1', [createOracleTable('t', 2, range(0, 9))], 1),
  );
  const table = manifest.tables[0]!;
  const store = await fixture.open();
  const values: Manifest = { ...manifest, tables: [{ ...table, dtype: 'bytes', dim: 0 }] };
  await assert.rejects(store.prepare(values), {
    code: 'UNSUPPORTED',
    message: /table t has values/,
  });
});

test('a delta fetches only itself, and is kept between starts with its deleted keys', async () => {
  const fixture = await LocalStoreFixture.make();
  const steps = [{ put: range(0, 3_000) }, { put: range(10, 20), deleted: range(50, 60) }];
  const [base, both] = [chainedTable('t', 4, steps.slice(0, 1)), chainedTable('t', 4, steps)];
  const [one, two] = [makeVersion('1', [base], 2), makeVersion('2', [both], 2)];
  const first = await fixture.repository.publish(one);
  const second = await fixture.repository.publish(two);
  const store = await fixture.open();
  await store.prepare(first);
  assert.equal(fixture.fetched.length, 2);
  await store.prepare(second);
  assert.equal(fixture.fetched.length, 4, 'only the deltas');
  await fixture.close();
  const again = await fixture.open();
  await again.prepare(second);
  assert.equal(fixture.fetched.length, 4);
  await lookUp(again, two, second, range(0, 3_100));
  await again.prepare(first);
  await lookUp(again, one, first, range(0, 3_100));
});

test('retiring a failed version keeps the rows that the channel needs', async () => {
  const fixture = await LocalStoreFixture.make();
  const tables = [1, 2, 3].map((salt) => createOracleTable('t', 2, range(0, 50), { salt }));
  const manifests: Manifest[] = [];
  for (const [i, table] of tables.entries()) {
    manifests.push(await fixture.repository.publish(makeVersion(String(i + 1), [table])));
  }
  const { repository } = fixture.repository;
  for (const version of ['1', '2']) {
    await repository.activate('ctr', 'stable', { version, by: 'test', reason: 'test' });
  }
  const before = await fixture.open();
  for (const manifest of manifests) await before.prepare(manifest);
  await fixture.close();

  // After a start, version 2 is filled, its graph fails, and version 1 was not prepared yet.
  const store = await fixture.open();
  const fetched = fixture.fetched.length;
  await store.prepare(manifests[1]!);
  await store.retire(manifests[1]!);
  await store.prepare(manifests[0]!);
  await store.prepare(manifests[1]!);
  assert.equal(fixture.fetched.length, fetched, 'nothing is fetched again');
  await store.prepare(manifests[2]!);
  assert.equal(
    fixture.fetched.length,
    fetched + 3,
    'only layers that no channel names were removed',
  );
});
