import assert from 'node:assert/strict';
import { once } from 'node:events';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import fc from 'fast-check';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import { attachSharedVersion } from '../../lib/store/shared-version.ts';
import {
  arbitraryChain,
  computeExpected,
  lookUpChain,
  writeChain,
} from './support/arbitrary-chain.ts';
import { createLayerPath, getLoadedTable, temporaryFolder } from './support/layers.ts';

const WORKER = new URL('./support/shared-lookup-process.js', import.meta.url);
const ROUNDS = 200;

/** One thread: its first message reports its start, its last one the results. */
class ThreadRun {
  readonly started: Promise<unknown>;
  readonly report: Promise<unknown>;

  constructor(job: object) {
    const worker = new Worker(WORKER, { workerData: job });
    let last: unknown;
    worker.on('message', (message) => {
      last = message;
    });
    this.started = once(worker, 'message');
    this.report = once(worker, 'exit').then(() => last);
  }
}

test('several threads look up concurrently in the same memories', async (context) => {
  const folder = temporaryFolder(context);
  const chains = fc.sample(arbitraryChain(3), { numRuns: 60, seed: 7 });
  const chosen = ['f32', 'i8', 'bytes'].flatMap((dtype) =>
    chains.filter(({ table, layers }) => table.dtype === dtype && layers.length > 2).slice(0, 1),
  );
  assert.equal(chosen.length, 3);
  for (const [i, chain] of chosen.entries()) {
    for (const rowsOnDisk of [false, true]) {
      const store = new ResidentStore({ budgetBytes: 64 << 20, threads: 3, rowsOnDisk });
      const manifest = writeChain(folder, chain, String(i));
      const { shardIndex } = chain.table;
      await store.load({ manifest, shardIndex, layerPath: createLayerPath(folder) });
      const shared = store.share('test', String(i));
      const keys = chain.probes;
      const jobs = [1, 2].map((thread) => ({ shared, thread, keys, asF32: true, rounds: ROUNDS }));
      const runs = jobs.map((job) => new ThreadRun(job));
      await Promise.all(runs.map((run) => run.started));
      const table = getLoadedTable(store, String(i), 't');
      const right = computeExpected(chain, keys, true);
      for (let round = 0; round < ROUNDS / 4; round++) {
        assert.deepEqual(await lookUpChain(table, keys, true, round % 3), right);
        await new Promise((resolve) => setImmediate(resolve));
      }
      for (const run of runs) {
        assert.deepEqual(await run.report, {
          answers: [JSON.stringify(right)],
          refused: 'VERSION_ABSENT',
        });
      }
      assert.deepEqual(
        await lookUpChain(table, keys, true),
        right,
        'detached threads change nothing here',
      );
      await store.close();
    }
  }
});

test('absent versions and invalid thread numbers are refused', async (context) => {
  const folder = temporaryFolder(context);
  const [chain] = fc.sample(arbitraryChain(1), { numRuns: 1, seed: 1 });
  assert.ok(chain);
  const store = new ResidentStore({ budgetBytes: 64 << 20, threads: 2 });
  const manifest = writeChain(folder, chain);
  assert.throws(() => store.share('test', '1'), { code: 'VERSION_ABSENT' });
  const { shardIndex } = chain.table;
  await store.load({ manifest, shardIndex, layerPath: createLayerPath(folder) });
  const shared = store.share('test', '1');
  for (const thread of [0, 2, 0.5]) {
    assert.throws(() => attachSharedVersion(shared, thread), { code: 'INVALID_ARGUMENT' });
  }
  await store.close();
});
