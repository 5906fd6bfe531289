/**
 * Lookups of the model workers in shared memory: scores, budgets, worker deaths, and memory that is
 * freed.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { parseTsvRows } from '../../../lib/core/tsv-rows.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { createOracleTable } from '../../client/support/oracle.ts';
import { TestRepository } from '../stores/support/test-repository.ts';
import { FATAL_VALUE } from '../support/dying-worker.ts';
import { toTsv, toyRows } from '../support/toy-bundle.ts';
import { assertRejected, EngineFixture, nextTurn } from './support/engine-fixture.ts';

test('predicts the scores of the plain computation for all layouts', async (t) => {
  for (const inputs of ['one', 'many'] as const) {
    for (const shardNum of [1, 3]) {
      const toy = { inputs, shardNum, wide: true } as const;
      const engine = await EngineFixture.inMemory(t, { toy, instances: 2 });
      for (const count of [1, 63, 64, 65, 500]) {
        const rows = toyRows(count, count);
        engine.assertScores(rows, await engine.predict(rows));
      }
    }
  }
});

test('a restarted worker reuses its thread number; waiting batches run elsewhere', async (t) => {
  const workerScript = new URL('../support/dying-worker.js', import.meta.url);
  const engine = await EngineFixture.inMemory(t, { instances: 2, workerScript });
  const fatal = parseTsvRows(toTsv(toyRows(1)), engine.bundle.features, 1);
  fatal.dense[0] = FATAL_VALUE;
  for (let death = 1; death <= 6; death++) {
    const dying = engine.send(fatal);
    dying.catch(() => undefined);
    await nextTurn();
    const rows = toyRows(64, death);
    const others = Array.from({ length: 12 }, () => engine.predict(rows));
    await assertRejected(dying, 'UNAVAILABLE', /died while it ran this batch/);
    for (const other of others) engine.assertScores(rows, await other);
    // More deaths than the store has thread numbers: each number is released.
    while (engine.bundle.pool.aliveInstances < 2)
      await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.equal(engine.bundle.pool.workerDeaths, 6);
});

test('answers repeated requests from the request cache, and no others', async (t) => {
  const engine = await EngineFixture.inMemory(t, { requestCacheBytes: 4_096 });
  const rows = toyRows(3);
  for (let i = 0; i < 3; i++) engine.assertScores(rows, await engine.predict(rows));
  const { stats, cache } = engine.bundle;
  assert.deepEqual([stats.cacheHits, stats.cacheMisses, stats.executions], [2, 1, 1]);
  const other = [...rows.slice(1), rows[0]!];
  engine.assertScores(other, await engine.predict(other));
  for (let seed = 1; seed < 50; seed++) await engine.predict(toyRows(3, seed * 11));
  assert.ok(cache !== undefined && cache.bytes <= 4_096);
  await engine.predict(rows);
  assert.equal(stats.cacheHits, 2, 'the least recently used entry was evicted');
});

test('ten thousand requests do not grow memory', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const engine = await EngineFixture.inMemory(t, { instances: 1 });
  const rows = parseTsvRows(toTsv(toyRows(2)), engine.bundle.features, 2);
  const measureUsed = async (requests: number): Promise<number> => {
    for (let done = 0; done < requests; done += 100) {
      await Promise.all(Array.from({ length: 100 }, () => engine.send(rows)));
    }
    collect();
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  await measureUsed(2_000);
  const before = await measureUsed(1_000);
  const after = await measureUsed(10_000);
  assert.ok(after - before < 4 << 20, `${after - before} bytes more`);
});

test('rejects versions that exceed the budget, and frees retired ones', async (t) => {
  const repository = await TestRepository.create();
  t.after(() => repository.remove());
  const keys = Array.from({ length: 20_000 }, (_, i) => BigInt(i));
  const publish = (version: string, salt: number) =>
    repository.publish({
      bundle: 'ctr',
      version,
      shardNum: 2,
      tables: [createOracleTable('t', 10, keys, { salt })],
    });
  const [one, two] = [await publish('1', 1), await publish('2', 2)];
  const open = (budgetBytes: number): MemoryStore => {
    const store = new MemoryStore({ repository: repository.repository, budgetBytes, workers: 1 });
    t.after(() => store.close());
    return store;
  };
  await assertRejected(open(1 << 20).prepare(one), 'TOO_LARGE', /ctr 1: its tables need \d+ bytes/);
  const store = open(2 ** 28);
  await store.prepare(one);
  const { usedBytes } = store.getMemoryUsage();
  const tight = open(Math.floor(1.5 * usedBytes));
  await tight.prepare(one);
  await assertRejected(
    tight.prepare(two),
    'OVERLOADED',
    /need \d+ bytes of memory; \d+ of the store.s \d+/,
  );
  assert.equal(tight.getMemoryUsage().usedBytes, usedBytes, 'the failure left nothing behind');
  await tight.retire(one);
  assert.equal(tight.getMemoryUsage().usedBytes, 0);
  await tight.prepare(two);
});
