/** How long a failed load stays in the status. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { FAILURE_KEPT_MS, FailedLoads } from '../../cube-server/failed-loads.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';

const MINUTE_MS = 60_000;

test('failures end by age or on request, and each version has one', () => {
  let nowMs = 0;
  const failures = new FailedLoads({ ...systemClock, nowMs: () => nowMs });
  const fail = (version: string): void =>
    failures.record({ bundle: 'ctr', version }, new CubeError('NOT_FOUND', `no ${version}`));
  const versions = (): string[] => failures.list().map(({ version }) => version);
  fail('wanted');
  fail('mistyped');
  fail('given-up');
  failures.clear({ bundle: 'ctr', version: 'given-up' });
  // An agent retries what it wants once a minute.
  while (nowMs < FAILURE_KEPT_MS + MINUTE_MS) {
    assert.ok(versions().includes('wanted'));
    nowMs += MINUTE_MS;
    fail('wanted');
  }
  assert.deepEqual(failures.list(), [
    { bundle: 'ctr', version: 'wanted', code: 'NOT_FOUND', message: 'no wanted' },
  ]);
  for (let i = 0; i < 100; i++) fail(`v${i}`);
  assert.equal(versions().length, 32);
  assert.equal(versions().at(-1), 'v99');
});
