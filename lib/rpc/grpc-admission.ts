/**
 * Limits of gRPC calls, counted from their headers to their end: calls in flight, and the bytes of
 * unanswered messages. Above a limit, a call ends with RESOURCE_EXHAUSTED before its messages are
 * read.
 */
import type { Metadata, ServerInterceptingCall, ServerInterceptor } from '@grpc/grpc-js';
import type { AccessGate, CallGrant } from '../access/access-gate.ts';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { type LiveItem, LiveList } from '../core/live-list.ts';
import { systemClock, wallClockMs } from '../platform/clock.ts';
import {
  type GrpcRoute,
  readForwardedFor,
  setGrant,
  toCertificate,
  toGrpcStatus,
} from './grpc-calls.ts';

type InterceptedCall = Parameters<ServerInterceptor>[1];
type CallListener = Parameters<InterceptedCall['start']>[0];

type Refusal = ReturnType<GrpcRoute['refuse']>;

interface WaitingCall extends LiveItem {
  readonly call: InterceptedCall;
  sinceMs: number;
}

/** A call that waits for less is never ended for another one. */
const EVICTED_IDLE_MS = 1000;

export class GrpcAdmission {
  readonly #limits: ServerLimits;
  readonly #onCall: (path: string) => void;
  readonly #gate: AccessGate | undefined;
  /** Methods whose calls are checked before their messages are read, by path. */
  readonly #routes = new Map<string, GrpcRoute>();
  /** Calls that wait for a message of their caller; the longest first. */
  readonly #waiting = new LiveList<WaitingCall>();
  #callsInFlight = 0;
  #pendingRequestBytes = 0;
  #onIdle: (() => void) | undefined;

  /**
   * @param onCall called with the path of each call, before it
   * @param gate checks each call; absent: every caller may call every method
   */
  constructor(limits: ServerLimits, onCall: (path: string) => void, gate?: AccessGate) {
    this.#limits = limits;
    this.#onCall = onCall;
    this.#gate = gate;
  }

  addRoute(path: string, route: GrpcRoute): void {
    this.#routes.set(path, route);
  }

  get callsInFlight(): number {
    return this.#callsInFlight;
  }

  /** Bytes of messages received and not yet answered. */
  get pendingRequestBytes(): number {
    return this.#pendingRequestBytes;
  }

