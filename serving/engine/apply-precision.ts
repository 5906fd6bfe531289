/** Serves a graph with fewer bits for its weights, when its outputs stay within a tolerance. */
import { SHARE_ENV, Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Precision } from '../../proto/onnx-precision.ts';
import type { PrecisionRequest } from './precision-check.ts';
import type { PrecisionReply } from './precision-worker.ts';

const SCRIPT = new URL('./precision-worker.js', import.meta.url);

export interface PrecisionOptions {
  readonly precision: Precision;
  readonly logger: Logger;
}

/**
 * @param graph its source names the model in errors
 * @returns the graph to serve
 * @throws CubeError UNSUPPORTED with the reason why it cannot be served with this precision
 */
export async function applyPrecision(
  graph: Omit<PrecisionRequest, 'precision'>,
  { precision, logger }: PrecisionOptions,
): Promise<Uint8Array> {
  if (precision === 'fp32') return graph.model;
  const reply = await runWorker({ ...graph, precision });
  if (!reply.ok) throw new CubeError(reply.code, reply.message);
  const { difference, model } = reply;
  logger.info({ precision, difference, modelBytes: model.length }, 'weights converted');
  return model;
}

function runWorker(request: PrecisionRequest): Promise<PrecisionReply> {
  // The native runtime reads the process's real environment (lib/platform/disable-telemetry.ts).
  const worker = new Worker(SCRIPT, { workerData: request, env: SHARE_ENV });
  return new Promise((resolve, reject) => {
    let reply: PrecisionReply | undefined;
    let cause: Error | undefined;
    worker.once('message', (message: PrecisionReply) => {
      reply = message;
    });
    worker.once('error', (error) => {
      cause = error;
    });
    worker.once('exit', (exitCode) => {
      if (reply !== undefined) return resolve(reply);
      const reason = cause?.message ?? `exit code ${exitCode}`;
      const message = `${request.source}: the check of its precision failed: ${reason}`;
      reject(new CubeError('UNAVAILABLE', message, { cause }));
    });
  });
}
