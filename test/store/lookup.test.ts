import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import type { KernelKind } from '../../lib/core/kernels/kernels.ts';
import { verifyLayerFile } from '../../lib/store/layer-check.ts';
import { readLayerRows } from '../../lib/store/layer-file.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import type { ChainTable, ResidentTable } from '../../lib/store/resident-table.ts';
import {
  createLayerPath,
  createManifest,
  createRow,
  expectedLookup,
  getLoadedTable,
  lookup,
  type TestTable,
  tableRef,
  temporaryFolder,
  writeTable,
} from './support/layers.ts';

const U64 = 2n ** 64n;
const KINDS: readonly KernelKind[] = ['wasm', 'portable'];

/** Ordinary keys and edge cases: ends of the range, neighbours, keys one bit apart. */
const anyKey = fc.oneof(
  fc.bigInt({ min: 0n, max: U64 - 1n }),
  fc.bigInt({ min: 0n, max: 300n }),
  fc.bigInt({ min: U64 - 300n, max: U64 - 1n }),
  fc.integer({ min: 0, max: 63 }).map((bit) => 1n << BigInt(bit)),
);

interface Scenario {
  readonly table: TestTable;
  readonly probes: readonly bigint[];
  readonly defaultRow: readonly number[];
  readonly segmentBytesMax: number | undefined;
  readonly offset: number;
}

function toShard(key: bigint, shardIndex: number, shardNum: number): bigint {
  const moved = key - (key % BigInt(shardNum)) + BigInt(shardIndex);
  return moved < U64 ? moved : BigInt(shardIndex);
}

const scenario: fc.Arbitrary<Scenario> = fc
  .record({
    dim: fc.oneof(fc.integer({ min: 1, max: 64 }), fc.constantFrom(4, 8, 10, 16, 32, 64)),
    shardNum: fc.constantFrom(1, 2, 3, 4, 8, 1000),
    shard: fc.nat(),
    keys: fc.oneof(
      fc.array(anyKey, { maxLength: 300 }),
      fc
        .record({
          first: anyKey,
          step: fc.oneof(fc.bigInt({ min: 1n, max: 9n }), fc.bigInt({ min: 1n, max: 2n ** 40n })),
          count: fc.nat({ max: 200 }),
        })
        .map(({ first, step, count }) =>
          Array.from({ length: count }, (_, i) => first + BigInt(i) * step).filter((k) => k < U64),
        ),
    ),
    probes: fc.array(anyKey, { maxLength: 200 }),
    withDefault: fc.boolean(),
    segmentBytesMax: fc.constantFrom(undefined, 6000, 3000),
    offset: fc.constantFrom(0, 0, 1, 3, 8),
  })
  .map(({ dim, shardNum, shard, keys, probes, withDefault, segmentBytesMax, offset }) => {
    const shardIndex = shard % shardNum;
    const home = (key: bigint): bigint => toShard(key, shardIndex, shardNum);
    const table = { name: 't', dim, shardIndex, shardNum, keys: [...new Set(keys.map(home))] };
    const mixed = [...probes.map(home), ...table.keys, ...table.keys.slice(0, 40)];
    return {
      table,
      probes: mixed,
      defaultRow: withDefault ? Array.from({ length: dim }, (_, i) => i - 0.5) : [],
      // A segment must have room for a few rows; small segments give many of them.
      segmentBytesMax: segmentBytesMax === undefined ? undefined : segmentBytesMax + dim * 40,
      offset,
    };
  });

/** One store of each kind for all tables of a test, because every store starts a thread. */
class Stores {
  readonly #folder: string;
  readonly #stores: ReadonlyMap<KernelKind, ResidentStore>;

