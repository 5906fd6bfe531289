import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest, TableRef } from '../../lib/core/manifest.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { LookupBatch } from '../../lib/store/lookup-batch.ts';
import { type LoadReport, ResidentStore } from '../../lib/store/resident-store.ts';
import {
  createLayerPath,
  createManifest,
  expectedLookup,
  getLoadedTable,
  lookup,
  packKeys,
  type TestTable,
  tableRef,
  temporaryFolder,
  writeTable,
} from './support/layers.ts';

function keysOfShard(count: number, shardIndex: number, shardNum: number): bigint[] {
  return Array.from({ length: count }, (_, i) => BigInt(i * i * shardNum + shardIndex));
}

const USERS: TestTable = {
  name: 'users',
  dim: 4,
  shardIndex: 1,
  shardNum: 2,
  keys: keysOfShard(500, 1, 2),
};
const ITEMS: TestTable = {
  name: 'items',
  dim: 10,
  shardIndex: 1,
  shardNum: 2,
  keys: keysOfShard(900, 1, 2),
};
const EMPTY: TestTable = { name: 'empty', dim: 7, shardIndex: 1, shardNum: 2, keys: [] };

class Bench {
  readonly folder: string;
  readonly store: ResidentStore;

  constructor(context: TestContext, budgetBytes = 64 << 20) {
    this.folder = temporaryFolder(context);
    this.store = new ResidentStore({ budgetBytes });
    context.after(() => this.store.close());
  }

  table(table: TestTable, salt = 0, defaultRow: number[] = []): TableRef {
    return tableRef(table, writeTable(this.folder, table, { salt }), defaultRow);
  }

  load(manifest: Manifest, options: { bytesPerSecond?: number } = {}): Promise<LoadReport> {
    const layerPath = createLayerPath(this.folder);
    return this.store.load({ manifest, shardIndex: 1, layerPath, ...options });
  }

  /** The first element of a key's row tells its table's version. */
  answers(version: string, table: TestTable, salt: number): void {
    const resident = getLoadedTable(this.store, version, table.name);
    assert.deepEqual(
      lookup(resident, table.keys),
      expectedLookup(table, [], table.keys, salt),
      `${version} ${table.name}`,
    );
  }
}

async function refusal(load: Promise<unknown>): Promise<CubeError> {
  try {
    await load;
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    return error;
  }
  throw new Error('was not refused');
}

test('versions answer side by side, each with its own rows and default row', async (context) => {
  const bench = new Bench(context);
  const first = createManifest('1', [bench.table(USERS, 0, [1, 2, 3, 4]), bench.table(EMPTY)]);
  const second = createManifest('2', [bench.table(USERS, 1), bench.table(ITEMS, 1)]);
  await Promise.all([bench.load(first), bench.load(second)]);
  bench.answers('1', USERS, 0);
  bench.answers('2', USERS, 1);
  bench.answers('2', ITEMS, 1);
  const table = getLoadedTable(bench.store, '1', 'users');
  assert.deepEqual(lookup(table, [5n]).rows, Float32Array.of(1, 2, 3, 4));
  assert.equal(bench.store.version('test', '1')!.rows, 500);
  assert.equal(bench.store.version('test', '1')!.table('items'), undefined);
  assert.equal(bench.store.version('test', '3'), undefined);
});

test('equal layers are shared, and outlive the version that loaded them', async (context) => {
  const bench = new Bench(context);
  const users = bench.table(USERS);
  const first = await bench.load(createManifest('1', [users, bench.table(ITEMS)]));
  assert.deepEqual([first.layersLoaded, first.layersShared], [2, 0]);
  const before = bench.store.getMemoryUsage();
  const graphOnly = createManifest('2', [
    { ...users, defaultRow: [9, 9, 9, 9] },
    bench.table(ITEMS),
  ]);
  const second = await bench.load(graphOnly);
  assert.deepEqual([second.layersLoaded, second.layersShared, second.bytes], [0, 2, 0]);
  assert.deepEqual(bench.store.getMemoryUsage(), before);
  assert.ok(bench.store.unload('test', '1'));
  assert.ok(!bench.store.unload('test', '1'));
  bench.answers('2', USERS, 0);
  assert.deepEqual(
    lookup(getLoadedTable(bench.store, '2', 'users'), [7n]).rows,
    Float32Array.of(9, 9, 9, 9),
  );
  bench.store.unload('test', '2');
  assert.equal(bench.store.getMemoryUsage().usedBytes, 0);
  assert.equal(bench.store.getMemoryUsage().pooledBytes, before.usedBytes);
});

