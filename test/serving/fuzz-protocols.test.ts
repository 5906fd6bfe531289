import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fuzzProtocols } from './support/fuzz-protocols.ts';

test('hostile requests cause no faults or leaks, and valid requests succeed', async (t) => {
  const seed = Date.now() % 1e9;
  const { hostile, answered } = await fuzzProtocols(t, { seed, seconds: 3 });
  assert.ok(hostile > 100 && answered > 20, `${hostile} hostile, ${answered} answered`);
});
