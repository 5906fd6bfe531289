/** Many thousand idle connections and two hundred slow ones, within 20,000 file descriptors. Run by `npm run soak`. */
import { test } from 'node:test';
import { crowd } from '../rpc/crowd.ts';

test('9,500 idle connections and 200 slow ones', async () => {
  await crowd({ idle: 9_500, slow: 200, answerBytes: 12 << 20 });
});
