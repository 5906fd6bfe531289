/**
 * Requests that are handled without fastify, whose overhead exceeds the cost of parsing rows: POSTs
 * of a known length with a plain body, whose path and content type a route names. All other
 * requests to the same path reach the same handler through fastify.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { AccessGate, CallGrant } from '../access/access-gate.ts';
import { encodeErrorDetails } from '../core/error-details.ts';
import { CubeError } from '../core/errors.ts';
import { ERROR_TEXT_CHARS_MAX } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import { admitHttpCall } from './http-access.ts';
import type { HttpAdmission } from './http-admission.ts';
import { chooseEncoding, encodeBody, getEncodingHeaders } from './http-encoding.ts';
import { abandonBody } from './unread-body.ts';

/** brpc's HTTP header for its error codes. */
export const ERROR_CODE_HEADER = 'x-bd-error-code';
/** Without a charset: JSON is UTF-8, and clients of KServe compare the whole value. */
export const JSON_CONTENT_TYPE = 'application/json';
/** When a caller tries again after an error that may pass. */
const DEFAULT_RETRY_MS = 1000;
/** Maximum length of a path parameter: a name with a suffix such as `:predict`. */
export const PATH_PARAMETER_CHARS_MAX = 200;

/** The head of a request. */
export interface HttpRequestHead {
  readonly headers: IncomingHttpHeaders;
  /** Path parameters by name. */
  readonly params: Readonly<Record<string, string>>;
  readonly query: unknown;
  /** Who calls; absent: the server has no access control. */
  readonly grant?: CallGrant | undefined;
  /** When the head was received, on the system clock; undefined when unknown. */
  readonly arrivedMs?: number;
}

/** A request whose body has been read. */
export interface HttpRequest extends HttpRequestHead {
  /** A Buffer; undefined without a body. */
  readonly body: unknown;
  /** The response that will be sent. */
  readonly raw: PendingResponse;
}

/** What handlers may see of their response: a part of node:http's ServerResponse. */
export interface PendingResponse {
  /** The connection has ended. */
  readonly destroyed: boolean;
  /** The response has been sent. */
  readonly writableFinished: boolean;
  readonly headersSent: boolean;
  setHeader(name: string, value: string): unknown;
  /** Calls the listener when the connection ends before the response is sent; maybe also after. */
  once(event: 'close', listener: () => void): unknown;
}

export interface HttpResponse {
  /** Default 200. */
  readonly status?: number;
  readonly type: string;
  readonly headers?: Readonly<Record<string, string | number>>;
  readonly body: string | Buffer;
}

/**
 * Checks a request before its body is read.
 * @returns an error, which becomes the response; or a function that is called when the body has
 *   arrived, or never will
 * @throws CubeError, which becomes the response too, but takes longer
 */
export type HttpAdmit = (head: HttpRequestHead) => CubeError | (() => void) | undefined;

export type HttpHandler = (call: HttpRequest) => Promise<HttpResponse>;

export interface DirectRoute {
  /** In fastify's syntax: `:name` is a parameter, `::` a colon. */
  readonly path: string;
  /** Content types, matched exactly. */
  readonly contentTypes: readonly string[];
  readonly admit?: HttpAdmit | undefined;
  readonly handler: HttpHandler;
  /**
   * The handler has read the body when it returns its promise, and keeps no view of it: its memory
   * is used again then. Default false.
   */
  readonly readsBodyAtOnce?: boolean;
}

interface Route extends DirectRoute {
  readonly pattern: RegExp;
  /** The path of the last request that it matched, and the match: callers repeat their paths. */
  lastUrl: string | undefined;
  lastMatch: DirectMatch | undefined;
}

/** A route that matches a request. */
export interface DirectMatch {
  readonly route: Omit<DirectRoute, 'contentTypes'>;
  readonly params: HttpRequestHead['params'];
}

export type FailedRequest = Pick<IncomingMessage, 'headers' | 'url'>;

export interface DirectRoutesOptions {
  readonly admission: HttpAdmission;
  readonly gate: AccessGate | undefined;
  readonly bodyBytesMax: number;
  /** Called for each failure; returns the error to respond with. */
  onFailure(error: unknown, request: FailedRequest): CubeError;
  /** Whether connections close after their responses. */
  isStopping(): boolean;
}

export class DirectRoutes {
  readonly #options: DirectRoutesOptions;
  readonly #routes: Route[] = [];

  constructor(options: DirectRoutesOptions) {
    this.#options = options;
  }

  get count(): number {
    return this.#routes.length;
  }

