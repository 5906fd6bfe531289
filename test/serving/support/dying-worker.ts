/**
 * A model worker that exits in the middle of a batch when its first scaled dense value is
 * FATAL_VALUE.
 */
import { parentPort } from 'node:worker_threads';
import type { StartMessage, StopMessage } from '../../../serving/engine/model-instance.ts';
import type { WorkerOptions } from '../../../serving/engine/model-worker.ts';
import { type BatchMessage, SlabReceiver } from '../../../serving/engine/slab-channel.ts';

export const FATAL_VALUE = 4_096;

if (parentPort !== null) {
  // The worker first: it must listen when the first message arrives.
  await import('../../../serving/engine/model-worker.ts');
  let slabs: SlabReceiver | undefined;
  parentPort.on('message', (request: BatchMessage | StartMessage<WorkerOptions> | StopMessage) => {
    if (typeof request === 'object' && request.kind === 'stop') return;
    if (typeof request === 'object' && request.kind === 'start') {
      const { plan, rowsMax, resident } = request.options;
      const lookupThread = resident === undefined ? 'main' : 'worker';
      slabs = new SlabReceiver({ plan, rowsMax, outputs: [], lookupThread });
      return;
    }
    if (slabs?.receive(request).views.dense[0] === FATAL_VALUE) process.exit(9);
  });
}
