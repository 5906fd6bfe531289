/**
 * Requests for a bundle whose JSON head is known: what their head and the version say is prepared
 * once, so that a request takes views of its body and writes a few numbers to a text. All other
 * requests take the way of tensor-rows.ts and infer-json.ts, with the same results.
 */
import { type FeatureRows, type KeyedRows, scaleDense } from '../../lib/core/feature-rows.ts';
import type { DenseFeature } from '../../lib/core/slots.ts';
import { allocateWords } from '../../lib/core/word-slab.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { ParsedRequest, RequestOptions } from './handle-prediction.ts';
import type { InferBody } from './infer-json.ts';
import { viewElements } from './input-tensor.ts';
import type { FirstRequest, FoundHead, PreparedRequests } from './known-heads.ts';
import { KnownResponse } from './known-response.ts';
import { KnownStrings } from './known-strings.ts';
import { CATEGORICAL, DENSE, KEYS } from './tensor-rows.ts';

const KEY_TYPES = ['UINT64', 'INT64'];
const NO_DENSE = new Float32Array(0);

/** Requests of one form with one head. */
abstract class KnownRows implements PreparedRequests {
  readonly model: string;
  readonly options: RequestOptions;
  protected readonly rowCount: number;
  /** The position of dense values among the inputs; -1: the model takes none. */
  readonly #dense: number;
  readonly #denseFeatures: readonly DenseFeature[];
  readonly #response: KnownResponse;

  constructor(first: FirstRequest) {
    const { bundle, rows, formatResponse: _, ...options } = first.parsed;
    this.model = first.model;
    this.options = options;
    this.rowCount = rows.rowCount;
    this.#dense = findInput(first, DENSE);
    this.#denseFeatures = bundle.features.dense?.features ?? [];
    this.#response = new KnownResponse(first, rows.rowCount);
  }

  parse(bundle: LoadedBundle, found: FoundHead, data: Uint8Array): ParsedKnownRows | undefined {
    const rows = this.read(data, found.ends);
    return rows === undefined ? undefined : new ParsedKnownRows(this, bundle, found.id, rows);
  }

  format(id: string, prediction: Prediction): InferBody {
    return this.#response.format(id, prediction);
  }

  /** @returns undefined for data that tensor-rows.ts must read */
  protected abstract read(
    data: Uint8Array,
    ends: readonly number[],
  ): FeatureRows | KeyedRows | undefined;

  /** Dense values as they are in the request. */
  protected viewDense(data: Uint8Array, ends: readonly number[]): Float32Array {
    if (this.#dense < 0) return NO_DENSE;
    const bytes = data.subarray(ends[this.#dense - 1] ?? 0, ends[this.#dense]);
    return viewElements(bytes, Float32Array);
  }

  protected scale(raw: Float32Array): Float32Array {
    return this.#dense < 0 ? NO_DENSE : scaleDense(raw, this.rowCount, this.#denseFeatures);
  }
}

/** The keys of all slots as one input. */
class KnownKeys extends KnownRows {
  readonly #keys: number;

  constructor(first: FirstRequest) {
    super(first);
    this.#keys = findInput(first, KEYS);
  }

  protected override read(data: Uint8Array, ends: readonly number[]): KeyedRows {
    const { rowCount } = this;
    const keys = readWords(data, ends[this.#keys - 1] ?? 0, ends[this.#keys]!);
    return { rowCount, keys, dense: this.scale(this.viewDense(data, ends)) };
  }
}

/** Strings of one input each for slots of one value. */
class KnownSlots extends KnownRows {
  readonly #strings: KnownStrings;

  constructor(first: FirstRequest) {
    super(first);
    this.#strings = new KnownStrings(first.head.inputs, first.parsed.bundle.features.slots, {
      rowCount: this.rowCount,
    });
  }

  protected override read(data: Uint8Array, ends: readonly number[]): FeatureRows | undefined {
    const strings = this.#strings.read(data, ends);
    if (strings === undefined) return undefined;
    const { rowCount } = this;
    const raw = this.viewDense(data, ends);
    const rawDense = new Float64Array(raw.length);
    for (let i = 0; i < raw.length; i++) rawDense[i] = raw[i]!;
    return { rowCount, dense: this.scale(raw), rawDense, ...strings };
  }
}

/**
 * @param first has passed all checks, of which those of keys do not depend on values of the inputs
 * @returns undefined for requests of other forms
 */
export function prepareRows(first: FirstRequest): PreparedRequests | undefined {
  const { inputs } = first.head;
  const { ids, plan, features } = first.parsed.bundle;
  if (ids !== undefined || first.parsed.detail === true) return undefined;
  const dense = inputs.find(({ name }) => name === DENSE);
  const others = inputs.filter((input) => input !== dense);
  const hasDense = plan.denseNum > 0;
  if (hasDense !== (dense !== undefined) || (hasDense && dense?.datatype !== 'FP32')) {
    return undefined;
  }
  const [keys] = others;
  if (keys?.name === KEYS && others.length === 1) {
    return KEY_TYPES.includes(keys.datatype) ? new KnownKeys(first) : undefined;
  }
  const isPlain =
    features.slots.every(({ pooling }) => pooling === undefined) &&
    others.every(
      ({ name, datatype }) =>
        datatype === 'BYTES' &&
        name !== KEYS &&
        name !== CATEGORICAL &&
        features.slots.some((slot) => slot.name === name),
    );
  return isPlain && others.length > 0 ? new KnownSlots(first) : undefined;
}

function findInput({ head }: FirstRequest, name: string): number {
  return head.inputs.findIndex((input) => input.name === name);
}

/** A request that was prepared by others with the same head. */
class ParsedKnownRows implements ParsedRequest<InferBody> {
  readonly bundle: LoadedBundle;
  readonly rows: FeatureRows | KeyedRows;
  readonly timeoutMs: number | undefined;
  readonly priority: number | undefined;
  readonly profile: boolean | undefined;
  readonly #known: KnownRows;
  readonly #id: string;

  constructor(known: KnownRows, bundle: LoadedBundle, id: string, rows: FeatureRows | KeyedRows) {
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
