/**
 * Spans of OpenTelemetry. While tracing is off, a request costs one comparison, and the package
 * `@opentelemetry/api` is not loaded. start-tracing.ts turns it on.
 *
 * Parents are passed as arguments, never by asynchronous context: a batch has many requests.
 */
import type * as Api from '@opentelemetry/api';
import type { ErrorCode } from '../core/errors.ts';
import {
  formatTraceparent,
  parseTraceparent,
  type TraceAttributes,
  type TraceSpan,
} from '../core/trace-span.ts';

type OpenTelemetry = typeof Api;

interface Tracing {
  readonly api: OpenTelemetry;
  readonly tracer: Api.Tracer;
}

let tracing: Tracing | undefined;

/** From now on, requests make spans of the provider that is registered with the API. */
export async function enableTracing(): Promise<void> {
  const api = await import('@opentelemetry/api');
  tracing = { api, tracer: api.trace.getTracer('hypercube') };
}

export function disableTracing(): void {
  tracing = undefined;
}

export function isTracing(): boolean {
  return tracing !== undefined;
}

/**
 * Starts the span of a request that this process serves.
 * @param call says the caller's `traceparent`; without a valid one, a new trace begins
 * @returns undefined when tracing is off
 */
export function startRequestSpan(
  name: string,
  call: { traceparent(): string | undefined },
): TraceSpan | undefined {
  if (tracing === undefined) return undefined;
  const { api, tracer } = tracing;
  const caller = parseTraceparent(call.traceparent() ?? '');
  const context =
    caller === undefined
      ? api.ROOT_CONTEXT
      : api.trace.setSpanContext(api.ROOT_CONTEXT, { ...caller, isRemote: true });
  const span = tracer.startSpan(name, { kind: api.SpanKind.SERVER }, context);
  return new OpenTelemetrySpan(tracing, span);
}

class OpenTelemetrySpan implements TraceSpan {
  readonly #tracing: Tracing;
  readonly #span: Api.Span;

  constructor(owner: Tracing, span: Api.Span) {
    this.#tracing = owner;
    this.#span = span;
  }

  get traceparent(): string {
    return formatTraceparent(this.#span.spanContext());
  }

  startChild(name: string, kind: 'internal' | 'client', attributes: TraceAttributes): TraceSpan {
    const { api, tracer } = this.#tracing;
    const parent = api.trace.setSpan(api.ROOT_CONTEXT, this.#span);
    const { CLIENT, INTERNAL } = api.SpanKind;
    const options = { kind: kind === 'client' ? CLIENT : INTERNAL, attributes };
    return new OpenTelemetrySpan(this.#tracing, tracer.startSpan(name, options, parent));
  }

  addLink(other: string | undefined): void {
    const context = parseTraceparent(other ?? '');
    if (context !== undefined) this.#span.addLink({ context });
  }

  setAttributes(attributes: TraceAttributes): void {
    this.#span.setAttributes(attributes);
  }

  end(code: ErrorCode | 'OK', reason?: string): void {
    if (code !== 'OK') {
      const { ERROR } = this.#tracing.api.SpanStatusCode;
      this.#span.setAttribute('error.type', code);
      this.#span.setStatus({ code: ERROR, message: reason ?? code });
    }
    this.#span.end();
  }
}
