import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { ScoreComparison } from '../../lib/core/shadow.ts';

const scores = fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { minLength: 1 });

test('equal scores have a stability index of 0, and others a positive one', () => {
  fc.assert(
    fc.property(scores, (values) => {
      const [same, moved] = [new ScoreComparison(), new ScoreComparison()];
      for (const value of values) {
        same.add(value, value);
        moved.add(0.01, 0.99);
      }
      assert.equal(same.psi, 0);
      assert.ok(moved.psi > 1);
    }),
  );
});

test('the stability index does not depend on the order of the rows', () => {
  fc.assert(
    fc.property(scores, (values) => {
      const [forward, backward] = [new ScoreComparison(), new ScoreComparison()];
      for (const value of values) forward.add(value, value * value);
      for (const value of values.toReversed()) backward.add(value, value * value);
      assert.ok(Math.abs(forward.psi - backward.psi) < 1e-9);
    }),
  );
});

test('the stability index of a known shift', () => {
  const comparison = new ScoreComparison();
  for (let i = 0; i < 1_000; i++) comparison.add(0.12, i < 100 ? 0.17 : 0.12);
  // (0.9 − 1) · ln 0.9 + (0.1 − 0.0001) · ln(0.1 / 0.0001)
  assert.ok(Math.abs(comparison.psi - 0.7006) < 1e-3, `${comparison.psi}`);
});
