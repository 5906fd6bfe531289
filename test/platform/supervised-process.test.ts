/** A supervised process that ends at once, again and again. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { SupervisedProcess } from '../../lib/platform/supervised-process.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';

test('a process that was given up and is started again gets all its attempts', async (t) => {
  const script = join(temporaryFolder(t), 'end.mjs');
  writeFileSync(script, 'process.exit(1);');
  const child = new SupervisedProcess({
    args: [script],
    clock: { nowMs: () => 0, isoTime: () => '', sleep: async () => undefined },
    onLine: () => undefined,
    onListening: () => undefined,
    onExit: ({ consecutiveShortRuns }) => (consecutiveShortRuns < 3 ? undefined : 'it ended'),
  });
  await assert.rejects(child.start(), /it ended/);
  assert.equal(child.starts, 3);
  await assert.rejects(child.start(), /it ended/);
  assert.equal(child.starts, 6);
});
