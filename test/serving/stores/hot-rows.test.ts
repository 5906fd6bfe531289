/**
 * The row cache in front of a store: the whole conformance suite over LOCAL, and the rules of
 * caching.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  type LookupGroup,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../../lib/core/lookup-group.ts';
import { getTable, type Manifest } from '../../../lib/core/manifest.ts';
import type { EmbeddingStore } from '../../../serving/stores/embedding-store.ts';
import { HotRowsStore } from '../../../serving/stores/hot-rows-store.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { RowCache } from '../../../serving/stores/row-cache.ts';
import { createGroup, createManifest, createOracleTable } from '../../client/support/oracle.ts';
import { testStoreConformance } from './support/conformance.ts';
import { TestRepository } from './support/test-repository.ts';

testStoreConformance('HOT ROWS in front of LOCAL', async () => {
  const source = await TestRepository.create();
  const { repository } = source;
  const local = await LocalStore.open({ repository, folder: join(source.folder, 'local') });
  // Small, so that most rows of the suite are evicted.
  const store = new HotRowsStore(local, 1 << 20);
  return {
    store,
    publish: (version) => source.publish(version),
    close: async () => {
      await store.close();
      await source.remove();
    },
  };
});

/**
 * Computes its answers: key k of any table has the row [k, version]; odd keys are unseen. Records
 * the keys of lookups.
 */
class CountingStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly requestedKeys: bigint[] = [];
  readonly prepared: Set<string> = new Set();
  isDown = false;
  reportedVersion: string | undefined;

  async prepare({ version }: Manifest): Promise<void> {
    this.prepared.add(version);
  }

  async lookup({ version, ...manifest }: Manifest, groups: readonly LookupGroup[]) {
    let unseen = 0;
    let unavailable = 0;
    for (const { table, keys, count, rows, outcomes } of groups) {
      const { defaultRow } = getTable({ version, ...manifest }, table);
      for (let i = 0; i < count; i++) {
        const key = keys[2 * i]!;
        this.requestedKeys.push(BigInt(key));
        const outcome = this.isDown ? OUTCOME_UNAVAILABLE : key % 2 ? OUTCOME_UNSEEN : OUTCOME_HIT;
        outcomes[i] = outcome;
        rows.set(outcome === OUTCOME_HIT ? [key, Number(version)] : defaultRow, 2 * i);
        if (outcome === OUTCOME_UNSEEN) unseen++;
        if (outcome === OUTCOME_UNAVAILABLE) unavailable++;
      }
    }
    const reason = unavailable > 0 ? { reason: 'down' } : {};
    return { version: this.reportedVersion ?? version, unseen, unavailable, ...reason };
  }

  async retire({ version }: Manifest): Promise<void> {
    this.prepared.delete(version);
  }

  async close(): Promise<void> {}
}

function makeManifest(version: string, options: { layer?: string; defaultRow?: number[] } = {}) {
  const { layer = version, defaultRow = [-1, -1] } = options;
  const table = createOracleTable('t', 2, [], { defaultRow });
  const made = createManifest({ bundle: 'ctr', version, shardNum: 2, tables: [table] });
  const shards = made.tables[0]!.shards.map((layers, shard) =>
    layers.map((ref) => ({ ...ref, contentId: `${layer}${shard}`.padStart(32, '0') })),
  );
  return { ...made, tables: [{ ...made.tables[0]!, shards }] };
}

const TABLE = createOracleTable('t', 2, []);
const KEYS = [0n, 1n, 2n, 3n];

async function lookUpKeys(store: EmbeddingStore, version: Manifest) {
  const group = createGroup(TABLE, KEYS);
  const summary = await store.lookup(version, [group], 1_000);
  return { rows: [...group.rows], outcomes: [...group.outcomes], summary };
}

test('hits and unseen keys are cached; default rows are those of each version', async () => {
  const inner = new CountingStore();
  const store = new HotRowsStore(inner, 1 << 20);
  const one = makeManifest('1');
  const again = makeManifest('2', { layer: '1', defaultRow: [8, 9] });
  await store.prepare(one);
  await store.prepare(again);
  assert.deepEqual((await lookUpKeys(store, one)).rows, [0, 1, -1, -1, 2, 1, -1, -1]);
  assert.equal(inner.requestedKeys.length, 4);
  inner.isDown = true;
  const { rows, outcomes, summary } = await lookUpKeys(store, again);
  assert.deepEqual(rows, [0, 1, 8, 9, 2, 1, 8, 9], 'equal layers: the same rows');
  assert.deepEqual(outcomes, [OUTCOME_HIT, OUTCOME_UNSEEN, OUTCOME_HIT, OUTCOME_UNSEEN]);
  assert.deepEqual(summary, { version: '2', unseen: 2, unavailable: 0 });
  assert.equal(inner.requestedKeys.length, 4);
  const { hits, misses, rows: cached } = store.hotRows;
  assert.deepEqual({ hits, misses, cached }, { hits: 4, misses: 4, cached: 4 });
});

