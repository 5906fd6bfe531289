/**
 * Preloaded into a server (`node --import`): SIGUSR2 terminates its oldest worker thread, as a
 * fault would.
 */
import type { Worker } from 'node:worker_threads';

const workers: Worker[] = [];

process.on('worker', (worker) => {
  workers.push(worker);
  worker.once('exit', () => workers.splice(workers.indexOf(worker), 1));
});
process.on('SIGUSR2', () => void workers[0]?.terminate());
