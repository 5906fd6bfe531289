/** Problems as data: their fields survive JSON, and reports of older agents still can be read. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  describeOperation,
  type Operation,
  parseProblem,
} from '../../../cube-agent/fleet/problem.ts';
import { ProblemTracker } from '../../../cube-agent/host/problem-tracker.ts';
import { listDamagedLayers, toReplicaView } from '../../../cube-agent/rollout/live-fleet.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { systemClock } from '../../../lib/platform/clock.ts';

const SERVER = '127.0.0.1:8000';
const FETCH: Operation = { action: 'fetch', version: '2', table: 't', contentId: '0123' };
const CORRUPT = new CubeError('CORRUPT', 'SHA-256 differs');

/** What an agent reports before problems had fields. */
const OLD_PROBLEM = {
  what: 'fetch 2 t/0123',
  code: 'CORRUPT',
  message: 'SHA-256 differs',
  since: '2026-01-01T00:00:00Z',
  attempts: 3,
};

function parse(problem: object) {
  return parseProblem(JsonReader.of(JSON.parse(JSON.stringify(problem)), 'status'));
}

test('a problem has the same fields after it was written and read as JSON', () => {
  const tracker = new ProblemTracker(systemClock, 1);
  tracker.record(FETCH, CORRUPT);
  const [problem] = tracker.list();
  assert.ok(problem);
  const { since, channel, server, ...fields } = parse(problem);
  assert.ok(since.length > 0);
  assert.deepEqual([channel, server], [undefined, undefined]);
  assert.deepEqual(fields, {
    ...FETCH,
    what: 'fetch 2 t/0123',
    code: 'CORRUPT',
    message: 'SHA-256 differs',
    attempts: 1,
  });
});

test('problems without fields, or with an unknown action, have only their text', () => {
  for (const problem of [OLD_PROBLEM, { ...OLD_PROBLEM, action: 'defragment' }]) {
    const { action, what, attempts } = parse(problem);
    assert.deepEqual([action, what, attempts], [undefined, 'fetch 2 t/0123', 3]);
  }
});

test('a damaged layer is recognized by fields, not by the text of a problem', () => {
  const problem = { ...FETCH, code: 'CORRUPT', message: '' } as const;
  assert.deepEqual(listDamagedLayers([problem]), ['t/0123']);
  assert.deepEqual(listDamagedLayers([{ ...problem, code: 'IO' }]), []);
  assert.deepEqual(listDamagedLayers([{ ...problem, action: 'load' }]), []);
  assert.deepEqual(listDamagedLayers([parse(OLD_PROBLEM)]), []);
});

test('a replica shows the problems of its version, and those whose version is unknown', () => {
  const report = {
    address: SERVER,
    shardIndex: 0,
    shardNum: 1,
    ready: true,
    draining: false,
    memory: undefined,
    active: '1',
    held: ['1'],
    loading: [],
    problems: [],
    trouble: [],
  };
  const tracker = new ProblemTracker(systemClock, 1);
  tracker.record(FETCH, CORRUPT);
  // The word "2" in another field does not make it a problem of version 2.
  tracker.record({ action: 'read-channel', channel: '2' }, CORRUPT);
  tracker.record({ action: 'load', version: '1', server: SERVER }, CORRUPT);
  const problems = [...tracker.list(), parse(OLD_PROBLEM)].map((problem) => ({
    host: 'agent',
    ...problem,
  }));
  const view = toReplicaView(report, '2', problems);
  assert.deepEqual(view.damaged, ['t/0123']);
  assert.deepEqual(
    view.problems.map(({ action, version, code }) => [action, version, code]),
    [
      ['fetch', '2', 'CORRUPT'],
      [undefined, undefined, 'CORRUPT'],
    ],
  );
  const text = 'fetch 2 t/0123: SHA-256 differs';
  assert.equal(view.trouble, `${text}; ${text}`);
});

test('problems are matched by fields, not by the end of their text', () => {
  const tracker = new ProblemTracker(systemClock, 1);
  const load: Operation = { action: 'load', version: '2', server: SERVER };
  const other: Operation = { action: 'load', version: '2', server: `on ${SERVER}` };
  for (const operation of [load, other, FETCH]) tracker.record(operation, CORRUPT);
  tracker.removeWhere(({ server }) => server === SERVER);
  assert.deepEqual(
    tracker.list().map(({ what }) => what),
    [describeOperation(other), describeOperation(FETCH)],
  );
  assert.equal(tracker.resolve(load), false);
  assert.equal(tracker.resolve(FETCH), true);
});
