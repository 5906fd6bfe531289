/**
 * Limits of HTTP requests, with or without fastify: requests in flight, the bytes of their bodies
 * and of unsent responses, and the time for receiving a body.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { ServerHttp2Stream } from 'node:http2';
import { Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import { HTTP2_CANCEL } from './http2-streams.ts';

/** What a body of unknown length counts as: far above most, below the largest limits. */
const CHUNKED_BYTES = 16 << 20;
export const REQUEST_TIMEOUT_RESPONSE = 'HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n';

/** A younger body is not slow yet. */
const SLOW_BODY_MS = 250;
const SLOW_BODIES_CHECKED = 64;

interface BodyOnItsWay {
  /** Whether the request is handled while its body arrives. */
  readonly isStreamed: boolean;
  /** Whether everything that has arrived was read. */
  isRead(): boolean;
  /** Ends the request and its connection. */
  close(): void;
}

interface ArrivingBody extends BodyOnItsWay {
  /** What the connection had read when the body began. */
  readonly bytesRead: number;
  readonly sinceMs: number;
}

export class HttpAdmission {
  readonly #limits: ServerLimits;
  /**
   * For each connection, and each stream of HTTP/2: the callbacks that release the counts of its
   * requests.
   */
  readonly #releases = new WeakMap<Duplex, Set<() => void>>();
  /** Bodies that are arriving, by connection or stream of HTTP/2, the oldest first. */
  readonly #bodies = new Map<Duplex, ArrivingBody>();
  #inFlight = 0;
  /** Declared bytes of request bodies, until their requests end. */
  #bodyBytes = 0;
  /** Bytes of responses until they are sent. */
  #unsentBytes = 0;
  #isClosed = false;
  #onIdle: (() => void) | undefined;

  constructor(limits: ServerLimits) {
    this.#limits = limits;
  }

  get requestsInFlight(): number {
    return this.#inFlight;
  }

  get unsentBytes(): number {
    return this.#unsentBytes;
  }

  /** Call before the first request of a connection, or the only one of a stream of HTTP/2. */
  trackConnection(connection: Duplex): void {
    const releases = new Set<() => void>();
    this.#releases.set(connection, releases);
    connection.once('close', () => {
      for (const release of releases) release();
    });
  }

