/** The predictor on real model workers: batches, distinct keys, degradation, deadlines, mixed versions, dying workers. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { it, type TestContext } from 'node:test';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import { parseTsvRows } from '../../lib/core/features.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import type { DegradationPolicy } from '../../serving/engine/batching.ts';
import { Predictor } from '../../serving/engine/predictor.ts';
import { LoadedBundle } from '../../serving/models/bundle.ts';
import { temporaryFolder } from '../repository/fixtures.ts';
import { FATAL_VALUE } from './dying-worker.ts';
import { MemoryStore } from './memory-store.ts';
import { BUNDLE, keyOf, ToyBundle, type ToyRow, toTsv, toyRows } from './toy-bundle.ts';

const DEFAULT: DegradationPolicy = { onUnavailable: 'default', maxUnavailableShare: 0 };
const logger = createLogger('test', 'silent');

interface Bench {
  readonly toy: ToyBundle;
  readonly store: MemoryStore;
  readonly bundle: LoadedBundle;
  predict(rows: readonly ToyRow[], timeoutMs?: number): ReturnType<Predictor['predict']>;
}

async function makeBench(
  t: TestContext,
  options: { instances?: number; workerScript?: URL; policy?: DegradationPolicy } = {},
): Promise<Bench> {
  const toy = new ToyBundle({ version: '1', seed: 5, wide: true });
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repo'), { create: true });
  await repository.publish(toy.publication(join(folder, 'layers')));
  const store = new MemoryStore([toy]);
  const { instances = 1, ...rest } = options;
  const source = { repository, bundle: BUNDLE, store, instances, logger, ...rest };
  const bundle = await LoadedBundle.load(source, '1');
  t.after(() => bundle.close());
  return {
    toy,
    store,
    bundle,
    predict(rows, timeoutMs = 20_000) {
      const columns = parseTsvRows(toTsv(rows), bundle.features, 100_000);
      return new Predictor().predict(bundle, columns, {
        deadlineMs: performance.now() + timeoutMs,
      });
    },
  };
}

async function assertScores(bench: Bench, rows: readonly ToyRow[]): Promise<void> {
  const { output } = await bench.predict(rows);
  rows.forEach((row, i) => {
    assert.ok(Math.abs(output[2 * i + 1]! - bench.toy.score(row)[1]) < 1e-6, `row ${i}`);
  });
}

function rejects(promise: Promise<unknown>, code: ErrorCode, message: RegExp): Promise<void> {
  return assert.rejects(promise, (error: CubeError) => {
    assert.ok(error instanceof CubeError);
    assert.match(error.message, message);
    assert.equal(error.code, code);
    return true;
  });
}

it('looks each distinct key of a batch up once, in batches of at most 64 rows', async (t) => {
  const bench = await makeBench(t);
  const rows = Array.from({ length: 130 }, () => toyRows(1)[0]!);
  await assertScores(bench, rows);
  const { categorical } = rows[0]!;
  const distinct = (slots: readonly number[]): number =>
    new Set(slots.map((slot) => keyOf(slot, categorical[slot]!))).size;
  const once = [distinct([0, 1, 2]), distinct([0, 2])];
  assert.deepEqual(bench.store.lookups, [once, once, once]);
});

it('answers any number of rows in their order', async (t) => {
  const bench = await makeBench(t, { instances: 2 });
  for (const count of [1, 63, 64, 65, 128, 1000]) await assertScores(bench, toyRows(count, count));
});

it('fails when a shard is down, or answers degraded with counts: a score is never invented', async (t) => {
  const bench = await makeBench(t);
  const rows = toyRows(100);
  const all = rows.flatMap(({ categorical: [a, b, c] }) => [
    keyOf(0, a!),
    keyOf(1, b!),
    keyOf(2, c!),
    keyOf(0, a!),
    keyOf(2, c!),
  ]);
  bench.store.isDown = (key) => key % 2n === 1n;
  const down = all.filter(bench.store.isDown).length;
  const message =
    /no answer for \d+ of 500 lookups \(first: key \d+ of table deep; shard 1 of 2.*\)/;
  await rejects(bench.predict(rows), 'UNAVAILABLE', message);
  const share = down / all.length;
  const under = { onUnavailable: 'fail', maxUnavailableShare: share - 0.001 } as const;
  const strict = await makeBench(t, { policy: under });
  strict.store.isDown = bench.store.isDown;
  await rejects(strict.predict(rows), 'UNAVAILABLE', message);
  for (const policy of [{ ...under, maxUnavailableShare: share }, DEFAULT]) {
    const lenient = await makeBench(t, { policy });
    lenient.store.isDown = bench.store.isDown;
    const { degraded, unavailable } = await lenient.predict(rows);
    assert.deepEqual({ degraded, unavailable }, { degraded: true, unavailable: down });
  }
  bench.store.isDown = () => false;
  const whole = await bench.predict(rows);
  assert.deepEqual([whole.degraded, whole.unavailable], [false, 0]);
});

it('refuses an answer of another version', async (t) => {
  const bench = await makeBench(t);
  bench.store.pretend = '2';
  await rejects(bench.predict(toyRows(3)), 'INTERNAL', /from version 2, the graph is of version 1/);
});

it('refuses a graph that gives no number', async (t) => {
  const bench = await makeBench(t);
  for (const row of bench.toy.tables[0]!.rows.values()) row.fill(Number.NaN);
  await rejects(bench.predict(toyRows(3)), 'INTERNAL', /gave NaN for row 1/);
});

it('ends at the deadline, and answers the next request', async (t) => {
  const bench = await makeBench(t);
  const { promise, resolve } = withResolvers();
  bench.store.gate = promise;
  await rejects(bench.predict(toyRows(3), 20), 'DEADLINE_EXCEEDED', /deadline/);
  resolve();
  await assertScores(bench, toyRows(3));
});

it("a worker's death fails exactly its batch, retryably; it is replaced", async (t) => {
  const workerScript = new URL('./dying-worker.js', import.meta.url);
  const bench = await makeBench(t, { instances: 2, workerScript });
  const columns = parseTsvRows(toTsv(toyRows(1)), bench.bundle.features, 1);
  columns.dense[0] = FATAL_VALUE;
  const predictor = new Predictor();
  for (let death = 1; death <= 3; death++) {
    const deadlineMs = performance.now() + 20_000;
    const dying = predictor.predict(bench.bundle, columns, { deadlineMs });
    dying.catch(() => undefined);
    // In a batch of its own: what comes later is merged with it no more.
    await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
    const [doomed, ...others] = await Promise.allSettled([
      dying,
      ...Array.from({ length: 8 }, (_, i) => assertScores(bench, toyRows(50, i))),
    ]);
    assert.equal(doomed!.status, 'rejected');
    const { reason } = doomed as PromiseRejectedResult;
    assert.match(reason.message, /the model worker died while it held this batch/);
    assert.deepEqual([reason.code, reason.status.retryable], ['UNAVAILABLE', true]);
    for (const other of others) assert.equal(other.status, 'fulfilled');
    assert.equal(bench.bundle.pool.deaths, death);
    while (bench.bundle.pool.alive < 2) await new Promise((resolve) => setTimeout(resolve, 10));
  }
});

function withResolvers(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => undefined;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}
