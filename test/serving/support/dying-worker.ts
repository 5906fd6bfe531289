/**
 * A model worker that exits in the middle of a batch when its first scaled dense value is
 * FATAL_VALUE.
 */
import { parentPort, workerData } from 'node:worker_threads';
import type { StopMessage } from '../../../serving/engine/model-instance.ts';
import type { WorkerOptions } from '../../../serving/engine/model-worker.ts';
import { type BatchMessage, SlabReceiver } from '../../../serving/engine/slab-channel.ts';

export const FATAL_VALUE = 4_096;

if (parentPort !== null) {
  const { plan, rowsMax, resident } = workerData as WorkerOptions;
  const lookupThread = resident === undefined ? 'main' : 'worker';
  const slabs = new SlabReceiver({ plan, rowsMax, outputs: [], lookupThread });
  parentPort.on('message', (request: BatchMessage | StopMessage) => {
    if (typeof request === 'object' && request.kind === 'stop') return;
    if (slabs.receive(request).views.dense[0] === FATAL_VALUE) process.exit(9);
  });
  await import('../../../serving/engine/model-worker.ts');
}
