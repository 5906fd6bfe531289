/**
 * Runs gRPC methods: passes the request bytes to a handler, sends its bytes back, and errors as
 * gRPC statuses.
 */
import type {
  Metadata,
  ServerDuplexStream,
  ServerUnaryCall,
  StatusObject,
  sendUnaryData,
} from '@grpc/grpc-js';
import { encodeRetryStatus, STATUS_DETAILS_KEY } from '../../proto/rpc-status.ts';
import type { CallGrant } from '../access/access-gate.ts';
import { ERROR_DETAILS_KEY, encodeErrorDetails } from '../core/error-details.ts';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { type LiveItem, LiveList } from '../core/live-list.ts';
import { systemClock, wallClockMs } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import type { ClientCertificate } from './control-caller.ts';
import { loadGrpcLibrary } from './grpc-libraries.ts';
import { MethodStats } from './rpc-routes.ts';

/** Maximum message length: it travels percent-encoded in a trailer, and clients limit headers. */
const DETAILS_CHARS_MAX = 1024;
/** The trailer with our own error code, which is more exact than gRPC's status. */
const GRPC_CODE_KEY = 'hypercube-code';
/** The trailer with which a server tells gRPC's own retries how long to wait. */
const RETRY_PUSHBACK_KEY = 'grpc-retry-pushback-ms';
const RETRY_AFTER_MS = 1000;
/** A longer wait is the caller's to decide: its library is told not to try again. */
const PUSHBACK_MS_MAX = 60_000;

/** The grants of calls, by the metadata that interceptors and handlers share. */
const grants = new WeakMap<Metadata, CallGrant>();

export function setGrant(metadata: Metadata, grant: CallGrant): void {
  grants.set(metadata, grant);
}

/** The trusted TLS client certificate, if any. */
export function toCertificate({
  sslPeerCertificate: certificate,
}: ReturnType<AnyCall['getAuthContext']>): ClientCertificate | undefined {
  if (certificate === undefined) return undefined;
  const { subject, valid_to: validTo } = certificate;
  return { subject: `CN=${subject.CN}`, validUntilMs: Date.parse(validTo) };
}

/** A proxy may add a field of its own below the client's. */
export function readForwardedFor(metadata: Metadata): string | undefined {
  return metadata.get('x-forwarded-for').join(', ') || undefined;
}

type AnyCall = ServerUnaryCall<Buffer, Buffer> | ServerDuplexStream<Buffer, Buffer>;

/** A handler's view of its call. */
export class GrpcCall {
  readonly #call: AnyCall;
  #trailers: Metadata | undefined;
  #abort: AbortController | undefined;

  constructor(call: AnyCall) {
    this.#call = call;
  }

  /** The response is no longer needed: the caller cancelled, or its deadline has passed. */
  get isAbandoned(): boolean {
    return this.#call.cancelled || Number(this.#call.getDeadline()) <= wallClockMs();
  }

  /**
   * The caller has cancelled, or its deadline has passed. Unlike `abortSignal` it needs no
   * controller, whose abort at the end of every call takes as long as the prediction of a row.
   */
  get aborted(): boolean {
    return this.#call.cancelled;
  }

