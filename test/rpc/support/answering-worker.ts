/**
 * A thread with an echo server that counts its responses in shared memory, which blocked threads
 * can read.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { startEchoServer } from './echo-server.ts';

const answered = new Int32Array(workerData as SharedArrayBuffer);
const { port } = await startEchoServer(
  {},
  {
    counted: (_frame, response) => {
      response.begin(0);
      // The response is sent after this handler returns; 20 ms later it is out.
      setTimeout(() => Atomics.add(answered, 0, 1), 20);
    },
  },
);
parentPort?.postMessage(port);
