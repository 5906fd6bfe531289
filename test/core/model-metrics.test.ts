/**
 * Model metrics against a simple reference that counts every pair, and against values computed by
 * hand.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { auc, calibration, calibrationBuckets, logloss } from '../../lib/core/model-metrics.ts';

/** O(n²): every (click, other) pair, a tie counting half. */
function naiveAuc(labels: Uint8Array, scores: ArrayLike<number>): number {
  let wins = 0;
  let pairs = 0;
  labels.forEach((click, i) => {
    labels.forEach((other, j) => {
      if (click !== 1 || other !== 0) return;
      pairs += 1;
      if (scores[i]! > scores[j]!) wins += 1;
      else if (scores[i]! === scores[j]!) wins += 0.5;
    });
  });
  return pairs === 0 ? Number.NaN : wins / pairs;
}

function naiveLogloss(labels: Uint8Array, probabilities: ArrayLike<number>): number {
  const losses = [...labels].map((label, i) => {
    const p = Math.min(Math.max(probabilities[i]!, 1e-15), 1 - 1e-15);
    return -(label * Math.log(p) + (1 - label) * Math.log(1 - p));
  });
  return losses.reduce((sum, loss) => sum + loss, 0) / losses.length;
}

const label = fc.integer({ min: 0, max: 1 });
/** Scores from a small set, so that ties, −0 and the infinities are common. */
const tiedScore = fc.constantFrom(0, -0, 0.25, 0.5, 1, -3, Infinity, -Infinity);
const score = fc.oneof(tiedScore, fc.double({ noNaN: true }));
const rows = fc.array(fc.tuple(label, score), { maxLength: 60 });
const toLabels = (list: readonly (readonly [number, number])[]): Uint8Array =>
  Uint8Array.from(list, ([value]) => value);
const toScores = (list: readonly (readonly [number, number])[]): Float64Array =>
  Float64Array.from(list, ([, value]) => value);

const invalid = (pattern: RegExp) => (error: unknown) =>
  error instanceof CubeError && error.code === 'INVALID_ARGUMENT' && pattern.test(error.message);

test('auc equals values computed by hand', () => {
  assert.equal(auc(Uint8Array.of(0, 0, 1, 1), Float64Array.of(0.1, 0.4, 0.35, 0.8)), 0.75);
  assert.equal(auc(Uint8Array.of(1, 0), Float64Array.of(2, 1)), 1);
  assert.equal(auc(Uint8Array.of(1, 0), Float64Array.of(1, 2)), 0);
  assert.equal(auc(Uint8Array.of(1, 0, 1, 0), new Float64Array(4)), 0.5);
  assert.equal(auc(Uint8Array.of(1, 0), Float64Array.of(0, -0)), 0.5);
});

test('auc is NaN when all labels are equal', () => {
  assert.ok(Number.isNaN(auc(Uint8Array.of(1, 1), Float64Array.of(1, 2))));
  assert.ok(Number.isNaN(auc(Uint8Array.of(0), Float64Array.of(1))));
  assert.ok(Number.isNaN(auc(new Uint8Array(0), new Float64Array(0))));
});

test('auc equals counting every pair, ties included', () => {
  fc.assert(
    fc.property(rows, (list) => {
      const labels = toLabels(list);
      assert.ok(Object.is(auc(labels, toScores(list)), naiveAuc(labels, toScores(list))));
      const single = Float32Array.from(toScores(list));
      assert.ok(Object.is(auc(labels, single), naiveAuc(labels, single)));
    }),
    { numRuns: 500 },
  );
});

test('auc is mirrored when labels are swapped, and leaves its inputs unchanged', () => {
  fc.assert(
    fc.property(rows, (list) => {
      const labels = toLabels(list);
      const scores = toScores(list);
      const straight = auc(labels, scores);
      const turned = auc(
        labels.map((value) => 1 - value),
        scores,
      );
      if (!Number.isNaN(straight)) assert.ok(Math.abs(straight + turned - 1) < 1e-12);
      assert.deepEqual(labels, toLabels(list));
      assert.deepEqual(scores, toScores(list));
    }),
  );
});

