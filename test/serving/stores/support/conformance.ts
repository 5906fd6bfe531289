/**
 * The tests that every embedding store must pass. A store that passes can replace another one
 * without any prediction changing.
 */
import assert from 'node:assert/strict';
import { test as addTest, after, before } from 'node:test';
import fc from 'fast-check';
import type { Manifest } from '../../../../lib/core/manifest.ts';
import type { EmbeddingStore } from '../../../../serving/stores/embedding-store.ts';
import {
  assertLookup,
  createGroup,
  createOracleTable,
  KEY_MAX,
  type OracleTable,
  type OracleVersion,
  range,
} from '../../../client/support/oracle.ts';
import { chainedTable } from './chained-table.ts';

/** A store with the source from which it takes its versions. */
export interface StoreUnderTest {
  readonly store: EmbeddingStore;
  /** Publishes a version, of any shard count, for `store.prepare`. */
  publish(version: OracleVersion): Promise<Manifest>;
  close(): Promise<void>;
}

type TableKeys = readonly (readonly [OracleTable, readonly bigint[]])[];

const TIMEOUT_MS = 10_000;

/** The store whose tests are being added. */
let storeName = '';

function test(title: string, run: () => Promise<void>): void {
  addTest(`${storeName}: ${title}`, run);
}

export function testStoreConformance(name: string, open: () => Promise<StoreUnderTest>): void {
  storeName = name;
  let tested: StoreUnderTest;
  let published = 0;
  before(async () => {
    tested = await open();
  });
  after(() => tested.close());

  /** Publishes and prepares a new version. */
  async function prepare(shardNum: number, tables: OracleTable[]): Promise<Prepared> {
    const version = { bundle: 'ctr', version: `v${++published}`, shardNum, tables };
    const manifest = await tested.publish(version);
    await tested.store.prepare(manifest);
    return { version, manifest };
  }

  async function lookUp({ version, manifest }: Prepared, tableKeys: TableKeys): Promise<void> {
    const groups = tableKeys.map(([table, keys]) => ({
      table,
      keys,
      group: createGroup(table, keys),
    }));
    const lookupGroups = groups.map(({ group }) => group);
    assertLookup(version, groups, await tested.store.lookup(manifest, lookupGroups, TIMEOUT_MS));
  }

  testKeysAndTables(prepare, lookUp);
  testBatches(prepare, lookUp);
  testDtypesAndDeltas(() => tested, prepare, lookUp);
  testVersions(() => tested, prepare, lookUp);
  testInvalidLookups(() => tested, prepare);
  testRandomBatches(prepare, lookUp);

  test('a closed store fails with STOPPING', async () => {
    const version = await prepare(2, [createOracleTable('t', 2, range(0, 10))]);
    await tested.store.close();
    await assert.rejects(lookUp(version, []), { code: 'STOPPING' });
    await assert.rejects(tested.store.prepare(version.manifest), { code: 'STOPPING' });
    await tested.store.close();
  });
}

interface Prepared {
  readonly version: OracleVersion;
  readonly manifest: Manifest;
}
type Prepare = (shardNum: number, tables: OracleTable[]) => Promise<Prepared>;
type LookUp = (prepared: Prepared, tableKeys: TableKeys) => Promise<void>;

function testKeysAndTables(prepare: Prepare, lookUp: LookUp): void {
  test('hits and unseen keys of tables of several dims, in one call', async () => {
    const one = createOracleTable('one', 1, range(0, 300), { defaultRow: [0.25] });
    const ten = createOracleTable('ten', 10, range(100, 400));
    const large = createOracleTable('large', 65, range(0, 20), { defaultRow: Array(65).fill(-2) });
    const version = await prepare(3, [one, ten, large]);
    await lookUp(version, [
      [ten, range(50, 450)],
      [one, range(280, 320)],
      [large, range(10, 30)],
      [ten, range(399, 402)],
    ]);
  });

  test('the keys 0 and 2^64-1 and their neighbours', async () => {
    const edge = [0n, 1n, KEY_MAX - 1n, KEY_MAX, 1n << 32n, (1n << 32n) - 1n, 1n << 63n];
    const all = createOracleTable('all', 4, edge);
    const none = createOracleTable('none', 4, []);
    const some = createOracleTable('some', 4, [0n, KEY_MAX - 1n]);
    const version = await prepare(3, [all, none, some]);
    await lookUp(version, [
      [all, [...edge, 2n, KEY_MAX - 2n]],
      [none, edge],
      [some, edge],
    ]);
  });

  test('equal tables under two names keep their own default rows', async () => {
    const a = createOracleTable('a', 2, range(0, 8), { defaultRow: [1, 1] });
    const b = { ...a, name: 'b', defaultRow: [2, 2] };
    await lookUp(await prepare(3, [a, b]), [
      [a, range(0, 12)],
      [b, range(0, 12)],
    ]);
  });
}

