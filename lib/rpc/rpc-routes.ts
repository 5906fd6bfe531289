/**
 * The handlers of baidu_std methods, and their statistics. Handlers are synchronous: they read the
 * request in place and write the response into the connection's output buffer, so a call costs no
 * promise, no copy and no queue. Longer work is deferred.
 */
import { beginResponse, type Frame, finishFrame } from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import type { CallGrant } from '../access/access-gate.ts';
import type { ErrorCode } from '../core/errors.ts';
import type { ClientCertificate } from './control-caller.ts';
import type { DeferredResponse } from './deferred-response.ts';
import { encodeResponsePayload, isEncoded } from './payload-encoding.ts';

/**
 * Handles one call: calls `response.begin(attachmentBytes)`, then appends payload and attachment to
 * `response.output`. Alternatively it calls `response.defer()` before writing anything, and later
 * writes to the returned response in the same way. A thrown CubeError becomes the error response
 * and discards the output.
 */
export type RpcHandler = (request: Frame, response: RpcResponse) => void;

/**
 * Handles the same call with JSON messages, for callers that send `content_type` 1. The request's
 * bytes are valid only during the call: a handler that returns a promise copies them.
 */
export type JsonHandler = (request: Uint8Array) => string | Promise<string>;

/** The calls, errors and durations of one method. */
export class MethodStats {
  readonly service: string;
  readonly method: string;
  requests = 0;
  readonly errors: Map<ErrorCode, number> = new Map<ErrorCode, number>();
  /**
   * Receives durations: over baidu_std of one call in `RpcRoutes.sampleInterval`, over gRPC of
   * every call.
   */
  onSample: (seconds: number) => void = () => undefined;

  constructor(service: string, method: string) {
    this.service = service;
    this.method = method;
  }

  countError(code: ErrorCode): void {
    this.errors.set(code, (this.errors.get(code) ?? 0) + 1);
  }
}

export class RpcRoute extends MethodStats {
  readonly handler: RpcHandler;
  readonly jsonHandler: JsonHandler | undefined;

  constructor(service: string, method: string, handler: RpcHandler, jsonHandler?: JsonHandler) {
    super(service, method);
    this.handler = handler;
    this.jsonHandler = jsonHandler;
  }
}

/** The connection of a call: its peer, and the keeper of deferred calls. */
export interface RpcCaller {
  /** The peer's IP address; undefined once it has disconnected. */
  readonly peerAddress: string | undefined;
  /** The TLS client certificate; undefined over a plain connection or without one. */
  readonly certificate: ClientCertificate | undefined;
  /**
   * The credential of this call or, as brpc's clients send it, of an earlier one; empty without
   * one.
   */
  readonly authentication: string;
  /**
   * Who makes the call whose handler runs now; absent: the server has no access control. A handler
   * that defers its response reads it before.
   */
  readonly grant: CallGrant | undefined;
  defer(route: RpcRoute, request: Frame): DeferredResponse;
}

/**
 * The response to one call, while its handler runs. One object serves all calls, which run one
 * after another.
 */
export class RpcResponse {
  output!: OutputBuffer;
  /** For the server: set when the handler has deferred the response. */
  deferred: DeferredResponse | undefined;
  #request!: Frame;
  #route!: RpcRoute;
  #caller!: RpcCaller;
  #frameStart = 0;
  #metaEnd = -1;
  #attachmentBytes = 0;

  /** For the server: call before each call. */
  start(output: OutputBuffer, request: Frame, route: RpcRoute, caller: RpcCaller): void {
    this.output = output;
    this.deferred = undefined;
    this.#request = request;
    this.#route = route;
    this.#caller = caller;
    this.#frameStart = output.length;
    this.#metaEnd = -1;
  }

  get caller(): RpcCaller {
    return this.#caller;
  }

  /**
   * Defers the response. Before the handler returns, copy the needed bytes of the request; then
   * write to the returned response instead of this one. At most once per call.
   * @throws CubeError OVERLOADED when too many calls are deferred already
   */
  defer(): DeferredResponse {
    this.deferred = this.#caller.defer(this.#route, this.#request);
    return this.deferred;
  }

  /**
   * Writes header and meta; the payload and `attachmentBytes` of attachment must follow. Once per
   * call.
   */
  begin(attachmentBytes: number): void {
    this.#attachmentBytes = attachmentBytes;
    this.#metaEnd = beginResponse(this.output, this.#request, attachmentBytes);
  }

  /**
   * For the server: completes the frame after the handler. Without output the response is empty.
   */
  finish(): void {
    if (this.#metaEnd < 0) this.begin(0);
    if (isEncoded(this.#request)) {
      encodeResponsePayload(
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

  /** For the server: discards the output of this call. */
  discard(): void {
    this.output.truncate(this.#frameStart);
  }
}

export class RpcRoutes {
  /**
   * One call in this many is timed, because reading the clock twice is a measurable share of a
   * small call.
   */
  static readonly sampleInterval: number = 32;
  readonly #services = new Map<string, Map<string, RpcRoute>>();
  readonly #routes: RpcRoute[] = [];

  /**
   * Registers a method under the service's full name and, as brpc servers do, under its last part.
   */
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

  findRoute(service: string, method: string): RpcRoute | undefined {
    return this.#services.get(service)?.get(method);
  }

  get routes(): readonly RpcRoute[] {
    return this.#routes;
  }
}