test('auc refuses invalid labels and scores', () => {
  assert.throws(() => auc(new Uint8Array(2), new Float64Array(3)), invalid(/2 labels but 3/));
  assert.throws(
    () => auc(Uint8Array.of(0, 2), new Float64Array(2)),
    invalid(/row 1: the label is 2/),
  );
  assert.throws(
    () => auc(Uint8Array.of(0, 1), Float64Array.of(0, NaN)),
    invalid(/row 1: the score/),
  );
});

test('logloss equals values computed by hand', () => {
  assert.equal(logloss(Uint8Array.of(1), Float64Array.of(0.5)), Math.LN2);
  const mixed = logloss(Uint8Array.of(1, 0), Float64Array.of(0.9, 0.2));
  assert.ok(Math.abs(mixed - (-Math.log(0.9) - Math.log(0.8)) / 2) < 1e-15);
  assert.ok(Number.isNaN(logloss(new Uint8Array(0), new Float64Array(0))));
});

test('logloss clips probabilities at 1e-15', () => {
  const wrong = -Math.log(1e-15);
  assert.ok(Math.abs(logloss(Uint8Array.of(1), Float64Array.of(0)) - wrong) < 1e-9);
  // 1 − 1e-15 is not exact in f64: scikit-learn shows the same 34.539.
  assert.ok(Math.abs(logloss(Uint8Array.of(0), Float32Array.of(1)) - wrong) < 1e-2);
  assert.ok(logloss(Uint8Array.of(1), Float64Array.of(1)) < 1e-14);
});

test('logloss equals the definition', () => {
  const probability = fc.double({ min: 0, max: 1, noNaN: true });
  const some = fc.array(fc.tuple(label, probability), { minLength: 1, maxLength: 60 });
  fc.assert(
    fc.property(some, (list) => {
      const expected = naiveLogloss(toLabels(list), toScores(list));
      const got = logloss(toLabels(list), toScores(list));
      assert.ok(Math.abs(got - expected) <= 1e-12 * Math.max(1, expected));
    }),
  );
});

test('calibration is the mean prediction over the mean label', () => {
  assert.equal(calibration(Uint8Array.of(1, 0, 0, 1), Float64Array.of(0.5, 0.5, 0.5, 0.5)), 1);
  assert.equal(calibration(Uint8Array.of(1, 0), Float64Array.of(1, 1)), 2);
  assert.equal(calibration(Uint8Array.of(0), Float64Array.of(0.1)), Infinity);
  assert.ok(Number.isNaN(calibration(new Uint8Array(0), new Float64Array(0))));
});

test('calibration buckets have equal numbers of rows, in the order of the scores', () => {
  const labels = Uint8Array.of(1, 0, 0, 1, 1);
  const scores = Float64Array.of(0.9, 0.1, 0.2, 0.8, 0.4);
  const [low, high, ...others] = calibrationBuckets(labels, scores, 2);
  assert.ok(low && high);
  assert.deepEqual(others, []);
  assert.deepEqual([low.rows, high.rows], [3, 2]);
  assert.deepEqual([low.clickRate, high.clickRate], [1 / 3, 1]);
  assert.ok(Math.abs(low.meanPrediction - 0.7 / 3) < 1e-15);
  assert.deepEqual(calibrationBuckets(new Uint8Array(0), new Float64Array(0), 10), []);
});

test('calibration buckets cover all rows and ascend', () => {
  const probability = fc.double({ min: 0, max: 1, noNaN: true });
  const some = fc.array(fc.tuple(label, probability), { minLength: 1, maxLength: 60 });
  fc.assert(
    fc.property(some, fc.integer({ min: 1, max: 70 }), (list, bucketMax) => {
      const labels = toLabels(list);
      const buckets = calibrationBuckets(labels, toScores(list), bucketMax);
      const sizes = buckets.map(({ rows: size }) => size);
      assert.equal(buckets.length, Math.min(bucketMax, list.length));
      assert.ok(Math.max(...sizes) - Math.min(...sizes) <= 1);
      const clicks = buckets.reduce((sum, { rows: size, clickRate }) => sum + size * clickRate, 0);
      assert.ok(Math.abs(clicks - labels.reduce((sum, value) => sum + value, 0)) < 1e-9);
      buckets.slice(1).forEach(({ meanPrediction }, i) => {
        assert.ok(meanPrediction >= buckets[i]!.meanPrediction - 1e-12);
      });
    }),
  );
});
