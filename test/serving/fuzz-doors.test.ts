import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fuzzDoors } from './fuzz-doors.ts';

test('hostile requests on every door for three seconds: no fault, nothing kept, honest callers get their scores', async (t) => {
  const seed = Date.now() % 1e9;
  const { hostile, answered } = await fuzzDoors(t, { seed, seconds: 3 });
  assert.ok(hostile > 100 && answered > 20, `${hostile} hostile, ${answered} answered`);
});
