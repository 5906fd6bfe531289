/**
 * The HTTP/1.1 side of the one port: a fastify instance on an http.Server that never listens and is handed its
 * sockets. Bodies arrive as raw bytes, decompressed; a CubeError thrown by a handler becomes its HTTP status and
 * `{"code", "error"}`. Bounded: requests in flight, the bytes of their bodies, and the bytes of answers not yet sent.
 */
import {
  createServer,
  type IncomingHttpHeaders,
  type Server,
  type ServerResponse,
} from 'node:http';
import type { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import {
  type FastifyError,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  fastify,
} from 'fastify';
import { CubeError } from '../core/errors.ts';
import { ERROR_TEXT_CHARS_MAX, type ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { COMPRESSION_GZIP, decompress } from './compression.ts';

/** What brpc calls its error codes over HTTP. */
export const ERROR_CODE_HEADER = 'x-bd-error-code';
const NO_SUCH_METHOD = 1002;
const TOO_SLOW = 'HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n';
/** Of the parser's errors, those with a status of their own. */
const BAD_BYTES: Readonly<Record<string, readonly [status: string, words: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'came too slowly'],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'has too large a head'],
  HPE_INVALID_EOF_STATE: ['400 Bad Request', 'ended half-way'],
};
/** A name, and what hangs on it (`name:predict`). */
const PATH_PARAMETER_CHARS_MAX = 200;

interface ParserError extends Error {
  readonly code?: string;
  /** Of what the parser did not understand. */
  readonly reason?: string;
}

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route reads its body as it comes: whatever its length and however long it takes, but not in silence. */
    streams?: boolean;
  }
}

/** Bodies that routes which stream get as a stream. */
export const STREAMED_TYPE = 'application/x-ndjson';

export class HttpFront {
  readonly app: FastifyInstance;
  readonly #server: Server;
  readonly #limits: ServerLimits;
  /** Of each connection: what to release when a request ends, or with the connection. */
  readonly #releases = new WeakMap<Socket, Set<() => void>>();
  #inFlight = 0;
  /** Of request bodies, as announced, until their requests end. */
  #bodyBytes = 0;
  /** Of answers, until they are out. */
  #unsentBytes = 0;
  #idle: (() => void) | undefined;
  #stopping = false;
  #stopped = false;

