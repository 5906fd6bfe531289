/** The span of a batch, which several traced requests may share. */
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { Batch, QueuedRequest } from './queued-request.ts';

/**
 * Starts the span of a batch: a child of its first traced request. It and the other traced requests
 * have links to each other, since a span has one parent.
 * @returns undefined when no request of the batch is traced
 */
export function startBatchSpan({ slices, rowCount }: Batch<QueuedRequest>): TraceSpan | undefined {
  let batchSpan: TraceSpan | undefined;
  for (const { request } of slices) {
    const { span } = request.options;
    if (span === undefined) continue;
    if (batchSpan === undefined) {
      batchSpan = span.startChild('batch', 'internal', {
        'hypercube.rows': rowCount,
        'hypercube.requests': slices.length,
      });
    } else {
      batchSpan.addLink(span.traceparent);
      span.addLink(batchSpan.traceparent);
    }
  }
  return batchSpan;
}
