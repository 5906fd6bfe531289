/** How failed loads of versions are logged. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import { LoadFailures } from '../../serving/models/load-failures.ts';

test('a version that servers are still loading is a warning only after half a minute', () => {
  let nowMs = 1_000;
  const clock: Clock = { ...systemClock, nowMs: () => nowMs, isoTime: () => 'then' };
  const failures = new LoadFailures(clock, 200);
  const absent = new CubeError('NOT_READY', 'not on every shard');
  const record = (error: CubeError): string | undefined => failures.record('2', error, true);
  assert.equal(record(absent), 'info');
  nowMs += 29_000;
  assert.equal(record(absent), undefined);
  nowMs += 2_000;
  assert.equal(record(absent), 'warn');
  assert.equal(record(absent), undefined);
  assert.deepEqual(failures.list(), [
    { version: '2', code: 'NOT_READY', message: absent.message, at: 'then', attempts: 4 },
  ]);
});

test('a version that is damaged is a warning at once', () => {
  const failures = new LoadFailures(systemClock, 200);
  assert.equal(failures.record('2', new CubeError('NOT_READY', 'not loaded'), true), 'info');
  assert.equal(failures.record('2', new CubeError('DAMAGED', 'the graph'), true), 'warn');
  failures.delete('2');
  assert.equal(failures.record('2', new CubeError('DAMAGED', 'the graph'), true), 'warn');
});
