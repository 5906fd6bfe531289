/**
 * The HTTP/1.1 side of the one port: a fastify instance on an http.Server that never listens and is handed its
 * sockets. Bodies arrive as raw bytes, decompressed; a CubeError thrown by a handler becomes its HTTP status and
 * `{"code", "error"}`. Bounded: requests in flight, the bytes of their bodies, and the bytes of answers not yet sent.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
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
import type { ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { COMPRESSION_GZIP, decompress } from './compression.ts';
import { HttpAdmission } from './http-admission.ts';
import {
  DirectRoutes,
  ERROR_CODE_HEADER,
  errorAnswer,
  type HttpAnswer,
  type HttpHandler,
  PATH_PARAMETER_CHARS_MAX,
} from './http-direct.ts';

const NO_SUCH_METHOD = 1002;
/** Of the parser's errors, those with a status of their own. */
const BAD_BYTES: Readonly<Record<string, readonly [status: string, words: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'came too slowly'],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'has too large a head'],
  HPE_INVALID_EOF_STATE: ['400 Bad Request', 'ended half-way'],
};

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

/** Our routes have no JSON schemas: without its compilers of them fastify loads half as many modules. */
function noSchema(): never {
  throw new Error('a route has a schema, and there is no compiler for it');
}

export class HttpFront {
  readonly app: FastifyInstance;
  /** Routes whose plain requests are answered past the framework. */
  readonly direct: DirectRoutes;
  readonly #server: Server;
  readonly #limits: ServerLimits;
  readonly #admission: HttpAdmission;
  #stopping = false;

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
    this.#admission = new HttpAdmission(limits);
    const failureOf = (error: unknown, { headers, url }: IncomingMessage): CubeError => {
      const failure = CubeError.from(error);
      if (failure.code === 'INTERNAL') {
        logger.error({ err: error, url, logId: headers['log-id'] }, 'call failed');
      }
      return failure;
    };
    this.direct = new DirectRoutes({
      ...{ admission: this.#admission, bodyBytesMax: limits.httpBodyBytes },
      onFailure: failureOf,
      isStopping: () => this.#stopping,
    });
    this.app = fastify({
      bodyLimit: limits.httpBodyBytes,
      routerOptions: { ignoreTrailingSlash: true, maxParamLength: PATH_PARAMETER_CHARS_MAX },
      serverFactory: (handler) =>
        server.on('request', (request, response) => {
          if (!this.direct.answer(request, response)) handler(request, response);
        }),
      clientErrorHandler: refuseBytes,
      // Said in our own words, below: an error without a code tells no caller to turn to another replica.
      return503OnClosing: false,
      schemaController: {
        compilersFactory: { buildValidator: noSchema, buildSerializer: noSchema },
      },
      frameworkErrors: (error, request, reply) => sendError(reply, toCubeError(error, request)),
    });
    this.#addParsers();
    this.app.setErrorHandler((error: FastifyError | CubeError, request, reply) =>
      sendError(reply, failureOf(toCubeError(error, request), request.raw)),
    );
    this.app.setNotFoundHandler((request, reply) => {
      reply.header(ERROR_CODE_HEADER, NO_SUCH_METHOD);
      const hint = paths === '' ? '' : ` (try ${paths})`;
      const error = `Fail to find method on ${request.method} ${request.url.slice(0, 200)}${hint}`;
      return reply.status(404).send({ code: 'NOT_FOUND', error });
    });
    this.#addLimits();
    // Closing on a caller that still sends would reset the connection under our answer: the rest is read and dropped,
    // for as long as a request may take.
    this.app.addHook('onSend', async (_request, reply) => {
      if (reply.statusCode === 413 && !this.#stopping) reply.removeHeader('connection');
    });
  }

  get inFlight(): number {
    return this.#admission.inFlight;
  }

  get unsentBytes(): number {
    return this.#admission.unsentBytes;
  }

  /** Call once all routes are there. */
  async start(): Promise<void> {
    await this.app.ready();
    // Without it a server that never listens enforces no header timeout and knows no idle connections.
    this.#server.emit('listening');
  }

  serve(socket: Socket): void {
    this.#admission.connect(socket);
    this.#server.emit('connection', socket);
  }

  /**
   * Resolves when no request is in flight; answers from now on close their connections. Who then still has not sent
   * all of a request, or not read its answer, is not waited for; what comes later is refused with STOPPING.
   */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#server.closeIdleConnections();
    const { drainMs } = this.#limits;
    const timer = setTimeout(() => this.#server.closeAllConnections(), drainMs);
    await this.#admission.idle();
    clearTimeout(timer);
    this.#admission.close();
    this.#server.closeIdleConnections();
    await this.app.close();
  }

  #addParsers(): void {
    this.app.removeAllContentTypeParsers();
    this.app.addContentTypeParser(
      '*',
      { parseAs: 'buffer' },
      async ({ headers }: FastifyRequest, body: Buffer) =>
        plainBody(headers['content-encoding'], body, this.#limits.inflatedBytes),
    );
    this.app.addContentTypeParser(
      STREAMED_TYPE,
      async (request: FastifyRequest, body: Readable) => {
        if (isStreamed(request)) return body;
        throw new CubeError('INVALID_ARGUMENT', `${STREAMED_TYPE} is not understood here`);
      },
    );
  }

  /** The framework's requests are admitted as those past it are. */
  #addLimits(): void {
    const admission = this.#admission;
    this.app.addHook('onRequest', async (request, reply) => {
      if (this.#stopping) reply.header('connection', 'close');
      admission.enter(request.raw, reply.raw);
      admission.limitTime(request.raw, reply.raw, isStreamed(request));
    });
    this.app.addHook('preHandler', async () => admission.checkAnswers());
    this.app.addHook('onSend', async (_request, reply, payload) => {
      const byteCount = (payload as string | Uint8Array | null)?.length ?? 0;
      admission.countAnswer(reply.raw, byteCount);
    });
  }
}

/** Answers a request of the framework by a handler of those past it. */
export async function answerBy(
  handler: HttpHandler,
  { headers, params, query, body }: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { raw } = reply;
  const own = params as Readonly<Record<string, string>>;
  return sendAnswer(reply, await handler({ headers, params: own, query, body, raw }));
}

function sendAnswer(
  reply: FastifyReply,
  { status = 200, type, headers = {}, body }: HttpAnswer,
): FastifyReply {
  return reply.status(status).headers(headers).type(type).send(body);
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

function sendError(reply: FastifyReply, error: CubeError): FastifyReply {
  return sendAnswer(reply, errorAnswer(error));
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
