/**
 * The HTTP/1.1 side of the one port: a fastify instance on an http.Server that never listens and is handed its
 * sockets. Bodies arrive as raw bytes, decompressed; a CubeError thrown by a handler becomes its HTTP status and
 * `{"code", "error"}`. Bounded: requests in flight, the bytes of their bodies, and the bytes of answers not yet sent.
 */
import { createServer, type IncomingHttpHeaders, type Server } from 'node:http';
import type { Socket } from 'node:net';
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
import { decompress } from './compression.ts';

/** What brpc calls its error codes over HTTP. */
export const ERROR_CODE_HEADER = 'x-bd-error-code';
const NO_SUCH_METHOD = 1002;
const COMPRESSION_GZIP = 2;

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

  constructor(limits: ServerLimits, logger: Logger) {
    const { httpHeaderBytes, httpHeadersMs, httpRequestMs, idleMs } = limits;
    const server = createServer({
      maxHeaderSize: httpHeaderBytes,
      headersTimeout: Math.min(httpHeadersMs, httpRequestMs),
      requestTimeout: httpRequestMs,
      keepAliveTimeout: idleMs,
      // How often the two timeouts are looked at.
      connectionsCheckingInterval: Math.ceil(httpHeadersMs / 4),
    });
    this.#server = server;
    this.#limits = limits;
    this.app = fastify({
      bodyLimit: limits.httpBodyBytes,
      serverFactory: (handler) => server.on('request', handler),
    });
    this.app.removeAllContentTypeParsers();
    this.app.addContentTypeParser(
      '*',
      { parseAs: 'buffer' },
      async ({ headers }: FastifyRequest, body: Buffer) =>
        plainBody(headers['content-encoding'], body, limits.inflatedBytes),
    );
    this.app.setErrorHandler((error: FastifyError | CubeError, request, reply) => {
      const failure = toCubeError(error);
      if (failure.code === 'INTERNAL') {
        const logId = request.headers['log-id'];
        logger.error({ err: error, url: request.url, logId }, 'call failed');
      }
      return sendError(reply, failure);
    });
    this.app.setNotFoundHandler((request, reply) => {
      reply.header(ERROR_CODE_HEADER, NO_SUCH_METHOD);
      const error = `Fail to find method on ${request.method} ${request.url.slice(0, 200)}`;
      return reply.status(404).send({ code: 'NOT_FOUND', error });
    });
    this.#limitRequests();
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
   * all of a request, or not read its answer, is not waited for.
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

  #limitRequests(): void {
    const { httpInFlight, httpBodyBytes, inputTotalBytes } = this.#limits;
    this.app.addHook('onRequest', async ({ headers }, reply) => {
      const bodyBytes = bodyBytesMax(headers, httpBodyBytes);
      this.#inFlight++;
      this.#bodyBytes += bodyBytes;
      this.#atEnd(reply, () => {
        this.#bodyBytes -= bodyBytes;
        this.#inFlight--;
        if (this.#inFlight === 0) this.#idle?.();
      });
      if (this.#stopping) reply.header('connection', 'close');
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

/** What a request's body may take: none is read beyond the limit. */
function bodyBytesMax(headers: IncomingHttpHeaders, httpBodyBytes: number): number {
  if (headers['transfer-encoding'] !== undefined) return httpBodyBytes;
  return Math.min(Number(headers['content-length'] ?? 0), httpBodyBytes);
}

/** An error answer: the status of its code, brpc's number, and the words. */
function sendError(reply: FastifyReply, error: CubeError): FastifyReply {
  const { http, brpc } = error.status;
  return reply
    .status(http)
    .header(ERROR_CODE_HEADER, brpc)
    .send({ code: error.code, error: error.message.slice(0, ERROR_TEXT_CHARS_MAX) });
}

/** fastify's own refusals keep their meaning: a body over the limit, a bad request. */
export function toCubeError(error: FastifyError | CubeError): CubeError {
  if (error instanceof CubeError) return error;
  const status = error.statusCode ?? 500;
  if (status === 413) return new CubeError('TOO_LARGE', error.message, { cause: error });
  if (status >= 400 && status < 500) {
    return new CubeError('INVALID_ARGUMENT', error.message, { cause: error });
  }
  return CubeError.from(error);
}
