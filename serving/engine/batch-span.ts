/** The span of a batch, which several traced requests may share. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import type { TraceAttributes, TraceSpan } from '../../lib/core/trace-span.ts';
import type { PredictOptions } from './prediction.ts';
import type { Batch, QueuedRequest } from './queued-request.ts';

const BATCH = 'batch';

/**
 * Starts the span of a batch: a child of its first traced request. It and the other traced requests
 * have links to each other, since a span has one parent. Profiles have no such limit: the batch and
 * its calls are steps of the profile of each request.
 * @returns undefined when no request of the batch is traced or profiled
 */
export function startBatchSpan({ slices, rowCount }: Batch<QueuedRequest>): TraceSpan | undefined {
  const attributes = { 'hypercube.rows': rowCount, 'hypercube.requests': slices.length };
  let batchSpan: TraceSpan | undefined;
  const profiles: TraceSpan[] = [];
  for (const { request } of slices) {
    const { span, profile } = request.options;
    if (profile !== undefined) profiles.push(profile.startChild(BATCH, 'internal', attributes));
    if (span === undefined) continue;
    if (batchSpan === undefined) batchSpan = span.startChild(BATCH, 'internal', attributes);
    else {
      batchSpan.addLink(span.traceparent);
      span.addLink(batchSpan.traceparent);
    }
  }
  return profiles.length === 0 ? batchSpan : new SpanGroup(batchSpan, profiles);
}

/** The span of the calls that a request makes itself. */
export function getCallSpan({ span, profile }: PredictOptions): TraceSpan | undefined {
  return profile === undefined ? span : new SpanGroup(span, [profile]);
}

/** The span of a tracer for work that is also a step of profiles. */
class SpanGroup implements TraceSpan {
  readonly #span: TraceSpan | undefined;
  readonly #profiles: readonly TraceSpan[];

  constructor(span: TraceSpan | undefined, profiles: readonly TraceSpan[]) {
    this.#span = span;
    this.#profiles = profiles;
  }

  get traceparent(): string | undefined {
    return this.#span?.traceparent;
  }

  startChild(name: string, kind: 'internal' | 'client', attributes: TraceAttributes): TraceSpan {
    return new SpanGroup(
      this.#span?.startChild(name, kind, attributes),
      this.#profiles.map((profile) => profile.startChild(name, kind, attributes)),
    );
  }

  addLink(other: string | undefined): void {
    this.#span?.addLink(other);
  }

  setAttributes(attributes: TraceAttributes): void {
    this.#span?.setAttributes(attributes);
    for (const profile of this.#profiles) profile.setAttributes(attributes);
  }

  end(code: ErrorCode | 'OK', reason?: string): void {
    this.#span?.end(code, reason);
    for (const profile of this.#profiles) profile.end(code, reason);
  }
}
