/** Another serving process that answers copies of requests, over HTTP. */
import { CtrHttp } from '../../lib/client/ctr-http.ts';
import type { CtrRow } from '../../lib/client/ctr-rows.ts';
import { toStatusError } from '../../lib/client/http-errors.ts';
import { HttpPoster } from '../../lib/client/http-poster.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import type { Shadow, ShadowTarget } from '../../lib/core/shadow.ts';
import type { FeatureSpec } from '../../lib/core/slots.ts';
import { countElements } from '../../lib/core/tensor.ts';
import { formatTensor } from '../../lib/core/tensor-json.ts';
import { Credentials } from '../../lib/rpc/credentials.ts';
import type { GraphCall } from '../engine/loaded-graph.ts';
import type { OutputValues } from './output-values.ts';
import { formatRow, showFeatures } from './recorded-rows.ts';

/** Larger copies are not sent: encoding them would delay other requests. */
const ROWS_MAX = 512;
const ELEMENTS_MAX = 65_536;
const OUTPUTS_MAX = 4_096;
const LOWEST_PRIORITY = 2;
const NOTHING_REDACTED: ReadonlySet<string> = new Set();

export interface ShadowAnswer<T> {
  readonly version: string;
  readonly scores: T;
}

/** @throws CubeError when a file of the credentials is unreadable or invalid */
function openShadowCredentials({ apiKeyFile, tlsCa }: ShadowTarget): Credentials {
  return new Credentials({
    tokenFile: apiKeyFile,
    ...(tlsCa !== undefined && { tls: { ca: tlsCa } }),
  });
}

export class ShadowEndpoint {
  readonly #rows: CtrHttp;
  readonly #tensors: HttpPoster;

  /** Connects at the first copy. @throws CubeError as `openShadowCredentials` */
  constructor(endpoint: string, connectionsMax: number, target: ShadowTarget) {
    const credentials = openShadowCredentials(target);
    this.#rows = new CtrHttp(new URL(endpoint), connectionsMax, credentials);
    this.#tensors = new HttpPoster(new URL(endpoint), connectionsMax, credentials);
  }

  /**
   * Sends rows, which the process hashes and scales itself.
   * @returns undefined when there are too many
   */
  async predictRows(
    { target, timeoutMs }: Shadow,
    given: FeatureRows | KeyedRows,
    features: FeatureSpec,
  ): Promise<ShadowAnswer<Float32Array> | undefined> {
    if (given.rowCount > ROWS_MAX) return undefined;
    const rows = showFeatures(given);
    const { model, channel: label, version } = target;
    const encoded = Array.from(
      { length: rows.rowCount },
      (_, row) => formatRow(rows, row, features, NOTHING_REDACTED) as CtrRow,
    );
    const options = {
      priority: LOWEST_PRIORITY,
      ...(model !== undefined && { model }),
      ...(label !== undefined && { label }),
      ...(version !== undefined && { version }),
    };
    const { version: answered, probabilities } = await this.#rows.predict(
      encoded,
      options,
      timeoutMs,
    );
    return { version: answered, scores: probabilities };
  }

  /**
   * Sends tensors as KServe v2 JSON.
   * @param asked the model that the request named
   * @returns undefined when they have too many elements
   */
  async predictTensors(
    { target, timeoutMs }: Shadow,
    asked: string,
    { inputs, outputs }: GraphCall,
  ): Promise<ShadowAnswer<readonly OutputValues[]> | undefined> {
    const elements = inputs.reduce((sum, { shape }) => sum + countElements(shape), 0);
    if (elements > ELEMENTS_MAX) return undefined;
    const { model = asked, channel, version } = target;
    if (channel !== undefined) {
      throw new CubeError('UNSUPPORTED', 'KServe v2 has no channels; give the shadow a version');
    }
    const named = encodeURIComponent(model);
    const of = version === undefined ? '' : `/versions/${encodeURIComponent(version)}`;
    const path = `/v2/models/${named}${of}/infer`;
    const head = JSON.stringify({
      parameters: { priority: LOWEST_PRIORITY },
      ...(outputs.length > 0 && { outputs: outputs.map((name) => ({ name })) }),
    });
    const body = Buffer.from(`${head.slice(0, -1)},"inputs":[${inputs.map(formatTensor)}]}`);
    const headers = { 'content-type': 'application/json' };
    const url = this.#tensors.resolve(path);
    const { status, text } = await this.#tensors.post(url, headers, body, timeoutMs);
    if (status !== 200) throw toStatusError(status, text, url.host);
    return readInferAnswer(text, url.host);
  }

  /** Fails the calls in progress. */
  close(): void {
    this.#rows.close();
    this.#tensors.close();
  }
}

/** @throws CubeError INTERNAL when the answer is none of KServe v2 */
function readInferAnswer(text: string, host: string): ShadowAnswer<readonly OutputValues[]> {
  try {
    const json = JsonReader.parse(text, host, parseNonFiniteJson);
    const outputs = json.field('outputs').items({ max: OUTPUTS_MAX });
    const scores = outputs.map((output): OutputValues => {
      const name = output.field('name').string();
      const data = output.field('data').list().flat(16);
      const isText = output.field('datatype').value === 'BYTES';
      return { name, values: isText ? data.map(String) : data.map(Number) };
    });
    return { version: json.optional('model_version', (field) => field.string()) ?? '', scores };
  } catch (error) {
    const { message } = error as Error;
    throw new CubeError('INTERNAL', `${host}: the response is not one of KServe v2: ${message}`);
  }
}
