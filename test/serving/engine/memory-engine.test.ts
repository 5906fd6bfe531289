/** Tables in memory, looked up by the model workers themselves: scores, budgets, deaths, and memory that comes back. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { parseTsvRows } from '../../../lib/core/features.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { tableWith } from '../../client/oracle.ts';
import { FATAL_VALUE } from '../dying-worker.ts';
import { TestRepository } from '../stores/test-repository.ts';
import { toTsv, toyRows } from '../toy-bundle.ts';
import { EngineBench, refused, turn } from './engine-bench.ts';

it('answers as the plain computation does, however inputs, tables and shards are', async (t) => {
  for (const inputs of ['one', 'many'] as const) {
    for (const shardNum of [1, 3]) {
      const wish = { inputs, shardNum, wide: true };
      const bench = await EngineBench.inMemory(t, { wish, instances: 2 });
      for (const count of [1, 63, 64, 65, 500]) {
        const rows = toyRows(count, count);
        bench.assertScores(rows, await bench.predict(rows));
      }
    }
  }
});

it("a worker's successor looks up under its number; what it had not begun is answered elsewhere", async (t) => {
  const workerScript = new URL('../dying-worker.js', import.meta.url);
  const bench = await EngineBench.inMemory(t, { instances: 2, workerScript });
  const fatal = parseTsvRows(toTsv(toyRows(1)), bench.bundle.features, 1);
  fatal.dense[0] = FATAL_VALUE;
  for (let death = 1; death <= 6; death++) {
    const dying = bench.send(fatal);
    dying.catch(() => undefined);
    await turn();
    const rows = toyRows(64, death);
    const others = Array.from({ length: 12 }, () => bench.predict(rows));
    await refused(dying, 'UNAVAILABLE', /died while it held this batch/);
    for (const other of others) bench.assertScores(rows, await other);
    // More deaths than the store has numbers for: each is given back.
    while (bench.bundle.pool.alive < 2) await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.equal(bench.bundle.pool.deaths, 6);
});

it('answers what comes again from its cache, and other rows not', async (t) => {
  const bench = await EngineBench.inMemory(t, { requestCacheBytes: 4_096 });
  const rows = toyRows(3);
  for (let i = 0; i < 3; i++) bench.assertScores(rows, await bench.predict(rows));
  const { stats, cache } = bench.bundle;
  assert.deepEqual([stats.cacheHits, stats.cacheMisses, stats.executions], [2, 1, 1]);
  const other = [...rows.slice(1), rows[0]!];
  bench.assertScores(other, await bench.predict(other));
  for (let seed = 1; seed < 50; seed++) await bench.predict(toyRows(3, seed * 11));
  assert.ok(cache!.bytes <= 4_096);
  await bench.predict(rows);
  assert.equal(stats.cacheHits, 2, 'what was used longest ago has gone');
});

it('ten thousand requests leave memory as it was', async (t) => {
  setFlagsFromString('--expose-gc');
  const collect = runInNewContext('gc') as () => void;
  const bench = await EngineBench.inMemory(t, { instances: 1 });
  const rows = parseTsvRows(toTsv(toyRows(2)), bench.bundle.features, 2);
  const used = async (requests: number): Promise<number> => {
    for (let done = 0; done < requests; done += 100) {
      await Promise.all(Array.from({ length: 100 }, () => bench.send(rows)));
    }
    collect();
    const { heapUsed, arrayBuffers } = process.memoryUsage();
    return heapUsed + arrayBuffers;
  };
  await used(2_000);
  const before = await used(1_000);
  const after = await used(10_000);
  assert.ok(after - before < 4 << 20, `${after - before} bytes more`);
});

it('refuses what does not fit before it reads a byte, and gives back what is retired', async (t) => {
  const world = await TestRepository.make();
  t.after(() => world.remove());
  const keys = Array.from({ length: 20_000 }, (_, i) => BigInt(i));
  const publish = (version: string, salt: number) =>
    world.publish({
      ...{ bundle: 'ctr', version, shardNum: 2 },
      tables: [tableWith('t', 10, keys, { salt })],
    });
  const [one, two] = [await publish('1', 1), await publish('2', 2)];
  const open = (budgetBytes: number): MemoryStore => {
    const store = new MemoryStore({ repository: world.repository, budgetBytes, workers: 1 });
    t.after(() => store.close());
    return store;
  };
  await refused(open(1 << 20).prepare(one), 'TOO_LARGE', /ctr 1: its tables need \d+ bytes/);
  const store = open(2 ** 28);
  await store.prepare(one);
  const { usedBytes } = store.memory();
  const tight = open(Math.floor(1.5 * usedBytes));
  await tight.prepare(one);
  await refused(tight.prepare(two), 'OVERLOADED', /need \d+ bytes of memory; \d+ of the \d+/);
  assert.equal(tight.memory().usedBytes, usedBytes, 'the failure left nothing behind');
  await tight.retire(one);
  assert.equal(tight.memory().usedBytes, 0);
  await tight.prepare(two);
});
