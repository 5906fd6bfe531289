/** What the console of serving reads: misses by slot, rows of keys, and samples of tables. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ServingProcess } from '../serving/support/serving-process.ts';
import {
  BUNDLE,
  hashKey,
  ToyBundle,
  type ToyRow,
  toTsv,
  toyRows,
} from '../serving/support/toy-bundle.ts';
import { startLocal } from '../serving/support/toy-service.ts';

const toy = new ToyBundle({ version: '1', seed: 11, wide: true });

interface Misses {
  readonly rows: number;
  readonly slots: readonly { slot: string; lookups: number; unseen: number }[];
}

interface FoundRows {
  readonly key: string;
  readonly hex: string;
  readonly shard: number;
  readonly shardNum: number;
  readonly rows: readonly { table: string; outcome: string; row: readonly number[] }[];
}

interface TableSample {
  readonly shardsRead: number;
  readonly shardNum: number;
  readonly chain: number;
  readonly layouts: readonly { layout: string; rows: number; loadFactor: number }[];
  readonly norms: {
    readonly rows: number;
    readonly histogram: { low: number; high: number; counts: readonly (readonly number[])[] };
  };
}

/** The features of slots that some table does not have. */
function countUnseen(rows: readonly ToyRow[], slot: number): number {
  return rows.reduce((sum, { categorical }) => {
    const key = hashKey(slot, categorical[slot] ?? '');
    return (
      sum + toy.tables.filter((table) => table.slots.includes(slot) && !table.rows.has(key)).length
    );
  }, 0);
}

interface Stage {
  readonly serving: ServingProcess;
  /** Reads JSON; the status must be 200. */
  readonly read: <T>(path: string, query?: Record<string, string>) => Promise<T>;
}

async function checkMisses({ serving, read }: Stage): Promise<void> {
  const rows = toyRows(50);
  await serving.postTsv(toTsv(rows));
  const { state } = await read<{ state: { misses: Misses[] } }>('/v1/console/snapshot');
  const [misses] = state.misses;
  assert.equal(misses?.rows, 50);
  assert.deepEqual(
    misses?.slots.map(({ slot, lookups, unseen }) => [slot, lookups, unseen]),
    [
      ['C1', 100, countUnseen(rows, 0)],
      ['C2', 50, countUnseen(rows, 1)],
      ['C3', 100, countUnseen(rows, 2)],
    ],
  );
}

async function checkRows({ read }: Stage): Promise<void> {
  for (const feature of ['a', 'b', 'c', 'd', 'e', 'f', '<img src=x>']) {
    const key = hashKey(0, feature);
    const body = await read<FoundRows>('/v1/console/row', { slot: 'C1', feature });
    assert.equal(body.key, String(key));
    assert.equal(BigInt(body.hex), key);
    assert.deepEqual([body.shard, body.shardNum], [Number(key % 2n), 2]);
    assert.deepEqual(
      body.rows.map((found) => found.table),
      ['deep', 'wide'],
    );
    for (const [i, table] of toy.tables.entries()) {
      const row = table.rows.get(key);
      assert.equal(body.rows[i]?.outcome, row === undefined ? 'unseen' : 'hit');
      assert.deepEqual(body.rows[i]?.row, [...(row ?? table.defaultRow)]);
    }
    const byKey = await read<FoundRows>('/v1/console/row', { model: BUNDLE, key: body.hex });
    assert.deepEqual(byKey.rows, body.rows);
  }
  const ofSlot = await read<FoundRows>('/v1/console/row', { slot: 'C2', feature: 'a' });
  assert.deepEqual(
    ofSlot.rows.map((found) => found.table),
    ['deep'],
  );
}

async function checkSample({ read }: Stage): Promise<void> {
  const body = await read<TableSample>('/v1/console/table', { table: 'deep' });
  const deep = toy.tables[0];
  const rows = body.layouts.reduce((sum, { rows: count }) => sum + count, 0);
  assert.equal(rows, deep?.rows.size);
  assert.deepEqual([body.shardsRead, body.shardNum, body.chain], [2, 2, 1]);
  for (const { loadFactor, layout } of body.layouts) {
    if (layout === 'inline') assert.ok(loadFactor > 0.1 && loadFactor <= 0.8, `${loadFactor}`);
  }
  const norms = [...(deep?.rows.values() ?? [])].map((row) => Math.hypot(...row));
  const { low, high, counts } = body.norms.histogram;
  assert.ok(low >= Math.min(...norms) - 1e-6 && high <= Math.max(...norms) + 1e-6);
  const bars = counts.flat().reduce((sum, count) => sum + count, 0);
  assert.equal(bars, body.norms.rows);
  assert.ok(body.norms.rows > 0);
}

async function checkHostileQuestions({ serving, read }: Stage): Promise<void> {
  const long = 'x'.repeat(5_000);
  const questions: readonly (readonly [string, number])[] = [
    ['row', 400],
    ['row?slot=C1', 400],
    ['row?slot=C1&feature=a&key=1', 400],
    ['row?slot=C1&slot=C2&feature=a', 400],
    ['row?slot=none&feature=a', 404],
    [`row?slot=C1&feature=${long}`, 413],
    ['row?key=18446744073709551616', 400],
    ['row?key=-1', 400],
    ['row?key=1e3', 400],
    ['row?key=0x', 400],
    ['row?key=1&table=../../manifest', 404],
    ['row?key=1&model=other', 404],
    ['row?key=1&__proto__=x', 400],
    ['row?key=1&more=x', 400],
    ['table', 404],
    ['table?table=..%2f..%2fx', 404],
    ['table?table=deep&table=wide', 400],
    ['examples?model=a&model=b', 400],
  ];
  for (const [path, status] of questions) {
    const response = await fetch(`${serving.url}/v1/console/${path}`);
    const text = await response.text();
    assert.equal(response.status, status, `${path.slice(0, 60)}: ${text}`);
  }
  const largest = await read<FoundRows>('/v1/console/row', { key: '18446744073709551615' });
  assert.equal(largest.rows[0]?.outcome, 'unseen');
}

test('a serving process tells rows of keys, samples of tables, and misses by slot', async (t) => {
  const { serving } = await startLocal(t, [toy]);
  const read = async <T>(path: string, query: Record<string, string> = {}): Promise<T> => {
    const response = await fetch(`${serving.url}${path}?${new URLSearchParams(query)}`);
    assert.equal(response.status, 200, path);
    return (await response.json()) as T;
  };
  const stage = { serving, read };
  await t.test('misses are counted by slot, over all answered rows', () => checkMisses(stage));
  await t.test('a feature gives key, shard and rows; a key gives the same rows', () =>
    checkRows(stage),
  );
  await t.test('a sample gives layout, load factor and norms', () => checkSample(stage));
  await t.test('hostile questions are refused', () => checkHostileQuestions(stage));
});
