/**
 * The HTTP server of the shared port, for HTTP/1.1 and for requests of HTTP/2 that are not gRPC: a
 * fastify instance on an http.Server that never listens and receives its sockets from
 * OnePortServer. Handlers get bodies as raw bytes, decompressed. A CubeError thrown by a handler
 * becomes its HTTP status and `{"code", "error"}`. Requests in flight, the bytes of their bodies
 * and of unsent responses are limited.
 */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Http2ServerRequest, Http2ServerResponse, ServerHttp2Stream } from 'node:http2';
import type { Socket } from 'node:net';
import type { Readable } from 'node:stream';
import {
  type FastifyError,
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  fastify,
} from 'fastify';
import type { AccessGate, CallGrant } from '../access/access-gate.ts';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import type { Logger } from '../platform/logs.ts';
import { AllowedMethods } from './allowed-methods.ts';
import { joinChunks } from './body-pieces.ts';
import { removeInternalHeaders } from './control-caller.ts';
import { CorsRules } from './cors.ts';
import { DirectConnections } from './direct-connections.ts';
import {
  continueRequest,
  createErrorResponse,
  DirectRoutes,
  type FailedRequest,
  type HttpAdmit,
  type HttpHandler,
  type HttpRequestHead,
  type HttpResponse,
  JSON_CONTENT_TYPE,
  PATH_PARAMETER_CHARS_MAX,
} from './direct-routes.ts';
import { admitHttpCall } from './http-access.ts';
import { createBodyTooLargeError, HttpAdmission, isHttp2 } from './http-admission.ts';
import { chooseEncoding, decodeBody, encodeBody, getEncodingHeaders } from './http-encoding.ts';
import { HTTP2_CANCEL } from './http2-streams.ts';
import { abandonBody, restoreBodies, skipBody } from './unread-body.ts';

const ROUTER_OPTIONS = {
  ignoreTrailingSlash: true,
  // As brpc does.
  ignoreDuplicateSlashes: true,
  maxParamLength: PATH_PARAMETER_CHARS_MAX,
};
/** Parser errors with their own status; all others are 400. */
const PARSER_ERRORS: Readonly<Record<string, readonly [status: string, problem: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: ['408 Request Timeout', 'arrived too slowly'],
  HPE_HEADER_OVERFLOW: ['431 Request Header Fields Too Large', 'has too large a header'],
  HPE_INVALID_EOF_STATE: ['400 Bad Request', 'was truncated'],
};

interface ParserError extends Error {
  readonly code?: string;
  /** The part that the parser could not parse. */
  readonly reason?: string;
}

declare module 'fastify' {
  interface FastifyRequest {
    /** Who calls; absent: the server has no access control. */
    grant?: CallGrant | undefined;
  }
  interface FastifyContextConfig {
    /**
     * The route reads its body as a stream: of any length and duration, limited only in idle time.
     */
    streams?: boolean;
    /** Called before the body is read. */
    admit?: HttpAdmit;
  }
}

/** The content type of bodies that streaming routes receive as a stream. */
export const STREAMED_TYPE = 'application/x-ndjson';

/** Our routes have no JSON schemas. Without schema compilers fastify loads half as many modules. */
function rejectSchema(): never {
  throw new Error('routes must not have JSON schemas: no schema compiler is loaded');
}

export interface HttpAccessOptions {
  /** Checks every request; absent: every caller may call every route. */
  readonly gate?: AccessGate | undefined;
  /** Origins of web pages that may call; `*`: all. Default: none. */
  readonly corsOrigins?: readonly string[];
}

export class HttpServer {
  readonly app: FastifyInstance;
  /** Routes whose eligible requests are handled without fastify. */
  readonly directRoutes: DirectRoutes;
  readonly #server: Server;
  readonly #limits: ServerLimits;
  readonly #admission: HttpAdmission;
  readonly #gate: AccessGate | undefined;
  readonly #directConnections: DirectConnections;
  readonly #http2Streams = new Set<ServerHttp2Stream>();
  #isStopping = false;

