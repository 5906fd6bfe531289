import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { JsonReader } from '../../lib/core/json.ts';
import { ShadowTally } from '../../lib/core/shadow.ts';

const scores = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 1 });

function makeTally(primary: readonly number[], shadow: readonly number[], durationMs = 1) {
  const tally = new ShadowTally();
  tally.addAnswer({
    primary: { durationMs, scores: primary },
    shadow: { durationMs: 2 * durationMs, scores: shadow },
  });
  return tally;
}

test('equal scores have a stability index of 0, and others a positive one', () => {
  fc.assert(
    fc.property(scores, (values) => {
      assert.equal(makeTally(values, values).psi, 0);
      const moved = makeTally(
        values.map(() => 0.01),
        values.map(() => 0.99),
      );
      assert.ok(moved.psi > 1);
    }),
  );
});

test('the stability index of a known shift', () => {
  const primary = Array.from({ length: 1_000 }, () => 0.12);
  const { psi } = makeTally(
    primary,
    primary.map((score, i) => (i < 100 ? 0.17 : score)),
  );
  // (0.9 − 1) · ln 0.9 + (0.1 − 0.0001) · ln(0.1 / 0.0001)
  assert.ok(Math.abs(psi - 0.7006) < 1e-3, `${psi}`);
});

test('tallies of two processes add up to the tally of all requests', () => {
  fc.assert(
    fc.property(scores, scores, (first, second) => {
      const move = (values: readonly number[]): number[] => values.map((value) => value ** 2);
      const [one, two] = [makeTally(first, move(first), 3), makeTally(second, move(second), 70)];
      two.addFailure('DEADLINE_EXCEEDED');
      two.dropped = 2;
      const both = makeTally(first, move(first), 3);
      both.addAnswer({
        primary: { durationMs: 70, scores: second },
        shadow: { durationMs: 140, scores: move(second) },
      });
      both.addFailure('DEADLINE_EXCEEDED');
      both.dropped = 2;
      one.addJson(JsonReader.parse(JSON.stringify(two.toJson()), 'test'));
      const { drift, ...others } = one.summarize();
      const { drift: expected, ...expectedOthers } = both.summarize();
      assert.deepEqual(others, expectedOthers);
      assert.ok(Math.abs(drift.mean - expected.mean) < 1e-9);
      assert.deepEqual({ ...drift, mean: 0 }, { ...expected, mean: 0 });
    }),
  );
});

test('percentiles are at most 15 % above the exact ones', () => {
  fc.assert(
    fc.property(
      fc.array(fc.double({ min: 0.02, max: 1e5, noNaN: true }), { minLength: 1 }),
      (ms) => {
        const tally = new ShadowTally();
        for (const durationMs of ms) {
          const side = { durationMs, scores: [] };
          tally.addAnswer({ primary: side, shadow: side });
        }
        const sorted = ms.toSorted((a, b) => a - b);
        const exact = sorted[Math.ceil(0.99 * ms.length) - 1] ?? Number.NaN;
        const { p99Ms } = tally.summarize().latency.shadow;
        assert.ok(p99Ms >= exact * (1 - 1e-9) && p99Ms <= exact * 1.15, `${p99Ms} for ${exact}`);
      },
    ),
  );
});

test('a report with wrong counts is refused', () => {
  const good = makeTally([0.1], [0.2]).toJson();
  for (const counts of [
    { differences: [-1] },
    { primaryScores: [1] },
    { shadowMs: Array.from({ length: 1_000 }, () => 1) },
    { primaryMs: ['x'] },
  ]) {
    const json = { ...good, counts: { ...(good as { counts: object }).counts, ...counts } };
    assert.throws(() => new ShadowTally().addJson(JsonReader.of(json, 'report')), /report: counts/);
  }
});
