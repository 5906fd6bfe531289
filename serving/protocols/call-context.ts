/**
 * Timeout, cancellation and metadata of calls, as each protocol transmits them. These are classes:
 * literals with their functions would allocate a closure for each function and request, and V8
 * keeps a literal with a getter until it collects the whole heap.
 */
import { isUtf8 } from 'node:buffer';
import type { CallGrant } from '../../lib/access/access-gate.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { PROFILE_KEY } from '../../lib/core/request-profile.ts';
import type { HttpRequest, HttpRequestHead } from '../../lib/rpc/direct-routes.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import { DEGRADED_KEY, EXPERIMENT_KEY, EXPERIMENTS_KEY } from '../../proto/ctr.ts';
import type { CancelSignal } from '../engine/prediction.ts';
import { checkExperimentKey, TIMEOUT_MS_MAX } from './request-limits.ts';
import { readProfileFlag } from './request-profile.ts';

/** Timeout, cancellation and metadata of a call, as its protocol transmits them. */
export interface CallContext {
  /**
   * How long the caller waits from now on; undefined when it does not say. @throws CubeError
   * INVALID_ARGUMENT
   */
  timeoutMs(): number | undefined;
  readonly signal: CancelSignal;
  /**
   * Tells the caller beside the response that it is degraded, as a header or a trailer. Called
   * before the response is sent. A protocol without metadata says it in the response.
   */
  markDegraded(): void;
  /** The same for the variants of the request. @param text `name=variant, …` */
  markVariants(text: string): void;
  /** Whether the head of the request asks for a profile. @throws CubeError INVALID_ARGUMENT */
  wantsProfile(): boolean;
  /** Sends the profile beside the response. @param text JSON */
  sendProfile(text: string): void;
  /** The key for experiments in the head of the request. @throws CubeError INVALID_ARGUMENT */
  experimentKey(): string | undefined;
  /** The caller's W3C `traceparent`, not yet checked; read only while tracing is on. */
  traceparent(): string | undefined;
  /** When it is known before the body is parsed. */
  readonly priority?: number | undefined;
  /** When the head of the request arrived; undefined: with the call of `handlePrediction`. */
  readonly arrivedMs?: number | undefined;
  /** Who calls; absent: the process has no access control. */
  readonly grant?: CallGrant | undefined;
}

/** The part of the context that is known before the body is read. */
export type HeadContext = Pick<CallContext, 'timeoutMs' | 'priority' | 'grant' | 'arrivedMs'>;

/**
 * Text of a header, which Node reads as Latin-1. Clients send UTF-8, so that the text is that of a
 * body; other bytes are Latin-1.
 */
function decodeHeader<T>(value: T): T | string {
  if (typeof value !== 'string' || !/[\x80-\xff]/.test(value)) return value;
  const bytes = Buffer.from(value, 'latin1');
  return isUtf8(bytes) ? bytes.toString() : value;
}

/** HTTP: the part of the context that is known from the head of the request. */
export class HttpHeadContext implements HeadContext {
  readonly priority: number | undefined;
  readonly arrivedMs: number | undefined;
  readonly grant: CallGrant | undefined;
  protected readonly headers: HttpRequestHead['headers'];

  constructor(
    { headers, arrivedMs, grant }: Pick<HttpRequestHead, 'headers' | 'grant' | 'arrivedMs'>,
    priority?: number,
  ) {
    this.headers = headers;
    this.priority = priority;
    this.arrivedMs = arrivedMs;
    this.grant = grant;
  }

  timeoutMs(): number | undefined {
    return parseTimeoutHeader(this.headers['timeout-ms']);
  }
}

/**
 * HTTP: the headers `timeout-ms` and `hypercube-degraded`. The call is cancelled when its
 * connection closes before the response is sent.
 */
export class HttpCallContext extends HttpHeadContext implements CallContext, CancelSignal {
  readonly #raw: HttpRequest['raw'];

  constructor(
    request: Pick<HttpRequest, 'headers' | 'raw' | 'arrivedMs' | 'grant'>,
    priority?: number,
  ) {
    super(request, priority);
    this.#raw = request.raw;
  }

  get signal(): CancelSignal {
    return this;
  }

