/** What the gate makes of scores: drift against a naive oracle, verdicts, and a page that nothing from outside can break out of. */
import assert from 'node:assert/strict';
import { it } from 'node:test';
import fc from 'fast-check';
import { findingsOf } from '../../cube-agent/gate/findings.ts';
import { DEFAULT_LIMITS, LIMIT_NAMES } from '../../cube-agent/gate/gate-limits.ts';
import type { GateReport } from '../../cube-agent/gate/gate-report.ts';
import { type GoldenRow, NO_LABEL } from '../../cube-agent/gate/golden-rows.ts';
import { reportPage } from '../../cube-agent/gate/report-page.ts';
import { reportText } from '../../cube-agent/gate/report-text.ts';
import { driftOf, histogramOf, psiOf } from '../../cube-agent/gate/score-drift.ts';
import { SideRecord } from '../../cube-agent/gate/side-record.ts';
import {
  type Check,
  checksOf,
  requireFitMachine,
  unfitCheck,
  verdictOf,
} from '../../cube-agent/gate/verdict.ts';
import { CubeError } from '../../lib/core/errors.ts';

const score = fc.double({ min: 0, max: 1, noNaN: true });
const pairs = fc.array(fc.tuple(score, score), { minLength: 1, maxLength: 300 });

it('drift is what a naive count finds', () => {
  fc.assert(
    fc.property(pairs, (rows) => {
      const ours = Float64Array.from(rows, ([a]) => a);
      const theirs = Float64Array.from(rows, ([, b]) => b);
      const drift = driftOf(ours, theirs);
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

it('the stability index is 0 for equal columns, never below, finite, and blind to the order', () => {
  fc.assert(
    fc.property(pairs, (rows) => {
      const ours = Float64Array.from(rows, ([a]) => a);
      const theirs = Float64Array.from(rows, ([, b]) => b);
      assert.equal(psiOf(theirs.slice().reverse(), theirs), 0);
      const psi = psiOf(ours, theirs);
      assert.ok(psi >= 0 && Number.isFinite(psi));
      assert.ok(Math.abs(psiOf(ours.slice().reverse(), theirs) - psi) < 1e-12);
    }),
  );
});

it('a histogram holds every value, also when all are equal', () => {
  fc.assert(
    fc.property(pairs, fc.boolean(), (rows, isCentred) => {
      const columns = [0, 1].map((side) => Float64Array.from(rows, (row) => row[side]!));
      const { low, high, counts } = histogramOf(columns, 7, isCentred);
      assert.ok(low < high);
      if (isCentred) assert.ok(Math.abs(low + high) < 1e-12);
      for (const bins of counts)
        assert.equal(
          bins.reduce((sum, n) => sum + n, 0),
          rows.length,
        );
    }),
  );
  const { counts } = histogramOf([new Float64Array(5)], 41, true);
  assert.equal(counts[0]![20], 5, 'no difference is in the middle');
});

const goldenRows = (labels: readonly number[]): GoldenRow[] =>
  labels.map((label, i) => ({ line: i + 1, value: {}, label, isKeyed: false }));

function side(version: string, scores: readonly number[]): { version: string; record: SideRecord } {
  const record = new SideRecord(scores.length);
  record.noteSent(scores.length);
  record.scores.set(scores);
  record.noteLatency(1);
  return { version, record };
}

it('only rows that both answered are compared; limits that cannot be measured fail nothing, and say so', () => {
  const rows = goldenRows([1, 0, NO_LABEL, 1]);
  const ours = side('2', [0.9, 0.2, 0.5, Number.NaN]);
  const theirs = side('1', [0.8, Number.NaN, 0.5, 0.7]);
  const findings = findingsOf(rows, ours, theirs);
  assert.equal(findings.drift?.rows, 2);
  assert.deepEqual(findings.furthest, [{ line: 1, candidate: 0.9, baseline: 0.8 }]);
  assert.equal(findings.candidate.quality?.rows, 1);
  const checks = checksOf(findings, { ...DEFAULT_LIMITS, qualityRowsMin: 0, aucMin: 0.5 });
  const byLimit = new Map(checks.map((check) => [check.limit, check]));
  assert.deepEqual(
    [byLimit.get('aucMin')?.outcome, byLimit.get('aucMin')?.note],
    ['not checked', 'all labels are equal'],
  );
  assert.equal(verdictOf(checks), 'fail', 'mean drift of 0.05');
  const few = checksOf(findings, DEFAULT_LIMITS).find(({ limit }) => limit === 'aucDropMax');
  assert.match(few?.note ?? '', /1 labelled rows, too few/);
});

it('a limit of none is no check, and each of the others fails a version by itself', () => {
  const off = Object.fromEntries(LIMIT_NAMES.map((name) => [name, null])) as typeof DEFAULT_LIMITS;
  const findings = findingsOf(goldenRows([1, 0]), side('2', [0.1, 0.9]), side('1', [0.9, 0.1]));
  assert.deepEqual(
    checksOf(findings, off).map(({ limit }) => limit),
    ['answersBroken'],
  );
  for (const limit of ['driftMeanMax', 'driftP50Max', 'driftP99Max', 'driftLargestMax'] as const) {
    const [, check] = checksOf(findings, { ...off, [limit]: 0.5 });
    assert.deepEqual([check?.limit, check?.outcome], [limit, 'fail']);
  }
  for (const limit of ['aucDropMax', 'loglossRiseMax'] as const) {
    const [, check] = checksOf(findings, { ...off, [limit]: 0.5 });
    assert.deepEqual([check?.limit, check?.outcome], [limit, 'fail']);
  }
});

it('an active version that answered nothing is no measure', () => {
  const silent = side('1', [Number.NaN, Number.NaN]);
  silent.record.noteFailure(goldenRows([1]), new CubeError('UNAVAILABLE', 'shard 0 is away'));
  assert.throws(
    () => findingsOf(goldenRows([1, 0]), side('2', [0.1, 0.9]), silent),
    /version 1, answered no row: .*shard 0 is away/,
  );
});

it('where the active version went unanswered too, the machine is at fault and the gate did not run', () => {
  const rows = goldenRows([1, 0, 1]);
  const [ours, theirs] = [side('2', [0.1, 0.9, Number.NaN]), side('1', [0.1, 0.9, 0.5])];
  const late = new CubeError('DEADLINE_EXCEEDED', 'no answer within 2000 ms');
  ours.record.noteFailure(rows.slice(2), late);
  const alone = findingsOf(rows, ours, theirs);
  requireFitMachine(alone, DEFAULT_LIMITS);
  assert.equal(verdictOf(checksOf(alone, DEFAULT_LIMITS)), 'fail', 'late by itself, it fails');
  theirs.record.noteFailure(rows.slice(0, 1), late);
  const both = findingsOf(rows, ours, theirs);
  assert.throws(
    () => requireFitMachine(both, DEFAULT_LIMITS),
    /1 of 3 rows unanswered too \(no answer/,
  );
  requireFitMachine(both, { ...DEFAULT_LIMITS, errorsMax: 0.5 });
});

it('text from outside is text in the report, whatever it looks like', () => {
  const hostile = `</td><script>alert("1")</script><img src=x onerror='1'>&amp;`;
  const ours = side('2', [0.1, 0.9]);
  ours.record.noteFailure(goldenRows([1]), new CubeError('INTERNAL', hostile));
  ours.record.noteAnswer(0, {
    ...{ model: '', version: '2', tablesVersion: '2', unseen: 0, unavailable: 0, degraded: false },
    probabilities: Float32Array.of(0.1, 0.9),
    slots: [{ slot: hostile, hit: 1, unseen: 1, unavailable: 0 }],
  });
  const findings = findingsOf(goldenRows([1, 0]), ours, side('1', [0.9, 0.1]));
  const report = (checks: readonly Check[]): GateReport => ({
    ...{ format: 1, bundle: hostile, version: hostile, against: hostile, at: hostile, by: hostile },
    ...{ verdict: 'fail', policy: hostile, limits: DEFAULT_LIMITS, checks },
    golden: { source: hostile, rows: 2, total: 3, labelled: 2 },
    replay: { rowsPerRequest: 1, requestsPerSecond: 1 },
    findings,
  });
  for (const checks of [checksOf(findings, DEFAULT_LIMITS), [unfitCheck(hostile)]]) {
    const page = reportPage(report(checks));
    assert.doesNotMatch(page, /<script|<img|&amp;amp;amp;/);
    assert.match(page, /&lt;script&gt;alert\(&quot;1&quot;\)/);
    assert.match(page, /default-src 'none'/);
    assert.doesNotMatch(page, /https?:|src=[^x]|@import|url\(/, 'nothing from the network');
    const opened = [...page.matchAll(/<(table|tr|td|svg|g|section|div|h[12]|p)[ >]/g)].length;
    const closed = [...page.matchAll(/<\/(table|tr|td|svg|g|section|div|h[12]|p)>/g)].length;
    assert.equal(opened, closed);
    assert.ok(reportText(report(checks)).includes('FAIL'));
  }
});
