/** The serving endpoint over kept-alive connections: what the model takes, and predictions. */
import { Agent as HttpAgent, request as httpRequest, type IncomingMessage } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';

export interface ModelShape {
  readonly name: string;
  /** Columns of a row without its label. */
  readonly columns: number;
}

export interface Answer {
  readonly version: string;
  readonly tablesVersion: string;
  readonly probabilities: readonly number[];
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
}

const ANSWER_TIMEOUT_MS = 60_000;

export class Endpoint {
  readonly url: string;
  readonly #agent: HttpAgent | HttpsAgent;
  readonly #request: typeof httpRequest;

  /** @throws CubeError INVALID_ARGUMENT when it is no http(s) URL */
  constructor(url: string, connectionsMax: number) {
    const protocol = protocolOf(url);
    if (protocol !== 'http:' && protocol !== 'https:') {
      const example = 'a URL such as http://127.0.0.1:8080';
      throw new CubeError('INVALID_ARGUMENT', `--endpoint: expected ${example}, got ${url}`);
    }
    this.url = url.replace(/\/+$/, '');
    const options = { keepAlive: true, maxSockets: connectionsMax };
    this.#agent = protocol === 'https:' ? new HttpsAgent(options) : new HttpAgent(options);
    this.#request = protocol === 'https:' ? httpsRequest : httpRequest;
  }

  /** @throws CubeError UNAVAILABLE when nobody answers there, NOT_READY when no version is served */
  async modelShape(): Promise<ModelShape> {
    const models = (await this.#call('GET', '/v2/models')).field('models').items({ min: 1 });
    const name = models[0]!.string();
    const metadata = await this.#call('GET', `/v2/models/${encodeURIComponent(name)}`);
    let columns = 0;
    for (const input of metadata.field('inputs').items()) {
      columns += input.field('shape').items({ min: 2, max: 2 })[1]!.integer(1);
    }
    return { name, columns };
  }

  /** @param lines rows, each ended by a line break */
  async predict(lines: string, rowCount: number): Promise<Answer> {
    const json = await this.#call('POST', '/v1/ctr:predict', lines);
    const values = json.field('probabilities').value;
    if (!Array.isArray(values) || values.length !== rowCount) {
      return json.field('probabilities').fail(`${rowCount} numbers, one a row`);
    }
    return {
      version: json.field('version').string(),
      tablesVersion: json.field('tables_version').string(),
      probabilities: values,
      unseen: json.field('unseen').integer(0),
      unavailable: json.field('unavailable').integer(0),
      degraded: json.field('degraded').boolean(),
    };
  }

  close(): void {
    this.#agent.destroy();
  }

  async #call(method: string, path: string, body?: string): Promise<JsonReader> {
    const { status, text } = await this.#exchange(method, path, body);
    const source = `${this.url}${path}`;
    if (status === 200) return JsonReader.parse(text, source);
    throw refusal(status, text, source);
  }

  #exchange(
    method: string,
    path: string,
    body: string | undefined,
  ): Promise<{ status: number; text: string }> {
    return new Promise((resolve, reject) => {
      const request = this.#request(`${this.url}${path}`, {
        method,
        agent: this.#agent,
        timeout: ANSWER_TIMEOUT_MS,
        headers:
          body === undefined
            ? {}
            : {
                'content-type': 'text/tab-separated-values',
                'content-length': Buffer.byteLength(body),
              },
      });
      const fail = (error: Error): void => reject(connectionError(error, this.url));
      request.on('error', fail);
      request.on('timeout', () => request.destroy(new Error('no answer for a minute')));
      request.on('response', (response: IncomingMessage) => {
        const pieces: Buffer[] = [];
        response.on('data', (piece: Buffer) => pieces.push(piece));
        response.on('error', fail);
        response.on('end', () => {
          const text = Buffer.concat(pieces).toString();
          resolve({ status: response.statusCode ?? 0, text });
        });
      });
      request.end(body);
    });
  }
}

function protocolOf(url: string): string | undefined {
  return /^(https?:)\/\/[^/]/.exec(url)?.[1];
}

function connectionError(error: Error, url: string): CubeError {
  const { code, message } = error as NodeJS.ErrnoException;
  if (code === 'ECONNREFUSED') {
    const reason = 'nobody listens there; is serving running?';
    return new CubeError('UNAVAILABLE', `${url}: ${reason}`, { cause: error });
  }
  const hint = code === 'EPROTO' ? '; serving speaks http, https needs a proxy before it' : '';
  return new CubeError('UNAVAILABLE', `${url}: ${firstLine(message)}${hint}`, { cause: error });
}

/** The server's refusal as the error that it names. */
function refusal(status: number, text: string, source: string): CubeError {
  let code: string | undefined;
  let message = firstLine(text).slice(0, 200);
  try {
    const body = JSON.parse(text) as { code?: string; error?: string };
    code = body.code;
    message = body.error ?? message;
  } catch {
    // Not one of our answers: a proxy, another server. Its text says more than we could.
  }
  const known = code !== undefined && Object.hasOwn(ERROR_STATUS, code);
  if (known) return new CubeError(code as ErrorCode, `${source}: HTTP ${status}: ${message}`);
  const hint = 'is it serving that listens there?';
  return new CubeError('UNAVAILABLE', `${source}: HTTP ${status}: ${message}; ${hint}`);
}

function firstLine(text: string): string {
  return text.trimStart().split('\n', 1)[0]!.trimEnd();
}
