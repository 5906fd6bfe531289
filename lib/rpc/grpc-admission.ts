/**
 * Limits of gRPC calls, counted from their headers to their end: calls in flight, and the bytes of
 * unanswered messages. Above a limit, a call ends with RESOURCE_EXHAUSTED before its messages are
 * read.
 */
import type { Metadata, ServerInterceptor } from '@grpc/grpc-js';
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
import { loadGrpcLibrary } from './grpc-libraries.ts';

type InterceptedCall = Parameters<ServerInterceptor>[1];

interface WaitingCall extends LiveItem {
  readonly call: InterceptedCall;
  sinceMs: number;
}

/** A call that waits for less is never ended for another one. */
const EVICTED_IDLE_MS = 1000;

export class GrpcAdmission {
  readonly #limits: ServerLimits;
  readonly #onCall: () => void;
  readonly #gate: AccessGate | undefined;
  /** Methods whose calls are checked before their messages are read, by path. */
  readonly #routes = new Map<string, GrpcRoute>();
  /** Calls that wait for a message of their caller; the longest first. */
  readonly #waiting = new LiveList<WaitingCall>();
  #callsInFlight = 0;
  #pendingRequestBytes = 0;
  #onIdle: (() => void) | undefined;

  /**
   * @param onCall called before each call
   * @param gate checks each call; absent: every caller may call every method
   */
  constructor(limits: ServerLimits, onCall: () => void, gate?: AccessGate) {
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

  readonly interceptor: ServerInterceptor = ({ path }, call) => {
    const { ServerInterceptingCall, ServerListenerBuilder } = loadGrpcLibrary('@grpc/grpc-js');
    this.#onCall();
    this.#callsInFlight++;
    const isRefused = this.#callsInFlight > this.#limits.grpcInFlight && !this.#endIdleCall();
    const waiting = { call, sinceMs: systemClock.nowMs(), previous: undefined, next: undefined };
    this.#waiting.add(waiting);
    const sizes: number[] = [];
    let grant: CallGrant | undefined;
    const listener = new ServerListenerBuilder()
      .withOnReceiveMetadata((metadata, next) => {
        if (isRefused) {
          rejectExhausted(call, `${this.#callsInFlight} gRPC calls are in flight`);
          return;
        }
        try {
          grant = this.#gate && admitGrpcCall(this.#gate, call, metadata, path);
        } catch (error) {
          call.sendStatus(toGrpcStatus(CubeError.from(error)));
          return;
        }
        if (grant !== undefined) setGrant(metadata, grant);
        const remainingMs = Number(call.getDeadline()) - wallClockMs();
        const refusal = this.#routes.get(path)?.refuse(remainingMs, grant);
        if (refusal === undefined) next(metadata);
        else call.sendStatus(refusal);
      })
      .withOnReceiveMessage((message, next) => {
        this.#waiting.delete(waiting);
        const byteCount = message instanceof Uint8Array ? message.length : 0;
        sizes.push(byteCount);
        this.#pendingRequestBytes += byteCount;
        if (this.#pendingRequestBytes > this.#limits.inputTotalBytes) {
          rejectExhausted(
            call,
            `${this.#pendingRequestBytes} bytes of gRPC messages wait for an answer`,
          );
        } else next(message);
      })
      // Called at the end of every call, successful or not.
      .withOnCancel(() => {
        for (const byteCount of sizes) this.#pendingRequestBytes -= byteCount;
        sizes.length = 0;
        grant?.end();
        grant = undefined;
        this.#waiting.delete(waiting);
        this.#callsInFlight--;
        if (this.#callsInFlight === 0) this.#onIdle?.();
      })
      .build();
    return new ServerInterceptingCall(call, {
      start: (next) => next(listener),
      sendMessage: (message, next) => {
        this.#pendingRequestBytes -= sizes.shift() ?? 0;
        if (sizes.length === 0) {
          waiting.sinceMs = systemClock.nowMs();
          // A stream of health waits already.
          this.#waiting.delete(waiting);
          this.#waiting.add(waiting);
        }
        next(message);
      },
    });
  };

  /**
   * Ends the call that has waited for a message for longest, so that calls without messages do not
   * shut out other callers. @returns whether there is one
   */
  #endIdleCall(): boolean {
    const oldest = this.#waiting.first;
    if (oldest === undefined) return false;
    if (systemClock.nowMs() - oldest.sinceMs < EVICTED_IDLE_MS) return false;
    this.#waiting.delete(oldest);
    rejectExhausted(
      oldest.call,
      'the server is full, and this call waited for a message for longest',
    );
    return true;
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

function rejectExhausted(call: InterceptedCall, reason: string): void {
  const text = `${reason}; try again later or call another replica`;
  call.sendStatus(toGrpcStatus(new CubeError('OVERLOADED', text)));
}
