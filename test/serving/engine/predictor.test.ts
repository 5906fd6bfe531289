/**
 * The predictor on real model workers: batches, degradation, deadlines, mixed versions, worker
 * deaths.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { CubeError, type ErrorCode } from '../../../lib/core/errors.ts';
import { parseTsvRows } from '../../../lib/core/tsv-rows.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import type { DegradationPolicy } from '../../../serving/engine/engine-options.ts';
import { LoadedBundle } from '../../../serving/engine/loaded-bundle.ts';
import { Predictor } from '../../../serving/engine/predictor.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { FATAL_VALUE } from '../support/dying-worker.ts';
import { FakeStore } from '../support/fake-store.ts';
import { BUNDLE, hashKey, ToyBundle, type ToyRow, toTsv, toyRows } from '../support/toy-bundle.ts';

const DEFAULT: DegradationPolicy = { onUnavailable: 'default', maxUnavailableShare: 0 };
const logger = createLogger('test', { level: 'silent' });

interface PredictorFixture {
  readonly toy: ToyBundle;
  readonly store: FakeStore;
  readonly bundle: LoadedBundle;
  predict(rows: readonly ToyRow[], timeoutMs?: number): ReturnType<Predictor['predict']>;
}

async function makeFixture(
  t: TestContext,
  options: { instances?: number; workerScript?: URL; policy?: DegradationPolicy } = {},
): Promise<PredictorFixture> {
  const toy = new ToyBundle({ version: '1', seed: 5, wide: true });
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repo'), { create: true });
  await repository.publish(toy.publication(join(folder, 'layers')));
  const store = new FakeStore([toy]);
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

async function assertScores(engine: PredictorFixture, rows: readonly ToyRow[]): Promise<void> {
  const { clickOutput } = await engine.predict(rows);
  rows.forEach((row, i) => {
    assert.ok(Math.abs(clickOutput[2 * i + 1]! - engine.toy.score(row)[1]) < 1e-6, `row ${i}`);
  });
}

function assertRejected(
  promise: Promise<unknown>,
  code: ErrorCode,
  message: RegExp,
): Promise<void> {
  return assert.rejects(promise, (error: CubeError) => {
    assert.ok(error instanceof CubeError);
    assert.match(error.message, message);
    assert.equal(error.code, code);
    return true;
  });
}

test('a lookup leaves a third of the first deadline, and uses a third of the last', async (t) => {
  const { store, predict } = await makeFixture(t);
  const [row] = toyRows(1);
  assert.ok(row);
  const lookUpFor = async (...timeoutsMs: number[]): Promise<number | undefined> => {
    store.timeoutsMs.length = 0;
    await Promise.all(timeoutsMs.map((timeoutMs) => predict([row], timeoutMs)));
    return store.timeoutsMs[0];
  };
  const isAbout = (actual: number | undefined, expected: number): boolean =>
    actual !== undefined && actual <= expected && actual > 0.8 * expected;
  assert.ok(isAbout(await lookUpFor(60_000), 40_000));
  assert.ok(isAbout(await lookUpFor(60_000, 48_000), 32_000), 'the first deadline');
  assert.ok(isAbout(await lookUpFor(600_000, 30_000), 200_000), 'the last deadline');
});

test('looks each distinct key of a batch up once, in batches of at most 64 rows', async (t) => {
  const engine = await makeFixture(t);
  const rows = Array.from({ length: 130 }, () => toyRows(1)[0]!);
  await assertScores(engine, rows);
  const { categorical } = rows[0]!;
  const distinct = (slots: readonly number[]): number =>
    new Set(slots.map((slot) => hashKey(slot, categorical[slot]!))).size;
  const once = [distinct([0, 1, 2]), distinct([0, 2])];
  assert.deepEqual(engine.store.lookups, [once, once, once]);
});

test('predicts any number of rows in order', async (t) => {
  const engine = await makeFixture(t, { instances: 2 });
  for (const count of [1, 63, 64, 65, 128, 1000]) await assertScores(engine, toyRows(count, count));
});

test('a shard that is down fails the request, or degrades it with counts, by policy', async (t) => {
  const engine = await makeFixture(t);
  const rows = toyRows(100);
  const all = rows.flatMap(({ categorical: [a, b, c] }) => [
    hashKey(0, a!),
    hashKey(1, b!),
    hashKey(2, c!),
    hashKey(0, a!),
    hashKey(2, c!),
  ]);
  engine.store.isDown = (key) => key % 2n === 1n;
  const down = all.filter(engine.store.isDown).length;
  const message =
    /no answer for \d+ of 500 lookups \(first: key \d+ of table deep; shard 1 of 2.*\)/;
  await assertRejected(engine.predict(rows), 'UNAVAILABLE', message);
  engine.store.deadlineExceeded = true;
  await assertRejected(engine.predict(rows), 'DEADLINE_EXCEEDED', message);
  const share = down / all.length;
  const under = { onUnavailable: 'fail', maxUnavailableShare: share - 0.001 } as const;
  const strict = await makeFixture(t, { policy: under });
  strict.store.isDown = engine.store.isDown;
  await assertRejected(strict.predict(rows), 'UNAVAILABLE', message);
  for (const policy of [{ ...under, maxUnavailableShare: share }, DEFAULT]) {
    const lenient = await makeFixture(t, { policy });
    lenient.store.isDown = engine.store.isDown;
    const { degraded, unavailable } = await lenient.predict(rows);
    assert.deepEqual({ degraded, unavailable }, { degraded: true, unavailable: down });
  }
  engine.store.isDown = () => false;
  const whole = await engine.predict(rows);
  assert.deepEqual([whole.degraded, whole.unavailable], [false, 0]);
});

test('rejects rows of another version', async (t) => {
  const engine = await makeFixture(t);
  engine.store.reportedVersion = '2';
  await assertRejected(
    engine.predict(toyRows(3)),
    'INTERNAL',
    /from version 2, but the graph is of version 1/,
  );
});

test('rejects scores that are not finite', async (t) => {
  const engine = await makeFixture(t);
  for (const row of engine.toy.tables[0]!.rows.values()) row.fill(Number.NaN);
  await assertRejected(engine.predict(toyRows(3)), 'INTERNAL', /gave NaN for row 1/);
});

test('fails at the deadline, and answers the next request', async (t) => {
  const engine = await makeFixture(t);
  const { promise, resolve } = withResolvers();
  engine.store.lookupGate = promise;
  await assertRejected(engine.predict(toyRows(3), 20), 'DEADLINE_EXCEEDED', /deadline/);
  resolve();
  await assertScores(engine, toyRows(3));
});

test("a worker's death fails exactly its batch, retryably; the worker is replaced", async (t) => {
  const workerScript = new URL('../support/dying-worker.js', import.meta.url);
  const engine = await makeFixture(t, { instances: 2, workerScript });
  const columns = parseTsvRows(toTsv(toyRows(1)), engine.bundle.features, 1);
  columns.dense[0] = FATAL_VALUE;
  const predictor = new Predictor();
  for (let death = 1; death <= 3; death++) {
    const deadlineMs = performance.now() + 20_000;
    const dying = predictor.predict(engine.bundle, columns, { deadlineMs });
    dying.catch(() => undefined);
    // In a batch of its own: what comes later is merged with it no more.
    await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
    const [doomed, ...others] = await Promise.allSettled([
      dying,
      ...Array.from({ length: 8 }, (_, i) => assertScores(engine, toyRows(50, i))),
    ]);
    assert.ok(doomed);
    assert.equal(doomed.status, 'rejected');
    const { reason } = doomed as PromiseRejectedResult;
    assert.match(reason.message, /the model worker died while it ran this batch/);
    assert.deepEqual([reason.code, reason.status.retryable], ['UNAVAILABLE', true]);
    for (const other of others) assert.equal(other.status, 'fulfilled');
    assert.equal(engine.bundle.pool.workerDeaths, death);
    while (engine.bundle.pool.aliveInstances < 2)
      await new Promise((resolve) => setTimeout(resolve, 10));
  }
});

function withResolvers(): { promise: Promise<void>; resolve: () => void } {
  let resolve = (): void => undefined;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

test('a bundle whose graph cannot have the precision is refused at load', async (t) => {
  const toy = new ToyBundle({ version: '1', seed: 5, wide: true });
  const folder = temporaryFolder(t);
  const repository = openRepository(join(folder, 'repo'), { create: true });
  await repository.publish(toy.publication(join(folder, 'layers')));
  const store = new FakeStore([toy]);
  const source = { repository, bundle: BUNDLE, store, instances: 1, logger };
  const load = LoadedBundle.load({ ...source, precision: 'int8' }, '1');
  await assert.rejects(load, {
    code: 'UNSUPPORTED',
    message: /1: model.onnx: precision int8 changes nothing/,
  });
});
