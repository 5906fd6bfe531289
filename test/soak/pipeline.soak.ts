/**
 * Memory of a pipeline after ten million requests that succeed, fail, skip, time out and are
 * cancelled, against the memory after the first hundred thousand.
 */
import { PipelineMemory } from './support/pipeline-memory.ts';

const FIRST = 100_000;
const ROUNDS = 99;
const GROWTH_BYTES_MAX = 4 << 20;

const pipeline = new PipelineMemory();
await pipeline.start();
const first = await pipeline.run(FIRST);
let last = first;
for (let round = 1; round <= ROUNDS; round++) {
  last = await pipeline.run(FIRST);
  if (round % 11 !== 0) continue;
  const megabytes = (last / (1 << 20)).toFixed(1);
  process.stdout.write(`${(round + 1) * FIRST} requests: ${megabytes} MB of heap\n`);
}
await pipeline.stop();
if (last - first > GROWTH_BYTES_MAX) {
  process.stdout.write(`the heap grew by ${last - first} bytes\n`);
  process.exitCode = 1;
}
