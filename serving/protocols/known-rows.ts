/**
 * Requests of keys for a bundle whose JSON head is known: what their head and the version say is
 * prepared once, so that a request takes views of its body and writes a few numbers to a text.
 * All other requests take the way of tensor-rows.ts and infer-json.ts, with the same results.
 */
import { type KeyedRows, scaleDense } from '../../lib/core/feature-rows.ts';
import type { DenseFeature } from '../../lib/core/slots.ts';
import { allocateWords } from '../../lib/core/word-slab.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { ParsedRequest, RequestOptions } from './handle-prediction.ts';
import type { InferBody } from './infer-json.ts';
import { viewElements } from './input-tensor.ts';
import type { FoundHead, KnownHead, PreparedRequests } from './known-heads.ts';
import { DENSE, KEYS } from './tensor-rows.ts';

const KEY_TYPES = ['UINT64', 'INT64'];
const NO_DENSE = new Float32Array(0);

/** A parsed request of a head, from which the next ones with this head are prepared. */
export interface FirstRequest {
  readonly model: string;
  readonly parsed: ParsedRequest<InferBody>;
  readonly head: KnownHead;
  /** Names of the outputs that the request asks for; empty: all. */
  readonly outputs: readonly string[];
}

/** The keys of all slots, and dense values, as one input each. */
export class KnownRows implements PreparedRequests {
  readonly model: string;
  readonly options: RequestOptions;
  readonly rowCount: number;
  /** The positions of the inputs; -1 without dense values. */
  readonly #keys: number;
  readonly #dense: number;
  readonly #denseFeatures: readonly DenseFeature[];
  readonly #response: ResponseText;

  private constructor(keys: number, dense: number, first: FirstRequest) {
    const { bundle, rows, formatResponse: _, ...options } = first.parsed;
    this.model = first.model;
    this.options = options;
    this.rowCount = rows.rowCount;
    this.#keys = keys;
    this.#dense = dense;
    this.#denseFeatures = bundle.features.dense?.features ?? [];
    this.#response = new ResponseText(first, rows.rowCount);
  }

  /**
   * @param first has passed all checks, of which none depends on values of its inputs
   * @returns undefined for requests of another form
   */
  static prepare(first: FirstRequest): KnownRows | undefined {
    const { inputs } = first.head;
    const { ids, plan } = first.parsed.bundle;
    if (ids !== undefined || first.parsed.detail === true) return undefined;
    const keys = inputs.findIndex(({ name }) => name === KEYS);
    const dense = inputs.findIndex(({ name }) => name === DENSE);
    if (!KEY_TYPES.includes(inputs[keys]?.datatype ?? '')) return undefined;
    if (plan.denseNum > 0 && inputs[dense]?.datatype !== 'FP32') return undefined;
    if (inputs.length !== (plan.denseNum > 0 ? 2 : 1)) return undefined;
    return new KnownRows(keys, dense, first);
  }

