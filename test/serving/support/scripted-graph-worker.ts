/**
 * A worker of plain models that exits, or takes long, when the first byte of a batch's first input
 * says so.
 */
import { parentPort } from 'node:worker_threads';
import { layOut, MEMORIES, type RunMessage } from '../../../serving/engine/graph-memory.ts';
import type { StartMessage, StopMessage } from '../../../serving/engine/model-instance.ts';

/** Values of an INT64 input. */
export const FATAL_VALUE = 99;
export const SLOW_VALUE = 98;
const SLOW_MS = 300;

if (parentPort !== null) {
  // The worker first: it must listen when the first message arrives.
  await import('../../../serving/engine/graph-worker.ts');
  const memories: SharedArrayBuffer[] = [];
  let received = 0;
  parentPort.on('message', (request: RunMessage | number | StartMessage<unknown> | StopMessage) => {
    if (typeof request !== 'number' && request.kind !== 'run') {
      received = 0;
      return;
    }
    const place = received++ % MEMORIES;
    if (typeof request !== 'number') memories[place] = request.memory;
    const [begin = 0] = layOut([{ dataType: 'INT64' }], [[1]]).offsets;
    const [first] = new Uint8Array(memories[place]!, begin, 1);
    if (first === FATAL_VALUE) process.exit(9);
    if (first === SLOW_VALUE) {
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, SLOW_MS);
    }
  });
}
