/** Every place at which a process can be killed by name is one at which a test does so. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { FAULT_POINTS } from '../../lib/platform/fault-point.ts';

const tests = join(import.meta.dirname, '..', '..', '..', 'test');

/** What the tests say, this folder's own left out. */
function testSources(): string {
  return readdirSync(tests, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.(test|soak)\.ts$/.test(entry.name))
    .filter(({ parentPath }) => !parentPath.endsWith('house'))
    .map(({ parentPath, name }) => readFileSync(join(parentPath, name), 'utf8'))
    .join('\n');
}

const neverKilledAt = (points: readonly string[], text: string): string[] =>
  points.filter((point) => !text.includes(`'${point}:kill`));

test('at every fault point a test kills a process', () => {
  const text = testSources();
  assert.deepEqual(neverKilledAt(FAULT_POINTS, text), []);
  assert.equal(new Set(FAULT_POINTS).size, FAULT_POINTS.length);
  assert.deepEqual(neverKilledAt([...FAULT_POINTS, 'agent.canary'], text), ['agent.canary']);
});
