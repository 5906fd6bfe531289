/** What is known of servers, and from when: a plan from before the last action would do that action once more. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { Problems } from '../../cube-agent/host/problems.ts';
import { ServerWatch, serverState } from '../../cube-agent/host/server-watch.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import type { ControlStatus } from '../../proto/control.ts';

const address = '127.0.0.1:1';

/** Answers each question when the test says so. */
class SlowControl {
  readonly address = address;
  readonly waiting: ((loading: string[]) => void)[] = [];

  status(): Promise<ControlStatus> {
    return new Promise((resolve) => {
      this.waiting.push((versions) => {
        const loading = versions.map((version) => ({ bundle: 'ctr', version }));
        resolve({ pid: 1, shardIndex: 0, shardNum: 1, bundles: [], loading } as never);
      });
    });
  }
}

function watchOf(control: SlowControl): ServerWatch {
  return new ServerWatch({
    servers: [control as unknown as ControlClient],
    problems: new Problems(systemClock, 1),
    clock: systemClock,
    logger: createLogger('test', 'silent'),
    onBack: () => undefined,
  });
}

function state(watch: ServerWatch): { isCurrent: boolean; loading: readonly string[] } {
  const [known] = watch.known;
  assert.ok(known);
  const { answers, loading } = serverState(known, 'ctr', undefined);
  return { isCurrent: answers, loading };
}

test('after an action a server counts once it was asked again', async () => {
  const control = new SlowControl();
  const watch = watchOf(control);
  const { signal } = new AbortController();
  const first = watch.ask(signal);
  control.waiting.shift()?.(['1']);
  await first;
  assert.deepEqual(state(watch), { isCurrent: true, loading: ['1'] });
  watch.changed(address);
  assert.deepEqual(state(watch), { isCurrent: false, loading: ['1'] });
  const second = watch.ask(signal);
  control.waiting.shift()?.([]);
  await second;
  assert.deepEqual(state(watch), { isCurrent: true, loading: [] });
});

test('an answer to a question from before an action is asked for again', async () => {
  const control = new SlowControl();
  const watch = watchOf(control);
  const asked = watch.ask(new AbortController().signal);
  watch.changed(address);
  control.waiting.shift()?.(['1']);
  await new Promise(setImmediate);
  assert.deepEqual(state(watch), { isCurrent: false, loading: ['1'] });
  assert.equal(control.waiting.length, 1, 'asked again');
  control.waiting.shift()?.([]);
  await asked;
  assert.deepEqual(state(watch), { isCurrent: true, loading: [] });
});
