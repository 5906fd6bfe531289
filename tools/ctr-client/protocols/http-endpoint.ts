/**
 * An HTTP connection pool to one serving process. Error responses become the errors they name.
 */
import {
  Agent as HttpAgent,
  request as httpRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
} from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../../../lib/core/errors.ts';
import { encodeHeaderText } from '../../../lib/core/header-text.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import {
  PROFILE_KEY,
  parseProfile,
  type RequestProfile,
} from '../../../lib/core/request-profile.ts';
import { type Credentials, NO_CREDENTIALS } from '../../../lib/rpc/credentials.ts';
import {
  DEGRADED_KEY,
  EXPERIMENT_KEY,
  EXPERIMENTS_KEY,
  parseVariants,
  type Variants,
} from '../../../proto/ctr.ts';

export interface HttpResponse {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly bytes: Buffer;
  /** URL, for error messages. */
  readonly source: string;
}

export interface HttpBody {
  readonly type: string;
  readonly bytes: Uint8Array;
  readonly headers?: Readonly<Record<string, string | number>>;
}

export interface HttpEndpointOptions {
  /** `http://host:port` or `https://…`. */
  readonly url: string;
  readonly connectionsMax: number;
  /** Time from sending to the last byte of the response; also sent as the request's deadline. */
  readonly timeoutMs: number;
  /** API key and certificates. Default: none. */
  readonly credentials?: Credentials | undefined;
  /** Ask for the profile of each request. Default false. */
  readonly profile?: boolean;
}

/** Far above the response to the largest request. */
const RESPONSE_BYTES_MAX = 64 << 20;
const SHOWN_CHARS_MAX = 200;

export class HttpEndpoint {
  readonly url: string;
  readonly #timeoutMs: number;
  readonly #isProfiled: boolean;
  readonly #credentials: Credentials;
  readonly #agent: HttpAgent | HttpsAgent;
  readonly #send: typeof httpRequest;

  constructor({
    url,
    connectionsMax,
    timeoutMs,
    credentials = NO_CREDENTIALS,
    profile = false,
  }: HttpEndpointOptions) {
    this.url = url.replace(/\/+$/, '');
    this.#timeoutMs = timeoutMs;
    this.#isProfiled = profile;
    this.#credentials = credentials;
    const options = { keepAlive: true, maxSockets: connectionsMax };
    const isSecure = url.startsWith('https:');
    const tlsOptions = { ...options, ...credentials.tlsOptions };
    this.#agent = isSecure ? new HttpsAgent(tlsOptions) : new HttpAgent(options);
    this.#send = isSecure ? httpsRequest : httpRequest;
  }

  /** @throws CubeError with the server's code, UNAVAILABLE or DEADLINE_EXCEEDED */
  async get(path: string): Promise<JsonReader> {
    const response = await this.#exchange('GET', path);
    if (response.status !== 200) throw toError(response);
    return parseJsonBody(response);
  }

  /**
   * @param experimentKey '' is none
   * @throws CubeError with the server's code, UNAVAILABLE or DEADLINE_EXCEEDED
   */
  async post(path: string, body: HttpBody, experimentKey: string): Promise<HttpResponse> {
    const headers = { ...body.headers, [EXPERIMENT_KEY]: encodeHeaderText(experimentKey) };
    const keyed = experimentKey === '' ? body : { ...body, headers };
    const response = await this.#exchange('POST', path, keyed);
    if (response.status !== 200) throw toError(response);
    return response;
  }

  close(): void {
    this.#agent.destroy();
  }

