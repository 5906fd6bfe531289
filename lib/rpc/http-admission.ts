/**
 * What HTTP requests may take of a process, whichever way they are answered: how many are answered at a time, the bytes of
 * their bodies and of the answers not yet sent, and how long a body may be on its way.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';

const TOO_SLOW = 'HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n';

export class HttpAdmission {
  readonly #limits: ServerLimits;
  /** Of each connection: what to release when a request ends, or with the connection. */
  readonly #releases = new WeakMap<Socket, Set<() => void>>();
  #inFlight = 0;
  /** Of request bodies, as announced, until their requests end. */
  #bodyBytes = 0;
  /** Of answers, until they are out. */
  #unsentBytes = 0;
  #isClosed = false;
  #onIdle: (() => void) | undefined;

  constructor(limits: ServerLimits) {
    this.#limits = limits;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  get unsentBytes(): number {
    return this.#unsentBytes;
  }

  /** Call before the first request of a connection. */
  connect(socket: Socket): void {
    const releases = new Set<() => void>();
    this.#releases.set(socket, releases);
    socket.once('close', () => {
      for (const release of releases) release();
    });
  }

  /** Counts a request until it ends. @throws CubeError STOPPING, OVERLOADED; it counts all the same */
  enter(request: IncomingMessage, response: ServerResponse): void {
    const { httpInFlight, httpBodyBytes, inputTotalBytes } = this.#limits;
    const bodyBytes = announcedBytes(request.headers, httpBodyBytes);
    this.#inFlight++;
    this.#bodyBytes += bodyBytes;
    this.#atEnd(response, () => {
      this.#bodyBytes -= bodyBytes;
      this.#inFlight--;
      if (this.#inFlight === 0) this.#onIdle?.();
    });
    if (this.#isClosed) {
      throw new CubeError('STOPPING', 'the server is stopping; call another replica');
    }
    if (this.#inFlight > httpInFlight || this.#bodyBytes > inputTotalBytes) {
      throw new CubeError(
        'OVERLOADED',
        `${this.#inFlight} HTTP requests with bodies of ${this.#bodyBytes} bytes are being answered; try again later`,
      );
    }
  }

  /** A body must be there in time; one that streams may take any time, but not be silent for so long. */
  limitTime(request: IncomingMessage, response: ServerResponse, isStreamed: boolean): void {
    const { httpRequestMs, httpBodyBytes } = this.#limits;
    const { headers, socket } = request;
    if (announcedBytes(headers, httpBodyBytes) === 0) return;
    let bytesRead = socket.bytesRead;
    const timer = setTimeout(() => {
      // What came and was not taken is not the caller's silence.
      if (isStreamed && (socket.bytesRead > bytesRead || request.readableLength > 0)) {
        bytesRead = socket.bytesRead;
        timer.refresh();
      } else {
        if (!response.headersSent) socket.write(TOO_SLOW);
        socket.destroySoon();
      }
    }, httpRequestMs);
    // Of a body that is refused unread no end is heard: it must not keep a process that has stopped.
    timer.unref();
    request.once('close', () => clearTimeout(timer));
  }

  /** Call before a request is worked on. @throws CubeError OVERLOADED */
  checkAnswers(): void {
    if (this.#unsentBytes <= this.#limits.outputTotalBytes) return;
    throw new CubeError('OVERLOADED', 'too many answers wait to be read by their callers');
  }

  /** Counts an answer until it is out. */
  countAnswer(response: ServerResponse, byteCount: number): void {
    this.#unsentBytes += byteCount;
    this.#atEnd(response, () => {
      this.#unsentBytes -= byteCount;
    });
  }

  /** Resolves when no request is in flight. */
  async idle(): Promise<void> {
    if (this.#inFlight === 0) return;
    await new Promise<void>((resolve) => {
      this.#onIdle = resolve;
    });
  }

  /** Requests from now on are refused. */
  close(): void {
    this.#isClosed = true;
  }

  /**
   * Calls `release` once: when the answer is out, or when the connection has ended. The answer alone does not tell:
   * one that waits behind another of the same connection never hears that the connection ended.
   */
  #atEnd(response: ServerResponse, release: () => void): void {
    const { socket } = response.req;
    const releases = this.#releases.get(socket);
    if (releases === undefined || socket.destroyed) {
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

/** What a request's body may take: none is read beyond the limit. */
function announcedBytes(headers: IncomingHttpHeaders, httpBodyBytes: number): number {
  if (headers['transfer-encoding'] !== undefined) return httpBodyBytes;
  return Math.min(Number(headers['content-length'] ?? 0), httpBodyBytes);
}
