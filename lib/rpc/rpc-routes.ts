/**
 * Which handler answers which baidu_std method, and how often it did. Handlers are synchronous: they read the
 * request where it lies and write the answer into the connection's output buffer, so a call costs no promise, no
 * copy and no queue. What cannot be answered at once is deferred.
 */

import { beginResponse, type Frame, finishFrame } from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import type { ErrorCode } from '../core/errors.ts';
import type { ClientCertificate } from './control-caller.ts';
import type { DeferredResponse } from './deferred-response.ts';
import { isCoded, sealPayload } from './payload-coding.ts';

/**
 * Answers one call: `response.begin(attachmentBytes)`, then the payload and the attachment into `response.output`;
 * or, before anything is written, `response.defer()`, and the same on what that returns at any later time.
 * A thrown CubeError becomes the error response, whatever was written before.
 */
export type RpcHandler = (request: Frame, response: RpcResponse) => void;

/** The same call with its messages as JSON texts, for callers that ask for `content_type` 1. */
export type JsonHandler = (request: string) => string;

/** One method's name, and how often it was called, failed, and how long it took. */
export class CallCounts {
  readonly service: string;
  readonly method: string;
  requests = 0;
  readonly errors: Map<ErrorCode, number> = new Map<ErrorCode, number>();
  /** Called with durations: over baidu_std of one call out of every `RpcRoutes.sampleEvery`, over gRPC of each. */
  onSample: (seconds: number) => void = () => undefined;

  constructor(service: string, method: string) {
    this.service = service;
    this.method = method;
  }

  countError(code: ErrorCode): void {
    this.errors.set(code, (this.errors.get(code) ?? 0) + 1);
  }
}

export class RpcRoute extends CallCounts {
  readonly handler: RpcHandler;
  readonly jsonHandler: JsonHandler | undefined;

  constructor(service: string, method: string, handler: RpcHandler, jsonHandler?: JsonHandler) {
    super(service, method);
    this.handler = handler;
    this.jsonHandler = jsonHandler;
  }
}

/** A connection: who calls, and who keeps what is answered later. */
export interface Caller {
  /** Its IP address; undefined once it has gone. */
  readonly peerAddress: string | undefined;
  /** Shown in TLS; undefined over a plain connection, and where none was shown. */
  readonly certificate: ClientCertificate | undefined;
  /** What it showed for itself with this call or, as brpc's clients do, with an earlier one; empty: nothing. */
  readonly authentication: string;
  defer(route: RpcRoute, request: Frame): DeferredResponse;
}

/** The answer to one call, while it is written. One object serves all calls: they run one after another. */
export class RpcResponse {
  output!: OutputBuffer;
  /** For the server: the answer that the handler chose to give later. */
  deferred: DeferredResponse | undefined;
  #request!: Frame;
  #route!: RpcRoute;
  #caller!: Caller;
  #frameStart = 0;
  #metaEnd = -1;
  #attachmentBytes = 0;

  /** For the server, before each call. */
  open(output: OutputBuffer, request: Frame, route: RpcRoute, caller: Caller): void {
    this.output = output;
    this.deferred = undefined;
    this.#request = request;
    this.#route = route;
    this.#caller = caller;
    this.#frameStart = output.length;
    this.#metaEnd = -1;
  }

  get caller(): Caller {
    return this.#caller;
  }

  /**
   * The call will be answered later: copy what is needed of the request's bytes before the handler returns, then use
   * the answer returned here instead of this one. Once per call.
   * @throws CubeError OVERLOADED when too many answers are outstanding already
   */
  defer(): DeferredResponse {
    this.deferred = this.#caller.defer(this.#route, this.#request);
    return this.deferred;
  }

  /** Writes header and meta; the payload and `attachmentBytes` of attachment must follow. Once per call. */
  begin(attachmentBytes: number): void {
    this.#attachmentBytes = attachmentBytes;
    this.#metaEnd = beginResponse(this.output, this.#request, attachmentBytes);
  }

  /** For the server, after each call: completes the frame. A handler that wrote nothing answers empty. */
  finish(): void {
    if (this.#metaEnd < 0) this.begin(0);
    if (isCoded(this.#request)) {
      sealPayload(
        this.output,
        {
          frameStart: this.#frameStart,
          metaEnd: this.#metaEnd,
          attachmentBytes: this.#attachmentBytes,
        },
        this.#request,
      );
    }
    finishFrame(this.output, this.#frameStart, this.#metaEnd);
  }

  /** For the server: forgets what was written. */
  discard(): void {
    this.output.truncate(this.#frameStart);
  }
}

export class RpcRoutes {
  /** One call in so many is timed: two clock readings a call would be a visible share of a small one. */
  static readonly sampleEvery: number = 32;
  readonly #services = new Map<string, Map<string, RpcRoute>>();
  readonly #routes: RpcRoute[] = [];

  /** The method answers under the service's full name and, as brpc servers do, under its last part. */
  add(service: string, method: string, handler: RpcHandler, jsonHandler?: JsonHandler): RpcRoute {
    const route = new RpcRoute(service, method, handler, jsonHandler);
    this.#routes.push(route);
    for (const name of [service, service.slice(service.lastIndexOf('.') + 1)]) {
      const methods = this.#services.get(name) ?? new Map<string, RpcRoute>();
      methods.set(method, route);
      this.#services.set(name, methods);
    }
    return route;
  }

  hasService(service: string): boolean {
    return this.#services.has(service);
  }

  find(service: string, method: string): RpcRoute | undefined {
    return this.#services.get(service)?.get(method);
  }

  get routes(): readonly RpcRoute[] {
    return this.#routes;
  }
}