test('concurrent loads of a version are one load', async (context) => {
  const bench = new Bench(context);
  const manifest = createManifest('1', [bench.table(USERS)]);
  const reports = await Promise.all([bench.load(manifest), bench.load(manifest)]);
  assert.equal(reports[0], reports[1]);
  assert.equal((await bench.load(manifest)).layersLoaded, 0);
  const other = createManifest('1', [bench.table(USERS, 1)]);
  assert.equal((await refusal(bench.load(other))).code, 'CONFLICT');
  bench.answers('1', USERS, 0);
});

test('lookups of an unloaded version are refused', async (context) => {
  const bench = new Bench(context);
  await bench.load(createManifest('1', [bench.table(USERS)]));
  const stale = getLoadedTable(bench.store, '1', 'users');
  bench.store.unload('test', '1');
  await bench.load(createManifest('2', [bench.table(USERS, 1)]));
  assert.throws(() => lookup(stale, USERS.keys), { code: 'VERSION_ABSENT' });
});

test('a load over the budget is refused before anything is read', async (context) => {
  const bench = new Bench(context, 600_000);
  await bench.load(createManifest('1', [bench.table(USERS)]));
  const before = bench.store.getMemoryUsage();
  const large = { ...ITEMS, keys: keysOfShard(8000, 1, 2) };
  const beside = await refusal(bench.load(createManifest('2', [bench.table(large)])));
  assert.equal(beside.code, 'OVERLOADED');
  assert.match(beside.message, /test 2 needs \d+ bytes .* of the budget of 600000 are used/);
  const never = { ...ITEMS, keys: keysOfShard(20_000, 1, 2) };
  assert.equal(
    (await refusal(bench.load(createManifest('3', [bench.table(never)])))).code,
    'TOO_LARGE',
  );
  assert.deepEqual(bench.store.getMemoryUsage(), before);
  bench.answers('1', USERS, 0);
  bench.store.unload('test', '1');
  await bench.load(createManifest('2', [bench.table(large)]));
  bench.answers('2', large, 0);
  const { usedBytes, pooledBytes } = bench.store.getMemoryUsage();
  assert.ok(usedBytes + pooledBytes <= 600_000);
});

test('a failed load releases its memory, and the old version keeps answering', async (context) => {
  const bench = new Bench(context);
  await bench.load(createManifest('1', [bench.table(USERS), bench.table(ITEMS)]));
  const before = bench.store.getMemoryUsage();
  const users = bench.table(USERS, 1);
  const items = bench.table(ITEMS, 1);
  const path = createLayerPath(bench.folder)('items', items.shards[1]![0]!.contentId);
  const bytes = readFileSync(path);
  bytes[9000]! ^= 1;
  writeFileSync(path, bytes);
  const error = await refusal(bench.load(createManifest('2', [users, items])));
  assert.equal(error.code, 'CORRUPT');
  assert.ok(error.message.includes(path) && error.message.includes('4096'), error.message);
  assert.equal(bench.store.version('test', '2'), undefined);
  assert.equal(bench.store.getMemoryUsage().usedBytes, before.usedBytes);
  bench.answers('1', USERS, 0);
  bench.answers('1', ITEMS, 0);
  bytes[9000]! ^= 1;
  writeFileSync(path, bytes);
  await bench.load(createManifest('2', [users, items]));
  bench.answers('2', ITEMS, 1);
});

