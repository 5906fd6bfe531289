/** Version health from the metrics of serving processes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { HEALTH_DEFAULTS } from '../../../cube-agent/rollout/rollout-config.ts';
import {
  addMetrics,
  checkHealth,
  emptyCounts,
  readHealth,
  type VersionCounts,
} from '../../../cube-agent/rollout/version-health.ts';

const counts = (more: Partial<VersionCounts>): VersionCounts => ({
  ...emptyCounts(),
  requests: 1000,
  scoredRows: 1000,
  scoreSum: 200,
  lookups: 26_000,
  unseen: 260,
  durations: new Map([
    [2, 990],
    [16, 10],
  ]),
  ...more,
});

const judge = (more: Partial<VersionCounts>): string =>
  checkHealth(counts(more), counts({}), HEALTH_DEFAULTS)?.reason ?? 'well';

test('health depends on errors, unavailable and unseen keys, drift and latency', () => {
  assert.equal(judge({}), 'well');
  assert.match(judge({ failures: 100 }), /^9\.09 % of the requests fail \(limit 2 %\)/);
  assert.match(judge({ unavailable: 2600 }), /10 % of the lookups are unavailable/);
  assert.match(judge({ unseen: 5200 }), /19 % more of the keys are unseen/);
  assert.match(judge({ scoreSum: 300 }), /50 % between mean scores 0\.3 and 0\.2/);
  assert.match(judge({ scoreSum: 100 }), /50 % between mean scores/);
  assert.match(
    judge({
      durations: new Map([
        [2, 900],
        [4096, 100],
      ]),
    }),
    /p99 is 4096 ms/,
  );
  const judgeFault = (more: Partial<VersionCounts>): string | undefined =>
    checkHealth(counts(more), counts({}), HEALTH_DEFAULTS)?.fault;
  assert.equal(judgeFault({ failures: 100 }), 'version');
  assert.equal(judgeFault({ failures: 100, unanswered: 90 }), 'fleet', 'a shard was away');
  assert.equal(judgeFault({ unavailable: 2600, scoreSum: 100 }), 'fleet');
  assert.equal(judge({ requests: 100, failures: 90 }), 'well', 'too few to say');
  assert.equal(checkHealth(undefined, undefined, HEALTH_DEFAULTS), undefined);
  assert.equal(checkHealth(counts({ scoreSum: 900 }), undefined, HEALTH_DEFAULTS), undefined);
});

test('readings are the values that the limits are compared with', () => {
  const bad = counts({ failures: 250, unanswered: 125, unseen: 5200, scoreSum: 300 });
  const readings = readHealth(bad, counts({}), HEALTH_DEFAULTS);
  assert.ok(readings !== undefined);
  const { unseenRise = Number.NaN, scoreDrift = Number.NaN, ...exact } = readings;
  assert.deepEqual(exact, { requests: 1250, errorRate: 0.2, unavailable: 0.1, p99Ms: 2 });
  assert.ok(Math.abs(unseenRise - 0.19) < 1e-9, String(unseenRise));
  assert.ok(Math.abs(scoreDrift - 0.5) < 1e-9, String(scoreDrift));
  const alone = readHealth(counts({}), counts({ requests: 1 }), HEALTH_DEFAULTS);
  assert.deepEqual([alone?.unseenRise, alone?.scoreDrift], [undefined, undefined]);
  assert.equal(readHealth(undefined, undefined, HEALTH_DEFAULTS), undefined);
});

test('counts of all processes are summed for one model; invalid lines are skipped', () => {
  const text = [
    '# HELP hypercube_engine_requests_total Requests answered',
    'hypercube_engine_requests_total{model="ctr",version="2"} 10',
    'hypercube_engine_requests_total{model="other",version="2"} 99',
    'hypercube_engine_failures_total{model="ctr",version="2",code="UNAVAILABLE"} 1',
    'hypercube_engine_failures_total{model="ctr",version="2",code="INTERNAL"} 2',
    'hypercube_engine_requests_by_duration_total{model="ctr",version="2",millis="4"} 10',
    'hypercube_engine_scores_total{model="ctr",version="2"} NaN',
    'hypercube_engine_rows_total{model="ctr"',
    '\u0000{} 1',
  ].join('\n');
  const found = new Map<string, VersionCounts>();
  addMetrics(text, 'ctr', found);
  addMetrics(text, 'ctr', found);
  assert.deepEqual([...found.keys()], ['2']);
  assert.deepEqual(found.get('2'), {
    ...emptyCounts(),
    requests: 20,
    failures: 6,
    unanswered: 2,
    durations: new Map([[4, 20]]),
  });
});
