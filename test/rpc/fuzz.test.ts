import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fuzzEcho } from './fuzz-server.ts';

test('hostile bytes for two seconds: no crash, nothing kept, a caller beside them gets every answer', async () => {
  const { connections, answered } = await fuzzEcho({ seed: Date.now() % 1e9, seconds: 2 });
  assert.ok(connections > 20 && answered > 20, `${connections} connections, ${answered} answers`);
});
