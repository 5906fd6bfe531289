/**
 * The check of metric names finds what promtool refuses; programs' own metrics pass it elsewhere.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { lintMetrics } from '../support/metrics-lint.ts';

test('metrics against the rules are found', () => {
  const text = (name: string, type: string, help = 'Help.'): string =>
    `# HELP ${name} ${help}\n# TYPE ${name} ${type}\n${name} 1\n`;
  for (const [name, type, problem] of [
    ['hypercube_scores_sum', 'counter', /_total/],
    ['hypercube_rows_total', 'gauge', /a gauge must not end in _total/],
    ['hypercube_rows_count', 'gauge', /must not end in _bucket/],
    ['hypercube_wait_milliseconds', 'gauge', /base unit/],
    ['hypercube_wait_ms', 'gauge', /abbreviated unit/],
    ['hypercube_waitTime', 'gauge', /snake_case/],
    ['hypercube_wait_gauge', 'gauge', /type is part/],
  ] as const) {
    assert.match(lintMetrics(text(name, type)).join(), problem, name);
  }
  assert.match(lintMetrics(text('hypercube_rows', 'gauge', '')).join(), /no help text/);
  assert.deepEqual(lintMetrics(text('hypercube_wait_seconds_total', 'counter')), []);
  assert.deepEqual(lintMetrics(text('nv_inference_count', 'counter')), []);
});
