/** Batches across callers: who gets what, who waits, who is refused, and what fails alone. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { keyOf, toyRows } from '../toy-bundle.ts';
import { closeGate, EngineBench, refused, turn } from './engine-bench.ts';

it('gives every caller its own rows, whatever comes when, and fails nobody else', async (t) => {
  const bench = await EngineBench.inMemory(t, { instances: 2, wish: { wide: true } });
  const request = fc.record({
    rows: fc.integer({ min: 1, max: 150 }),
    seed: fc.integer({ min: 1, max: 1_000 }),
    priority: fc.integer({ min: 0, max: 2 }),
    turns: fc.integer({ min: 0, max: 3 }),
    fate: fc.constantFrom('answered', 'answered', 'answered', 'expired', 'gone'),
  });
  await fc.assert(
    fc.asyncProperty(fc.array(request, { minLength: 1, maxLength: 25 }), async (requests) => {
      const outcomes: Promise<void>[] = [];
      for (const { rows: count, seed, priority, turns, fate } of requests) {
        for (let i = 0; i < turns; i++) await turn();
        const rows = toyRows(count, seed);
        const gone = new AbortController();
        const deadlineMs = performance.now() + (fate === 'expired' ? -1 : 30_000);
        const answer = bench.predict(rows, { priority, deadlineMs, signal: gone.signal });
        if (fate === 'gone') gone.abort();
        outcomes.push(
          fate === 'answered'
            ? answer.then((prediction) => bench.assertScores(rows, prediction))
            : refused(answer, 'DEADLINE_EXCEEDED', /deadline passed|nobody waits/),
        );
      }
      await Promise.all(outcomes);
      const { pendingRows, pendingRequests } = bench.bundle.stats;
      assert.deepEqual({ pendingRows, pendingRequests }, { pendingRows: 0, pendingRequests: 0 });
    }),
    { numRuns: 40 },
  );
});

it('merges what comes together into one batch and one lookup; splits what is too large', async (t) => {
  const bench = await EngineBench.onMaps(t);
  const row = toyRows(1)[0]!;
  await Promise.all(Array.from({ length: 64 }, () => bench.predict([row])));
  assert.deepEqual(bench.store.lookups.length, 1);
  assert.ok(bench.store.lookups[0]![0]! <= 3, 'distinct keys only');
  await bench.predict(toyRows(200));
  assert.equal(bench.bundle.stats.executions, 1 + 4);
  assert.deepEqual(
    bench.bundle.stats.batchSizes().map(({ rows, executions }) => [rows, executions]),
    [
      [8, 1],
      [64, 4],
    ],
  );
});

it('refuses what the queue has no room for, and answers the rest', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueRowsMax: 10, queueTimeoutMs: 0 };
  const bench = await EngineBench.onMaps(t, { batching });
  const gate = closeGate(bench.store);
  const first = bench.predict(toyRows(40));
  await turn();
  const waiting = [bench.predict(toyRows(1)), bench.predict(toyRows(1))];
  await refused(bench.predict(toyRows(1)), 'OVERLOADED', /10 rows wait .* limit of 10/);
  gate.open();
  await Promise.all([first, ...waiting]);
});

it('refuses who waited too long for an instance', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueTimeoutMs: 20 };
  const bench = await EngineBench.onMaps(t, { batching });
  const gate = closeGate(bench.store);
  const first = bench.predict(toyRows(32));
  await turn();
  await refused(bench.predict(toyRows(1)), 'OVERLOADED', /waited 20 ms/);
  gate.open();
  await first;
});

it('takes higher priorities first, and the same in their order', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueTimeoutMs: 0 };
  const bench = await EngineBench.onMaps(t, { batching });
  const gate = closeGate(bench.store);
  const done: string[] = [];
  const first = bench.predict(toyRows(32));
  await turn();
  const others = (
    [
      ['low', 2],
      ['usual', undefined],
      ['usual again', 1],
      ['high', 0],
    ] as const
  ).map(async ([name, priority]) => {
    await bench.predict(toyRows(4), priority === undefined ? {} : { priority });
    done.push(name);
  });
  gate.open();
  await Promise.all([first, ...others]);
  assert.deepEqual(done, ['high', 'usual', 'usual again', 'low']);
});

it('starves nobody: a low priority is answered while higher ones never cease', async (t) => {
  const batching = { maxBatch: 4, preferredSizes: [], queueTimeoutMs: 1_000 };
  const bench = await EngineBench.inMemory(t, { batching });
  const until = { done: false };
  const lane = async (seed: number): Promise<void> => {
    while (!until.done) await bench.predict(toyRows(4, seed), { priority: 0 });
  };
  const lanes = Array.from({ length: 12 }, (_, i) => lane(i + 1));
  await turn();
  const rows = toyRows(3);
  bench.assertScores(rows, await bench.predict(rows, { priority: 2 }));
  until.done = true;
  await Promise.all(lanes);
});

it('a caller that goes away takes nobody with it, and its rows are not worked on', async (t) => {
  const bench = await EngineBench.onMaps(t);
  const gone = new AbortController();
  const leaving = bench.predict(toyRows(64), { signal: gone.signal });
  const rows = toyRows(5);
  const staying = bench.predict(rows);
  gone.abort();
  await refused(leaving, 'DEADLINE_EXCEEDED', /nobody waits/);
  bench.assertScores(rows, await staying);
  assert.deepEqual(
    bench.bundle.stats.batchSizes().map(({ rows: size }) => size),
    [5],
  );
});

it('a row without a number fails its own request, not those in its batch', async (t) => {
  const bench = await EngineBench.onMaps(t);
  const rows = toyRows(12, 3);
  const poisoned = { dense: [1, 1], categorical: ['poison', 'b', 'c'] };
  const key = keyOf(0, 'poison');
  const table = bench.toy.tables[0]!.rows as Map<bigint, Float32Array>;
  table.set(key, new Float32Array(4).fill(Number.NaN));
  const clean = rows.filter(({ categorical }) =>
    categorical.every((feature, slot) => keyOf(slot, feature) !== key),
  );
  const [before, bad, after] = await Promise.allSettled([
    bench.predict(clean),
    bench.predict([clean[0]!, poisoned]),
    bench.predict(clean),
  ]);
  assert.equal(bench.bundle.stats.executions, 1, 'one batch');
  assert.equal(bad.status, 'rejected');
  assert.match((bad as PromiseRejectedResult).reason.message, /gave NaN for row 2/);
  for (const outcome of [before, after]) {
    assert.equal(outcome.status, 'fulfilled');
    if (outcome.status === 'fulfilled') bench.assertScores(clean, outcome.value);
  }
});

it('holds an unavailable shard against those requests that need it', async (t) => {
  const bench = await EngineBench.onMaps(t);
  const rows = toyRows(60, 9);
  const keysOf = ({ categorical }: (typeof rows)[number]): bigint[] =>
    categorical.map((feature, slot) => keyOf(slot, feature));
  const down = keysOf(rows[0]!)[0]!;
  bench.store.isDown = (key) => key === down;
  const outcomes = await Promise.allSettled(rows.map((row) => bench.predict([row])));
  assert.equal(bench.bundle.stats.executions, 1, 'one batch');
  outcomes.forEach((outcome, i) => {
    const needs = keysOf(rows[i]!).includes(down);
    assert.equal(outcome.status, needs ? 'rejected' : 'fulfilled', `row ${i}`);
    if (outcome.status === 'fulfilled') bench.assertScores([rows[i]!], outcome.value);
  });
});

it('says, when asked, how the lookups of each slot went', async (t) => {
  const bench = await EngineBench.inMemory(t, { wish: { wide: true } });
  const rows = toyRows(70);
  const { slots, unseen } = await bench.predict(rows, { detail: true });
  assert.deepEqual(
    slots!.map(({ slot }) => slot),
    ['C1', 'C2', 'C3'],
  );
  assert.equal(
    slots!.reduce((sum, slot) => sum + slot.unseen, 0),
    unseen,
  );
  const total = slots!.map((slot) => slot.hit + slot.unseen + slot.unavailable);
  // C1 and C3 are in two tables.
  assert.deepEqual(total, [140, 70, 140]);
  assert.equal((await bench.predict(rows)).slots, undefined);
});
