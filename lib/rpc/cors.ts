/**
 * Cross-origin requests of browsers: pages of the allowed origins may call and read responses. Keys
 * travel in headers that a page sets itself, so cookies and other ambient credentials stay off.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';

/** Seconds for which a browser remembers the answer to a preflight request. */
const MAX_AGE_SECONDS = '600';
const METHODS = 'GET, POST';
const REQUEST_HEADERS = 'authorization, content-type, timeout-ms, x-api-key';
const RESPONSE_HEADERS = 'retry-after, x-bd-error-code, hypercube-degraded';

export class CorsRules {
  readonly #origins: ReadonlySet<string>;

  /** @param origins `*`: all */
  constructor(origins: readonly string[]) {
    this.#origins = new Set(origins);
  }

  /**
   * Adds the headers for an allowed origin. @returns whether the request was a preflight request,
   * which is answered
   */
  apply({ method, headers }: IncomingMessage, response: ServerResponse): boolean {
    const { origin } = headers;
    if (origin === undefined) return false;
    response.setHeader('vary', 'origin');
    if (!this.#origins.has('*') && !this.#origins.has(origin)) return false;
    response.setHeader('access-control-allow-origin', origin);
    response.setHeader('access-control-expose-headers', RESPONSE_HEADERS);
    if (method !== 'OPTIONS' || headers['access-control-request-method'] === undefined) {
      return false;
    }
    response.writeHead(204, {
      'access-control-allow-methods': METHODS,
      'access-control-allow-headers': REQUEST_HEADERS,
      'access-control-max-age': MAX_AGE_SECONDS,
    });
    response.end();
    return true;
  }
}
