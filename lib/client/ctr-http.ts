/** Calls a serving process over HTTP, `POST /v1/ctr:predict`, on keep-alive connections. */
import { EXPERIMENT_KEY, EXPERIMENTS_KEY, parseVariants } from '../../proto/ctr.ts';
import { CubeError } from '../core/errors.ts';
import { encodeHeaderText, isHeaderText } from '../core/header-text.ts';
import { JsonReader } from '../core/json.ts';
import { PROFILE_KEY, parseProfile } from '../core/request-profile.ts';
import type { Credentials } from '../rpc/credentials.ts';
import type { CtrCallOptions, CtrPrediction, CtrRows, CtrTransport } from './ctr-rows.ts';
import { toStatusError } from './http-errors.ts';
import { type HttpAnswer, HttpPoster } from './http-poster.ts';

export class CtrHttp implements CtrTransport {
  readonly #poster: HttpPoster;

  constructor(url: URL, connectionsMax: number, credentials: Credentials) {
    this.#poster = new HttpPoster(url, connectionsMax, credentials);
  }

  async predict(rows: CtrRows, call: CtrCallOptions, timeoutMs: number): Promise<CtrPrediction> {
    const isLines = typeof rows === 'string' || rows instanceof Uint8Array;
    const body = isLines ? Buffer.from(rows as string) : Buffer.from(encodeRows(rows));
    const type = isLines ? 'text/tab-separated-values' : 'application/json';
    const answer = await this.#post(call, body, type, timeoutMs);
    const { host } = this.#poster;
    if (answer.status !== 200) throw toStatusError(answer.status, answer.text, host);
    const profile = parseProfile(answer.headers[PROFILE_KEY]?.toString());
    return { ...readPrediction(answer, host), ...(profile !== undefined && { profile }) };
  }

  close(): void {
    this.#poster.close();
  }

  #post(
    call: CtrCallOptions,
    body: Uint8Array,
    type: string,
    timeoutMs: number,
  ): Promise<HttpAnswer> {
    const url = this.#poster.resolve('/v1/ctr:predict');
    for (const name of ['model', 'version', 'label', 'priority', 'detail', 'timings'] as const) {
      if (call[name] !== undefined) url.searchParams.set(name, `${call[name]}`);
    }
    const headers = {
      ...(call.experimentKey !== undefined && {
        [EXPERIMENT_KEY]: toHeaderValue(call.experimentKey),
      }),
      ...(call.profile === true && { [PROFILE_KEY]: 'true' }),
      'content-type': type,
    };
    return this.#poster.post(url, headers, body, timeoutMs);
  }
}

/** @throws CubeError INVALID_ARGUMENT for control characters */
function toHeaderValue(experimentKey: string): string {
  if (isHeaderText(experimentKey)) return encodeHeaderText(experimentKey);
  const text = JSON.stringify(experimentKey);
  const message = `experimentKey: expected text without control characters, got ${text}`;
  throw new CubeError('INVALID_ARGUMENT', message);
}

function encodeRows(rows: CtrRows): string {
  return JSON.stringify({ rows }, (_, value) =>
    typeof value === 'bigint' ? value.toString() : value,
  );
}

/**
 * @throws CubeError INTERNAL when the response is not a prediction: this is not a serving process
 */
function readPrediction(answer: HttpAnswer, host: string): CtrPrediction {
  const { text } = answer;
  try {
    const variants = parseVariants(answer.headers[EXPERIMENTS_KEY]?.toString());
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