  /** Milliseconds until the caller's deadline; infinite without one. */
  get remainingMs(): number {
    return Number(this.#call.getDeadline()) - wallClockMs();
  }

  /**
   * Aborts when the caller cancels or its deadline passes. One signal for all messages of a stream,
   * because each listens to the call until its end.
   */
  get abortSignal(): AbortSignal {
    if (this.#abort === undefined) {
      const abort = new AbortController();
      if (this.#call.cancelled) abort.abort();
      else this.#call.once('cancelled', () => abort.abort());
      this.#abort = abort;
    }
    return this.#abort.signal;
  }

  /** address:port, without brackets. */
  get peer(): string {
    return this.#call.getPeer();
  }

  /** The trusted TLS client certificate, if any. */
  get certificate(): ClientCertificate | undefined {
    return toCertificate(this.#call.getAuthContext());
  }

  /** Who calls; absent: the server has no access control. */
  get grant(): CallGrant | undefined {
    return grants.get(this.#call.metadata);
  }

  /** Trailers of a successful response; undefined: none. */
  get trailers(): Metadata | undefined {
    return this.#trailers;
  }

  /** Sets a trailer (lower case) to send after the last response, unless the call fails. */
  setTrailer(name: string, value: string): void {
    this.#trailers ??= createMetadata();
    this.#trailers.set(name, value);
  }

  /** The metadata `x-forwarded-for`. */
  get forwardedFor(): string | undefined {
    return readForwardedFor(this.#call.metadata);
  }

  /** Returns the first value of a metadata key (lower case). */
  getMetadata(name: string): string | undefined {
    return this.#call.metadata.get(name)[0]?.toString();
  }
}

/** Handles one message, and owns its bytes. A thrown CubeError becomes the call's status. */
export type GrpcHandler = (request: Uint8Array, call: GrpcCall) => Uint8Array | Promise<Uint8Array>;

/**
 * Checks a call before its message is read. @throws CubeError, which becomes the call's status
 * @param remainingMs until the caller's deadline; infinite without one
 * @param grant who calls; undefined without access control
 */
export type GrpcAdmit = (remainingMs: number, grant: CallGrant | undefined) => void;

/** A response that its caller has not received yet. */
export interface UnsentResponse extends LiveItem {
  readonly call: Pick<AnyCall, 'getPeer'>;
  readonly byteCount: number;
  readonly sinceMs: number;
}

/** The unsent responses of all methods, and whether new calls are accepted. */
export class UnsentResponses {
  readonly pending: LiveList<UnsentResponse> = new LiveList<UnsentResponse>();
  /** Streams that wait for the next message of their caller. */
  readonly idleStreams: Set<ServerDuplexStream<Buffer, Buffer>> = new Set();
  readonly #limits: ServerLimits;
  unsentBytes = 0;
  isStopping = false;

  constructor(limits: ServerLimits) {
    this.#limits = limits;
  }

  /** @throws CubeError STOPPING, OVERLOADED */
  checkAccepting(): void {
    if (this.isStopping) {
      throw new CubeError('STOPPING', 'the server is stopping; call another replica');
    }
    if (this.unsentBytes > this.#limits.outputTotalBytes) {
      throw new CubeError(
        'OVERLOADED',
        'too many responses wait to be read by their callers; try again later',
      );
    }
  }

  /**
   * Returns a function to call once the response is sent or can no longer be sent; it may be called
   * repeatedly.
   */
  add(call: UnsentResponse['call'], byteCount: number): () => void {
    const sinceMs = systemClock.nowMs();
    const response = { call, byteCount, sinceMs, previous: undefined, next: undefined };
    this.pending.add(response);
    this.unsentBytes += byteCount;
    return () => {
      if (this.pending.delete(response)) this.unsentBytes -= byteCount;
    };
  }
}

export class GrpcRoute extends MethodStats {
  readonly #handler: GrpcHandler;
  readonly #admit: GrpcAdmit | undefined;
  readonly #unsent: UnsentResponses;
  readonly #highWaterBytes: number;
  readonly #logger: Logger;

  constructor(
    name: { service: string; method: string },
    handler: GrpcHandler,
    shared: { unsent: UnsentResponses; limits: ServerLimits; logger: Logger },
    admit?: GrpcAdmit,
  ) {
    super(name.service, name.method);
    this.#handler = handler;
    this.#admit = admit;
    this.#unsent = shared.unsent;
    this.#highWaterBytes = shared.limits.outputHighWaterBytes;
    this.#logger = shared.logger;
  }

  /** Checks a call by its metadata. @returns the status of a call that is refused */
  refuse(remainingMs: number, grant: CallGrant | undefined): StatusObject | undefined {
    try {
      this.#admit?.(remainingMs, grant);
      return undefined;
    } catch (error) {
      this.requests++;
      return this.#toStatus(error);
    }
  }

  readonly unary = (
    call: ServerUnaryCall<Buffer, Buffer>,
    respond: sendUnaryData<Buffer>,
  ): void => {
    const grpcCall = new GrpcCall(call);
    const send = (response: Uint8Array): void => {
      if (call.cancelled) return;
      call.once('cancelled', this.#unsent.add(call, response.length));
      respond(null, toBuffer(response), grpcCall.trailers);
    };
    const fail = (error: unknown): void => respond(this.#toStatus(error));
    try {
      const response = this.#handle(call.request, grpcCall);
      if (response instanceof Promise) response.then(send, fail);
      else send(response);
    } catch (error) {
      fail(error);
    }
  };

  /**
   * Sends one response per message, in order. Pauses reading while more than `outputHighWaterBytes`
   * are unsent.
   */
  readonly bidi = (call: ServerDuplexStream<Buffer, Buffer>): void => {
    this.#serve(call).catch((error) => {
      if (!call.cancelled) call.emit('error', this.#toStatus(error));
    });
  };

  async #serve(call: ServerDuplexStream<Buffer, Buffer>): Promise<void> {
    const grpcCall = new GrpcCall(call);
    let unsentBytes = 0;
    let wake: (() => void) | undefined;
    call.once('cancelled', () => wake?.());
    const { idleStreams } = this.#unsent;
    call.once('close', () => idleStreams.delete(call));
    idleStreams.add(call);
    // A stream destroyed by the error could not send the error's status.
    let isFirst = true;
    for await (const request of call.iterator({ destroyOnReturn: false })) {
      idleStreams.delete(call);
      // The first message was admitted with the call.
      if (!isFirst) grpcCall.grant?.next();
      isFirst = false;
      const response = await this.#handle(request, grpcCall);
      if (call.cancelled) return;
      const release = this.#unsent.add(call, response.length);
      call.once('close', release);
      unsentBytes += response.length;
      call.write(toBuffer(response), () => {
        release();
        call.off('close', release);
        unsentBytes -= response.length;
        wake?.();
      });
      while (unsentBytes > this.#highWaterBytes && !call.cancelled) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
      idleStreams.add(call);
    }
    call.end(grpcCall.trailers);
  }

  #handle(request: Buffer, call: GrpcCall): Uint8Array | Promise<Uint8Array> {
    this.requests++;
    const startMs = systemClock.nowMs();
    this.#unsent.checkAccepting();
    if (call.isAbandoned) {
      throw new CubeError('DEADLINE_EXCEEDED', 'the deadline passed before the call began');
    }
    const response = this.#handler(request, call);
    const recordDuration = (): void => this.onSample((systemClock.nowMs() - startMs) / 1000);
    if (response instanceof Promise) response.then(recordDuration, recordDuration);
    else recordDuration();
    return response;
  }

  #toStatus(error: unknown): StatusObject {
    const failure = CubeError.from(error);
    const { service, method } = this;
    this.countError(failure.code);
    if (failure.code === 'INTERNAL') {
      this.#logger.error({ err: error, service, method }, 'gRPC call failed');
    }
    return toGrpcStatus(failure);
  }
}

export function toGrpcStatus(error: CubeError): StatusObject {
  const metadata = createMetadata();
  metadata.set(GRPC_CODE_KEY, error.code);
  setRetryInfo(metadata, error);
  const fields = encodeErrorDetails(error.details);
  if (fields !== '') metadata.set(ERROR_DETAILS_KEY, fields);
  // slice() may cut a surrogate pair in half, which cannot be sent; encoding to bytes repairs it.
  const details = Buffer.from(error.message.slice(0, DETAILS_CHARS_MAX)).toString();
  return { code: error.status.grpc, details, metadata };
}

/** Tells gRPC's own retries, and callers, when to try again. */
function setRetryInfo(metadata: Metadata, { code, status, message, details }: CubeError): void {
  const { retryAfterMs } = details;
  if (code !== 'OVERLOADED' && retryAfterMs === undefined) return;
  const waitMs = Math.ceil(retryAfterMs ?? RETRY_AFTER_MS);
  metadata.set(RETRY_PUSHBACK_KEY, waitMs > PUSHBACK_MS_MAX ? '-1' : String(waitMs));
  const text = message.slice(0, DETAILS_CHARS_MAX);
  metadata.set(STATUS_DETAILS_KEY, Buffer.from(encodeRetryStatus(status.grpc, text, waitMs)));
}

function toBuffer(bytes: Uint8Array): Buffer {
  if (Buffer.isBuffer(bytes)) return bytes;
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

function createMetadata(): Metadata {
  const { Metadata: Fields } = loadGrpcLibrary('@grpc/grpc-js');
  return new Fields();
}