function testBatches(prepare: Prepare, lookUp: LookUp): void {
  test('a key that occurs several times in a batch gets its row each time', async () => {
    const table = createOracleTable('t', 10, range(0, 10), { defaultRow: Array(10).fill(7) });
    const version = await prepare(3, [table]);
    const keys = range(0, 400).map((i) => (i * i) % 13n);
    await lookUp(version, [
      [table, keys],
      [table, keys.toReversed()],
    ]);
  });

  test('empty groups, no groups, empty shards, an empty table', async () => {
    const sparse = createOracleTable('sparse', 2, [4n, 8n, 400n], { defaultRow: [1, -1] });
    const empty = createOracleTable('empty', 3, []);
    const version = await prepare(4, [sparse, empty]);
    await lookUp(version, []);
    await lookUp(version, [[sparse, []]]);
    await lookUp(version, [
      [sparse, []],
      [empty, range(0, 9)],
      [empty, []],
      [sparse, range(0, 9)],
    ]);
  });

  test('a large batch', async () => {
    const table = createOracleTable('t', 10, range(0, 30_000));
    await lookUp(await prepare(3, [table]), [[table, range(0, 60_000)]]);
  });

  test('many lookups at once', async () => {
    const a = createOracleTable('a', 10, range(0, 2_000));
    const b = createOracleTable('b', 3, range(0, 2_000), { salt: 5 });
    const version = await prepare(3, [a, b]);
    const lookups = Array.from({ length: 200 }, (_, i) =>
      lookUp(version, [
        [a, range(i * 11, i * 11 + (i % 40))],
        [b, range(i * 7, i * 7 + (i % 90))],
      ]),
    );
    await Promise.all(lookups);
  });
}

const DTYPES = ['f32', 'f16', 'bf16', 'i8'] as const;

function testDtypesAndDeltas(tested: () => StoreUnderTest, prepare: Prepare, lookUp: LookUp): void {
  test('rows of every dtype, of odd and even dims', async () => {
    const tables = DTYPES.flatMap((dtype) =>
      [1, 3, 8, 33].map((dim) => {
        const defaultRow = Array.from({ length: dim }, (_, d) => d + 0.1);
        return chainedTable(`${dtype}-${dim}`, dim, [{ put: range(0, 90) }], { dtype, defaultRow });
      }),
    );
    const keys = [...range(0, 120), KEY_MAX];
    await lookUp(
      await prepare(3, tables),
      tables.map((table) => [table, keys]),
    );
  });

  for (const dtype of DTYPES) {
    test(`the newest delta with a key decides, also deletes (${dtype})`, async () => {
      const steps = [
        { put: [0n, KEY_MAX, ...range(1, 400)] },
        { put: range(100, 150), deleted: [0n, ...range(200, 250)] },
        { put: [0n, ...range(240, 260), ...range(500, 520)], deleted: [KEY_MAX, 120n] },
        { deleted: [0n, 510n, 9_999n] },
      ];
      const chains = [1, 2, 3, 4].map((depth) =>
        chainedTable('t', 5, steps.slice(0, depth), { dtype, defaultRow: [1, 2, 3, 4, 5] }),
      );
      const versions: Prepared[] = [];
      for (const table of chains) versions.push(await prepare(3, [table]));
      const keys = [...range(0, 600), KEY_MAX, KEY_MAX - 1n, 9_999n];
      const all = versions.map((version, i) => lookUp(version, [[chains[i]!, keys]]));
      await Promise.all(all);
      // Layers of the base's own version stay when other versions are retired.
      for (const { manifest } of versions.slice(1, 3)) await tested().store.retire(manifest);
      await lookUp(versions[0]!, [[chains[0]!, keys]]);
      await lookUp(versions[3]!, [[chains[3]!, keys.toReversed()]]);
    });
  }

  test('a delta without keys in some shards, and one that deletes all rows', async () => {
    const one = chainedTable('t', 2, [{ put: range(0, 30) }, { put: [3n] }]);
    const none = chainedTable('u', 2, [{ put: range(0, 30) }, { deleted: range(0, 30) }]);
    const version = await prepare(4, [one, none]);
    await lookUp(version, [
      [one, range(0, 40)],
      [none, range(0, 40)],
    ]);
  });
}

