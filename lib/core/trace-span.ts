/**
 * One step of a traced request, as the layers below the tracer see it. lib/platform/tracing.ts
 * makes spans; where tracing is off there are none, and callers test only for undefined.
 */
import type { ErrorCode } from './errors.ts';

export type TraceAttributes = Readonly<Record<string, string | number | boolean>>;

export interface TraceSpan {
  /**
   * The W3C Trace Context value that makes a span of another process a child of this one;
   * undefined: only a profile is recorded, and tracing is off.
   */
  readonly traceparent: string | undefined;
  startChild(name: string, kind: 'internal' | 'client', attributes: TraceAttributes): TraceSpan;
  /** Relates this span to one of another request. @param other `traceparent` of that span */
  addLink(other: string | undefined): void;
  setAttributes(attributes: TraceAttributes): void;
  /** Call once. @param reason of an error, for people */
  end(code: ErrorCode | 'OK', reason?: string): void;
}

/** The ids of a span, in lower-case hexadecimal. */
export interface SpanIds {
  /** 32 digits. */
  readonly traceId: string;
  /** 16 digits. */
  readonly spanId: string;
  /** Bit 0: the caller records this trace. */
  readonly traceFlags: number;
}

const TRACEPARENT = /^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$/;

/**
 * Parses a `traceparent`. @returns undefined when it is invalid: the standard then starts a new
 * trace and does not fail the request
 */
export function parseTraceparent(text: string): SpanIds | undefined {
  const [, version, traceId = '', spanId = '', flags = '', rest] = TRACEPARENT.exec(text) ?? [];
  if (version === undefined || version === 'ff') return undefined;
  if (version === '00' && rest !== undefined) return undefined;
  if (/^0+$/.test(traceId) || /^0+$/.test(spanId)) return undefined;
  return { traceId, spanId, traceFlags: Number.parseInt(flags, 16) };
}

export function formatTraceparent({ traceId, spanId, traceFlags }: SpanIds): string {
  return `00-${traceId}-${spanId}-${(traceFlags & 0xff).toString(16).padStart(2, '0')}`;
}