  /** @param paths what there is, for who asks for what is not */
  constructor(limits: ServerLimits, logger: Logger, paths = '') {
    const { httpHeaderBytes, httpHeadersMs, httpRequestMs, idleMs } = limits;
    const server = createServer({
      maxHeaderSize: httpHeaderBytes,
      headersTimeout: Math.min(httpHeadersMs, httpRequestMs),
      // Of a whole request: below, since not every route has one.
      requestTimeout: 0,
      keepAliveTimeout: idleMs,
      // How often the timeout is looked at.
      connectionsCheckingInterval: Math.ceil(httpHeadersMs / 4),
    });
    // A caller that has said all and closes its half is answered before the connection ends.
    Object.assign(server, { httpAllowHalfOpen: true });
    this.#server = server;
    this.#limits = limits;
    this.app = fastify({
      bodyLimit: limits.httpBodyBytes,
      routerOptions: { ignoreTrailingSlash: true, maxParamLength: PATH_PARAMETER_CHARS_MAX },
      serverFactory: (handler) => server.on('request', handler),
      clientErrorHandler: refuseBytes,
      // Said in our own words, below: an error without a code tells no caller to turn to another replica.
      return503OnClosing: false,
      frameworkErrors: (error, request, reply) => sendError(reply, toCubeError(error, request)),
    });
    this.app.removeAllContentTypeParsers();
    this.app.addContentTypeParser(
      '*',
      { parseAs: 'buffer' },
      async ({ headers }: FastifyRequest, body: Buffer) =>
        plainBody(headers['content-encoding'], body, limits.inflatedBytes),
    );
    this.app.addContentTypeParser(
      STREAMED_TYPE,
      async (request: FastifyRequest, body: Readable) => {
        if (isStreamed(request)) return body;
        throw new CubeError('INVALID_ARGUMENT', `${STREAMED_TYPE} is not understood here`);
      },
    );
    this.app.setErrorHandler((error: FastifyError | CubeError, request, reply) => {
      const failure = toCubeError(error, request);
      if (failure.code === 'INTERNAL') {
        const logId = request.headers['log-id'];
        logger.error({ err: error, url: request.url, logId }, 'call failed');
      }
      return sendError(reply, failure);
    });
    this.app.setNotFoundHandler((request, reply) => {
      reply.header(ERROR_CODE_HEADER, NO_SUCH_METHOD);
      const hint = paths === '' ? '' : ` (try ${paths})`;
      const error = `Fail to find method on ${request.method} ${request.url.slice(0, 200)}${hint}`;
      return reply.status(404).send({ code: 'NOT_FOUND', error });
    });
    this.#limitRequests();
    this.#limitTime();
    this.#limitAnswers();
    // Closing on a caller that still sends would reset the connection under our answer: the rest is read and dropped,
    // for as long as a request may take.
    this.app.addHook('onSend', async (_request, reply) => {
      if (reply.statusCode === 413 && !this.#stopping) reply.removeHeader('connection');
    });
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  get unsentBytes(): number {
    return this.#unsentBytes;
  }

  /** Call once all routes are there. */
  async start(): Promise<void> {
    await this.app.ready();
    // Without it a server that never listens enforces no header timeout and knows no idle connections.
    this.#server.emit('listening');
  }

  serve(socket: Socket): void {
    const releases = new Set<() => void>();
    this.#releases.set(socket, releases);
    socket.once('close', () => {
      for (const release of releases) release();
    });
    this.#server.emit('connection', socket);
  }

  /**
   * Resolves when no request is in flight; answers from now on close their connections. Who then still has not sent
   * all of a request, or not read its answer, is not waited for; what comes later is refused with STOPPING.
   */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#server.closeIdleConnections();
    if (this.#inFlight > 0) {
      const { drainMs } = this.#limits;
      const timer = setTimeout(() => this.#server.closeAllConnections(), drainMs);
      await new Promise<void>((resolve) => {
        this.#idle = resolve;
      });
      clearTimeout(timer);
    }
    this.#stopped = true;
    this.#server.closeIdleConnections();
    await this.app.close();
  }

  #limitAnswers(): void {
    const { outputTotalBytes } = this.#limits;
    this.app.addHook('preHandler', async () => {
      if (this.#unsentBytes <= outputTotalBytes) return;
      throw new CubeError('OVERLOADED', 'too many answers wait to be read by their callers');
    });
    this.app.addHook('onSend', async (_request, reply, payload) => {
      const byteCount = (payload as string | Uint8Array | null)?.length ?? 0;
      this.#unsentBytes += byteCount;
      this.#atEnd(reply, () => {
        this.#unsentBytes -= byteCount;
      });
    });
  }

  /**
   * Calls `release` once: when the answer is out, or when the connection has ended. The answer alone does not tell:
   * one that waits behind another of the same connection never hears that the connection ended.
   */
  #atEnd({ request, raw }: FastifyReply, release: () => void): void {
    const { socket } = request.raw;
    const releases = this.#releases.get(socket);
    if (releases === undefined || socket.destroyed) {
      release();
      return;
    }
    const end = (): void => {
      if (releases.delete(end)) release();
    };
    releases.add(end);
    raw.once('close', end);
  }

  /** A body must be there in time; one that streams may take any time, but not be silent for so long. */
  #limitTime(): void {
    const { httpRequestMs, httpBodyBytes } = this.#limits;
    this.app.addHook('onRequest', async (request, reply) => {
      const { raw, headers } = request;
      if (announcedBytes(headers, httpBodyBytes) === 0) return;
      const { socket } = raw;
      let bytesRead = socket.bytesRead;
      const timer = setTimeout(() => {
        // What came and was not taken is not the caller's silence.
        if (isStreamed(request) && (socket.bytesRead > bytesRead || raw.readableLength > 0)) {
          bytesRead = socket.bytesRead;
          timer.refresh();
        } else {
          if (!reply.raw.headersSent) socket.write(TOO_SLOW);
          socket.destroySoon();
        }
      }, httpRequestMs);
      // Of a body that is refused unread no end is heard: it must not keep a process that has stopped.
      timer.unref();
      raw.once('close', () => clearTimeout(timer));
    });
  }

  #limitRequests(): void {
    const { httpInFlight, httpBodyBytes, inputTotalBytes } = this.#limits;
    this.app.addHook('onRequest', async ({ headers }, reply) => {
      const bodyBytes = announcedBytes(headers, httpBodyBytes);
      this.#inFlight++;
      this.#bodyBytes += bodyBytes;
      this.#atEnd(reply, () => {
        this.#bodyBytes -= bodyBytes;
        this.#inFlight--;
        if (this.#inFlight === 0) this.#idle?.();
      });
      if (this.#stopping) reply.header('connection', 'close');
      if (this.#stopped) {
        throw new CubeError('STOPPING', 'the server is stopping; call another replica');
      }
      if (this.#inFlight > httpInFlight || this.#bodyBytes > inputTotalBytes) {
        throw new CubeError(
          'OVERLOADED',
          `${this.#inFlight} HTTP requests with bodies of ${this.#bodyBytes} bytes are being answered; try again later`,
        );
      }
    });
  }
}

