/** Priorities and policies of threads. */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { getPriority, tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';
import { readHugePageMode } from '../../lib/platform/machine.ts';

const NICE_FIELD = 16;

test('the mode of transparent huge pages is the one in brackets', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-huge-pages-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const read = (text: string): string | undefined => {
    const file = join(folder, 'enabled');
    writeFileSync(file, text);
    return readHugePageMode(file);
  };
  assert.equal(read('always [madvise] never\n'), 'madvise');
  assert.equal(read('[always] madvise never\n'), 'always');
  assert.equal(read('always madvise [never]\n'), 'never');
  assert.equal(read('[other]\n'), undefined);
  assert.equal(readHugePageMode(join(folder, 'absent')), undefined);
});

const onlyLinux = {
  skip: process.platform !== 'linux' && 'threads have no priorities of their own here',
};
const POLICY_FIELD = 38;
const SCHED_IDLE = 5;

interface ChangedThread {
  /** What the function returned. */
  readonly result: unknown;
  readonly nice: number;
  readonly policy: number;
}

/** Calls a function of machine.ts in a thread of its own. */
async function callInThread(name: string, env = process.env): Promise<ChangedThread> {
  const module = new URL('../../lib/platform/machine.js', import.meta.url).href;
  const text = `
    const { readlinkSync } = require('node:fs');
    const { parentPort } = require('node:worker_threads');
    import(${JSON.stringify(module)}).then(async ({ ${name} }) => {
      const result = await ${name}();
      parentPort.once('message', () => undefined);
      parentPort.postMessage({ result, thread: readlinkSync('/proc/thread-self') });
    });`;
  const worker = new Worker(text, { eval: true, env });
  const { result, thread } = await new Promise<{ result: unknown; thread: string }>(
    (resolve, reject) => {
      worker.once('message', resolve);
      worker.once('error', reject);
    },
  );
  const stat = readFileSync(`/proc/${thread}/stat`, 'utf8');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  await worker.terminate();
  return { result, nice: Number(fields[NICE_FIELD]), policy: Number(fields[POLICY_FIELD]) };
}

test(
  "a thread with lowered priority leaves other threads' priority unchanged",
  onlyLinux,
  async () => {
    const before = getPriority();
    const { nice } = await callInThread('lowerThreadPriority');
    assert.ok(nice > before, `${nice} after ${before}`);
    assert.equal(getPriority(), before);
  },
);

test('a thread that runs when idle has that policy, and no other thread has', {
  skip: spawnSync('chrt', ['-p', `${process.pid}`]).status !== 0 && 'there is no chrt',
}, async () => {
  const { result, policy } = await callInThread('runWhenIdle');
  assert.equal(result, true);
  assert.equal(policy, SCHED_IDLE);
  const own = readFileSync('/proc/self/stat', 'utf8');
  assert.equal(own.slice(own.lastIndexOf(')') + 2).split(' ')[POLICY_FIELD], '0');
});

test('without chrt a thread that runs when idle has a low priority', onlyLinux, async () => {
  const { result, nice, policy } = await callInThread('runWhenIdle', { PATH: '' });
  assert.equal(result, false);
  assert.equal(policy, 0);
  assert.ok(nice > 0, `${nice}`);
});
