import { test } from 'node:test';
import { fuzzEchoServer } from './support/fuzz-server.ts';

test('hostile bytes: no crash, no leak, other calls are answered', async () => {
  await fuzzEchoServer({ seed: Date.now() % 1e9, seconds: 2 });
});
