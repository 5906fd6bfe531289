/** Posts requests to one HTTP server on keep-alive connections, with API key and TLS if given. */
import { Agent as HttpAgent, type IncomingHttpHeaders, request } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { startTimer } from '../platform/clock.ts';
import type { Credentials } from '../rpc/credentials.ts';
import { readHttpBody } from './http-body.ts';
import { createTimeoutError, toConnectionError } from './http-errors.ts';

/** Far above the response to the largest request. */
const RESPONSE_BYTES_MAX = 64 << 20;

export interface HttpAnswer {
  readonly status: number;
  readonly text: string;
  readonly headers: IncomingHttpHeaders;
}

export class HttpPoster {
  readonly #base: URL;
  readonly #options: { readonly keepAlive: boolean; readonly maxSockets: number };
  readonly #credentials: Credentials;
  /** The options of TLS that the agent uses. */
  #tlsOptions: object | undefined;
  #agent: HttpAgent | HttpsAgent | undefined;

  /** @param base a path in it is the prefix of a proxy */
  constructor(base: URL, connectionsMax: number, credentials: Credentials) {
    this.#base = base;
    this.#options = { keepAlive: true, maxSockets: connectionsMax };
    this.#credentials = credentials;
  }

  get host(): string {
    return this.#base.host;
  }

  /** The URL of a path of the server, which begins with a slash. */
  resolve(path: string): URL {
    const prefix = this.#base.pathname.replace(/\/+$/, '');
    return new URL(`${prefix}${path}`, this.#base);
  }

  /**
   * @returns the answer, whatever its status
   * @throws CubeError UNAVAILABLE, DEADLINE_EXCEEDED, TOO_LARGE
   */
  post(
    url: URL,
    headers: Readonly<Record<string, string>>,
    body: Uint8Array,
    timeoutMs: number,
  ): Promise<HttpAnswer> {
    const { token } = this.#credentials;
    const all = {
      'content-length': body.length,
      'timeout-ms': Math.max(1, Math.floor(timeoutMs)),
      ...headers,
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
    };
    const send = url.protocol === 'https:' ? httpsRequest : request;
    return new Promise((resolve, reject) => {
      const options = { method: 'POST', agent: this.#getAgent(), headers: all };
      const sent = send(url, options, (response) => {
        const { statusCode: status = 0, headers: received } = response;
        readHttpBody(response, url.host, RESPONSE_BYTES_MAX).then(
          (bytes) => resolve({ status, text: bytes.toString(), headers: received }),
          reject,
        );
      });
      const timer = startTimer(() => {
        sent.destroy(createTimeoutError(url.host, timeoutMs));
      }, timeoutMs);
      sent.once('close', () => clearTimeout(timer));
      sent.once('error', (error) => reject(toConnectionError(error, url.host)));
      sent.end(body);
    });
  }

  close(): void {
    this.#agent?.destroy();
  }

  /** Changed certificates take effect with new connections; open ones close when they are idle. */
  #getAgent(): HttpAgent | HttpsAgent {
    const isSecure = this.#base.protocol === 'https:';
    const tlsOptions = isSecure ? this.#credentials.tlsOptions : undefined;
    if (this.#agent !== undefined && tlsOptions === this.#tlsOptions) return this.#agent;
    this.#tlsOptions = tlsOptions;
    const options = { ...this.#options, ...tlsOptions };
    this.#agent = isSecure ? new HttpsAgent(options) : new HttpAgent(options);
    return this.#agent;
  }
}
