/** Confidence intervals against their definitions, and how often they contain the true value. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  aucInterval,
  calibrationInterval,
  type GroupedScores,
  type Interval,
  loglossInterval,
} from '../../lib/core/metric-intervals.ts';
import { auc } from '../../lib/core/model-metrics.ts';

const QUANTILE = 1.959963984540054;

/** DeLong's variance by its definition: every pair of a click and another row. */
function naiveDeLong({ labels, scores }: GroupedScores): Interval {
  const of = (label: number): number[] => [...scores].filter((_, row) => labels[row] === label);
  const [others, clicks] = [of(0), of(1)];
  const wins = (click: number, other: number): number =>
    click > other ? 1 : click === other ? 0.5 : 0;
  const mean = (values: readonly number[]): number =>
    values.reduce((sum, value) => sum + value, 0) / values.length;
  const variance = (values: readonly number[]): number =>
    values.reduce((sum, value) => sum + (value - mean(values)) ** 2, 0) / (values.length - 1);
  const byClick = clicks.map((click) => mean(others.map((other) => wins(click, other))));
  const byOther = others.map((other) => mean(clicks.map((click) => wins(click, other))));
  const half =
    QUANTILE * Math.sqrt(variance(byClick) / clicks.length + variance(byOther) / others.length);
  const value = mean(byClick);
  return { low: Math.max(value - half, 0), high: Math.min(value + half, 1) };
}

function assertClose(got: Interval, expected: Interval): void {
  assert.ok(Math.abs(got.low - expected.low) < 1e-7, `${got.low} for ${expected.low}`);
  assert.ok(Math.abs(got.high - expected.high) < 1e-7, `${got.high} for ${expected.high}`);
}

/** Uniform in 0..1, from a fixed seed. */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Groups of rows with the same score and label; scores are the true probabilities. */
function drawScores(random: () => number, groupNum: number, groupRows: number): GroupedScores {
  const rows = groupNum * groupRows;
  const labels = new Uint8Array(rows);
  const scores = new Float64Array(rows);
  for (let group = 0; group < groupNum; group++) {
    const score = random();
    const label = random() < score ? 1 : 0;
    labels.fill(label, group * groupRows, (group + 1) * groupRows);
    scores.fill(score, group * groupRows, (group + 1) * groupRows);
  }
  const groups = Uint32Array.from({ length: rows }, (_, row) => Math.floor(row / groupRows));
  return { labels, scores, groups };
}

test('the interval of the AUC is that of DeLong when each row is a group', () => {
  const row = fc.tuple(fc.constantFrom(0, 1), fc.constantFrom(0, 0.1, 0.25, 0.5, 0.9, 1));
  fc.assert(
    fc.property(fc.array(row, { maxLength: 40 }), (rows) => {
      const all: (readonly [number, number])[] = [[0, 0.2], [0, 0.4], [1, 0.3], [1, 0.7], ...rows];
      const data = {
        labels: Uint8Array.from(all, ([label]) => label),
        scores: Float64Array.from(all, ([, score]) => score),
        groups: Uint32Array.from(all.keys()),
      };
      assertClose(aucInterval(data), naiveDeLong(data));
    }),
  );
});

test('repeating each row in its group changes no interval', () => {
  const random = createRandom(1);
  const single = drawScores(random, 50, 1);
  const repeat = <T extends Uint8Array | Float64Array | Uint32Array>(column: T): number[] =>
    Array.from(column).flatMap((value) => [value, value, value]);
  const repeated = {
    labels: Uint8Array.from(repeat(single.labels)),
    scores: Float64Array.from(repeat(single.scores)),
    groups: Uint32Array.from(repeat(single.groups)),
  };
  for (const compute of [aucInterval, loglossInterval, calibrationInterval]) {
    assertClose(compute(repeated), compute(single));
  }
});

test('about 95 of 100 intervals contain the true value, also for dependent rows', () => {
  // Scores are uniform and clicks have these probabilities: AUC 5/6, logloss 1/2, calibration 1.
  const truths = [
    [aucInterval, 5 / 6],
    [loglossInterval, 1 / 2],
    [calibrationInterval, 1],
  ] as const;
  for (const groupRows of [1, 4]) {
    const random = createRandom(7);
    const runs = Array.from({ length: 500 }, () => drawScores(random, 200, groupRows));
    for (const [compute, truth] of truths) {
      const hits = runs.filter((run) => {
        const { low, high } = compute(run);
        return low <= truth && truth <= high;
      });
      const share = hits.length / runs.length;
      assert.ok(share > 0.92 && share < 0.98, `${compute.name}, ${groupRows} rows: ${share}`);
    }
  }
});

test('there is no interval without clicks, or with one group', () => {
  const scores = Float64Array.of(0.1, 0.2, 0.3);
  const none = { labels: new Uint8Array(3), scores, groups: Uint32Array.of(0, 1, 2) };
  assert.ok(Number.isNaN(aucInterval(none).low));
  assert.ok(Number.isNaN(calibrationInterval(none).high));
  const one = { labels: Uint8Array.of(0, 1, 1), scores, groups: new Uint32Array(3) };
  assert.equal(auc(one.labels, one.scores), 1);
  for (const compute of [aucInterval, loglossInterval, calibrationInterval]) {
    assert.deepEqual(compute(one), { low: Number.NaN, high: Number.NaN });
  }
});
