/**
 * Findings of the gate: drift against a naive computation, verdicts, and escaping in the HTML
 * report.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { computeFindings } from '../../../cube-agent/gate/findings.ts';
import { DEFAULT_LIMITS, LIMIT_NAMES } from '../../../cube-agent/gate/gate-limits.ts';
import type { GateReport } from '../../../cube-agent/gate/gate-report.ts';
import { type GoldenRow, NO_LABEL } from '../../../cube-agent/gate/golden-rows.ts';
import { ReplayRecord } from '../../../cube-agent/gate/replay-record.ts';
import { renderHtmlReport } from '../../../cube-agent/gate/report-page.ts';
import { renderTextReport } from '../../../cube-agent/gate/report-text.ts';
import {
  computeDrift,
  computeHistogram,
  computePsi,
} from '../../../cube-agent/gate/score-drift.ts';
import {
  type Check,
  checkFindings,
  createUnservableCheck,
  decideVerdict,
  requireHealthyBaseline,
} from '../../../cube-agent/gate/verdict.ts';
import { CubeError } from '../../../lib/core/errors.ts';

const score = fc.double({ min: 0, max: 1, noNaN: true });
const pairs = fc.array(fc.tuple(score, score), { minLength: 1, maxLength: 300 });

test('drift equals a naive computation', () => {
  fc.assert(
    fc.property(pairs, (rows) => {
      const ours = Float64Array.from(rows, ([a]) => a);
      const theirs = Float64Array.from(rows, ([, b]) => b);
      const drift = computeDrift(ours, theirs);
      const distance = rows.map(([a, b]) => Math.abs(a - b)).sort((a, b) => a - b);
      assert.equal(drift.largest, distance.at(-1));
      const mean = distance.reduce((sum, d) => sum + d, 0) / distance.length;
      assert.ok(Math.abs(drift.mean - mean) < 1e-12);
      const notAbove = (value: number): number => distance.filter((d) => d <= value).length;
      for (const [value, share] of [
        [drift.p50, 0.5],
        [drift.p99, 0.99],
      ] as const) {
        assert.ok(notAbove(value) >= share * rows.length, 'so many are not above it');
        assert.ok(
          distance.filter((d) => d < value).length < share * rows.length,
          'and no fewer would do',
        );
      }
    }),
  );
});

test('the stability index is 0 for equal columns, finite, and ignores row order', () => {
  fc.assert(
    fc.property(pairs, (rows) => {
      const ours = Float64Array.from(rows, ([a]) => a);
      const theirs = Float64Array.from(rows, ([, b]) => b);
      assert.equal(computePsi(theirs.slice().reverse(), theirs), 0);
      const psi = computePsi(ours, theirs);
      assert.ok(psi >= 0 && Number.isFinite(psi));
      assert.ok(Math.abs(computePsi(ours.slice().reverse(), theirs) - psi) < 1e-12);
    }),
  );
});

test('a histogram counts every value, even if all are equal', () => {
  fc.assert(
    fc.property(pairs, fc.boolean(), (rows, isCentred) => {
      const columns = [0, 1].map((side) => Float64Array.from(rows, (row) => row[side]!));
      const { low, high, counts } = computeHistogram(columns, 7, isCentred);
      assert.ok(low < high);
      if (isCentred) assert.ok(Math.abs(low + high) < 1e-12);
      for (const bins of counts)
        assert.equal(
          bins.reduce((sum, n) => sum + n, 0),
          rows.length,
        );
    }),
  );
  const { counts } = computeHistogram([new Float64Array(5)], 41, true);
  assert.equal(counts[0]?.[20], 5, 'no difference is in the middle');
});

const goldenRows = (labels: readonly number[]): GoldenRow[] =>
  labels.map((label, i) => ({ line: i + 1, value: {}, label, score: Number.NaN, isKeyed: false }));

function side(
  version: string,
  scores: readonly number[],
): { version: string; record: ReplayRecord } {
  const record = new ReplayRecord(scores.length);
  record.addSent(scores.length);
  record.scores.set(scores);
  record.addLatency(1);
  return { version, record };
}

test('only rows scored by both are compared; limits without a measurement do not fail', () => {
  const rows = goldenRows([1, 0, NO_LABEL, 1]);
  const ours = side('2', [0.9, 0.2, 0.5, Number.NaN]);
  const theirs = side('1', [0.8, Number.NaN, 0.5, 0.7]);
  const findings = computeFindings(rows, ours, theirs);
  assert.equal(findings.drift?.rows, 2);
  assert.deepEqual(findings.furthest, [{ line: 1, candidate: 0.9, baseline: 0.8 }]);
  assert.equal(findings.candidate.quality?.rows, 1);
  const checks = checkFindings(findings, { ...DEFAULT_LIMITS, qualityRowsMin: 0, aucMin: 0.5 });
  const byLimit = new Map(checks.map((check) => [check.limit, check]));
  assert.deepEqual(
    [byLimit.get('aucMin')?.outcome, byLimit.get('aucMin')?.note],
    ['not checked', 'all labels are equal'],
  );
  assert.equal(decideVerdict(checks), 'fail', 'mean drift of 0.05');
  const few = checkFindings(findings, DEFAULT_LIMITS).find(({ limit }) => limit === 'aucDropMax');
  assert.match(few?.note ?? '', /too few labelled rows: 1/);
});

test('a disabled limit is not checked; every other limit alone can fail a version', () => {
  const off = Object.fromEntries(LIMIT_NAMES.map((name) => [name, null])) as typeof DEFAULT_LIMITS;
  const findings = computeFindings(
    goldenRows([1, 0]),
    side('2', [0.1, 0.9]),
    side('1', [0.9, 0.1]),
  );
  assert.deepEqual(
    checkFindings(findings, off).map(({ limit }) => limit),
    ['answersBroken'],
  );
  for (const limit of ['driftMeanMax', 'driftP50Max', 'driftP99Max', 'driftLargestMax'] as const) {
    const [, check] = checkFindings(findings, { ...off, [limit]: 0.5 });
    assert.deepEqual([check?.limit, check?.outcome], [limit, 'fail']);
  }
  for (const limit of ['aucDropMax', 'loglossRiseMax'] as const) {
    const [, check] = checkFindings(findings, { ...off, [limit]: 0.5 });
    assert.deepEqual([check?.limit, check?.outcome], [limit, 'fail']);
  }
});

test('a baseline that scored no row cannot be compared with', () => {
  const silent = side('1', [Number.NaN, Number.NaN]);
  silent.record.addFailure(goldenRows([1]), new CubeError('UNAVAILABLE', 'shard 0 is away'));
  assert.throws(
    () => computeFindings(goldenRows([1, 0]), side('2', [0.1, 0.9]), silent),
    /version 1, scored no row.*shard 0 is away/,
  );
});

test('when the baseline fails too, the gate gives no verdict', () => {
  const rows = goldenRows([1, 0, 1]);
  const [ours, theirs] = [side('2', [0.1, 0.9, Number.NaN]), side('1', [0.1, 0.9, 0.5])];
  const late = new CubeError('DEADLINE_EXCEEDED', 'no answer within 2000 ms');
  ours.record.addFailure(rows.slice(2), late);
  const alone = computeFindings(rows, ours, theirs);
  requireHealthyBaseline(alone, DEFAULT_LIMITS);
  assert.equal(
    decideVerdict(checkFindings(alone, DEFAULT_LIMITS)),
    'fail',
    'late by itself, it fails',
  );
  theirs.record.addFailure(rows.slice(0, 1), late);
  const both = computeFindings(rows, ours, theirs);
  assert.throws(
    () => requireHealthyBaseline(both, DEFAULT_LIMITS),
    /1 of 3 rows unanswered too \(no answer/,
  );
  requireHealthyBaseline(both, { ...DEFAULT_LIMITS, errorsMax: 0.5 });
});

test('text from outside is escaped in the report', () => {
  const hostile = `</td><script>alert("1")</script><img src=x onerror='1'>&amp;`;
  const ours = side('2', [0.1, 0.9]);
  ours.record.addFailure(goldenRows([1]), new CubeError('INTERNAL', hostile));
  ours.record.addPrediction(0, {
    model: '',
    version: '2',
    tablesVersion: '2',
    unseen: 0,
    unavailable: 0,
    degraded: false,
    probabilities: Float32Array.of(0.1, 0.9),
    slots: [{ slot: hostile, hit: 1, unseen: 1, unavailable: 0 }],
  });
  const findings = computeFindings(goldenRows([1, 0]), ours, side('1', [0.9, 0.1]));
  const report = (checks: readonly Check[]): GateReport => ({
    format: 1,
    bundle: hostile,
    version: hostile,
    against: hostile,
    at: hostile,
    by: hostile,
    verdict: 'fail',
    policy: hostile,
    limits: DEFAULT_LIMITS,
    checks,
    golden: { source: hostile, rows: 2, total: 3, labelled: 2 },
    replay: { rowsPerRequest: 1, requestsPerSecond: 1 },
    findings,
  });
  for (const checks of [
    checkFindings(findings, DEFAULT_LIMITS),
    [createUnservableCheck(hostile)],
  ]) {
    const page = renderHtmlReport(report(checks));
    assert.doesNotMatch(page, /<script|<img|&amp;amp;amp;/);
    assert.match(page, /&lt;script&gt;alert\(&quot;1&quot;\)/);
    assert.match(page, /default-src 'none'/);
    assert.doesNotMatch(page, /https?:|src=[^x]|@import|url\(/, 'nothing from the network');
    const opened = [...page.matchAll(/<(table|tr|td|svg|g|section|div|h[12]|p)[ >]/g)].length;
    const closed = [...page.matchAll(/<\/(table|tr|td|svg|g|section|div|h[12]|p)>/g)].length;
    assert.equal(opened, closed);
    assert.ok(renderTextReport(report(checks)).includes('FAIL'));
  }
});
