/**
 * A model worker that exits in the middle of a batch when its first scaled dense value is
 * FATAL_VALUE.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { viewSlab } from '../../../serving/engine/batch-slab.ts';
import type { RunMessage, StopMessage } from '../../../serving/engine/model-instance.ts';
import type { BatchJob, WorkerOptions } from '../../../serving/engine/model-worker.ts';

export const FATAL_VALUE = 4_096;

if (parentPort !== null) {
  const { plan, rowsMax, resident } = workerData as WorkerOptions;
  const lookupThread = resident === undefined ? 'main' : 'worker';
  const shape = { plan, rowsMax, outputs: [], lookupThread } as const;
  parentPort.on('message', (request: RunMessage<BatchJob> | StopMessage) => {
    if (request.kind !== 'run') return;
    if (viewSlab(shape, request.job.slab).dense[0] === FATAL_VALUE) process.exit(9);
  });
  await import('../../../serving/engine/model-worker.ts');
}