/** As brpc: a request's body may be gzip. @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
function plainBody(encoding: string | undefined, body: Buffer, bytesMax: number): Uint8Array {
  if (encoding === undefined || encoding === 'identity') return body;
  if (encoding === 'gzip') return decompress(COMPRESSION_GZIP, body, bytesMax);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `Content-Encoding ${encoding.slice(0, 40)} is not supported; send gzip, or none`,
  );
}

function isStreamed({ headers, routeOptions }: FastifyRequest): boolean {
  const isLines = headers['content-type']?.startsWith(STREAMED_TYPE) ?? false;
  return isLines && routeOptions.config.streams === true;
}

/** What HTTP's parser says of bytes that are no request, and of requests that end half-way: said in our own words, and closed. */
function refuseBytes(error: ParserError, socket: Socket & { _httpMessage?: ServerResponse }): void {
  const isAnswering = socket._httpMessage?.headersSent === true;
  // In the middle of an answer nothing more can be said but that it ends.
  if (!socket.writable || isAnswering || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  const [status, words] = BAD_BYTES[error.code ?? ''] ?? ['400 Bad Request', 'is not HTTP/1.1'];
  const said = `the request ${words} (${error.reason ?? error.message})`;
  const body = JSON.stringify({ code: 'INVALID_ARGUMENT', error: said });
  const head = `HTTP/1.1 ${status}\r\nConnection: close\r\nContent-Type: application/json\r\n`;
  socket.write(`${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  socket.destroySoon();
}

/** What a request's body may take: none is read beyond the limit. */
function announcedBytes(headers: IncomingHttpHeaders, httpBodyBytes: number): number {
  if (headers['transfer-encoding'] !== undefined) return httpBodyBytes;
  return Math.min(Number(headers['content-length'] ?? 0), httpBodyBytes);
}

/** An error answer: the status of its code, brpc's number, and the words. */
function sendError(reply: FastifyReply, error: CubeError): FastifyReply {
  const { http, brpc, retryable } = error.status;
  if (retryable) reply.header('retry-after', '1');
  return reply
    .status(http)
    .header(ERROR_CODE_HEADER, brpc)
    .send({ code: error.code, error: error.message.slice(0, ERROR_TEXT_CHARS_MAX) });
}

/** fastify's own refusals keep their meaning: a body over the limit, a bad request. */
export function toCubeError(
  error: FastifyError | CubeError,
  { routeOptions }: FastifyRequest,
): CubeError {
  if (error instanceof CubeError) return error;
  const status = error.statusCode ?? 500;
  if (status === 413) {
    const limit = `the limit is ${routeOptions.bodyLimit} bytes`;
    const message = `the body is too large (${limit}): send less at once`;
    return new CubeError('TOO_LARGE', message, { cause: error });
  }
  if (status >= 400 && status < 500) {
    return new CubeError('INVALID_ARGUMENT', error.message, { cause: error });
  }
  return CubeError.from(error);
}
