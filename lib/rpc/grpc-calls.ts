/** How one gRPC method is answered: bytes to a handler, bytes back, errors as gRPC statuses. */
import {
  Metadata,
  type ServerDuplexStream,
  type ServerUnaryCall,
  type StatusObject,
  type sendUnaryData,
} from '@grpc/grpc-js';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { systemClock, wallClockMs } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import type { ClientCertificate } from './control-caller.ts';
import { CallCounts } from './rpc-routes.ts';

/** Percent-encoded in a trailer: more would pass the limits that clients set for headers. */
const DETAILS_CHARS_MAX = 1024;
/** Our own code, more exact than gRPC's, in the trailers of an error. */
const GRPC_CODE_KEY = 'hypercube-code';

type AnyCall = ServerUnaryCall<Buffer, Buffer> | ServerDuplexStream<Buffer, Buffer>;

/** What a handler may ask about its call. */
export class GrpcCall {
  readonly #call: AnyCall;

  constructor(call: AnyCall) {
    this.#call = call;
  }

  /** Nobody waits for the answer: the caller has gone, or its deadline has passed. */
  get abandoned(): boolean {
    return this.#call.cancelled || Number(this.#call.getDeadline()) <= wallClockMs();
  }

  /** Until the caller's deadline; infinite when it has none. */
  get timeLeftMs(): number {
    return Number(this.#call.getDeadline()) - wallClockMs();
  }

  /** Aborted when the caller has gone, or its deadline has passed. */
  get signal(): AbortSignal {
    const gone = new AbortController();
    if (this.#call.cancelled) gone.abort();
    else this.#call.once('cancelled', () => gone.abort());
    return gone.signal;
  }

  /** address:port, without brackets. */
  get peer(): string {
    return this.#call.getPeer();
  }

  /** Shown in TLS, and believed; undefined otherwise. */
  get certificate(): ClientCertificate | undefined {
    const shown = this.#call.getAuthContext().sslPeerCertificate;
    if (shown === undefined) return undefined;
    const { subject, valid_to: validTo } = shown;
    return { subject: `CN=${subject.CN}`, validUntilMs: Date.parse(validTo) };
  }

  /** The first value that the caller sent under this (lower-case) name. */
  metadata(name: string): string | undefined {
    return this.#call.metadata.get(name)[0]?.toString();
  }
}

/** Answers one message; the request's bytes stay its own. A thrown CubeError becomes the call's status. */
export type GrpcHandler = (request: Uint8Array, call: GrpcCall) => Uint8Array | Promise<Uint8Array>;

/** An answer that its caller has not taken yet. */
export interface UnsentAnswer {
  readonly peer: string;
  readonly byteCount: number;
  readonly sinceMs: number;
}

/** The answers of all methods that are not sent yet, and whether new ones may be added. */
export class GrpcOutbox {
  readonly answers: Set<UnsentAnswer> = new Set<UnsentAnswer>();
  /** Streams that wait for their next message. */
  readonly idleStreams: Set<ServerDuplexStream<Buffer, Buffer>> = new Set();
  readonly #limits: ServerLimits;
  unsentBytes = 0;
  stopping = false;

  constructor(limits: ServerLimits) {
    this.#limits = limits;
  }

  /** @throws CubeError STOPPING, OVERLOADED */
  checkOpen(): void {
    if (this.stopping) {
      throw new CubeError('STOPPING', 'the server is stopping; call another replica');
    }
    if (this.unsentBytes > this.#limits.outputTotalBytes) {
      throw new CubeError('OVERLOADED', 'too many answers wait to be read by their callers');
    }
  }

  /** @returns what to call when the answer has left, or never will; more than once does no harm */
  add(peer: string, byteCount: number): () => void {
    const answer = { peer, byteCount, sinceMs: systemClock.nowMs() };
    this.answers.add(answer);
    this.unsentBytes += byteCount;
    return () => {
      if (this.answers.delete(answer)) this.unsentBytes -= byteCount;
    };
  }
}

export class GrpcRoute extends CallCounts {
  readonly #handler: GrpcHandler;
  readonly #outbox: GrpcOutbox;
  readonly #highWaterBytes: number;
  readonly #logger: Logger;

  constructor(
    name: { service: string; method: string },
    handler: GrpcHandler,
    shared: { outbox: GrpcOutbox; limits: ServerLimits; logger: Logger },
  ) {
    super(name.service, name.method);
    this.#handler = handler;
    this.#outbox = shared.outbox;
    this.#highWaterBytes = shared.limits.outputHighWaterBytes;
    this.#logger = shared.logger;
  }

  readonly unary = (
    call: ServerUnaryCall<Buffer, Buffer>,
    respond: sendUnaryData<Buffer>,
  ): void => {
    const send = (answer: Uint8Array): void => {
      if (call.cancelled) return;
      call.once('cancelled', this.#outbox.add(call.getPeer(), answer.length));
      respond(null, asBuffer(answer));
    };
    const fail = (error: unknown): void => respond(this.#failure(error));
    try {
      const answer = this.#answer(call.request, new GrpcCall(call));
      if (answer instanceof Promise) answer.then(send, fail);
      else send(answer);
    } catch (error) {
      fail(error);
    }
  };

  /** One answer per message, in order. No message is read while more than so many bytes of answers are not taken. */
  readonly bidi = (call: ServerDuplexStream<Buffer, Buffer>): void => {
    this.#serve(call).catch((error) => {
      if (!call.cancelled) call.emit('error', this.#failure(error));
    });
  };

  async #serve(call: ServerDuplexStream<Buffer, Buffer>): Promise<void> {
    const peer = call.getPeer();
    const about = new GrpcCall(call);
    let unsentBytes = 0;
    let wake: (() => void) | undefined;
    call.once('cancelled', () => wake?.());
    const { idleStreams } = this.#outbox;
    call.once('close', () => idleStreams.delete(call));
    idleStreams.add(call);
    // Destroyed by an error, it could not send the error's status any more.
    for await (const request of call.iterator({ destroyOnReturn: false })) {
      idleStreams.delete(call);
      const answer = await this.#answer(request, about);
      if (call.cancelled) return;
      const release = this.#outbox.add(peer, answer.length);
      call.once('close', release);
      unsentBytes += answer.length;
      call.write(asBuffer(answer), () => {
        release();
        call.off('close', release);
        unsentBytes -= answer.length;
        wake?.();
      });
      while (unsentBytes > this.#highWaterBytes && !call.cancelled) {
        await new Promise<void>((resolve) => {
          wake = resolve;
        });
      }
      idleStreams.add(call);
    }
    call.end();
  }

  #answer(request: Buffer, call: GrpcCall): Uint8Array | Promise<Uint8Array> {
    this.requests++;
    const startMs = systemClock.nowMs();
    this.#outbox.checkOpen();
    if (call.abandoned) {
      throw new CubeError('DEADLINE_EXCEEDED', 'the caller’s time was over before the call began');
    }
    const answer = this.#handler(request, call);
    const timed = (): void => this.onSample((systemClock.nowMs() - startMs) / 1000);
    if (answer instanceof Promise) answer.then(timed, timed);
    else timed();
    return answer;
  }

  #failure(error: unknown): Partial<StatusObject> {
    const failure = CubeError.from(error);
    const { service, method } = this;
    this.countError(failure.code);
    if (failure.code === 'INTERNAL') {
      this.#logger.error({ err: error, service, method }, 'gRPC call failed');
    }
    return grpcStatus(failure);
  }
}

export function grpcStatus(error: CubeError): Partial<StatusObject> {
  const metadata = new Metadata();
  metadata.set(GRPC_CODE_KEY, error.code);
  // The way over bytes mends what the cut may have broken: half a surrogate pair cannot be sent.
  const details = Buffer.from(error.message.slice(0, DETAILS_CHARS_MAX)).toString();
  return { code: error.status.grpc, details, metadata };
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