test('versions with different layers share nothing', async () => {
  const store = new HotRowsStore(new CountingStore(), 1 << 20);
  const versions = [makeManifest('1'), makeManifest('2'), makeManifest('3')];
  for (const version of versions) await store.prepare(version);
  for (let round = 0; round < 2; round++) {
    for (const version of versions) {
      const salt = Number(version.version);
      assert.deepEqual((await lookUpKeys(store, version)).rows, [0, salt, -1, -1, 2, salt, -1, -1]);
    }
  }
  await store.retire(versions[1]!);
  await store.prepare(versions[1]!);
  assert.equal((await lookUpKeys(store, versions[1]!)).rows[1], 2);
});

test('unavailable keys are not cached', async () => {
  const inner = new CountingStore();
  const store = new HotRowsStore(inner, 1 << 20);
  await store.prepare(makeManifest('1'));
  inner.isDown = true;
  assert.equal((await lookUpKeys(store, makeManifest('1'))).summary.unavailable, 4);
  inner.isDown = false;
  assert.deepEqual((await lookUpKeys(store, makeManifest('1'))).rows, [0, 1, -1, -1, 2, 1, -1, -1]);
});

test('an answer of another version is passed on, and not cached', async () => {
  const inner = new CountingStore();
  const store = new HotRowsStore(inner, 1 << 20);
  await store.prepare(makeManifest('1'));
  inner.reportedVersion = '9';
  assert.equal((await lookUpKeys(store, makeManifest('1'))).summary.version, '9');
  assert.equal((await lookUpKeys(store, makeManifest('1'))).summary.version, '9');
});

test('the cache stays within its bytes; too few bytes are rejected', async () => {
  for (const bytes of [20_000, 1 << 20, 5_000_001]) {
    const store = new HotRowsStore(new CountingStore(), bytes);
    await store.prepare(makeManifest('1'));
    assert.ok(store.hotRows.bytes <= bytes, `${store.hotRows.bytes} of ${bytes}`);
    assert.ok(store.hotRows.bytes > bytes / 3, `${store.hotRows.bytes} of ${bytes}`);
  }
  const inner = new CountingStore();
  const tiny = new HotRowsStore(inner, 1_000);
  await assert.rejects(tiny.prepare(makeManifest('1')), {
    code: 'INVALID_ARGUMENT',
    message: /give hotRows at least \d+ bytes/,
  });
  assert.deepEqual(inner.prepared, new Set(), 'the store keeps nothing of the version');
});

test('a row cache returns the row that was added under the key, for any requests', () => {
  const step = fc.record({
    chain: fc.integer({ min: 1, max: 3 }),
    key: fc.integer({ min: 0, max: 200 }),
    unseen: fc.boolean(),
  });
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 80 }),
      fc.array(step, { maxLength: 600 }),
      (capacity, steps) => {
        const cache = new RowCache(capacity, 2);
        const known = new Map<string, boolean>();
        for (const { chain, key, unseen } of steps) {
          const name = `${chain} ${key}`;
          const entry = cache.find(chain, key, 7);
          if (entry < 0) {
            cache.add(chain, key, 7, unseen ? undefined : Float32Array.of(chain, key), 0);
            known.set(name, unseen);
          } else {
            assert.equal(cache.isUnseen(entry), known.get(name));
            if (known.get(name)) continue;
            const rows = new Float32Array(3);
            cache.copyRow(entry, rows, 1);
            assert.deepEqual([...rows], [0, chain, key]);
          }
          assert.ok(
            cache.find(chain, key, 7) >= 0,
            'a row is in the cache right after it was added',
          );
          assert.ok(cache.size <= capacity);
        }
      },
    ),
    { numRuns: 200 },
  );
});

test('a scan does not evict popular rows', () => {
  const cache = new RowCache(1_000, 1);
  const row = Float32Array.of(1);
  const get = (key: number): boolean => {
    if (cache.find(1, key, 0) >= 0) return true;
    cache.add(1, key, 0, row, 0);
    return false;
  };
  for (let round = 0; round < 8; round++) for (let key = 0; key < 700; key++) get(key);
  for (let key = 10_000; key < 30_000; key++) get(key);
  let kept = 0;
  for (let key = 0; key < 700; key++) if (get(key)) kept++;
  assert.ok(kept > 600, `${kept} of 700 kept`);
});