  /** Resolves when no call is in flight, or after `waitMs`. */
  async drain(waitMs: number): Promise<void> {
    if (this.#callsInFlight === 0) return;
    await new Promise<void>((resolve) => {
      const timer = setTimeout(resolve, waitMs);
      this.#onIdle = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  /** Its calls are those of the library as far as the server uses them. */
  readonly interceptor: ServerInterceptor = ({ path }, call) => {
    this.#onCall(path);
    this.#callsInFlight++;
    const isRefused = this.#callsInFlight > this.#limits.grpcInFlight && !this.#endIdleCall();
    const admitted: InterceptedCall = new AdmittedCall(call, path, isRefused, this);
    return admitted as ServerInterceptingCall;
  };

  /** Begins to wait for a message. @returns where the call waits */
  wait(call: InterceptedCall): WaitingCall {
    const waiting = { call, sinceMs: systemClock.nowMs(), previous: undefined, next: undefined };
    this.#waiting.add(waiting);
    return waiting;
  }

  waitAgain(waiting: WaitingCall): void {
    waiting.sinceMs = systemClock.nowMs();
    // A stream of health waits already.
    this.#waiting.delete(waiting);
    this.#waiting.add(waiting);
  }

  endWait(waiting: WaitingCall): void {
    this.#waiting.delete(waiting);
  }

  /**
   * Checks a call by its metadata. @returns its grant, undefined without access control
   * @throws CubeError UNAUTHENTICATED, DENIED, RATE_LIMITED
   */
  grant(call: InterceptedCall, metadata: Metadata, path: string): CallGrant | undefined {
    return this.#gate && admitGrpcCall(this.#gate, call, metadata, path);
  }

  /** @returns the status of a call that its method refuses */
  refuse(call: InterceptedCall, path: string, grant: CallGrant | undefined): Refusal {
    const remainingMs = Number(call.getDeadline()) - wallClockMs();
    return this.#routes.get(path)?.refuse(remainingMs, grant);
  }

  /** Counts the bytes of a message. @returns whether there is room for it */
  takeBytes(byteCount: number): boolean {
    this.#pendingRequestBytes += byteCount;
    return this.#pendingRequestBytes <= this.#limits.inputTotalBytes;
  }

  releaseBytes(byteCount: number): void {
    this.#pendingRequestBytes -= byteCount;
  }

  endCall(): void {
    this.#callsInFlight--;
    if (this.#callsInFlight === 0) this.#onIdle?.();
  }

  /**
   * Ends the call that has waited for a message for longest, so that calls without messages do not
   * shut out other callers. @returns whether there is one
   */
  #endIdleCall(): boolean {
    const oldest = this.#waiting.first;
    if (oldest === undefined) return false;
    if (systemClock.nowMs() - oldest.sinceMs < EVICTED_IDLE_MS) return false;
    this.#waiting.delete(oldest);
    const reason = 'the server is full, and this call waited for a message for longest';
    oldest.call.sendStatus(toExhausted(reason));
    return true;
  }
}

/**
 * A call between the server and the library, and the listener of its events. The library's own
 * class for this, ServerInterceptingCall, also allows each step to go on later, and allocates a
 * closure for each.
 */
class AdmittedCall implements InterceptedCall, CallListener {
  readonly #call: InterceptedCall;
  readonly #path: string;
  readonly #isRefused: boolean;
  readonly #admission: GrpcAdmission;
  readonly #waiting: WaitingCall;
  #listener: CallListener | undefined;
  /** Bytes of the unanswered messages after the first one. */
  #laterSizes: number[] | undefined;
  /** Bytes of the first unanswered message; undefined: none is. */
  #size: number | undefined;
  #grant: CallGrant | undefined;
  /** The server receives no more events but the end. */
  #isClosed = false;

  constructor(call: InterceptedCall, path: string, isRefused: boolean, admission: GrpcAdmission) {
    this.#call = call;
    this.#path = path;
    this.#isRefused = isRefused;
    this.#admission = admission;
    this.#waiting = admission.wait(call);
  }

  start(listener: CallListener): void {
    this.#listener = listener;
    this.#call.start(this);
  }

  onReceiveMetadata(metadata: Metadata): void {
    const refusal = this.#admit(metadata);
    if (refusal === undefined) this.#listener?.onReceiveMetadata(metadata);
    else this.#refuse(refusal);
  }

  #admit(metadata: Metadata): Refusal {
    const admission = this.#admission;
    if (this.#isRefused) return toExhausted(`${admission.callsInFlight} gRPC calls are in flight`);
    try {
      this.#grant = admission.grant(this.#call, metadata, this.#path);
    } catch (error) {
      return toGrpcStatus(CubeError.from(error));
    }
    if (this.#grant !== undefined) setGrant(metadata, this.#grant);
    return admission.refuse(this.#call, this.#path, this.#grant);
  }

  #refuse(status: NonNullable<Refusal>): void {
    this.#isClosed = true;
    this.#call.sendStatus(status);
  }

  onReceiveMessage(message: unknown): void {
    if (this.#isClosed) return;
    const admission = this.#admission;
    admission.endWait(this.#waiting);
    const byteCount = message instanceof Uint8Array ? message.length : 0;
    if (this.#size === undefined) this.#size = byteCount;
    else {
      this.#laterSizes ??= [];
      this.#laterSizes.push(byteCount);
    }
    if (admission.takeBytes(byteCount)) this.#listener?.onReceiveMessage(message);
    else {
      const pending = admission.pendingRequestBytes;
      this.#refuse(toExhausted(`${pending} bytes of gRPC messages wait for an answer`));
    }
  }

  onReceiveHalfClose(): void {
    if (!this.#isClosed) this.#listener?.onReceiveHalfClose();
  }

  /** Called at the end of every call, successful or not. */
  onCancel(): void {
    this.#isClosed = true;
    const admission = this.#admission;
    while (this.#size !== undefined) this.#releaseFirst();
    this.#grant?.end();
    this.#grant = undefined;
    admission.endWait(this.#waiting);
    admission.endCall();
    this.#listener?.onCancel();
  }

  /** Ends the count of the first unanswered message, if there is one. */
  #releaseFirst(): void {
    this.#admission.releaseBytes(this.#size ?? 0);
    this.#size = this.#laterSizes?.shift();
  }

  sendMetadata(metadata: Metadata): void {
    this.#call.sendMetadata(metadata);
  }

  sendMessage(message: unknown, callback: () => void): void {
    this.#releaseFirst();
    if (this.#size === undefined && !this.#isClosed) this.#admission.waitAgain(this.#waiting);
    this.#call.sendMessage(message, callback);
  }

  sendStatus(status: Parameters<InterceptedCall['sendStatus']>[0]): void {
    this.#call.sendStatus(status);
  }

  startRead(): void {
    this.#call.startRead();
  }

  getPeer(): string {
    return this.#call.getPeer();
  }

  getDeadline(): ReturnType<InterceptedCall['getDeadline']> {
    return this.#call.getDeadline();
  }

  getHost(): string {
    return this.#call.getHost();
  }

  getAuthContext(): ReturnType<InterceptedCall['getAuthContext']> {
    return this.#call.getAuthContext();
  }

  getConnectionInfo(): ReturnType<InterceptedCall['getConnectionInfo']> {
    return this.#call.getConnectionInfo();
  }

  getMetricsRecorder(): ReturnType<InterceptedCall['getMetricsRecorder']> {
    return this.#call.getMetricsRecorder();
  }
}

/** @throws CubeError UNAUTHENTICATED, DENIED, RATE_LIMITED */
function admitGrpcCall(
  gate: AccessGate,
  call: InterceptedCall,
  metadata: Metadata,
  path: string,
): CallGrant {
  const read = (name: string): string | undefined => metadata.get(name)[0]?.toString();
  const head = {
    authorization: read('authorization'),
    apiKey: read('x-api-key'),
    peerAddress: call.getPeer().replace(/:\d+$/, ''),
    forwardedFor: readForwardedFor(metadata),
    get certificate() {
      return toCertificate(call.getAuthContext());
    },
  };
  return gate.admit(head, { protocol: 'grpc', verb: '', path });
}

function toExhausted(reason: string): NonNullable<Refusal> {
  const text = `${reason}; try again later or call another replica`;
  return toGrpcStatus(new CubeError('OVERLOADED', text));
}