  parse(bundle: LoadedBundle, found: FoundHead, data: Uint8Array): ParsedKnownRows {
    return new ParsedKnownRows(this, bundle, found.id, this.#read(data, found.ends));
  }

  #read(data: Uint8Array, ends: readonly number[]): KeyedRows {
    const { rowCount } = this;
    const keys = readWords(data, ends[this.#keys - 1] ?? 0, ends[this.#keys]!);
    if (this.#dense < 0) return { rowCount, keys, dense: NO_DENSE };
    const bytes = data.subarray(ends[this.#dense - 1] ?? 0, ends[this.#dense]);
    const raw = viewElements(bytes, Float32Array);
    return { rowCount, keys, dense: scaleDense(raw, rowCount, this.#denseFeatures) };
  }

  format(id: string, prediction: Prediction): InferBody {
    return this.#response.format(id, prediction);
  }
}

/** A request that was prepared by others with the same head. */
class ParsedKnownRows implements ParsedRequest<InferBody> {
  readonly bundle: LoadedBundle;
  readonly rows: KeyedRows;
  readonly timeoutMs: number | undefined;
  readonly priority: number | undefined;
  readonly profile: boolean | undefined;
  readonly #known: KnownRows;
  readonly #id: string;

  constructor(known: KnownRows, bundle: LoadedBundle, id: string, rows: KeyedRows) {
    const { timeoutMs, priority, profile } = known.options;
    this.bundle = bundle;
    this.rows = rows;
    this.timeoutMs = timeoutMs;
    this.priority = priority;
    this.profile = profile;
    this.#known = known;
    this.#id = id;
  }

  formatResponse(prediction: Prediction): InferBody {
    return this.#known.format(this.#id, prediction);
  }
}

/** Views words of the data, or copies them when they are not aligned. */
function readWords(data: Uint8Array, start: number, end: number): Uint32Array {
  const count = (end - start) / 4;
  if ((data.byteOffset + start) % 4 === 0) {
    return new Uint32Array(data.buffer, data.byteOffset + start, count);
  }
  const words = allocateWords(count);
  for (let i = 0, at = start; i < count; i++, at += 4) {
    words[i] = data[at]! | (data[at + 1]! << 8) | (data[at + 2]! << 16) | (data[at + 3]! << 24);
  }
  return words;
}

/** An output of a response: where it is in a prediction, and what does not depend on its values. */
interface OutputText {
  readonly index: number;
  readonly text: string;
  readonly isBinary: boolean;
}

/** The response of requests with one head: its JSON as pieces of text around a few numbers. */
class ResponseText {
  readonly #start: string;
  readonly #parameters: string;
  readonly #outputs: readonly OutputText[];
  readonly #dataBytes: number;

  constructor({ model, parsed, head, outputs }: FirstRequest, rowCount: number) {
    const { bundle } = parsed;
    const names = JSON.stringify({ model_name: model, model_version: bundle.version });
    this.#start = names.slice(0, -1);
    this.#parameters = `,"parameters":{"tables_version":${JSON.stringify(bundle.version)}`;
    const all = bundle.pool.outputs.map(({ name, width }, index) => {
      const text = JSON.stringify({ name, datatype: 'FP32', shape: [rowCount, width] });
      const isBinary = head.isBinary(name);
      return { name, index, isBinary, text: text.slice(0, -1), byteCount: 4 * rowCount * width };
    });
    const chosen =
      outputs.length === 0
        ? all
        : outputs.flatMap((name) => all.filter((output) => output.name === name));
    this.#dataBytes = chosen.reduce(
      (sum, { isBinary, byteCount }) => sum + (isBinary ? byteCount : 0),
      0,
    );
    this.#outputs = chosen.map(({ index, text, isBinary, byteCount }) => {
      if (!isBinary) return { index, isBinary, text: `${text},"data":[` };
      const size = `,"parameters":{"binary_data_size":${byteCount}}}`;
      return { index, isBinary, text: `${text}${size}` };
    });
  }

  format(id: string, prediction: Prediction): InferBody {
    const { unseen, unavailable, degraded, outputs } = prediction;
    let json = this.#start;
    if (id !== '') json += `,"id":${JSON.stringify(id)}`;
    json +=
      `${this.#parameters},"unseen":${unseen},"unavailable":${unavailable},` +
      `"degraded":${degraded}},"outputs":[`;
    let separator = '';
    for (const { index, text, isBinary } of this.#outputs) {
      json += separator + text;
      if (!isBinary) json += `${outputs[index]!.data.join()}]}`;
      separator = ',';
    }
    json += ']}';
    if (this.#dataBytes === 0) return { body: Buffer.from(json), headerLength: undefined };
    return this.#appendData(json, outputs);
  }

  #appendData(json: string, outputs: Prediction['outputs']): InferBody {
    const headerLength = Buffer.byteLength(json);
    const body = Buffer.allocUnsafe(headerLength + this.#dataBytes);
    body.write(json);
    let at = headerLength;
    for (const { index, isBinary } of this.#outputs) {
      if (!isBinary) continue;
      const { data } = outputs[index]!;
      body.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
      at += data.byteLength;
    }
    return { body, headerLength };
  }
}
