import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fuzzEchoServer } from './support/fuzz-server.ts';

test('two seconds of hostile bytes: no crash, no leak, other calls are answered', async () => {
  const { connections, answered } = await fuzzEchoServer({ seed: Date.now() % 1e9, seconds: 2 });
  assert.ok(connections > 20 && answered > 20, `${connections} connections, ${answered} answers`);
});
