/**
 * Thousands of idle connections and two hundred slow ones within 20,000 file descriptors. Run by
 * `npm run soak`.
 */
import { test } from 'node:test';
import { testCrowdedServer } from '../rpc/support/crowd.ts';

test('a server keeps 9,500 idle connections and 200 slow ones', async () => {
  await testCrowdedServer({ idle: 9_500, slow: 200, answerBytes: 12 << 20 });
});
