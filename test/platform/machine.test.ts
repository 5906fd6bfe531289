/** Thread priorities. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { getPriority } from 'node:os';
import { test } from 'node:test';
import { Worker } from 'node:worker_threads';

const NICE_FIELD = 16;

test("a thread with lowered priority leaves other threads' priority unchanged", {
  skip: process.platform !== 'linux' && 'threads have no priorities of their own here',
}, async () => {
  const before = getPriority();
  const module = new URL('../../lib/platform/machine.js', import.meta.url).href;
  const text = `
    const { readlinkSync } = require('node:fs');
    import(${JSON.stringify(module)}).then(({ lowerThreadPriority }) => {
      lowerThreadPriority();
      require('node:worker_threads').parentPort.once('message', () => undefined);
      require('node:worker_threads').parentPort.postMessage(readlinkSync('/proc/thread-self'));
    });`;
  const worker = new Worker(text, { eval: true });
  const thread = await new Promise<string>((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
  });
  const stat = readFileSync(`/proc/${thread}/stat`, 'utf8');
  const nice = Number(stat.slice(stat.lastIndexOf(')') + 2).split(' ')[NICE_FIELD]);
  await worker.terminate();
  assert.ok(nice > before, `${nice} after ${before}`);
  assert.equal(getPriority(), before);
});
