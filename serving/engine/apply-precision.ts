/** Serves a graph with fewer bits for its weights, when its outputs stay within a tolerance. */
import { CubeError } from '../../lib/core/errors.ts';
import type { Precision } from '../../lib/core/precisions.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { runCheckThread } from './check-thread.ts';
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
  const request: PrecisionRequest = { ...graph, precision };
  const reply = await runCheckThread<PrecisionReply>(SCRIPT, request, graph.source);
  if (!reply.ok) throw new CubeError(reply.code, reply.message);
  const { difference, model } = reply;
  logger.info({ precision, difference, modelBytes: model.length }, 'weights converted');
  return model;
}
