/**
 * What gRPC calls may take of this process, counted from their headers to their end: calls in flight, and the bytes of
 * messages that are not answered yet. Over a limit a call ends with RESOURCE_EXHAUSTED before its messages are read.
 */
import {
  Metadata,
  ServerInterceptingCall,
  type ServerInterceptor,
  ServerListenerBuilder,
  status as Status,
} from '@grpc/grpc-js';
import type { ServerLimits } from '../core/limits.ts';

type InterceptedCall = Parameters<ServerInterceptor>[1];

export class GrpcAdmission {
  readonly #limits: ServerLimits;
  readonly #onCall: () => void;
  #callsInFlight = 0;
  #unansweredBytes = 0;
  #onIdle: (() => void) | undefined;

  /** @param onCall called before each call */
  constructor(limits: ServerLimits, onCall: () => void) {
    this.#limits = limits;
    this.#onCall = onCall;
  }

  get callsInFlight(): number {
    return this.#callsInFlight;
  }

  /** Of messages received whole, until they are answered. */
  get unansweredBytes(): number {
    return this.#unansweredBytes;
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

  readonly interceptor: ServerInterceptor = (_method, call) => {
    this.#onCall();
    this.#callsInFlight++;
    const refused = this.#callsInFlight > this.#limits.grpcInFlight;
    const sizes: number[] = [];
    const listener = new ServerListenerBuilder()
      .withOnReceiveMetadata((metadata, next) => {
        if (refused) exhausted(call, `${this.#callsInFlight} gRPC calls are in flight`);
        else next(metadata);
      })
      .withOnReceiveMessage((message, next) => {
        const byteCount = message instanceof Uint8Array ? message.length : 0;
        sizes.push(byteCount);
        this.#unansweredBytes += byteCount;
        if (this.#unansweredBytes > this.#limits.inputTotalBytes) {
          exhausted(call, `${this.#unansweredBytes} bytes of gRPC messages wait for an answer`);
        } else next(message);
      })
      // Called at the end of every call, however it ended.
      .withOnCancel(() => {
        for (const byteCount of sizes) this.#unansweredBytes -= byteCount;
        sizes.length = 0;
        this.#callsInFlight--;
        if (this.#callsInFlight === 0) this.#onIdle?.();
      })
      .build();
    return new ServerInterceptingCall(call, {
      start: (next) => next(listener),
      sendMessage: (message, next) => {
        this.#unansweredBytes -= sizes.shift() ?? 0;
        next(message);
      },
    });
  };
}

function exhausted(call: InterceptedCall, what: string): void {
  const metadata = new Metadata();
  metadata.set('hypercube-code', 'OVERLOADED');
  call.sendStatus({
    code: Status.RESOURCE_EXHAUSTED,
    details: `${what}; try again later or another replica`,
    metadata,
  });
}