test('a file that does not match its manifest is refused', async (context) => {
  const bench = new Bench(context);
  const users = bench.table(USERS);
  const layer = users.shards[1]![0]!;
  const withLayer = (change: Partial<typeof layer>): Manifest =>
    createManifest('x', [{ ...users, shards: [users.shards[0]!, [{ ...layer, ...change }]] }]);
  const path = createLayerPath(bench.folder)('users', layer.contentId);
  const load = (manifest: Manifest, shardIndex = 1): Promise<unknown> =>
    bench.store.load({ manifest, shardIndex, layerPath: () => path });
  const cases: [Manifest, number, string, RegExp][] = [
    [withLayer({ rows: 3 }), 1, 'CORRUPT', /rowCount is 500, the manifest says 3/],
    [withLayer({ contentId: 'a'.repeat(32) }), 1, 'CORRUPT', /contentId/],
    [withLayer({}), 0, 'CORRUPT', /shardIndex is 1/],
    [withLayer({}), 2, 'INVALID_ARGUMENT', /no shard 2/],
    [createManifest('x', [{ ...users, dim: 5 }]), 1, 'CORRUPT', /dim is 4/],
    [createManifest('x', [{ ...users, name: 'other' }]), 1, 'CORRUPT', /table is users/],
    [createManifest('x', [{ ...users, dtype: 'f16' }]), 1, 'CORRUPT', /dtype is f32.* says f16/],
    [
      createManifest('x', [{ ...users, shards: [[layer], [layer, { ...layer, kind: 'delta' }]] }]),
      1,
      'CORRUPT',
      /kind is base, the manifest says delta/,
    ],
  ];
  for (const [manifest, shardIndex, code, message] of cases) {
    const error = await refusal(load(manifest, shardIndex));
    assert.equal(error.code, code);
    assert.match(error.message, message);
  }
  const absent = bench.store.load({
    manifest: withLayer({}),
    shardIndex: 1,
    layerPath: createLayerPath('/nonexistent'),
  });
  assert.equal((await refusal(absent)).code, 'NOT_FOUND');
  assert.deepEqual(bench.store.versions(), []);
});

test('lookups continue during a throttled load, which closing ends', async (context) => {
  const bench = new Bench(context);
  await bench.load(createManifest('1', [bench.table(USERS)]));
  const large = { ...ITEMS, keys: keysOfShard(60_000, 1, 2) };
  const load = bench.load(createManifest('2', [bench.table(large)]), { bytesPerSecond: 100_000 });
  const refused = refusal(load);
  await new Promise((resolve) => setTimeout(resolve, 100));
  bench.answers('1', USERS, 0);
  assert.equal(bench.store.version('test', '2'), undefined);
  await bench.store.close();
  assert.equal((await refused).code, 'STOPPING');
  bench.answers('1', USERS, 0);
  const late = await refusal(bench.load(createManifest('2', [bench.table(large)])));
  assert.equal(late.code, 'STOPPING', 'closed for good');
});

test('closing ends an unthrottled load and fails waiting loads', async (context) => {
  const bench = new Bench(context, 1 << 30);
  const large = { ...ITEMS, dim: 4096, keys: keysOfShard(4000, 1, 2) };
  const manifests = [large, USERS].map((table, i) => createManifest(`${i}`, [bench.table(table)]));
  const loads = Promise.all(manifests.map((manifest) => refusal(bench.load(manifest))));
  while (bench.store.getMemoryUsage().usedBytes === 0) {
    await new Promise((resolve) => setImmediate(resolve));
  }
  await bench.store.close();
  assert.deepEqual(
    (await loads).map(({ code }) => code),
    ['STOPPING', 'STOPPING'],
  );
  assert.equal(bench.store.getMemoryUsage().usedBytes, 0);
});

test('short arrays are refused, not overrun', async (context) => {
  const bench = new Bench(context);
  await bench.load(createManifest('1', [bench.table(USERS)]));
  const table = getLoadedTable(bench.store, '1', 'users');
  const sizes = [
    [15, 32, 1],
    [16, 31, 1],
    [16, 32, 0],
  ] as const;
  for (const [keys, rows, found] of sizes) {
    const batch = new LookupBatch({
      keys: new Uint8Array(keys),
      count: 2,
      rows: new Uint8Array(rows),
      found: new Uint8Array(found),
    });
    assert.throws(() => table.lookup(batch), { code: 'INVALID_ARGUMENT' });
  }
});

