/** Main threads that run in idle time, in processes of their own. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { DIST, waitFor } from '../support/processes.ts';
import type { IdleCommand } from './support/idle-program.ts';
import {
  onlyWhereItReturns,
  readPolicy,
  SCHED_IDLE,
  SCHED_OTHER,
} from './support/thread-policy.ts';

const PROGRAM = join(DIST, 'test', 'platform', 'support', 'idle-program.js');
const NOBODY = 65_534;

class IdleProgram {
  readonly #child: ChildProcess;

  constructor(t: TestContext, prefix: readonly string[] = [], options: object = {}) {
    const [command, ...args] = [...prefix, process.execPath, PROGRAM];
    this.#child = spawn(command ?? '', args, {
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
      ...options,
    });
    const ended = once(this.#child, 'exit');
    t.after(async () => {
      // Ends its own children, unless it computes.
      if (this.#child.connected) this.#child.disconnect();
      setTimeout(() => this.#child.kill('SIGKILL'), 1_000).unref();
      await ended;
    });
  }

  get policy(): number {
    return readPolicy(this.#child.pid);
  }

  async execute(command: IdleCommand): Promise<unknown> {
    this.send(command);
    const [{ result }] = (await once(this.#child, 'message')) as [{ result: unknown }];
    return result;
  }

  send(command: IdleCommand): void {
    this.#child.send(command);
  }
}

/** A processor that this process may use. */
function findProcessor(): string {
  const [, first = '0'] =
    /^Cpus_allowed_list:\s*(\d+)/m.exec(readFileSync('/proc/self/status', 'utf8')) ?? [];
  return first;
}

test(
  'a main thread runs in idle time, and children with the prefix do not',
  onlyWhereItReturns,
  async (t) => {
    const program = new IdleProgram(t);
    const before = (await program.execute('spawn with prefix')) as number;
    assert.equal(await program.execute('start'), true);
    await waitFor('idle', () => program.policy === SCHED_IDLE);
    assert.equal(readPolicy(before), SCHED_OTHER);
    const inherits = (await program.execute('spawn')) as number;
    const usual = (await program.execute('spawn with prefix')) as number;
    assert.equal(readPolicy(inherits), SCHED_IDLE);
    await waitFor('usual', () => readPolicy(usual) === SCHED_OTHER);
  },
);

test(
  'the usual policy is used when asked for, and given up some seconds later',
  onlyWhereItReturns,
  async (t) => {
    const program = new IdleProgram(t);
    await program.execute('use usual');
    await program.execute('start');
    await waitFor('idle', () => program.policy === SCHED_IDLE);
    await program.execute('use usual');
    assert.equal(program.policy, SCHED_OTHER);
    await waitFor('idle again', () => program.policy === SCHED_IDLE);
  },
);

test('a main thread that gets no core takes its usual policy back', {
  skip:
    onlyWhereItReturns.skip ||
    (spawnSync('taskset', ['--version']).status !== 0 && 'there is no taskset'),
}, async (t) => {
  const onOneProcessor = ['taskset', '-c', findProcessor()];
  const program = new IdleProgram(t, onOneProcessor);
  await program.execute('start');
  await waitFor('idle', () => program.policy === SCHED_IDLE);
  const competitor = spawn('taskset', [
    ...onOneProcessor.slice(1),
    process.execPath,
    '-e',
    'for (;;);',
  ]);
  t.after(() => competitor.kill('SIGKILL'));
  program.send('compute');
  await waitFor('usual', () => program.policy === SCHED_OTHER);
});

test('a process that may not take the policy back keeps the usual one', {
  skip:
    (process.getuid?.() !== 0 && 'only root can become another user') ||
    (spawnSync(process.execPath, ['-e', `require('fs').accessSync(${JSON.stringify(PROGRAM)})`], {
      uid: NOBODY,
      cwd: '/',
    }).status !== 0 &&
      'another user could not read the program'),
}, async (t) => {
  const program = new IdleProgram(t, [], { uid: NOBODY, cwd: '/' });
  assert.equal(await program.execute('start'), false);
  assert.equal(program.policy, SCHED_OTHER);
});

test('without chrt a process keeps the usual policy', async (t) => {
  const program = new IdleProgram(t, [], { env: { ...process.env, PATH: '' } });
  assert.equal(await program.execute('start'), false);
});
