/** Runs a check of a graph in a thread of its own, because loads and runs block their thread. */
import { SHARE_ENV, Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';

/**
 * @param script replies with one message and ends
 * @param source names the model in errors
 * @throws CubeError UNAVAILABLE when the thread ends without a reply
 */
export function runCheckThread<Reply>(
  script: URL,
  workerData: unknown,
  source: string,
): Promise<Reply> {
  // The native runtime reads the process's real environment (lib/platform/disable-telemetry.ts).
  const worker = new Worker(script, { workerData, env: SHARE_ENV });
  return new Promise((resolve, reject) => {
    let reply: Reply | undefined;
    let cause: Error | undefined;
    worker.once('message', (message: Reply) => {
      reply = message;
    });
    worker.once('error', (error) => {
      cause = error;
    });
    worker.once('exit', (exitCode) => {
      if (reply !== undefined) return resolve(reply);
      const reason = cause?.message ?? `exit code ${exitCode}`;
      const message = `${source}: the check of the converted graph failed: ${reason}`;
      reject(new CubeError('UNAVAILABLE', message, { cause }));
    });
  });
}