  /** Whether a request of the connection that has arrived, or its response, is in flight. */
  isBusy(connection: Duplex): boolean {
    if (this.#bodies.get(connection)?.isStreamed === false) return false;
    return (this.#releases.get(connection)?.size ?? 0) > 0;
  }

  /**
   * Counts a request until it ends.
   * @param bodyBytesMax of the route
   * @throws CubeError STOPPING, OVERLOADED; a rejected request counts too
   */
  admit(
    request: IncomingMessage,
    response: ServerResponse,
    bodyBytesMax: number = this.#limits.httpBodyBytes,
  ): void {
    const bodyBytes = getDeclaredBodyBytes(request.headers, bodyBytesMax);
    this.enter(bodyBytes);
    this.#releaseAtEnd(response, () => this.leave(bodyBytes));
    this.checkOpen();
  }

  /** Counts a request; call `leave` exactly once afterwards. */
  enter(bodyBytes: number): void {
    this.#inFlight++;
    this.#bodyBytes += bodyBytes;
  }

  /** @param bodyBytes as for `enter` */
  leave(bodyBytes: number): void {
    this.#bodyBytes -= bodyBytes;
    this.#inFlight--;
    if (this.#inFlight === 0) this.#onIdle?.();
  }

  /** Call after `enter`. @throws CubeError STOPPING, OVERLOADED */
  checkOpen(): void {
    const { httpInFlight, inputTotalBytes } = this.#limits;
    if (this.#isClosed) {
      throw new CubeError('STOPPING', 'the server is stopping; call another replica');
    }
    const isCrowded = this.#inFlight > httpInFlight || this.#bodyBytes > inputTotalBytes;
    if (isCrowded && !this.#closeSlowBody()) {
      throw new CubeError(
        'OVERLOADED',
        `${this.#inFlight} HTTP requests with bodies of ${this.#bodyBytes} bytes ` +
          'are in flight already; try again later',
      );
    }
  }

  /** @throws CubeError TOO_LARGE when the declared body exceeds the limit */
  checkBodyLength(
    headers: IncomingHttpHeaders,
    bodyBytesMax: number = this.#limits.httpBodyBytes,
  ): void {
    if (Number(headers['content-length'] ?? 0) > bodyBytesMax) {
      throw createBodyTooLargeError(bodyBytesMax);
    }
  }

  /** Limits the time for receiving a body; for a streamed body, the time without any bytes. */
  limitBodyTime(request: IncomingMessage, response: ServerResponse, isStreamed: boolean): void {
    const { httpRequestMs, httpBodyBytes } = this.#limits;
    const { headers, socket } = request;
    // Over HTTP/2, a body needs no length.
    const hasBody = isHttp2(request)
      ? !getStream(response).endAfterHeaders
      : getDeclaredBodyBytes(headers, httpBodyBytes) > 0;
    if (!hasBody) return;
    // A call that another thread received has no socket, and its body is there.
    if (!isHttp2(request) && !(socket instanceof Socket)) return;
    const connection = isHttp2(request) ? getStream(response) : socket;
    const close = (): void => {
      if (isHttp2(request)) getStream(response).close(HTTP2_CANCEL);
      else expireBody(response, socket);
    };
    // What waits here to be read does not make the caller slow.
    const isRead = (): boolean => request.readableLength === 0;
    this.beginBody(connection, { isStreamed, isRead, close });
    for (const event of ['end', 'close']) request.once(event, () => this.endBody(connection));
    let bytesRead = socket.bytesRead;
    const timer = setTimeout(() => {
      // Bytes that are received but not yet consumed also count as activity.
      if (isStreamed && (socket.bytesRead > bytesRead || request.readableLength > 0)) {
        bytesRead = socket.bytesRead;
        timer.refresh();
      } else close();
    }, httpRequestMs);
    // A body that is rejected unread emits no end; its timer must not keep the process alive.
    timer.unref();
    request.once('close', () => clearTimeout(timer));
  }

  /** Says that a body is arriving; call `endBody` when it has arrived, or never will. */
  beginBody(connection: Duplex, body: BodyOnItsWay): void {
    const bytesRead = countBytesRead(connection);
    this.#bodies.set(connection, { bytesRead, sinceMs: systemClock.nowMs(), ...body });
  }

  endBody(connection: Duplex): void {
    this.#bodies.delete(connection);
  }

  /**
   * Closes the connection of the oldest body that arrives too slowly, so that announced bodies do
   * not shut out other callers. @returns whether there is one
   */
  #closeSlowBody(): boolean {
    const { slowReaderBytes, slowReaderMs } = this.#limits;
    const nowMs = systemClock.nowMs();
    let count = 0;
    for (const [connection, { bytesRead, sinceMs, isRead, close }] of this.#bodies) {
      const ageMs = nowMs - sinceMs;
      if (ageMs < SLOW_BODY_MS || ++count > SLOW_BODIES_CHECKED) return false;
      const expected = (slowReaderBytes * ageMs) / slowReaderMs;
      const isFast = countBytesRead(connection) - bytesRead >= expected;
      if (isFast || !isRead()) continue;
      this.#bodies.delete(connection);
      close();
      return true;
    }
    return false;
  }

  /**
   * Calls `listener` once: when the body has arrived, or never will. A body that is answered before
   * its end, and then breaks off, has no event of its own.
   */
  onBodyEnd(request: IncomingMessage, response: ServerResponse, listener: () => void): void {
    let isCalled = false;
    const end = (): void => {
      if (!isCalled) listener();
      isCalled = true;
    };
    request.once('close', end);
    this.#releaseAtEnd(response, end);
  }

  /** Calls `listener` once, when the response is sent or the connection has ended. */
  onResponseEnd(response: ServerResponse, listener: () => void): void {
    this.#releaseAtEnd(response, listener);
  }

  /** Call before a request is handled. @throws CubeError OVERLOADED */
  checkUnsentBytes(): void {
    if (this.#unsentBytes <= this.#limits.outputTotalBytes) return;
    throw new CubeError(
      'OVERLOADED',
      'too many responses wait to be read by their callers; try again later',
    );
  }

  /** Counts bytes of a response; negative: bytes that are sent, or never will be. */
  addUnsentBytes(byteCount: number): void {
    this.#unsentBytes += byteCount;
  }

  /** Counts a response until it is sent. */
  countResponse(response: ServerResponse, byteCount: number): void {
    this.#unsentBytes += byteCount;
    this.#releaseAtEnd(response, () => {
      this.#unsentBytes -= byteCount;
    });
    if (byteCount === 0 || !isHttp2(response.req)) return;
    // A caller that does not widen its flow-control window does not show as a slow reader.
    const stream = getStream(response);
    stream.setTimeout(this.#limits.slowReaderMs, () => stream.close(HTTP2_CANCEL));
  }

  /** Resolves when no request is in flight. */
  async waitUntilIdle(): Promise<void> {
    if (this.#inFlight === 0) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
    });
  }

  /** Rejects all further requests. */
  close(): void {
    this.#isClosed = true;
  }

  /**
   * Calls `release` once: when the response is sent, or when the connection has ended. The
   * response's own events are not enough: one that waits behind another on the same connection is
   * not notified when the connection ends.
   */
  #releaseAtEnd(response: ServerResponse, release: () => void): void {
    const connection = isHttp2(response.req) ? getStream(response) : response.req.socket;
    const releases = this.#releases.get(connection);
    if (releases === undefined || connection.destroyed) {
      release();
      return;
    }
    const end = (): void => {
      if (releases.delete(end)) release();
    };
    releases.add(end);
    response.once('close', end);
  }
}

/** A stream of HTTP/2 does not count its bytes: its body must arrive at once. */
function countBytesRead(connection: Duplex): number {
  return connection instanceof Socket ? connection.bytesRead : 0;
}

/** Answers that the body took too long, unless an answer has begun, and closes the connection. */
function expireBody(response: ServerResponse, socket: Socket): void {
  if (!response.headersSent) socket.write(REQUEST_TIMEOUT_RESPONSE);
  socket.destroySoon();
}

export function createBodyTooLargeError(bytesMax: number): CubeError {
  const limit = `the limit is ${bytesMax} bytes`;
  return new CubeError('TOO_LARGE', `the body is too large (${limit}); send smaller batches`);
}

/**
 * Returns the declared body size, capped at the limit beyond which no body is read, or an estimate
 * of a chunked one.
 */
function getDeclaredBodyBytes(headers: IncomingHttpHeaders, httpBodyBytes: number): number {
  if (headers['transfer-encoding'] !== undefined) return Math.min(CHUNKED_BYTES, httpBodyBytes);
  return Math.min(Number(headers['content-length'] ?? 0), httpBodyBytes);
}

/** Whether a request came over HTTP/2, where Node's objects have the same interface. */
export function isHttp2(request: IncomingMessage): boolean {
  // Not by its version: a head may claim HTTP/2 on a connection of HTTP/1.
  return 'stream' in request;
}

/** The stream of a response over HTTP/2. */
function getStream(response: ServerResponse): ServerHttp2Stream {
  return (response as unknown as { stream: ServerHttp2Stream }).stream;
}
