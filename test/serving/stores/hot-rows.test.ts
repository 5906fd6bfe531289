/** The cache of rows before a store: the whole conformance suite over LOCAL, and what only a cache can get wrong. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  type LookupGroup,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../../lib/client/lookup-group.ts';
import { type Manifest, tableOf } from '../../../lib/core/manifest.ts';
import type { EmbeddingStore } from '../../../serving/stores/embedding-store.ts';
import { HotRowsStore } from '../../../serving/stores/hot-rows-store.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { RowCache } from '../../../serving/stores/row-cache.ts';
import { groupOf, manifestOf, tableWith } from '../../client/oracle.ts';
import { storeConformance } from './conformance.ts';
import { TestRepository } from './test-repository.ts';

storeConformance('HOT ROWS before LOCAL', async () => {
  const world = await TestRepository.make();
  const { repository } = world;
  const local = await LocalStore.open({ repository, folder: join(world.folder, 'local') });
  // Small, so that most of what the suite asks for is evicted.
  const store = new HotRowsStore(local, 1 << 20);
  return {
    store,
    publish: (version) => world.publish(version),
    close: async () => {
      await store.close();
      await world.remove();
    },
  };
});

/** Answers by itself: key k of any version and table has the row [k, salt of the version], odd keys are unseen. */
class CountingStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly asked: bigint[] = [];
  isDown = false;
  pretend: string | undefined;

  async prepare(): Promise<void> {}

  async lookup({ version, ...manifest }: Manifest, groups: readonly LookupGroup[]) {
    let unseen = 0;
    let unavailable = 0;
    for (const { table, keys, count, rows, outcomes } of groups) {
      const { defaultRow } = tableOf({ version, ...manifest }, table);
      for (let i = 0; i < count; i++) {
        const key = keys[2 * i]!;
        this.asked.push(BigInt(key));
        const outcome = this.isDown ? OUTCOME_UNAVAILABLE : key % 2 ? OUTCOME_UNSEEN : OUTCOME_HIT;
        outcomes[i] = outcome;
        rows.set(outcome === OUTCOME_HIT ? [key, Number(version)] : defaultRow, 2 * i);
        if (outcome === OUTCOME_UNSEEN) unseen++;
        if (outcome === OUTCOME_UNAVAILABLE) unavailable++;
      }
    }
    const reason = unavailable > 0 ? { reason: 'down' } : {};
    return { version: this.pretend ?? version, unseen, unavailable, ...reason };
  }

  async retire(): Promise<void> {}
  async close(): Promise<void> {}
}

function manifest(version: string, options: { layer?: string; defaultRow?: number[] } = {}) {
  const { layer = version, defaultRow = [-1, -1] } = options;
  const table = tableWith('t', 2, [], { defaultRow });
  const made = manifestOf({ bundle: 'ctr', version, shardNum: 2, tables: [table] });
  const shards = made.tables[0]!.shards.map((layers, shard) =>
    layers.map((ref) => ({ ...ref, contentId: `${layer}${shard}`.padStart(32, '0') })),
  );
  return { ...made, tables: [{ ...made.tables[0]!, shards }] };
}

const TABLE = tableWith('t', 2, []);
const KEYS = [0n, 1n, 2n, 3n];

async function ask(store: EmbeddingStore, version: Manifest) {
  const group = groupOf(TABLE, KEYS);
  const summary = await store.lookup(version, [group], 1_000);
  return { rows: [...group.rows], outcomes: [...group.outcomes], summary };
}

test('what was found, or known to be missing, is not asked again; with the default row of each version', async () => {
  const inner = new CountingStore();
  const store = new HotRowsStore(inner, 1 << 20);
  const one = manifest('1');
  const again = manifest('2', { layer: '1', defaultRow: [8, 9] });
  await store.prepare(one);
  await store.prepare(again);
  assert.deepEqual((await ask(store, one)).rows, [0, 1, -1, -1, 2, 1, -1, -1]);
  assert.equal(inner.asked.length, 4);
  inner.isDown = true;
  const { rows, outcomes, summary } = await ask(store, again);
  assert.deepEqual(rows, [0, 1, 8, 9, 2, 1, 8, 9], 'equal layers: the same rows');
  assert.deepEqual(outcomes, [OUTCOME_HIT, OUTCOME_UNSEEN, OUTCOME_HIT, OUTCOME_UNSEEN]);
  assert.deepEqual(summary, { version: '2', unseen: 2, unavailable: 0 });
  assert.equal(inner.asked.length, 4);
  const { hits, misses, rows: held } = store.hotRows;
  assert.deepEqual({ hits, misses, held }, { hits: 4, misses: 4, held: 4 });
});

test('versions of other layers share nothing', async () => {
  const store = new HotRowsStore(new CountingStore(), 1 << 20);
  const versions = [manifest('1'), manifest('2'), manifest('3')];
  for (const version of versions) await store.prepare(version);
  for (let round = 0; round < 2; round++) {
    for (const version of versions) {
      const salt = Number(version.version);
      assert.deepEqual((await ask(store, version)).rows, [0, salt, -1, -1, 2, salt, -1, -1]);
    }
  }
  await store.retire(versions[1]!);
  await store.prepare(versions[1]!);
  assert.equal((await ask(store, versions[1]!)).rows[1], 2);
});

test('that nobody answered is not remembered', async () => {
  const inner = new CountingStore();
  const store = new HotRowsStore(inner, 1 << 20);
  await store.prepare(manifest('1'));
  inner.isDown = true;
  assert.equal((await ask(store, manifest('1'))).summary.unavailable, 4);
  inner.isDown = false;
  assert.deepEqual((await ask(store, manifest('1'))).rows, [0, 1, -1, -1, 2, 1, -1, -1]);
});

test('an answer of another version is handed on, and not kept', async () => {
  const inner = new CountingStore();
  const store = new HotRowsStore(inner, 1 << 20);
  await store.prepare(manifest('1'));
  inner.pretend = '9';
  assert.equal((await ask(store, manifest('1'))).summary.version, '9');
  assert.equal((await ask(store, manifest('1'))).summary.version, '9');
});

test('it takes no more than it was given, and refuses what is no cache', async () => {
  for (const bytes of [20_000, 1 << 20, 5_000_001]) {
    const store = new HotRowsStore(new CountingStore(), bytes);
    await store.prepare(manifest('1'));
    assert.ok(store.hotRows.bytes <= bytes, `${store.hotRows.bytes} of ${bytes}`);
    assert.ok(store.hotRows.bytes > bytes / 3, `${store.hotRows.bytes} of ${bytes}`);
  }
  const tiny = new HotRowsStore(new CountingStore(), 1_000);
  await assert.rejects(tiny.prepare(manifest('1')), {
    code: 'INVALID_ARGUMENT',
    message: /give hotRows at least \d+ bytes/,
  });
});

test('whatever is asked in whatever order, a cache of rows holds what was put under the key', () => {
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
          assert.ok(cache.find(chain, key, 7) >= 0, 'what was just taken in is there');
          assert.ok(cache.size <= capacity);
        }
      },
    ),
    { numRuns: 200 },
  );
});

test('a scan does not drive out what is asked for often', () => {
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
