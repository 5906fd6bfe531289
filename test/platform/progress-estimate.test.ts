/** Rates and remaining times of progress bars. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { formatDuration, ProgressEstimate } from '../../lib/platform/progress-estimate.ts';

/** Reports progress every 100 ms. @returns the time at the end */
function work(
  estimate: ProgressEstimate,
  from: { timeMs: number; done: number },
  perSecond: number,
  seconds: number,
): { timeMs: number; done: number } {
  for (let i = 1; i <= 10 * seconds; i++) {
    estimate.update(from.timeMs + 100 * i, from.done + (i / 10) * perSecond);
  }
  return { timeMs: from.timeMs + 1000 * seconds, done: from.done + seconds * perSecond };
}

const START = { timeMs: 1000, done: 0 };

function isAbout(actual: number | undefined, expected: number): void {
  assert.ok(Math.abs((actual ?? Number.NaN) - expected) <= 0.05 * expected, `${actual}`);
}

test('a steady rate gives the right remaining time from the first second on', () => {
  const estimate = new ProgressEstimate(START.timeMs);
  assert.equal(estimate.getSecondsLeft(START.timeMs, 1000), undefined);
  let now = START;
  for (let second = 1; second < 100; second++) {
    now = work(estimate, now, 10, 1);
    isAbout(estimate.getRate(now.timeMs), 10);
    isAbout(estimate.getSecondsLeft(now.timeMs, 1000), 100 - second);
  }
  now = work(estimate, now, 10, 1);
  assert.equal(estimate.getSecondsLeft(now.timeMs, 1000), 0);
});

test('work of an earlier run counts neither for the rate nor as left', () => {
  const estimate = new ProgressEstimate(START.timeMs);
  estimate.skip(900);
  const now = work(estimate, { timeMs: START.timeMs, done: 900 }, 1, 10);
  isAbout(estimate.getRate(now.timeMs), 1);
  isAbout(estimate.getSecondsLeft(now.timeMs, 1000), 90);
});

test('a change of speed shows after the window, a standstill at once', () => {
  const estimate = new ProgressEstimate(START.timeMs);
  let now = work(estimate, START, 100, 60);
  now = work(estimate, now, 10, 20);
  isAbout(estimate.getSecondsLeft(now.timeMs, now.done + 300), 30);
  const before = estimate.getSecondsLeft(now.timeMs, now.done + 300)!;
  assert.ok(estimate.getSecondsLeft(now.timeMs + 5_000, now.done + 300)! > before);
  assert.equal(estimate.getSecondsLeft(now.timeMs + 60_000, now.done + 300), undefined);
});

test('durations are short to read', () => {
  assert.deepEqual([0.2, 59, 60, 200.4, 7_500].map(formatDuration), [
    '1 s',
    '59 s',
    '1 min 0 s',
    '3 min 21 s',
    '2 h 5 min',
  ]);
});
