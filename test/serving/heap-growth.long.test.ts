/** Requests with large bodies do not make serving collect its whole heap again and again. */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const REQUESTS = 150;
const ROWS = 10_000;
/** With the limits that V8 sets by itself there were 10. */
const COLLECTIONS_MAX = 3;

/** A module that counts the collections of the old space in a file; preloaded by its path. */
function writeCounter(folder: string): { readonly module: string; readonly counts: string } {
  const [module, counts] = [join(folder, 'count.cjs'), join(folder, 'counts')];
  const source = `
    const { appendFileSync } = require('node:fs');
    const { isMainThread } = require('node:worker_threads');
    const { constants, PerformanceObserver } = require('node:perf_hooks');
    const count = (entries) => {
      for (const { detail } of entries.getEntries())
        if (detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR)
          appendFileSync(${JSON.stringify(counts)}, '.');
    };
    if (isMainThread) new PerformanceObserver(count).observe({ entryTypes: ['gc'] });
  `;
  writeFileSync(module, source);
  return { module, counts };
}

async function startCounted(t: TestContext): Promise<{ url: string; countMajor: () => number }> {
  const toys = new ToyRepository(t);
  await toys.publish(new ToyBundle({ version: '1', seed: 5 }));
  await toys.activate('1');
  const { module, counts } = writeCounter(temporaryFolder(t));
  const model = ['--repository', toys.location, '--bundle', BUNDLE];
  const serving = await ServingProcess.start(t, [...model, '--store', 'memory'], {
    isProcess: true,
    env: { NODE_OPTIONS: `--require=${module}` },
  });
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  const countMajor = (): number => (existsSync(counts) ? readFileSync(counts).length : 0);
  return { url: serving.url, countMajor };
}

test('large bodies rarely cause collections of the old space', async (t) => {
  const { url, countMajor } = await startCounted(t);
  const body = toTsv(toyRows(ROWS));
  const send = async (): Promise<void> => {
    const headers = { 'content-type': 'text/tab-separated-values' };
    const answer = await fetch(`${url}/v1/ctr:predict`, { method: 'POST', headers, body });
    assert.equal(answer.status, 200, await answer.text());
  };
  for (let i = 0; i < 20; i++) await send();
  const before = countMajor();
  for (let i = 0; i < REQUESTS; i++) await send();
  const collections = countMajor() - before;
  assert.ok(collections <= COLLECTIONS_MAX, `${collections} collections`);
});