  constructor(context: TestContext) {
    this.#folder = temporaryFolder(context);
    const open = (kernelKind: KernelKind): ResidentStore =>
      new ResidentStore({ budgetBytes: 64 << 20, kernelKind });
    this.#stores = new Map(KINDS.map((kind) => [kind, open(kind)]));
    context.after(() => Promise.all([...this.#stores.values()].map((store) => store.close())));
  }

  /** Runs a check on the table in each kind of store. */
  async each(
    { table, defaultRow, segmentBytesMax }: Scenario,
    look: (resident: ResidentTable) => void,
  ): Promise<void> {
    const options = segmentBytesMax === undefined ? {} : { segmentBytesMax };
    const written = writeTable(this.#folder, table, options);
    const manifest = createManifest('1', [tableRef(table, written, [...defaultRow])]);
    for (const store of this.#stores.values()) {
      const layerPath = createLayerPath(this.#folder);
      await store.load({ manifest, shardIndex: table.shardIndex, layerPath });
      try {
        look(getLoadedTable(store, '1', 't'));
      } finally {
        store.unload('test', '1');
      }
    }
  }
}

test('lookups answer like a Map, with both kernels and layouts', async (context) => {
  const stores = new Stores(context);
  await fc.assert(
    fc.asyncProperty(scenario, async (chosen) => {
      const { table, defaultRow, probes, offset } = chosen;
      const full = defaultRow.length > 0 ? defaultRow : new Array(table.dim).fill(0);
      const right = expectedLookup(table, full, probes);
      await stores.each(chosen, (resident) => {
        assert.deepEqual(lookup(resident, probes, offset), right);
      });
    }),
    { numRuns: 120 },
  );
});

test('a missing key of another shard fails the lookup with its index', async (context) => {
  const stores = new Stores(context);
  for (const keys of [[7n, 23n, 107n], [3n, 7n, 11n], []]) {
    const table = { name: 't', dim: 3, shardIndex: 3, shardNum: 4, keys };
    const chosen: Scenario = {
      table,
      probes: [],
      defaultRow: [],
      segmentBytesMax: undefined,
      offset: 0,
    };
    await stores.each(chosen, (resident) => {
      const own = Array.from({ length: 5000 }, (_, i) => BigInt(4 * i + 3));
      const hits = own.filter((key) => keys.includes(key)).length;
      assert.equal(lookup(resident, own).hits, hits);
      own[4321] = 4n;
      assert.equal(lookup(resident, own).hits, -1 - 4321);
      own[0] = U64 - 2n;
      assert.equal(lookup(resident, own).hits, -1);
    });
  }
});

test('a layer of many segments in several memories answers like a Map', async (context) => {
  const stores = new Stores(context);
  for (const dim of [1, 4, 10, 33]) {
    const keys = Array.from({ length: 2_000 }, (_, i) => BigInt(i * i + 7 * i));
    const chosen: Scenario = {
      table: { name: 't', dim, shardIndex: 0, shardNum: 1, keys },
      probes: [],
      defaultRow: Array.from({ length: dim }, (_, i) => i - 0.5),
      segmentBytesMax: 100 * (8 + 4 * dim),
      offset: 3,
    };
    const probes = Array.from({ length: 3_000 }, (_, i) => keys[(i * 7919) % 2_500] ?? BigInt(i));
    await stores.each(chosen, (resident) => {
      const [layer] = (resident as ChainTable).layers;
      assert.ok(layer !== undefined && layer.memories.length > 1);
      for (const count of [1, 26, 260, 3_000]) {
        const some = probes.slice(0, count);
        const expected = expectedLookup(chosen.table, chosen.defaultRow, some);
        assert.deepEqual(lookup(resident, some, chosen.offset), expected);
      }
    });
  }
});

test('batches larger than the scratch, rows larger than a page', async (context) => {
  const stores = new Stores(context);
  for (const dim of [10, 700, 20_000]) {
    const keys = Array.from({ length: 30 }, (_, i) => BigInt(i * i + 5));
    const chosen: Scenario = {
      table: { name: 't', dim, shardIndex: 0, shardNum: 1, keys },
      probes: [],
      defaultRow: Array.from({ length: dim }, (_, i) => i),
      segmentBytesMax: undefined,
      offset: 3,
    };
    const probes = Array.from({ length: dim === 10 ? 5000 : 101 }, (_, i) => BigInt(i));
    const expected = expectedLookup(chosen.table, chosen.defaultRow, probes);
    await stores.each(chosen, (resident) => {
      assert.deepEqual(lookup(resident, probes, chosen.offset), expected);
    });
  }
});

test('the same rows in any order give the same file, and its rows come back', (context) => {
  const folder = temporaryFolder(context);
  fc.assert(
    fc.property(scenario, ({ table, segmentBytesMax }) => {
      const options = segmentBytesMax === undefined ? {} : { segmentBytesMax };
      const written = writeTable(folder, table, options);
      const shuffled = { ...table, keys: [...table.keys].reverse() };
      assert.deepEqual(writeTable(folder, shuffled, options), written);
      const expected = new Map(table.keys.map((key) => [key, createRow(key, table.dim)]));
      const read = new Map<bigint, Float32Array>();
      for (const { keys, rows, count } of readLayerRows(written.path)) {
        const floats = new Float32Array(rows.slice().buffer);
        for (let i = 0; i < count; i++) {
          const key = (BigInt(keys[2 * i + 1]!) << 32n) | BigInt(keys[2 * i]!);
          read.set(key, floats.slice(i * table.dim, (i + 1) * table.dim));
        }
      }
      const sorted = (rows: Map<bigint, Float32Array>): [bigint, Float32Array][] =>
        [...rows].sort(([a], [b]) => (a < b ? -1 : 1));
      assert.deepEqual(sorted(read), sorted(expected));
      const report = verifyLayerFile(written.path, { deep: true });
      assert.equal(report.rows, table.keys.length);
    }),
    { numRuns: 100 },
  );
});

test('duplicate keys and keys of other shards are refused, leaving no file', (context) => {
  const folder = join(temporaryFolder(context), 'absent');
  const table = { name: 't', dim: 2, shardIndex: 1, shardNum: 2, keys: [5n, 9n, U64 - 1n, 9n] };
  assert.throws(() => writeTable(folder, table), {
    code: 'INVALID_ARGUMENT',
    message: /key 9 .*twice/,
  });
  const stranger = { ...table, keys: [5n, 8n] };
  assert.throws(() => writeTable(folder, stranger), {
    message: /key 8 does not belong to shard 1/,
  });
  assert.ok(!existsSync(folder));
});
