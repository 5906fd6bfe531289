/** A thread that serves echoes and counts them where other threads can see it without running their event loops. */
import { parentPort, workerData } from 'node:worker_threads';
import { startEcho } from './one-port.ts';

const answered = new Int32Array(workerData as SharedArrayBuffer);
const { port } = await startEcho(
  {},
  {
    counted: (_frame, response) => {
      response.begin(0);
      // The answer leaves after this handler: by the next turn it is out.
      setTimeout(() => Atomics.add(answered, 0, 1), 20);
    },
  },
);
parentPort?.postMessage(port);