  /** @param paths existing paths, for the message of a 404 */
  constructor(
    limits: ServerLimits,
    logger: Logger,
    paths = '',
    { gate, corsOrigins = [] }: HttpAccessOptions = {},
  ) {
    const cors = corsOrigins.length === 0 ? undefined : new CorsRules(corsOrigins);
    const server = createNodeServer(limits);
    this.#server = server;
    this.#limits = limits;
    this.#gate = gate;
    this.#admission = new HttpAdmission(limits);
    const toLoggedError = (error: unknown, { headers, url }: FailedRequest): CubeError => {
      const failure = CubeError.from(error);
      if (failure.code === 'INTERNAL') {
        logger.error({ err: error, url, logId: headers['log-id'] }, 'call failed');
      }
      return failure;
    };
    const shared = {
      admission: this.#admission,
      gate,
      bodyBytesMax: limits.httpBodyBytes,
      onFailure: toLoggedError,
      isStopping: () => this.#isStopping,
    };
    this.directRoutes = new DirectRoutes(shared);
    this.#directConnections = new DirectConnections({
      ...shared,
      routes: this.directRoutes,
      requestMs: limits.httpRequestMs,
      onBroken: handleParserError,
      handOver: (socket, bytes) => this.#handOver(socket, bytes),
    });
    this.app = fastify({
      bodyLimit: limits.httpBodyBytes,
      routerOptions: ROUTER_OPTIONS,
      serverFactory: (handler) => {
        const handle = (request: IncomingMessage, response: ServerResponse): void => {
          restoreBodies(request.socket);
          if (isWithoutHost(request)) sendWithoutHost(response);
          else if (cors?.apply(request, response)) return;
          else if (!this.directRoutes.tryHandle(request, response)) handler(request, response);
        };
        // A caller that waits with its body is told to continue once the request is admitted.
        return server.on('request', handle).on('checkContinue', handle);
      },
      clientErrorHandler: handleParserError,
      // HttpAdmission rejects with STOPPING instead, a code that tells callers to try another
      // replica.
      return503OnClosing: false,
      schemaController: {
        compilersFactory: { buildValidator: rejectSchema, buildSerializer: rejectSchema },
      },
      frameworkErrors: (error, request, reply) => sendError(reply, toCubeError(error, request)),
    });
    this.#addParsers();
    this.app.setErrorHandler((error: FastifyError | CubeError, request, reply) =>
      sendError(reply, toLoggedError(toCubeError(error, request), request.raw)),
    );
    this.#addLimits(new AllowedMethods(this.app, paths));
    this.app.addHook('onSend', async (_request, reply) => {
      // fastify adds a charset.
      const type = String(reply.getHeader('content-type') ?? '');
      if (type.startsWith(`${JSON_CONTENT_TYPE};`)) reply.header('content-type', JSON_CONTENT_TYPE);
    });
  }

  get requestsInFlight(): number {
    return this.#admission.requestsInFlight;
  }

  get unsentBytes(): number {
    return this.#admission.unsentBytes;
  }

  /** Call after all routes are added. */
  async start(): Promise<void> {
    await this.app.ready();
    // Without this event, a server that never listens enforces no header timeout and tracks no idle
    // connections.
    this.#server.emit('listening');
  }

  /** Whether connections can be read without node:http. Only node:http closes idle ones. */
  get readsDirectly(): boolean {
    return this.#limits.idleMs === 0 && this.directRoutes.count > 0;
  }

  /**
   * Serves a connection of HTTP/1.1.
   * @param first the bytes read so far, valid until it returns
   * @returns whether the connection has a request in flight
   */
  serve(socket: Socket, first: Buffer): () => boolean {
    const isDirect = this.readsDirectly && this.directRoutes.mayMatch(first);
    const isBusy = isDirect ? this.#directConnections.serve(socket, first) : undefined;
    if (isBusy === undefined) this.serveWithNode(socket, Buffer.from(first));
    return () => isBusy?.() === true || this.#admission.isBusy(socket);
  }

  /** Serves a connection with node:http only. @param first the bytes read so far */
  serveWithNode(socket: Socket, first: Buffer): void {
    this.#admission.trackConnection(socket);
    // Before Node reuses the connection's parser for another one.
    socket.once('close', () => restoreBodies(socket));
    socket.unshift(first);
    this.#server.emit('connection', socket);
  }

  /** Handles a request over HTTP/2 as one over HTTP/1.1. */
  serveHttp2(request: Http2ServerRequest, response: Http2ServerResponse): void {
    const { headers, authority, stream } = request;
    removeInternalHeaders(headers);
    headers.host ??= authority;
    this.#http2Streams.add(stream);
    stream.once('close', () => this.#http2Streams.delete(stream));
    // A stream reset by its caller needs no handling; 'close' follows.
    stream.on('error', () => undefined);
    this.#admission.trackConnection(stream);
    this.#server.emit('request', request, response);
  }

  /**
   * Resolves when no request is in flight; further responses close their connections. Callers that
   * have not sent a whole request or read its response by then are not waited for. Later requests
   * are rejected with STOPPING.
   */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#closeIdleConnections();
    const { drainMs } = this.#limits;
    const timer = setTimeout(() => {
      this.#server.closeAllConnections();
      this.#directConnections.closeAll();
      for (const stream of this.#http2Streams) stream.close(HTTP2_CANCEL);
    }, drainMs);
    await this.#admission.waitUntilIdle();
    clearTimeout(timer);
    this.#admission.close();
    this.#closeIdleConnections();
    await this.app.close();
  }

  #closeIdleConnections(): void {
    this.#server.closeIdleConnections();
    this.#directConnections.closeIdle();
  }

  /** Serves a connection with node:http from now on. */
  #handOver(socket: Socket, bytes: Buffer): void {
    socket.pause();
    this.serveWithNode(socket, bytes);
    socket.resume();
  }

  #addParsers(): void {
    this.app.removeAllContentTypeParsers();
    this.app.addContentTypeParser(
      '*',
      { parseAs: 'buffer' },
      async ({ headers }: FastifyRequest, body: Buffer) =>
        decodeBody(headers['content-encoding'], body, this.#limits.inflatedBytes),
    );
    this.app.addContentTypeParser(
      STREAMED_TYPE,
      async (request: FastifyRequest, body: Readable) => {
        if (isStreamedBody(request)) return body;
        throw new CubeError('INVALID_ARGUMENT', `${STREAMED_TYPE} is not supported on this path`);
      },
    );
  }

  /** Admits fastify's requests in the same way as those of DirectRoutes. */
  #addLimits(methods: AllowedMethods): void {
    const admission = this.#admission;
    const gate = this.#gate;
    this.app.decorateRequest('grant', undefined);
    this.app.addHook('onRequest', async (request, reply) => {
      if (this.#isStopping) reply.header('connection', 'close');
      admission.limitBodyTime(request.raw, reply.raw, isStreamedBody(request));
      const { headers, params, query, routeOptions } = request;
      admission.admit(request.raw, reply.raw, routeOptions.bodyLimit);
      if (gate !== undefined) {
        // Of unknown paths only the path itself is known, without what may be secret in a query.
        const path = routeOptions.url ?? request.url.replace(/[?#].*$/s, '');
        request.grant = admitHttpCall(gate, admission, request.raw, reply.raw, path);
      }
      if (request.is404) return methods.refuse(request, reply);
      if (!isStreamedBody(request)) admission.checkBodyLength(headers, routeOptions.bodyLimit);
      const head = {
        headers,
        params: params as HttpRequestHead['params'],
        query,
        grant: request.grant,
      };
      const onBodyEnd = routeOptions.config.admit?.(head);
      if (onBodyEnd instanceof CubeError) throw onBodyEnd;
      if (onBodyEnd !== undefined) admission.onBodyEnd(request.raw, reply.raw, onBodyEnd);
      continueRequest(request.raw, reply.raw);
      return undefined;
    });
    this.app.addHook('preParsing', async (request, _reply, payload) => {
      const isChunked = request.headers['content-length'] === undefined;
      if (!isChunked || request.method === 'GET' || isStreamedBody(request)) return payload;
      return joinChunks(payload, () => skipBody(request.raw));
    });
    this.app.addHook('preHandler', async () => admission.checkUnsentBytes());
    this.app.addHook('onSend', encodePayload);
    this.app.addHook('onSend', async ({ raw }, reply, payload) => {
      const isUnread = reply.statusCode >= 400 && !raw.complete && hasBody(raw);
      if (isUnread && abandonBody(raw)) reply.header('connection', 'close');
      if (isHttp2(raw)) reply.removeHeader('connection');
      const byteCount = (payload as string | Uint8Array | null)?.length ?? 0;
      admission.countResponse(reply.raw, byteCount);
    });
  }
}

function createNodeServer(limits: ServerLimits): Server {
  const { httpHeaderBytes, httpHeadersMs, httpRequestMs, idleMs } = limits;
  const server = createServer({
    maxHeaderSize: httpHeaderBytes,
    headersTimeout: Math.min(httpHeadersMs, httpRequestMs),
    // HttpAdmission limits the whole request instead, because streaming routes have no such limit.
    requestTimeout: 0,
    keepAliveTimeout: idleMs,
    // Checked in HttpServer, because Node answers with an empty body.
    requireHostHeader: false,
    connectionsCheckingInterval: Math.ceil(httpHeadersMs / 4),
  });
  // A caller that half-closes its connection after the request still gets the response.
  return Object.assign(server, { httpAllowHalfOpen: true });
}

/** Handles a fastify request with the handler of a direct route. */
export async function handleFastifyRequest(
  handler: HttpHandler,
  { headers, params, query, body, grant }: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const { raw } = reply;
  const pathParams = params as Readonly<Record<string, string>>;
  const call = { headers, params: pathParams, query, body, raw, grant };
  return sendResponse(reply, await handler(call));
}

function sendResponse(
  reply: FastifyReply,
  { status = 200, type, headers = {}, body }: HttpResponse,
): FastifyReply {
  return reply.status(status).headers(headers).type(type).send(body);
}

/** Compresses a response, except a stream, for callers that accept it. */
async function encodePayload(
  request: FastifyRequest,
  reply: FastifyReply,
  payload: unknown,
): Promise<unknown> {
  if (typeof payload !== 'string' && !(payload instanceof Uint8Array)) return payload;
  const encoding = chooseEncoding(request.headers['accept-encoding'], payload.length);
  if (encoding === undefined || reply.hasHeader('content-encoding')) return payload;
  const encoded = await encodeBody(encoding, payload);
  const headers = getEncodingHeaders(encoding, reply.getHeader('vary'));
  reply.headers(headers).removeHeader('content-length');
  return encoded;
}

function hasBody({ headers }: IncomingMessage): boolean {
  const { 'content-length': length = '0', 'transfer-encoding': encoding } = headers;
  return length !== '0' || encoding !== undefined;
}

/** Such requests are forbidden by HTTP/1.1. */
function isWithoutHost({ httpVersion, headers }: IncomingMessage): boolean {
  return headers.host === undefined && httpVersion === '1.1';
}

function sendWithoutHost(response: ServerResponse): void {
  const problem = 'the request has no Host header, which HTTP/1.1 requires';
  const { status, headers, type, body } = createErrorResponse(
    new CubeError('INVALID_ARGUMENT', problem),
  );
  response.writeHead(status ?? 400, {
    ...headers,
    'content-type': type,
    'content-length': Buffer.byteLength(body),
    connection: 'close',
  });
  response.end(body);
}

function isStreamedBody({ headers, routeOptions }: FastifyRequest): boolean {
  const isLines = headers['content-type']?.startsWith(STREAMED_TYPE) ?? false;
  return isLines && routeOptions.config.streams === true;
}

/** Responds to malformed and truncated requests with an error, and closes the connection. */
function handleParserError(
  error: ParserError,
  socket: Socket & { _httpMessage?: ServerResponse },
): void {
  const isAnswering = socket._httpMessage?.headersSent === true;
  // In the middle of a response no error can be sent.
  if (!socket.writable || isAnswering || error.code === 'ECONNRESET') {
    socket.destroy();
    return;
  }
  const [status, problem] = PARSER_ERRORS[error.code ?? ''] ?? [
    '400 Bad Request',
    'is not HTTP/1.1',
  ];
  const message = `the request ${problem} (${error.reason ?? error.message})`;
  const body = JSON.stringify({ code: 'INVALID_ARGUMENT', error: message });
  const head = `HTTP/1.1 ${status}\r\nConnection: close\r\nContent-Type: ${JSON_CONTENT_TYPE}\r\n`;
  socket.write(`${head}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`);
  socket.destroySoon();
}

function sendError(reply: FastifyReply, error: CubeError): FastifyReply {
  return sendResponse(reply, createErrorResponse(error));
}

/** Converts fastify's own errors: a body above the limit, a bad request. */
export function toCubeError(
  error: FastifyError | CubeError,
  { routeOptions }: FastifyRequest,
): CubeError {
  if (error instanceof CubeError) return error;
  const status = error.statusCode ?? 500;
  if (status === 413) return createBodyTooLargeError(routeOptions.bodyLimit);
  if (status >= 400 && status < 500) {
    return new CubeError('INVALID_ARGUMENT', error.message, { cause: error });
  }
  return CubeError.from(error);
}
