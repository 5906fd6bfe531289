/**
 * Requests that are answered past the framework, whose way to a handler and back takes longer than reading rows does: POSTs of
 * a known length with a plain body, to a path and with a content type that a route names. Every other request to the same path goes
 * through the framework, to the same handler.
 */
import type { IncomingHttpHeaders, IncomingMessage, ServerResponse } from 'node:http';
import type { CubeError } from '../core/errors.ts';
import { ERROR_TEXT_CHARS_MAX } from '../core/limits.ts';
import type { HttpAdmission } from './http-admission.ts';

/** What brpc calls its error codes over HTTP. */
export const ERROR_CODE_HEADER = 'x-bd-error-code';
export const JSON_TYPE = 'application/json; charset=utf-8';
/** A name, and what hangs on it (`name:predict`). */
export const PATH_PARAMETER_CHARS_MAX = 200;

/** A request, its body read. */
export interface HttpCall {
  readonly headers: IncomingHttpHeaders;
  /** The path's, by name. */
  readonly params: Readonly<Record<string, string>>;
  readonly query: unknown;
  /** Bytes, or none. */
  readonly body: unknown;
  /** What the answer will go out by. */
  readonly raw: ServerResponse;
}

export interface HttpAnswer {
  /** 200 unless said. */
  readonly status?: number;
  readonly type: string;
  readonly headers?: Readonly<Record<string, string | number>>;
  readonly body: string | Buffer;
}

export type HttpHandler = (call: HttpCall) => Promise<HttpAnswer>;

export interface DirectRoute {
  /** As the framework writes it: `:name` is a parameter, `::` a colon. */
  readonly path: string;
  /** Content types, to the letter. */
  readonly types: readonly string[];
  readonly handler: HttpHandler;
}

interface Route extends Omit<DirectRoute, 'path'> {
  readonly pattern: RegExp;
}

export interface DirectOptions {
  readonly admission: HttpAdmission;
  readonly bodyBytesMax: number;
  /** Told of each failure before it is answered. @returns what to answer */
  onFailure(error: unknown, request: IncomingMessage): CubeError;
  /** Whether connections end with their answers. */
  isStopping(): boolean;
}

export class DirectRoutes {
  readonly #options: DirectOptions;
  readonly #routes: Route[] = [];

  constructor(options: DirectOptions) {
    this.#options = options;
  }

  add({ path, types, handler }: DirectRoute): void {
    const pattern = path.replaceAll(/::|:(\w+)/g, (_, name?: string) =>
      name === undefined ? ':' : `(?<${name}>[^/?#;%]{1,${PATH_PARAMETER_CHARS_MAX}})`,
    );
    this.#routes.push({ pattern: new RegExp(`^${pattern}$`), types, handler });
  }

  /** Answers a request if it is a plain one of some route. @returns whether it is */
  answer(request: IncomingMessage, response: ServerResponse): boolean {
    if (!isPlain(request, this.#options.bodyBytesMax)) return false;
    const type = request.headers['content-type'] ?? '';
    for (const { pattern, types, handler } of this.#routes) {
      if (!types.includes(type)) continue;
      const found = pattern.exec(request.url!);
      if (found === null) continue;
      this.#read(request, response, (body) =>
        handler({
          ...{ headers: request.headers, params: found.groups ?? {}, query: {} },
          ...{ body, raw: response },
        }),
      );
      return true;
    }
    return false;
  }

  /** Lets a request in, reads its body and sends what comes of it. */
  #read(
    request: IncomingMessage,
    response: ServerResponse,
    handle: (body: Buffer) => Promise<HttpAnswer>,
  ): void {
    const { admission } = this.#options;
    const send = (answer: HttpAnswer): void => this.#send(response, answer);
    const fail = (error: unknown): void =>
      send(errorAnswer(this.#options.onFailure(error, request)));
    try {
      admission.enter(request, response);
      admission.limitTime(request, response, false);
    } catch (error) {
      fail(error);
      return;
    }
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      try {
        admission.checkAnswers();
      } catch (error) {
        fail(error);
        return;
      }
      handle(pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces)).then(send, fail);
    });
  }

  /** Head and body in one write: a string goes out with its head, and so do few bytes as one. */
  #send(response: ServerResponse, { status = 200, type, headers, body }: HttpAnswer): void {
    const byteCount = Buffer.byteLength(body);
    const head = ['content-type', type, 'content-length', String(byteCount)];
    for (const name in headers) head.push(name, String(headers[name]));
    if (this.#options.isStopping()) head.push('connection', 'close');
    this.#options.admission.countAnswer(response, byteCount);
    response.writeHead(status, head);
    if (typeof body === 'string') response.end(body);
    else response.end(body.toString('latin1'), 'latin1');
  }
}

/** A POST whose body, of a known length, is what it seems. */
function isPlain({ method, headers }: IncomingMessage, bodyBytesMax: number): boolean {
  const length = Number(headers['content-length'] ?? 0);
  return (
    method === 'POST' &&
    length > 0 &&
    length <= bodyBytesMax &&
    headers['transfer-encoding'] === undefined &&
    headers['content-encoding'] === undefined
  );
}

/** The status of a failure's code, brpc's number, and the words. */
export function errorAnswer({ code, status, message }: CubeError): HttpAnswer {
  const { http, brpc, retryable } = status;
  return {
    status: http,
    type: JSON_TYPE,
    headers: { ...(retryable ? { 'retry-after': '1' } : {}), [ERROR_CODE_HEADER]: brpc },
    body: JSON.stringify({ code, error: message.slice(0, ERROR_TEXT_CHARS_MAX) }),
  };
}
