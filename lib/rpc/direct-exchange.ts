/** A request of a direct route that is read without node:http, and its response. */
import type { Socket } from 'node:net';
import type { AccessGate, CallGrant } from '../access/access-gate.ts';
import { CubeError } from '../core/errors.ts';
import {
  closeAfter,
  createErrorResponse,
  type DirectMatch,
  type DirectRoutes,
  encodeResponse,
  type FailedRequest,
  type HttpResponse,
  type PendingResponse,
} from './direct-routes.ts';
import { createHttpGrant } from './http-access.ts';
import type { HttpAdmission } from './http-admission.ts';
import type { RequestHead } from './request-head.ts';
import { formatResponseText } from './response-text.ts';
import { closeSlowly, DISCARD_BYTES_MAX } from './unread-body.ts';

export interface DirectExchangeOptions {
  readonly routes: DirectRoutes;
  readonly admission: HttpAdmission;
  readonly gate: AccessGate | undefined;
  /** Called for each failure; returns the error to respond with. */
  onFailure(error: unknown, request: FailedRequest): CubeError;
  /** Whether connections close after their responses. */
  isStopping(): boolean;
}

export class DirectExchange implements PendingResponse {
  /** Called once, when the response has been sent. */
  onSent: ((exchange: DirectExchange) => void) | undefined;
  headersSent = false;
  writableFinished = false;
  /** The connection must close after the response. */
  closes = false;
  readonly #socket: Socket;
  readonly #head: RequestHead;
  readonly #match: DirectMatch;
  readonly #options: DirectExchangeOptions;
  readonly #arrivedMs: number;
  /** Set by the handler. */
  #headers: Map<string, string> | undefined;
  #onBodyEnd: (() => void) | undefined;
  #onClose: (() => void) | undefined;
  #grant: CallGrant | undefined;
  #unsentBytes = 0;
  #isRefusedUnread = false;
  #isCounted = true;

  /** @param arrivedMs when the request arrived, on the system clock */
  constructor(
    socket: Socket,
    request: {
      readonly head: RequestHead;
      readonly match: DirectMatch;
      readonly arrivedMs: number;
    },
    options: DirectExchangeOptions,
  ) {
    const { head, match, arrivedMs } = request;
    this.#arrivedMs = arrivedMs;
    this.#socket = socket;
    this.#head = head;
    this.#match = match;
    this.#options = options;
  }

  get destroyed(): boolean {
    return this.#socket.destroyed;
  }

  setHeader(name: string, value: string): void {
    this.#headers ??= new Map();
    this.#headers.set(name, value);
  }

  /** A handler has one listener. */
  once(_event: 'close', listener: () => void): void {
    this.#onClose = listener;
  }

  /** @returns whether the body is needed; if not, the refusal has been written */
  admit(): boolean {
    const { admission, gate } = this.#options;
    const { headers, contentLength } = this.#head;
    admission.enter(contentLength);
    try {
      admission.checkOpen();
      const { route, params } = this.#match;
      const caller = { headers, socket: this.#socket };
      this.#grant = gate && createHttpGrant(gate, caller, 'POST', route.path);
      const arrivedMs = this.#arrivedMs;
      const call = { headers, params, query: {}, grant: this.#grant, arrivedMs };
      const onBodyEnd = route.admit?.(call);
      if (onBodyEnd instanceof CubeError) return this.#refuse(onBodyEnd);
      this.#onBodyEnd = onBodyEnd;
      return true;
    } catch (error) {
      return this.#refuse(error);
    }
  }

  #refuse(error: unknown): false {
    const refusal = this.#toResponse(error);
    this.#isRefusedUnread = this.#head.contentLength > DISCARD_BYTES_MAX;
    this.#encodeAndSend(this.#isRefusedUnread ? closeAfter(refusal) : refusal);
    return false;
  }

  /** Call once, after `admit` returned true. */
  handle(body: Buffer): void {
    const { admission } = this.#options;
    const { headers } = this.#head;
    const { route, params } = this.#match;
    try {
      if (this.destroyed) return;
      admission.checkUnsentBytes();
      const arrivedMs = this.#arrivedMs;
      const call = { headers, params, query: {}, grant: this.#grant, body, raw: this, arrivedMs };
      route.handler(call).then(this.#encodeAndSend, this.#fail);
    } catch (error) {
      this.#fail(error);
    } finally {
      this.#endBody();
    }
  }

  /** Ends the counts of a request whose connection has ended. */
  abort(): void {
    this.#endBody();
    this.#release();
    this.#onClose?.();
  }

  /** Closes the connection after the response. */
  close(): void {
    if (this.#isRefusedUnread) closeSlowly(this.#socket);
    else this.#socket.destroySoon();
  }

  /** Called after a write that the kernel did not take at once. */
  readonly #onWritten = (): void => {
    if (!this.writableFinished && !this.destroyed) this.#finish();
  };

  readonly #fail = (error: unknown): void => this.#encodeAndSend(this.#toResponse(error));

  readonly #encodeAndSend = (response: HttpResponse): void => {
    const encoded = encodeResponse(response, this.#head.headers['accept-encoding']);
    if (encoded instanceof Promise) encoded.then(this.#send, this.#fail);
    else this.#send(encoded);
  };

  readonly #send = (response: HttpResponse): void => {
    // Its body took too long, or its caller has gone.
    if (!this.#socket.writable || !this.#isCounted) return;
    const mustClose = this.#options.isStopping() && response.headers?.['connection'] === undefined;
    const sent = mustClose ? closeAfter(response) : response;
    this.closes = sent.headers?.['connection'] === 'close';
    const { text, encoding, bodyBytes } = formatResponseText(sent, this.#headers);
    this.headersSent = true;
    this.#unsentBytes = bodyBytes;
    this.#options.admission.addUnsentBytes(bodyBytes);
    this.#socket.write(text, encoding, this.#onWritten);
    if (this.#socket.writableLength === 0) this.#finish();
  };

  #finish(): void {
    this.writableFinished = true;
    this.#release();
    this.onSent?.(this);
  }

  #endBody(): void {
    this.#onBodyEnd?.();
    this.#onBodyEnd = undefined;
  }

  #release(): void {
    if (!this.#isCounted) return;
    this.#isCounted = false;
    this.#grant?.end();
    this.#options.admission.leave(this.#head.contentLength);
    this.#options.admission.addUnsentBytes(-this.#unsentBytes);
  }

  #toResponse(error: unknown): HttpResponse {
    const { headers, path: url } = this.#head;
    return createErrorResponse(this.#options.onFailure(error, { headers, url }));
  }
}