  #exchange(method: string, path: string, body?: HttpBody): Promise<HttpResponse> {
    const source = `${this.url}${path}`;
    const { token } = this.#credentials;
    const authorization = token === undefined ? {} : { authorization: `Bearer ${token}` };
    const headers =
      body === undefined
        ? authorization
        : {
            ...authorization,
            ...body.headers,
            'content-type': body.type,
            'content-length': body.bytes.length,
            'timeout-ms': this.#timeoutMs,
            ...(this.#isProfiled && { [PROFILE_KEY]: 'true' }),
          };
    return new Promise((resolve, reject) => {
      const request = this.#send(source, { method, agent: this.#agent, headers });
      const fail = (error: Error): void => reject(connectionError(error, this.url));
      const timer = setTimeout(() => {
        const late = `${this.url}: no response within ${this.#timeoutMs} ms`;
        request.destroy(new CubeError('DEADLINE_EXCEEDED', late));
      }, this.#timeoutMs);
      request.once('close', () => clearTimeout(timer));
      request.on('error', fail);
      request.on('response', (response: IncomingMessage) => {
        readBytes(response, this.url).then(
          (bytes) =>
            resolve({ status: response.statusCode ?? 0, headers: response.headers, bytes, source }),
          fail,
        );
      });
      request.end(body?.bytes);
    });
  }
}

/** Every protocol over HTTP marks degraded responses with a header. */
export function isDegraded({ headers }: HttpResponse): boolean {
  return headers[DEGRADED_KEY] === 'true';
}

/** Every protocol over HTTP sends the variants and the profile of a request as headers. */
export function readMetadata({ headers }: HttpResponse): {
  readonly variants?: Variants;
  readonly profile?: RequestProfile;
} {
  const variants = parseVariants(headers[EXPERIMENTS_KEY]?.toString());
  const profile = parseProfile(headers[PROFILE_KEY]?.toString());
  return {
    ...(variants !== undefined && { variants }),
    ...(profile !== undefined && { profile }),
  };
}

/** @throws CubeError INTERNAL when the body is not JSON */
export function parseJsonBody({
  bytes,
  source,
}: Pick<HttpResponse, 'bytes' | 'source'>): JsonReader {
  try {
    return JsonReader.parse(bytes.toString(), source);
  } catch {
    throw invalidResponseError(`${source}: not JSON: ${toShortText(bytes)}`);
  }
}

/** Reports an invalid field of a response as the server's error, not the caller's. */
export function withReadErrors<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw code === 'INVALID_ARGUMENT' ? invalidResponseError(message) : error;
  }
}

/** An error for a response that serving never sends. */
export function invalidResponseError(message: string): CubeError {
  return new CubeError('INTERNAL', `${message}; is serving listening there?`);
}

async function readBytes(response: IncomingMessage, url: string): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  for await (const chunk of response as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > RESPONSE_BYTES_MAX) {
      throw new CubeError('TOO_LARGE', `${url}: the response exceeds ${RESPONSE_BYTES_MAX} bytes`);
    }
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function connectionError(error: Error, url: string): CubeError {
  if (error instanceof CubeError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ECONNREFUSED') {
    const reason = 'connection refused; is serving running?';
    return new CubeError('UNAVAILABLE', `${url}: ${reason}`, { cause: error });
  }
  const hint = code === 'EPROTO' ? '; serving has no certificate there: give an http URL' : '';
  return new CubeError('UNAVAILABLE', `${url}: ${firstLine(message)}${hint}`, { cause: error });
}

/** Converts an error response to the error that it names. */
function toError({ status, bytes, source }: HttpResponse): CubeError {
  let body: { code?: string; error?: string; err_no?: number; err_msg?: string } = {};
  try {
    body = JSON.parse(bytes.toString());
  } catch {
    // Not a response of serving, perhaps of a proxy: its text is shown instead.
  }
  const { code, error, err_no: brpc, err_msg: text } = body ?? {};
  const location = `${source}: HTTP ${status}`;
  if (code !== undefined && Object.hasOwn(ERROR_STATUS, code)) {
    return new CubeError(code as ErrorCode, `${location}: ${error}`);
  }
  if (brpc !== undefined && Number.isInteger(brpc)) {
    return CubeError.fromBrpc(brpc, `${location}: ${text}`);
  }
  const hint = 'is serving listening there?';
  return new CubeError('UNAVAILABLE', `${location}: ${error ?? toShortText(bytes)}; ${hint}`);
}

function toShortText(bytes: Buffer): string {
  return firstLine(bytes.toString('utf8', 0, SHOWN_CHARS_MAX));
}

function firstLine(text: string): string {
  const [line = ''] = text.trimStart().split('\n', 1);
  return line.trimEnd();
}