/** Adds a delta that writes every key of `changed` again, on the layer before it. */
function withDelta(bench: Bench, ref: TableRef, changed: TestTable, salt: number): TableRef {
  const parent = ref.shards[1]!.at(-1)!.contentId;
  const written = writeTable(bench.folder, changed, { salt, parentContentId: parent });
  const { contentId, bytes, sha256, rows } = written;
  const layers = [...ref.shards[1]!, { contentId, kind: 'delta' as const, bytes, sha256, rows }];
  return { ...ref, shards: [ref.shards[0]!, layers] };
}

test('one more delta costs only the delta; its parent must match', async (context) => {
  const bench = new Bench(context);
  const base = bench.table(USERS);
  const changed = { ...USERS, keys: USERS.keys.slice(0, 20) };
  const first = withDelta(bench, base, changed, 5);
  await bench.load(createManifest('1', [base]));
  const before = bench.store.getMemoryUsage().usedBytes;
  const report = await bench.load(createManifest('2', [first]));
  assert.deepEqual([report.layersLoaded, report.layersShared], [1, 1]);
  const layers = bench.store.version('test', '2')!.layers();
  assert.deepEqual(
    layers.map(({ kind, versions }) => [kind, versions]),
    [
      ['base', 2],
      ['delta', 1],
    ],
  );
  assert.equal(bench.store.getMemoryUsage().usedBytes, before + layers[1]!.bytes);
  const table = getLoadedTable(bench.store, '2', 'users');
  assert.deepEqual(lookup(table, changed.keys), expectedLookup(changed, [], changed.keys, 5));
  const rest = USERS.keys.slice(20);
  assert.deepEqual(lookup(table, rest), expectedLookup(USERS, [], rest));
  const second = withDelta(bench, first, changed, 6);
  const [one, , two] = second.shards[1]!;
  assert.ok(one && two);
  const wrong = { ...second, shards: [second.shards[0]!, [one, two]] };
  const error = await refusal(bench.load(createManifest('3', [wrong])));
  assert.equal(error.code, 'CORRUPT');
  assert.ok(error.message.includes(one.contentId), error.message);
  assert.ok(error.message.includes(first.shards[1]![1]!.contentId), error.message);
  bench.answers('1', USERS, 0);
});

test('a plan reports what a load needs and unloading would free', async (context) => {
  const bench = new Bench(context, 700_000);
  const users = bench.table(USERS);
  await bench.load(createManifest('1', [users, bench.table(ITEMS)]));
  await bench.load(createManifest('2', [users]));
  const large = { ...ITEMS, keys: keysOfShard(6000, 1, 2) };
  const manifest = createManifest('3', [users, bench.table(large)]);
  const request = { manifest, shardIndex: 1, layerPath: createLayerPath(bench.folder) };
  const plan = await bench.store.planLoad(request);
  assert.ok(!plan.fits && plan.neededBytes > plan.unusedBytes);
  const freed = plan.computeFreedBytes([{ bundle: 'test', version: '1' }]);
  assert.ok(freed > 0 && plan.computeFreedBytes([{ bundle: 'test', version: '2' }]) === 0);
  assert.equal((await refusal(bench.load(manifest))).code, 'OVERLOADED');
  const { usedBytes } = bench.store.getMemoryUsage();
  bench.store.unload('test', '1');
  assert.equal(bench.store.getMemoryUsage().usedBytes, usedBytes - freed);
  assert.ok((await bench.store.planLoad(request)).fits);
  await bench.load(manifest);
  bench.answers('3', large, 0);
});

test('a load that fails by a default row that the dtype cannot hold keeps no memory', async (t) => {
  const bench = new Bench(t);
  const { keys, ...place } = USERS;
  const path = (contentId: string): string => createLayerPath(bench.folder)('users', contentId);
  const rows = new Uint8Array(8 * keys.length);
  const layer = writeLayer(
    { ...place, table: 'users', dtype: 'f16', keys: packKeys(keys), rows },
    path,
  );
  const users: TableRef = { ...tableRef(USERS, layer, [1e6, 0, 0, 0]), dtype: 'f16' };
  const load = bench.load(createManifest('1', [users]));
  assert.equal((await refusal(load)).code, 'INVALID_ARGUMENT');
  assert.equal(bench.store.getMemoryUsage().usedBytes, 0);
  const second = await bench.load(createManifest('1', [{ ...users, defaultRow: [] }]));
  assert.equal(second.layersLoaded, 1);
});