  get aborted(): boolean {
    return this.#raw.destroyed && !this.#raw.writableFinished;
  }

  markDegraded(): void {
    this.#setHeader(DEGRADED_KEY, 'true');
  }

  markVariants(text: string): void {
    this.#setHeader(EXPERIMENTS_KEY, text);
  }

  wantsProfile(): boolean {
    return readProfileFlag(this.headers[PROFILE_KEY]);
  }

  sendProfile(text: string): void {
    this.#setHeader(PROFILE_KEY, text);
  }

  experimentKey(): string | undefined {
    return checkExperimentKey(decodeHeader(this.headers[EXPERIMENT_KEY]), EXPERIMENT_KEY);
  }

  traceparent(): string {
    return String(this.headers['traceparent'] ?? '');
  }

  /** A request that was too slow has been answered with an error. */
  #setHeader(name: string, value: string): void {
    if (!this.#raw.headersSent) this.#raw.setHeader(name, value);
  }
}

/** gRPC: its own deadline and cancellation, and the trailer `hypercube-degraded`. */
export class GrpcCallContext implements CallContext {
  readonly priority: number | undefined;
  readonly signal: GrpcCall;
  readonly #timeoutMs: number | undefined;

  constructor(call: GrpcCall, priority?: number) {
    this.signal = call;
    this.priority = priority;
    this.#timeoutMs = toCallTimeoutMs(call.remainingMs);
  }

  get grant(): CallGrant | undefined {
    return this.signal.grant;
  }

  timeoutMs(): number | undefined {
    return this.#timeoutMs;
  }

  markDegraded(): void {
    this.signal.setTrailer(DEGRADED_KEY, 'true');
  }

  markVariants(text: string): void {
    this.signal.setTrailer(EXPERIMENTS_KEY, text);
  }

  wantsProfile(): boolean {
    return readProfileFlag(this.signal.getMetadata(PROFILE_KEY));
  }

  sendProfile(text: string): void {
    this.signal.setTrailer(PROFILE_KEY, text);
  }

  experimentKey(): string | undefined {
    return checkExperimentKey(this.signal.getMetadata(EXPERIMENT_KEY), EXPERIMENT_KEY);
  }

  traceparent(): string | undefined {
    return this.signal.getMetadata('traceparent');
  }
}

/**
 * baidu_std: `timeout_ms` of the request meta; 0 means that the caller did not set it. Responses
 * have no metadata: err_msg says that they are degraded.
 */
export class BaiduCallContext implements CallContext {
  readonly signal: CancelSignal;
  readonly grant: CallGrant | undefined;
  readonly #timeoutMs: number | undefined;
  readonly #traceparent: string | undefined;

  constructor(
    metaTimeoutMs: number,
    signal: CancelSignal,
    {
      grant,
      traceparent,
    }: { grant?: CallGrant | undefined; traceparent?: string | undefined } = {},
  ) {
    this.signal = signal;
    this.grant = grant;
    this.#timeoutMs = metaTimeoutMs > 0 ? Math.min(metaTimeoutMs, TIMEOUT_MS_MAX) : undefined;
    this.#traceparent = traceparent;
  }

  timeoutMs(): number | undefined {
    return this.#timeoutMs;
  }

  markDegraded(): void {}

  markVariants(): void {}

  /** Its profile is `profile_time` of the response. */
  wantsProfile(): boolean {
    return false;
  }

  sendProfile(): void {}

  experimentKey(): undefined {
    return undefined;
  }

  traceparent(): string | undefined {
    return this.#traceparent;
  }
}

/** @param remainingMs until the deadline of a gRPC call; infinite without one */
export function toCallTimeoutMs(remainingMs: number): number | undefined {
  return Number.isFinite(remainingMs) ? Math.min(remainingMs, TIMEOUT_MS_MAX) : undefined;
}

function parseTimeoutHeader(header: string | string[] | undefined): number | undefined {
  if (header === undefined) return undefined;
  const value = typeof header === 'string' && /^\d{1,6}$/.test(header) ? Number(header) : 0;
  if (value >= 1 && value <= TIMEOUT_MS_MAX) return value;
  const shown = JSON.stringify(header);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `header timeout-ms: expected an integer in 1..${TIMEOUT_MS_MAX}, got ${shown}`,
  );
}
