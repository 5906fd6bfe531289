/**
 * A worker of plain models that exits, or takes long, when the first byte of a batch's first input
 * says so.
 */
import { parentPort } from 'node:worker_threads';
import type { GraphJob } from '../../../serving/engine/graph-worker.ts';
import type { WorkerRequest } from '../../../serving/engine/model-instance.ts';

/** Values of an INT64 input. */
export const FATAL_VALUE = 99;
export const SLOW_VALUE = 98;
const SLOW_MS = 300;

if (parentPort !== null) {
  parentPort.on('message', (request: WorkerRequest<GraphJob>) => {
    if (request.kind !== 'run') return;
    const [first] = request.job.data[0] ?? [];
    if (first === FATAL_VALUE) process.exit(9);
    if (first === SLOW_VALUE) {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, SLOW_MS);
    }
  });
  await import('../../../serving/engine/graph-worker.ts');
}
