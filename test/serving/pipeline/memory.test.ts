/** Nothing remains of a request; `npm run soak -- pipeline` is the long version. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { PipelineMemory } from '../../soak/support/pipeline-memory.ts';

const REQUESTS = 1_000;
/** A request that remained would keep about a kilobyte. */
const GROWTH_BYTES_MAX = 1_000 * REQUESTS;

test('the heap does not grow with the number of requests', async () => {
  const pipeline = new PipelineMemory();
  await pipeline.start();
  // Optimised code and counters.
  await pipeline.run(REQUESTS);
  const before = await pipeline.run(REQUESTS);
  const after = await pipeline.run(2 * REQUESTS);
  assert.ok(after - before < GROWTH_BYTES_MAX, `the heap grew by ${after - before} bytes`);
  await pipeline.stop();
});
