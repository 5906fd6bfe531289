/** Outlier ejection, slow start and the adaptive concurrency limit, as functions. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { ConcurrencyLimit, computeLimit } from '../../lib/client/concurrency-limit.ts';
import {
  getEjectedMax,
  getEjectionMs,
  isOutlier,
  OutlierState,
} from '../../lib/client/outlier-ejection.ts';
import { Replica } from '../../lib/client/replica.ts';
import { ReplicaSet } from '../../lib/client/replica-set.ts';
import { getSlowStartShare } from '../../lib/client/slow-start.ts';

const outcomes = fc
  .tuple(fc.nat(1_000), fc.double({ min: 0, max: 1, noNaN: true }))
  .map(([calls, rate]) => ({ calls, failures: Math.round(calls * rate) }));

test('an outlier fails much more than the others; when all fail alike, nobody is one', () => {
  fc.assert(
    fc.property(outcomes, outcomes, (own, others) => {
      if (!isOutlier(own, others)) return;
      assert.ok(own.calls >= 10 && others.calls >= 10);
      assert.ok(own.failures / own.calls >= 0.2);
      assert.ok(own.failures / own.calls >= (3 * others.failures) / others.calls);
      assert.ok(!isOutlier(others, own), 'both are outliers');
    }),
  );
  assert.ok(isOutlier({ calls: 20, failures: 10 }, { calls: 100, failures: 1 }));
  assert.ok(!isOutlier({ calls: 20, failures: 20 }, { calls: 100, failures: 90 }));
});

test('at most half of the replicas are ejected, for longer and longer', () => {
  for (let count = 1; count < 20; count++) assert.ok(2 * getEjectedMax(count) <= count);
  assert.deepEqual([1, 2, 3, 10].map(getEjectionMs), [1_000, 2_000, 4_000, 30_000]);
  const state = new OutlierState();
  for (let i = 0; i < 20; i++) state.record(0, true);
  assert.deepEqual(state.getOutcomes(6_000), { calls: 20, failures: 20 });
  assert.deepEqual(state.getOutcomes(20_000), { calls: 0, failures: 0 });
  state.eject(20_000);
  assert.ok(state.isEjected(20_999) && !state.isEjected(21_000));
  state.eject(22_000);
  assert.equal(state.ejectedUntilMs, 24_000);
  state.eject(200_000);
  assert.equal(state.ejectedUntilMs, 201_000);
});

test('a set ejects a flaky replica, and gives it a growing share when it returns', () => {
  const replicas = [1, 2, 3].map((i) => new Replica(`10.0.0.${i}:1`, 'pooled', undefined));
  const set = new ReplicaSet(0, replicas, [1, 1, 1]);
  const [flaky, ...others] = replicas as [Replica, Replica, Replica];
  for (const replica of replicas) replica.recordAnswer('v', 0);
  for (const other of others) for (let i = 0; i < 20; i++) other.recordOutcome(0, false);
  let ejectedAt = 0;
  for (let i = 1; i <= 20 && ejectedAt === 0; i++) if (set.recordFailure(flaky, 0)) ejectedAt = i;
  assert.equal(ejectedAt, 10);
  const countPicks = (nowMs: number): number =>
    Array.from({ length: 600 }, () => set.pick('v', [], nowMs, 0)).filter((one) => one === flaky)
      .length;
  assert.equal(countPicks(500), 0);
  assert.ok(flaky.stats(500).ejected);
  const counts = [1_000, 3_500, 6_000].map(countPicks);
  assert.ok(counts[0]! < 60 && counts[1]! > counts[0]! && counts[1]! < 160, `${counts}`);
  assert.equal(counts[2], 200);
  assert.equal(set.pick('v', others, 500, 0), flaky, 'the last one left is called');
});

test('the share after a return grows from a tenth to all', () => {
  fc.assert(
    fc.property(fc.nat(20_000), fc.nat(20_000), (a, b) => {
      const [early, late] = [getSlowStartShare(Math.min(a, b)), getSlowStartShare(Math.max(a, b))];
      assert.ok(early >= 0.1 && early <= late && late <= 1);
    }),
  );
  assert.equal(getSlowStartShare(5_000), 1);
  assert.equal(getSlowStartShare(Number.POSITIVE_INFINITY), 1);
});

test('the limit stays in its bounds, and never grows while calls queue or are refused', () => {
  const positive = fc.double({ min: 0.01, max: 100_000, noNaN: true });
  const windows = fc.record({
    limit: fc.double({ min: 2, max: 4_096, noNaN: true }),
    baseMs: positive,
    latencyMs: positive,
    inFlightMax: fc.integer({ min: 1, max: 5_000 }),
    refusals: fc.nat(3),
  });
  fc.assert(
    fc.property(windows, (window) => {
      const { limit, baseMs } = computeLimit(window);
      assert.ok(limit >= 2 && limit <= 4_096);
      if (window.refusals > 0) assert.ok(limit <= window.limit);
      else {
        assert.ok(baseMs <= Math.max(window.baseMs, window.latencyMs));
        if (window.latencyMs > 2 * baseMs + 2) assert.ok(limit <= window.limit);
        if (window.inFlightMax < window.limit / 2) assert.ok(limit <= window.limit);
      }
    }),
  );
});

test('the limit of a queue settles near its capacity', () => {
  // A server with 8 workers and 10 ms for a call; the client always has more calls.
  const limit = new ConcurrencyLimit();
  const latencyMs = (inFlight: number): number => (10 * Math.max(8, inFlight)) / 8;
  limit.recordCall(1);
  for (let i = 0; i < 16; i++) limit.recordAnswer(latencyMs(1), 0);
  for (let nowMs = 0; nowMs < 10_000; nowMs += 100) {
    limit.recordCall(limit.value);
    for (let i = 0; i < 16; i++) limit.recordAnswer(latencyMs(limit.value), nowMs + i);
  }
  assert.ok(limit.value >= 8 && limit.value <= 40, `${limit.value}`);
  limit.recordRefusal(20_000);
  assert.ok(limit.value >= 2);
});
