/** Calls a serving process over HTTP, `POST /v1/ctr:predict`, on keep-alive connections. */
import { Agent as HttpAgent, type IncomingMessage, request } from 'node:http';
import { Agent as HttpsAgent, request as httpsRequest } from 'node:https';
import { EXPERIMENT_KEY, EXPERIMENTS_KEY, parseVariants } from '../../proto/ctr.ts';
import { CubeError } from '../core/errors.ts';
import { JsonReader } from '../core/json.ts';
import { PROFILE_KEY, parseProfile } from '../core/request-profile.ts';
import type { Credentials } from '../rpc/credentials.ts';
import type { CtrCallOptions, CtrPrediction, CtrRows, CtrTransport } from './ctr-rows.ts';
import { readHttpBody } from './http-body.ts';
import { createTimeoutError, toConnectionError, toStatusError } from './http-errors.ts';

/** Far above the response to the largest request. */
const RESPONSE_BYTES_MAX = 64 << 20;

export class CtrHttp implements CtrTransport {
  readonly #url: URL;
  readonly #options: { readonly keepAlive: boolean; readonly maxSockets: number };
  readonly #credentials: Credentials;
  /** The options of TLS that the agent uses. */
  #tlsOptions: object | undefined;
  #agent: HttpAgent | HttpsAgent | undefined;

  constructor(url: URL, connectionsMax: number, credentials: Credentials) {
    // A path in the URL is the prefix of a proxy.
    this.#url = new URL(`${url.pathname.replace(/\/+$/, '')}/v1/ctr:predict`, url);
    this.#options = { keepAlive: true, maxSockets: connectionsMax };
    this.#credentials = credentials;
  }

  async predict(rows: CtrRows, call: CtrCallOptions, timeoutMs: number): Promise<CtrPrediction> {
    const isLines = typeof rows === 'string' || rows instanceof Uint8Array;
    const body = isLines ? Buffer.from(rows as string) : Buffer.from(encodeRows(rows));
    const type = isLines ? 'text/tab-separated-values' : 'application/json';
    const answer = await this.#post(call, body, type, timeoutMs);
    const { host } = this.#url;
    if (answer.status !== 200) throw toStatusError(answer.status, answer.text, host);
    const profile = parseProfile(answer.profile);
    return { ...readPrediction(answer, host), ...(profile !== undefined && { profile }) };
  }

  close(): void {
    this.#agent?.destroy();
  }

  /** Changed certificates take effect with new connections; open ones close when they are idle. */
  #getAgent(): HttpAgent | HttpsAgent {
    const isSecure = this.#url.protocol === 'https:';
    const tlsOptions = isSecure ? this.#credentials.tlsOptions : undefined;
    if (this.#agent !== undefined && tlsOptions === this.#tlsOptions) return this.#agent;
    this.#tlsOptions = tlsOptions;
    const options = { ...this.#options, ...tlsOptions };
    this.#agent = isSecure ? new HttpsAgent(options) : new HttpAgent(options);
    return this.#agent;
  }

  #post(
    call: CtrCallOptions,
    body: Uint8Array,
    type: string,
    timeoutMs: number,
  ): Promise<HttpAnswer> {
    const url = new URL(this.#url);
    for (const name of ['model', 'version', 'label', 'priority', 'detail', 'timings'] as const) {
      if (call[name] !== undefined) url.searchParams.set(name, `${call[name]}`);
    }
    const { token } = this.#credentials;
    const headers = {
      ...(token !== undefined && { authorization: `Bearer ${token}` }),
      ...(call.experimentKey !== undefined && { [EXPERIMENT_KEY]: call.experimentKey }),
      ...(call.profile === true && { [PROFILE_KEY]: 'true' }),
      'content-type': type,
      'content-length': body.length,
      'timeout-ms': Math.max(1, Math.floor(timeoutMs)),
    };
    const send = url.protocol === 'https:' ? httpsRequest : request;
    return new Promise((resolve, reject) => {
      const clientRequest = send(
        url,
        { method: 'POST', agent: this.#getAgent(), headers },
        (response) => {
          readResponse(response, url.host).then(resolve, reject);
        },
      );
      const timer = setTimeout(() => {
        clientRequest.destroy(createTimeoutError(url.host, timeoutMs));
      }, timeoutMs);
      clientRequest.once('close', () => clearTimeout(timer));
      clientRequest.once('error', (error) => reject(toConnectionError(error, url.host)));
      clientRequest.end(body);
    });
  }
}

interface HttpAnswer {
  readonly status: number;
  readonly text: string;
  /** The header EXPERIMENTS_KEY. */
  readonly variants: string | undefined;
  /** The header PROFILE_KEY. */
  readonly profile: string | undefined;
}

function encodeRows(rows: CtrRows): string {
  return JSON.stringify({ rows }, (_, value) =>
    typeof value === 'bigint' ? value.toString() : value,
  );
}

async function readResponse(response: IncomingMessage, host: string): Promise<HttpAnswer> {
  const body = await readHttpBody(response, host, RESPONSE_BYTES_MAX);
  const { [EXPERIMENTS_KEY]: variants, [PROFILE_KEY]: profile } = response.headers;
  return {
    status: response.statusCode ?? 0,
    text: body.toString(),
    variants: variants?.toString(),
    profile: profile?.toString(),
  };
}

/**
 * @throws CubeError INTERNAL when the response is not a prediction: this is not a serving process
 */
function readPrediction(answer: HttpAnswer, host: string): CtrPrediction {
  const { text } = answer;
  try {
    const variants = parseVariants(answer.variants);
    const json = JsonReader.parse(text, host);
    const slots = json.optional('slots', (field) => field.items().map(readSlot));
    const timings = json.optional('timings', (field) => ({
      queueMicros: field.field('queue_micros').number(),
      lookupMicros: field.field('lookup_micros').number(),
      inferMicros: field.field('infer_micros').number(),
    }));
    const { value } = json.field('probabilities');
    if (!Array.isArray(value) || !value.every(Number.isFinite)) {
      json.field('probabilities').fail('an array of numbers');
    }
    return {
      model: json.field('model').string(),
      version: json.field('version').string(),
      tablesVersion: json.field('tables_version').string(),
      probabilities: Float32Array.from(value as number[]),
      unseen: json.field('unseen').integer(0),
      unavailable: json.field('unavailable').integer(0),
      degraded: json.field('degraded').boolean(),
      ...(slots === undefined ? {} : { slots }),
      ...(timings === undefined ? {} : { timings }),
      ...(variants === undefined ? {} : { variants }),
    };
  } catch (error) {
    const { message } = error as Error;
    throw new CubeError(
      'INTERNAL',
      `${host}: the response is not one of a serving process: ${message}`,
    );
  }
}

function readSlot(json: JsonReader) {
  return {
    slot: json.field('slot').string(),
    hit: json.field('hit').integer(0),
    unseen: json.field('unseen').integer(0),
    unavailable: json.field('unavailable').integer(0),
  };
}
