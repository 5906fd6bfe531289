/** Thread priorities. */
import assert from 'node:assert/strict';
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
