/** A real model worker that ends, in the middle of a batch, when its first dense value (scaled) is the fatal one. */
import { parentPort, workerData } from 'node:worker_threads';
import { viewSlab } from '../../serving/engine/batch-slab.ts';
import type { WorkerRequest, WorkerStart } from '../../serving/engine/model-worker.ts';

export const FATAL_VALUE = 4_096;

if (parentPort !== null) {
  const { plan, rowsMax, resident } = workerData as WorkerStart;
  const looksUp = resident === undefined ? 'main' : 'worker';
  const shape = { plan, rowsMax, outputs: [], looksUp } as const;
  parentPort.on('message', (request: WorkerRequest) => {
    if (request.kind !== 'run') return;
    if (viewSlab(shape, request.slab).dense[0] === FATAL_VALUE) process.exit(9);
  });
  await import('../../serving/engine/model-worker.ts');
}
