/**
 * Batches of several requests: results, waiting, rejections, and failures that concern one request.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { hashKey, toyRows } from '../support/toy-bundle.ts';
import { assertRejected, blockLookups, EngineFixture, nextTurn } from './support/engine-fixture.ts';

test('every request gets its own rows, and failures of others do not affect it', async (t) => {
  const engine = await EngineFixture.inMemory(t, { instances: 2, toy: { wide: true } });
  const request = fc.record({
    rows: fc.integer({ min: 1, max: 150 }),
    seed: fc.integer({ min: 1, max: 1_000 }),
    priority: fc.integer({ min: 0, max: 2 }),
    turns: fc.integer({ min: 0, max: 3 }),
    outcome: fc.constantFrom('answered', 'answered', 'answered', 'expired', 'cancelled'),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 25 }), async (requests) => {
      const outcomes: Promise<void>[] = [];
      for (const { rows: count, seed, priority, turns, outcome } of requests) {
        for (let i = 0; i < turns; i++) await nextTurn();
        const rows = toyRows(count, seed);
        const cancel = new AbortController();
        const deadlineMs = performance.now() + (outcome === 'expired' ? -1 : 30_000);
        const answer = engine.predict(rows, { priority, deadlineMs, signal: cancel.signal });
        if (outcome === 'cancelled') cancel.abort();
        outcomes.push(
          outcome === 'answered'
            ? answer.then((prediction) => engine.assertScores(rows, prediction))
            : assertRejected(answer, 'DEADLINE_EXCEEDED', /deadline passed|caller cancelled/),
        );
      }
      await Promise.all(outcomes);
      const { pendingRows, pendingRequests } = engine.bundle.stats;
      assert.deepEqual({ pendingRows, pendingRequests }, { pendingRows: 0, pendingRequests: 0 });
    }),
    { numRuns: 40 },
  );
});

test('merges simultaneous requests into one batch; splits large requests', async (t) => {
  const engine = await EngineFixture.onFakeStore(t);
  const row = toyRows(1)[0]!;
  await Promise.all(Array.from({ length: 64 }, () => engine.predict([row])));
  assert.deepEqual(engine.store.lookups.length, 1);
  assert.ok(engine.store.lookups[0]![0]! <= 3, 'distinct keys only');
  await engine.predict(toyRows(200));
  assert.equal(engine.bundle.stats.executions, 1 + 4);
  assert.deepEqual(
    engine.bundle.stats.batchSizes().map(({ rows, executions }) => [rows, executions]),
    [
      [8, 1],
      [64, 4],
    ],
  );
});

test('rejects requests that exceed the queue, and answers the others', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueRowsMax: 10, queueTimeoutMs: 0 };
  const engine = await EngineFixture.onFakeStore(t, { batching });
  const gate = blockLookups(engine.store);
  const first = engine.predict(toyRows(40));
  await nextTurn();
  const waiting = [engine.predict(toyRows(1)), engine.predict(toyRows(1))];
  await assertRejected(
    engine.predict(toyRows(1)),
    'OVERLOADED',
    /queue has 10 rows; .* limit of 10/,
  );
  gate.open();
  await Promise.all([first, ...waiting]);
});

test('announced requests lengthen the expected wait of later heads only', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [] };
  const engine = await EngineFixture.onFakeStore(t, { batching });
  const { batcher } = engine.bundle;
  // The rate is known only after some batches.
  await engine.predict(toyRows(400));
  assert.equal(batcher.estimateWaitMs(undefined, true), 0, 'idle');
  const arrivals = Array.from({ length: 100 }, () => batcher.announce());
  assert.ok(batcher.estimateWaitMs(undefined, true) > 0, 'bodies of earlier heads come first');
  assert.equal(batcher.estimateWaitMs(), 0, 'this body has arrived before them');
  const gate = blockLookups(engine.store);
  const waiting = engine.predict(toyRows(80));
  await nextTurn();
  // At one moment: while nothing is answered, the estimates grow with time.
  const nowMs = performance.now();
  const time = t.mock.method(performance, 'now', () => nowMs);
  const announcedMs = batcher.estimateWaitMs(undefined, true);
  for (const arrive of arrivals) arrive();
  const waitMs = batcher.estimateWaitMs(undefined, true);
  time.mock.restore();
  assert.ok(waitMs > 0 && announcedMs > waitMs, `${announcedMs} and ${waitMs} ms`);
  gate.open();
  await waiting;
  assert.equal(batcher.estimateWaitMs(undefined, true), 0);
});

test('fails requests that waited too long for an instance', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueTimeoutMs: 20 };
  const engine = await EngineFixture.onFakeStore(t, { batching });
  const gate = blockLookups(engine.store);
  const first = engine.predict(toyRows(32));
  await nextTurn();
  await assertRejected(engine.predict(toyRows(1)), 'OVERLOADED', /waited 20 ms/);
  gate.open();
  await first;
});

test('runs higher priorities first, and equal priorities in order', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueTimeoutMs: 0 };
  const engine = await EngineFixture.onFakeStore(t, { batching });
  const gate = blockLookups(engine.store);
  const done: string[] = [];
  const first = engine.predict(toyRows(32));
  await nextTurn();
  const others = (
    [
      ['low', 2],
      ['usual', undefined],
      ['usual again', 1],
      ['high', 0],
    ] as const
  ).map(async ([name, priority]) => {
    await engine.predict(toyRows(4), priority === undefined ? {} : { priority });
    done.push(name);
  });
  gate.open();
  await Promise.all([first, ...others]);
  assert.deepEqual(done, ['high', 'usual', 'usual again', 'low']);
});

test('a low priority is answered under a constant load of higher ones', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueTimeoutMs: 1_000 };
  const engine = await EngineFixture.inMemory(t, { batching });
  const until = { done: false };
  const predictAgain = async (seed: number): Promise<void> => {
    while (!until.done) await engine.predict(toyRows(4, seed), { priority: 0 });
  };
  const callers = Array.from({ length: 12 }, (_, i) => predictAgain(i + 1));
  await nextTurn();
  const rows = toyRows(3);
  engine.assertScores(rows, await engine.predict(rows, { priority: 2 }));
  until.done = true;
  await Promise.all(callers);
});

test('a cancelled request does not affect others, and its rows are not run', async (t) => {
  const engine = await EngineFixture.onFakeStore(t);
  const cancel = new AbortController();
  const leaving = engine.predict(toyRows(64), { signal: cancel.signal });
  const rows = toyRows(5);
  const staying = engine.predict(rows);
  cancel.abort();
  await assertRejected(leaving, 'DEADLINE_EXCEEDED', /caller cancelled/);
  engine.assertScores(rows, await staying);
  assert.deepEqual(
    engine.bundle.stats.batchSizes().map(({ rows: size }) => size),
    [5],
  );
});

test('a score that is not finite fails its own request, not the others of its batch', async (t) => {
  const engine = await EngineFixture.onFakeStore(t);
  const rows = toyRows(12, 3);
  const poisoned = { dense: [1, 1], categorical: ['poison', 'b', 'c'] };
  const key = hashKey(0, 'poison');
  const table = engine.toy.tables[0]!.rows as Map<bigint, Float32Array>;
  table.set(key, new Float32Array(4).fill(Number.NaN));
  const clean = rows.filter(({ categorical }) =>
    categorical.every((feature, slot) => hashKey(slot, feature) !== key),
  );
  const [before, bad, after] = await Promise.allSettled([
    engine.predict(clean),
    engine.predict([clean[0]!, poisoned]),
    engine.predict(clean),
  ]);
  assert.equal(engine.bundle.stats.executions, 1, 'one batch');
  assert.equal(bad.status, 'rejected');
  assert.match((bad as PromiseRejectedResult).reason.message, /gave NaN for row 2/);
  for (const outcome of [before, after]) {
    assert.equal(outcome.status, 'fulfilled');
    if (outcome.status === 'fulfilled') engine.assertScores(clean, outcome.value);
  }
});

test('an unavailable shard fails only the requests that need it', async (t) => {
  const engine = await EngineFixture.onFakeStore(t);
  const rows = toyRows(60, 9);
  const hashKeys = ({ categorical }: (typeof rows)[number]): bigint[] =>
    categorical.map((feature, slot) => hashKey(slot, feature));
  const down = hashKeys(rows[0]!)[0]!;
  engine.store.isDown = (key) => key === down;
  const outcomes = await Promise.allSettled(rows.map((row) => engine.predict([row])));
  assert.equal(engine.bundle.stats.executions, 1, 'one batch');
  outcomes.forEach((outcome, i) => {
    const needs = hashKeys(rows[i]!).includes(down);
    assert.equal(outcome.status, needs ? 'rejected' : 'fulfilled', `row ${i}`);
    if (outcome.status === 'fulfilled') engine.assertScores([rows[i]!], outcome.value);
  });
});

test('reports the lookup outcomes of each slot on request', async (t) => {
  const engine = await EngineFixture.inMemory(t, { toy: { wide: true } });
  const rows = toyRows(70);
  const { slots, unseen } = await engine.predict(rows, { slotOutcomes: true });
  assert.ok(slots);
  assert.deepEqual(
    slots.map(({ slot }) => slot),
    ['C1', 'C2', 'C3'],
  );
  assert.equal(
    slots.reduce((sum, slot) => sum + slot.unseen, 0),
    unseen,
  );
  const total = slots.map((slot) => slot.hit + slot.unseen + slot.unavailable);
  // C1 and C3 are in two tables.
  assert.deepEqual(total, [140, 70, 140]);
  assert.equal((await engine.predict(rows)).slots, undefined);
});
