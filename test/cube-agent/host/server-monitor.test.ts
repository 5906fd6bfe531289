/**
 * Currency of server states: a plan from a state before the last action would repeat the action.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ControlClient } from '../../../cube-agent/fleet/control-client.ts';
import { ProblemTracker } from '../../../cube-agent/host/problem-tracker.ts';
import { ServerMonitor, toServerState } from '../../../cube-agent/host/server-monitor.ts';
import { systemClock } from '../../../lib/platform/clock.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import type { ControlStatus } from '../../../proto/control.ts';

const address = '127.0.0.1:1';

/** Answers each question when the test says so. */
class SlowControl {
  readonly address: string;
  readonly waiting: ((loading: string[]) => void)[] = [];

  constructor(at = address) {
    this.address = at;
  }

  status(): Promise<ControlStatus> {
    return new Promise((resolve) => {
      this.waiting.push((versions) => {
        const loading = versions.map((version) => ({ bundle: 'ctr', version }));
        resolve(createStatus({ loading }));
      });
    });
  }
}

function createStatus(fields: Partial<ControlStatus>): ControlStatus {
  const memory = { budgetBytes: 0, usedBytes: 0, pooledBytes: 0 };
  const server = { shardIndex: 0, shardNum: 1, pid: 1, ready: true, memory };
  return { ...server, bundles: [], loading: [], failed: [], ...fields };
}

function createMonitor(...controls: SlowControl[]): ServerMonitor {
  return new ServerMonitor({
    servers: controls as unknown as ControlClient[],
    problems: new ProblemTracker(systemClock, 1),
    clock: systemClock,
    logger: createLogger('test', { level: 'silent' }),
    onReturn: () => undefined,
  });
}

function state(monitor: ServerMonitor): { isCurrent: boolean; loading: readonly string[] } {
  const [known] = monitor.snapshots;
  assert.ok(known);
  const { isCurrent, loading } = toServerState(known, 'ctr', undefined);
  return { isCurrent, loading };
}

test('after an action a server is current only when it was polled again', async () => {
  const control = new SlowControl();
  const monitor = createMonitor(control);
  const { signal } = new AbortController();
  const first = monitor.poll(signal);
  control.waiting.shift()?.(['1']);
  await first;
  assert.deepEqual(state(monitor), { isCurrent: true, loading: ['1'] });
  monitor.recordAction(address, undefined);
  assert.deepEqual(state(monitor), { isCurrent: false, loading: ['1'] });
  const second = monitor.poll(signal);
  control.waiting.shift()?.([]);
  await second;
  assert.deepEqual(state(monitor), { isCurrent: true, loading: [] });
});

test('the status in the answer of an action is used, unless the server restarted', async () => {
  const control = new SlowControl();
  const monitor = createMonitor(control);
  const { signal } = new AbortController();
  const first = monitor.poll(signal);
  control.waiting.shift()?.([]);
  await first;
  const loading = [{ bundle: 'ctr', version: '2' }];
  monitor.recordAction(address, createStatus({ loading }));
  await monitor.pollChanged(signal);
  assert.equal(control.waiting.length, 0, 'not asked');
  assert.deepEqual(state(monitor), { isCurrent: true, loading: ['2'] });
  monitor.recordAction(address, createStatus({ pid: 2 }));
  assert.deepEqual(state(monitor), { isCurrent: false, loading: ['2'] });
  const again = monitor.pollChanged(signal);
  control.waiting.shift()?.([]);
  await again;
  assert.deepEqual(state(monitor), { isCurrent: true, loading: [] });
});

test('an answer from before an action is requested again', async () => {
  const control = new SlowControl();
  const monitor = createMonitor(control);
  const asked = monitor.poll(new AbortController().signal);
  monitor.recordAction(address, undefined);
  control.waiting.shift()?.(['1']);
  await new Promise(setImmediate);
  assert.deepEqual(state(monitor), { isCurrent: false, loading: ['1'] });
  assert.equal(control.waiting.length, 1, 'asked again');
  control.waiting.shift()?.([]);
  await asked;
  assert.deepEqual(state(monitor), { isCurrent: true, loading: [] });
});

test('after an action only the server that it changed is asked', async () => {
  const [changed, hangs, other] = ['127.0.0.1:1', '127.0.0.1:2', '127.0.0.1:3'].map(
    (at) => new SlowControl(at),
  ) as [SlowControl, SlowControl, SlowControl];
  const monitor = createMonitor(changed, hangs, other);
  const { signal } = new AbortController();
  void monitor.poll(signal);
  for (const control of [changed, other]) control.waiting.shift()?.([]);
  await new Promise(setImmediate);
  monitor.recordAction(changed.address, undefined);
  const asked = monitor.pollChanged(signal);
  assert.equal(other.waiting.length, 0);
  assert.equal(hangs.waiting.length, 1, 'the request before');
  changed.waiting.shift()?.(['2']);
  await asked;
  const states = monitor.snapshots.map((server) => toServerState(server, 'ctr', undefined));
  assert.deepEqual(
    states.map(({ address: at, isCurrent, loading }) => ({ at, isCurrent, loading })),
    [
      { at: changed.address, isCurrent: true, loading: ['2'] },
      { at: other.address, isCurrent: true, loading: [] },
    ],
  );
  await monitor.pollChanged(signal);
  assert.equal(changed.waiting.length + other.waiting.length, 0);
});
