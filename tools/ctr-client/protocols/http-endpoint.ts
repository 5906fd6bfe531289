/** A serving process over HTTP on connections that are kept: bytes out, bytes in, and its refusals as the errors that they name. */
import {
  Agent as HttpAgent,
  request as httpRequest,
  type IncomingHttpHeaders,
  type IncomingMessage,
} from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';

export interface HttpAnswer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly bytes: Buffer;
  /** Where it is from, for errors. */
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
  /** From sending to the last byte of the answer; it travels with requests. */
  readonly timeoutMs: number;
}

/** Far above the answer to the largest request. */
const ANSWER_BYTES_MAX = 64 << 20;
const SHOWN_CHARS_MAX = 200;

export class HttpEndpoint {
  readonly url: string;
  readonly #timeoutMs: number;
  readonly #agent: HttpAgent | HttpsAgent;
  readonly #send: typeof httpRequest;

  constructor({ url, connectionsMax, timeoutMs }: HttpEndpointOptions) {
    this.url = url.replace(/\/+$/, '');
    this.#timeoutMs = timeoutMs;
    const options = { keepAlive: true, maxSockets: connectionsMax };
    const isSecure = url.startsWith('https:');
    this.#agent = isSecure ? new HttpsAgent(options) : new HttpAgent(options);
    this.#send = isSecure ? httpsRequest : httpRequest;
  }

  /** @throws CubeError the server's own, UNAVAILABLE, DEADLINE_EXCEEDED */
  async get(path: string): Promise<JsonReader> {
    const answer = await this.#exchange('GET', path);
    if (answer.status !== 200) throw refusal(answer);
    return jsonOf(answer);
  }

  /** @throws CubeError the server's own, UNAVAILABLE, DEADLINE_EXCEEDED */
  async post(path: string, body: HttpBody): Promise<HttpAnswer> {
    const answer = await this.#exchange('POST', path, body);
    if (answer.status !== 200) throw refusal(answer);
    return answer;
  }

  close(): void {
    this.#agent.destroy();
  }

  #exchange(method: string, path: string, body?: HttpBody): Promise<HttpAnswer> {
    const source = `${this.url}${path}`;
    const headers =
      body === undefined
        ? {}
        : {
            ...body.headers,
            'content-type': body.type,
            'content-length': body.bytes.length,
            'timeout-ms': this.#timeoutMs,
          };
    return new Promise((resolve, reject) => {
      const request = this.#send(source, { method, agent: this.#agent, headers });
      const fail = (error: Error): void => reject(connectionError(error, this.url));
      const timer = setTimeout(() => {
        const late = `${this.url}: no answer within ${this.#timeoutMs} ms`;
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

/** @throws CubeError INTERNAL: what is not JSON is from no serving process */
export function jsonOf({ bytes, source }: Pick<HttpAnswer, 'bytes' | 'source'>): JsonReader {
  try {
    return JsonReader.parse(bytes.toString(), source);
  } catch {
    throw notServing(`${source}: not JSON: ${shown(bytes)}`);
  }
}

/** Reads an answer: a field that is not as it should be is then the server's fault, not the caller's. */
export function readingAnswer<T>(read: () => T): T {
  try {
    return read();
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw code === 'INVALID_ARGUMENT' ? notServing(message) : error;
  }
}

/** An answer that no serving process gives. */
export function notServing(message: string): CubeError {
  return new CubeError('INTERNAL', `${message}; is it serving that listens there?`);
}

async function readBytes(response: IncomingMessage, url: string): Promise<Buffer> {
  const pieces: Buffer[] = [];
  let bytes = 0;
  for await (const piece of response as AsyncIterable<Buffer>) {
    bytes += piece.length;
    if (bytes > ANSWER_BYTES_MAX) {
      throw new CubeError('TOO_LARGE', `${url}: an answer of more than ${ANSWER_BYTES_MAX} bytes`);
    }
    pieces.push(piece);
  }
  return Buffer.concat(pieces);
}

function connectionError(error: Error, url: string): CubeError {
  if (error instanceof CubeError) return error;
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ECONNREFUSED') {
    const reason = 'nobody listens there; is serving running?';
    return new CubeError('UNAVAILABLE', `${url}: ${reason}`, { cause: error });
  }
  const hint = code === 'EPROTO' ? '; serving speaks http, https needs a proxy before it' : '';
  return new CubeError('UNAVAILABLE', `${url}: ${firstLine(message)}${hint}`, { cause: error });
}

/** The server's refusal as the error that it names. */
function refusal({ status, bytes, source }: HttpAnswer): CubeError {
  let body: { code?: string; error?: string; err_no?: number; err_msg?: string } = {};
  try {
    body = JSON.parse(bytes.toString());
  } catch {
    // Not one of our answers: a proxy, another server. Its text says more than we could.
  }
  const { code, error, err_no: brpc, err_msg: text } = body ?? {};
  const place = `${source}: HTTP ${status}`;
  if (code !== undefined && Object.hasOwn(ERROR_STATUS, code)) {
    return new CubeError(code as ErrorCode, `${place}: ${error}`);
  }
  if (Number.isInteger(brpc)) return CubeError.fromBrpc(brpc!, `${place}: ${text}`);
  const hint = 'is it serving that listens there?';
  return new CubeError('UNAVAILABLE', `${place}: ${error ?? shown(bytes)}; ${hint}`);
}

function shown(bytes: Buffer): string {
  return firstLine(bytes.toString('utf8', 0, SHOWN_CHARS_MAX));
}

function firstLine(text: string): string {
  return text.trimStart().split('\n', 1)[0]!.trimEnd();
}