  add(route: DirectRoute): void {
    const pattern = route.path.replaceAll(/\.|::|:(\w+)/g, (text, name?: string) => {
      if (text === '.') return '\\.';
      return name === undefined ? ':' : `(?<${name}>[^/?#;%]{1,${PATH_PARAMETER_CHARS_MAX}})`;
    });
    this.#routes.push({
      pattern: new RegExp(`^${pattern}$`),
      lastUrl: undefined,
      lastMatch: undefined,
      ...route,
    });
  }

  /** Handles a request if it is eligible and matches a route; returns whether it does. */
  tryHandle(request: IncomingMessage, response: ServerResponse): boolean {
    if (!isEligible(request, this.#options.bodyBytesMax)) return false;
    const found = this.find(request.url ?? '', request.headers['content-type']);
    if (found === undefined) return false;
    const head = { headers: request.headers, params: found.params, query: {} };
    this.#read(request, response, found.route, head);
    return true;
  }

  /** Whether the first bytes of a connection may begin a direct request. */
  mayMatch(first: Buffer): boolean {
    return first.toString('latin1', 0, 4) === 'POST';
  }

  /** Finds the route of a POST. @param url without a query, or no route matches */
  find(url: string, contentType = ''): DirectMatch | undefined {
    for (const route of this.#routes) {
      if (!route.contentTypes.includes(contentType)) continue;
      if (url === route.lastUrl) return route.lastMatch;
      const found = route.pattern.exec(url);
      if (found === null) continue;
      route.lastUrl = url;
      route.lastMatch = { route, params: found.groups ?? {} };
      return route.lastMatch;
    }
    return undefined;
  }

  /** Admits a request, reads its body and sends the handler's response. */
  #read(
    request: IncomingMessage,
    response: ServerResponse,
    { path, admit, handler }: DirectMatch['route'],
    head: HttpRequestHead,
  ): void {
    const { admission, gate } = this.#options;
    const arrivedMs = systemClock.nowMs();
    const send = (result: HttpResponse): void => {
      const encoded = encodeResponse(result, request.headers['accept-encoding'], response);
      if (!(encoded instanceof Promise)) this.#send(response, encoded);
      else encoded.then((whole) => this.#send(response, whole), fail);
    };
    const toResponse = (error: unknown): HttpResponse =>
      createErrorResponse(this.#options.onFailure(error, request));
    const fail = (error: unknown): void => send(toResponse(error));
    let grant: CallGrant | undefined;
    admission.limitBodyTime(request, response, false);
    try {
      admission.admit(request, response);
      grant = gate && admitHttpCall(gate, admission, request, response, path);
      const onBodyEnd = admit?.({ grant, ...head });
      if (onBodyEnd instanceof CubeError) throw onBodyEnd;
      if (onBodyEnd !== undefined) admission.onBodyEnd(request, response, onBodyEnd);
    } catch (error) {
      const refusal = toResponse(error);
      send(abandonBody(request) ? closeAfter(refusal) : refusal);
      return;
    }
    continueRequest(request, response);
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      try {
        admission.checkUnsentBytes();
      } catch (error) {
        fail(error);
        return;
      }
      const [first, second] = pieces;
      const isWhole = first !== undefined && second === undefined;
      const body = isWhole ? first : Buffer.concat(pieces);
      handler({ grant, body, raw: response, arrivedMs, ...head }).then(send, fail);
    });
  }

  /** Sends head and body in one write: `end` joins a string with its head. */
  #send(response: ServerResponse, { status = 200, type, headers, body }: HttpResponse): void {
    const byteCount = Buffer.byteLength(body);
    const head = ['content-type', type, 'content-length', String(byteCount)];
    for (const name in headers) head.push(name, String(headers[name]));
    if (this.#options.isStopping() && headers?.['connection'] === undefined) {
      head.push('connection', 'close');
    }
    this.#options.admission.countResponse(response, byteCount);
    response.writeHead(status, head);
    if (typeof body === 'string') response.end(body);
    else response.end(body.toString('latin1'), 'latin1');
  }
}

/**
 * Compresses a large response for a caller that accepts it.
 * @param accepted the header Accept-Encoding
 * @param raw may have headers already
 */
export function encodeResponse(
  response: HttpResponse,
  accepted: string | string[] | undefined,
  raw?: ServerResponse,
): HttpResponse | Promise<HttpResponse> {
  const encoding = chooseEncoding(accepted, response.body.length);
  if (encoding === undefined) return response;
  const headers = { ...response.headers, ...getEncodingHeaders(encoding, raw?.getHeader('vary')) };
  return encodeBody(encoding, response.body).then((body) => ({ ...response, headers, body }));
}

/** The response with a header that closes the connection after it. */
export function closeAfter(response: HttpResponse): HttpResponse {
  return { ...response, headers: { ...response.headers, connection: 'close' } };
}

/** Sends `100 Continue` to a caller that waits for it with its body. */
export function continueRequest(
  { headers, httpVersionMajor }: IncomingMessage,
  response: ServerResponse,
): void {
  if (headers.expect !== undefined && httpVersionMajor === 1) response.writeContinue();
}

/** A POST of HTTP/1.1 with a body of known length and without encodings. */
function isEligible(
  { method, headers, httpVersionMajor }: IncomingMessage,
  bodyBytesMax: number,
): boolean {
  const length = Number(headers['content-length'] ?? 0);
  return (
    method === 'POST' &&
    httpVersionMajor === 1 &&
    length > 0 &&
    length <= bodyBytesMax &&
    headers['transfer-encoding'] === undefined &&
    headers['content-encoding'] === undefined
  );
}

/** The headers of a response to a failure; a process that is stopping closes the connection. */
export function createErrorHeaders(error: CubeError): Record<string, string | number> {
  const { code, status, details } = error;
  const retryAfterMs = details.retryAfterMs ?? (status.retryable ? DEFAULT_RETRY_MS : undefined);
  return {
    [ERROR_CODE_HEADER]: status.brpc,
    ...(retryAfterMs !== undefined && { 'retry-after': String(Math.ceil(retryAfterMs / 1000)) }),
    ...(code === 'UNAUTHENTICATED' && { 'www-authenticate': 'Bearer' }),
    ...(code === 'STOPPING' && { connection: 'close' }),
  };
}

/** Creates the response to a failure: HTTP status, brpc's error number, code and message. */
export function createErrorResponse(error: CubeError): HttpResponse {
  const { code, status, message, details } = error;
  return {
    status: status.http,
    type: JSON_CONTENT_TYPE,
    headers: createErrorHeaders(error),
    body: JSON.stringify({
      code,
      error: message.slice(0, ERROR_TEXT_CHARS_MAX),
      ...(encodeErrorDetails(details) === '' ? {} : { details }),
    }),
  };
}