function testVersions(tested: () => StoreUnderTest, prepare: Prepare, lookUp: LookUp): void {
  test('two versions are never mixed', async () => {
    const old = createOracleTable('t', 6, range(0, 1_000), {
      salt: 1,
      defaultRow: Array(6).fill(1),
    });
    const young = createOracleTable('t', 6, range(500, 1_500), {
      salt: 2,
      defaultRow: Array(6).fill(2),
    });
    const [first, second] = [await prepare(3, [old]), await prepare(3, [young])];
    const lookups = Array.from({ length: 100 }, (_, i) => {
      const keys = range(i * 15, i * 15 + 60);
      return Promise.all([lookUp(first, [[old, keys]]), lookUp(second, [[young, keys]])]);
    });
    await Promise.all(lookups);
  });

  test('versions of different shard counts', async () => {
    const table = createOracleTable('t', 5, [...range(0, 200), KEY_MAX]);
    const rewritten = createOracleTable('t', 5, [...range(0, 200), KEY_MAX], { salt: 9 });
    const [four, one] = [await prepare(4, [table]), await prepare(1, [rewritten])];
    const keys = [...range(0, 250), KEY_MAX];
    await Promise.all([lookUp(four, [[table, keys]]), lookUp(one, [[rewritten, keys]])]);
  });

  test('two versions with the same layers', async () => {
    const table = createOracleTable('t', 5, range(0, 100));
    const [first, second] = [await prepare(3, [table]), await prepare(3, [table])];
    await lookUp(first, [[table, range(50, 150)]]);
    await lookUp(second, [[table, range(50, 150)]]);
    await tested().store.retire(first.manifest);
    await lookUp(second, [[table, range(50, 150)]]);
  });

  test('a version that was not prepared, or was retired, is absent', async () => {
    const table = createOracleTable('t', 2, range(0, 10), { salt: 77 });
    const version = await prepare(3, [table]);
    const unknown = { ...version, manifest: { ...version.manifest, version: 'unknown' } };
    await assert.rejects(lookUp(unknown, [[table, [1n]]]), { code: 'VERSION_ABSENT' });
    await lookUp(version, [[table, [1n]]]);
    await tested().store.retire(version.manifest);
    await assert.rejects(lookUp(version, [[table, [1n]]]), { code: 'VERSION_ABSENT' });
    await tested().store.prepare(version.manifest);
    await lookUp(version, [[table, range(0, 20)]]);
  });

  test('preparing twice, also at the same time, prepares once', async () => {
    const table = createOracleTable('t', 2, range(0, 10), { salt: 78 });
    const version = await prepare(3, [table]);
    const { store } = tested();
    await Promise.all([store.prepare(version.manifest), store.prepare(version.manifest)]);
    await lookUp(version, [[table, range(0, 20)]]);
  });
}

function testInvalidLookups(tested: () => StoreUnderTest, prepare: Prepare): void {
  test('invalid groups are rejected', async () => {
    const table = createOracleTable('t', 2, range(0, 10));
    const { manifest } = await prepare(3, [table]);
    const { store } = tested();
    const group = createGroup(table, [1n, 2n]);
    await assert.rejects(store.lookup(manifest, [{ ...group, table: 'x' }], TIMEOUT_MS), {
      code: 'NOT_FOUND',
    });
    const short = { ...group, outcomes: new Uint8Array(1) };
    await assert.rejects(store.lookup(manifest, [short], TIMEOUT_MS), { code: 'INVALID_ARGUMENT' });
  });

  test('a lookup after its deadline makes all keys unavailable', async () => {
    const table = createOracleTable('t', 2, range(0, 10), { defaultRow: [3, 4] });
    const { version, manifest } = await prepare(3, [table]);
    const keys = range(0, 20);
    const group = createGroup(table, keys);
    const summary = await tested().store.lookup(manifest, [group], 0);
    assertLookup(version, [{ table, keys, group }], summary, () => true);
  });
}

function testRandomBatches(prepare: Prepare, lookUp: LookUp): void {
  test('random tables and batches answer as a Map does', async () => {
    const key = fc.oneof(
      { weight: 4, arbitrary: fc.bigInt({ min: 0n, max: 80n }) },
      { weight: 1, arbitrary: fc.bigInt({ min: KEY_MAX - 20n, max: KEY_MAX }) },
      { weight: 1, arbitrary: fc.bigInt({ min: 0n, max: KEY_MAX }) },
    );
    const delta = fc.record({
      put: fc.uniqueArray(key, { maxLength: 20 }),
      deleted: fc.uniqueArray(key, { maxLength: 20 }),
    });
    const table = fc.record({
      dim: fc.integer({ min: 1, max: 40 }),
      dtype: fc.constantFrom(...DTYPES),
      keys: fc.uniqueArray(key, { maxLength: 60 }),
      deltas: fc.array(delta, { maxLength: 3 }),
      salt: fc.integer({ min: 1, max: 50 }),
      withDefault: fc.boolean(),
    });
    const batch = fc.array(fc.tuple(fc.nat(), fc.array(key, { maxLength: 150 })), { maxLength: 4 });
    const tested = fc.record({
      shardNum: fc.constantFrom(1, 3, 4),
      tables: fc.array(table, { minLength: 1, maxLength: 3 }),
      batches: fc.array(batch, { minLength: 1, maxLength: 4 }),
    });
    await fc.assert(
      fc.asyncProperty(tested, async ({ shardNum, tables, batches }) => {
        const oracle = tables.map(({ dim, dtype, keys, deltas, salt, withDefault }, i) => {
          const steps = deltas.map(({ put, deleted }) => {
            return { put, deleted: deleted.filter((key) => !put.includes(key)) };
          });
          return chainedTable(`t${i}`, dim, [{ put: keys }, ...steps], {
            dtype,
            salt,
            ...(withDefault && { defaultRow: Array.from({ length: dim }, (_, d) => d - 3) }),
          });
        });
        const version = await prepare(shardNum, oracle);
        await Promise.all(
          batches.map((groups) =>
            lookUp(
              version,
              groups.map(([pick, keys]) => [oracle[pick % oracle.length]!, keys] as const),
            ),
          ),
        );
      }),
      { numRuns: 15 },
    );
  });
}
