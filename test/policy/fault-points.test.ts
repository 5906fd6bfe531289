/** Every fault point of the product is used by a test that kills a process there. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { FAULT_POINTS } from '../../lib/platform/fault-point.ts';

const tests = join(import.meta.dirname, '..', '..', '..', 'test');

/** Reads the sources of all tests except those of this folder. */
function readTestSources(): string {
  return readdirSync(tests, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && /\.(test|soak)\.ts$/.test(entry.name))
    .filter(({ parentPath }) => !parentPath.endsWith('policy'))
    .map(({ parentPath, name }) => readFileSync(join(parentPath, name), 'utf8'))
    .join('\n');
}

const findUnusedPoints = (points: readonly string[], text: string): string[] =>
  points.filter((point) => !text.includes(`'${point}:kill`));

test('every fault point is used by a test that kills a process there', () => {
  const text = readTestSources();
  assert.deepEqual(findUnusedPoints(FAULT_POINTS, text), []);
  assert.equal(new Set(FAULT_POINTS).size, FAULT_POINTS.length);
  assert.deepEqual(findUnusedPoints([...FAULT_POINTS, 'agent.canary'], text), ['agent.canary']);
});
