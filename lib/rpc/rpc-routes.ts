/**
 * Which handler answers which baidu_std method, and how often it did. Handlers are synchronous: they read the
 * request where it lies and write the answer into the connection's output buffer, so a call costs no promise, no
 * copy and no queue.
 */

import { beginResponse, type Frame, finishFrame } from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import type { ErrorCode } from '../core/errors.ts';

/**
 * Answers one call: `response.begin(attachmentBytes)`, then the payload and the attachment into `response.output`.
 * A thrown CubeError becomes the error response, whatever was written before.
 */
export type RpcHandler = (request: Frame, response: RpcResponse) => void;

export class RpcRoute {
  readonly service: string;
  readonly method: string;
  readonly handler: RpcHandler;
  requests = 0;
  readonly errors: Map<ErrorCode, number> = new Map<ErrorCode, number>();
  /** Called with the duration of one call out of every `RpcRoutes.sampleEvery`. */
  onSample: (seconds: number) => void = () => undefined;

  constructor(service: string, method: string, handler: RpcHandler) {
    this.service = service;
    this.method = method;
    this.handler = handler;
  }

  countError(code: ErrorCode): void {
    this.errors.set(code, (this.errors.get(code) ?? 0) + 1);
  }
}

/** The answer to one call, while it is written. One object serves all calls: they run one after another. */
export class RpcResponse {
  output!: OutputBuffer;
  #request!: Frame;
  #frameStart = 0;
  #metaEnd = -1;

  /** For the server, before each call. */
  open(output: OutputBuffer, request: Frame): void {
    this.output = output;
    this.#request = request;
    this.#frameStart = output.length;
    this.#metaEnd = -1;
  }

  /** Writes header and meta; the payload and `attachmentBytes` of attachment must follow. Once per call. */
  begin(attachmentBytes: number): void {
    this.#metaEnd = beginResponse(this.output, this.#request, attachmentBytes);
  }

  /** For the server, after each call: completes the frame. A handler that wrote nothing answers empty. */
  finish(): void {
    if (this.#metaEnd < 0) this.begin(0);
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
  add(service: string, method: string, handler: RpcHandler): RpcRoute {
    const route = new RpcRoute(service, method, handler);
    this.#routes.push(route);
    for (const name of [service, service.slice(service.lastIndexOf('.') + 1)]) {
      const methods = this.#services.get(name) ?? new Map<string, RpcRoute>();
      methods.set(method, route);
      this.#services.set(name, methods);
    }
    return route;
  }

  find(service: string, method: string): RpcRoute | undefined {
    return this.#services.get(service)?.get(method);
  }

  get routes(): readonly RpcRoute[] {
    return this.#routes;
  }
}
