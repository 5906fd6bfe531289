/**
 * Memory of a pipeline after ten million requests that succeed, fail, skip, time out and are
 * cancelled, against the memory after the first hundred thousand.
 */
import { parseArgs } from 'node:util';
import { PipelineMemory } from './support/pipeline-memory.ts';

const FIRST = 100_000;
const REPORTS = 10;
const GROWTH_BYTES_MAX = 4 << 20;

const { values } = parseArgs({
  options: { requests: { type: 'string', default: '10000000' } },
});
const rounds = Math.ceil(Number(values.requests) / FIRST);

function toMegabytes(bytes: number): string {
  return `${(bytes / (1 << 20)).toFixed(1)} MB`;
}

const startMs = performance.now();
const pipeline = new PipelineMemory();
await pipeline.start();
const first = await pipeline.run(FIRST);
let last = first;
for (let round = 1; round <= rounds; round++) {
  if (round > 1) last = await pipeline.run(FIRST);
  if (round > 1 && round % Math.ceil(rounds / REPORTS) !== 0 && round < rounds) continue;
  const { rss } = process.memoryUsage();
  const seconds = ((performance.now() - startMs) / 1_000).toFixed(0);
  process.stdout.write(
    `${round * FIRST} requests, ${seconds} s: ${toMegabytes(last)} of heap, ` +
      `${toMegabytes(rss)} resident\n`,
  );
}
const codes = [...pipeline.codes].sort(([a], [b]) => a - b);
process.stdout.write(`err_no: ${codes.map(([code, count]) => `${code} ${count}`).join(', ')}\n`);
await pipeline.stop();
if (last - first > GROWTH_BYTES_MAX) {
  process.stdout.write(`the heap grew by ${last - first} bytes\n`);
  process.exitCode = 1;
}
