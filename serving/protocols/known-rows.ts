/**
 * Requests for a bundle whose JSON head is known: what their head and the version say is prepared
 * once, so that a request takes views of its body and writes a few numbers to a text. All other
 * requests take the way of tensor-rows.ts and infer-json.ts, with the same results.
 */
import { type FeatureRows, type KeyedRows, scaleDense } from '../../lib/core/feature-rows.ts';
import type { DenseFeature } from '../../lib/core/slots.ts';
import { type TextInput, TextKeys } from '../../lib/core/text-keys.ts';
import { allocateWords } from '../../lib/core/word-slab.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { ParsedRequest, RequestOptions } from './handle-prediction.ts';
import type { InferBody } from './infer-json.ts';
import { viewElements } from './input-tensor.ts';
import type { FirstRequest, FoundHead, PreparedRequests } from './known-heads.ts';
import { KnownResponse } from './known-response.ts';
import { CATEGORICAL, DENSE, indexByName, KEYS, toRows } from './tensor-rows.ts';

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
    const rows = this.read(data, found, bundle);
    return rows === undefined ? undefined : new ParsedKnownRows(this, bundle, found.id, rows);
  }

  format(id: string, prediction: Prediction): InferBody {
    return this.#response.format(id, prediction);
  }

  /** @returns undefined for data that tensor-rows.ts must read */
  protected abstract read(
    data: Uint8Array,
    found: FoundHead,
    bundle: LoadedBundle,
  ): KeyedRows | undefined;

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

  protected override read(data: Uint8Array, { ends }: FoundHead): KeyedRows {
    const { rowCount } = this;
    const keys = readWords(data, ends[this.#keys - 1] ?? 0, ends[this.#keys]!);
    return { rowCount, keys, dense: this.scale(this.viewDense(data, ends)) };
  }
}

/** Texts of slots of one value: one input for each slot, or one for all. */
class KnownTexts extends KnownRows {
  readonly #texts: TextKeys;

  constructor(first: FirstRequest, texts: TextKeys) {
    super(first);
    this.#texts = texts;
  }

  protected override read(data: Uint8Array, found: FoundHead, bundle: LoadedBundle) {
    const { ends } = found;
    const keys = this.#texts.read(data, ends);
    if (keys === undefined) return undefined;
    const dense = this.scale(this.viewDense(data, ends));
    const readFeatures = (): FeatureRows => parseFeatures(found, data, bundle);
    return { rowCount: this.rowCount, keys, dense, readFeatures };
  }
}

/** The texts of a request whose keys are known, as other requests are read. */
function parseFeatures(found: FoundHead, data: Uint8Array, bundle: LoadedBundle): FeatureRows {
  const { inputs } = found.head.toRequest(found, data);
  return toRows(indexByName(inputs), bundle) as FeatureRows;
}

/**
 * @param first has passed all checks, of which those of keys do not depend on values of the inputs
 * @returns undefined for requests of other forms
 */
export function prepareRows(first: FirstRequest): PreparedRequests | undefined {
  const { ids, plan } = first.parsed.bundle;
  if (ids !== undefined || first.parsed.detail === true) return undefined;
  const dense = first.head.inputs[findInput(first, DENSE)];
  const others = first.head.inputs.filter((input) => input !== dense);
  const hasDense = plan.denseNum > 0;
  if (hasDense !== (dense !== undefined) || (hasDense && dense?.datatype !== 'FP32')) {
    return undefined;
  }
  const [keys] = others;
  if (keys?.name === KEYS && others.length === 1) {
    return KEY_TYPES.includes(keys.datatype) ? new KnownKeys(first) : undefined;
  }
  const textInputs = listTextInputs(first);
  if (textInputs === undefined) return undefined;
  const { hash, slots } = first.parsed.bundle.features;
  const shape = { inputs: textInputs, rowCount: first.parsed.rows.rowCount };
  const texts = TextKeys.create(hash, slots, shape);
  return texts === undefined ? undefined : new KnownTexts(first, texts);
}

/** @returns undefined unless all inputs but the dense values are texts of slots of one value */
function listTextInputs(first: FirstRequest): TextInput[] | undefined {
  const { slots } = first.parsed.bundle.features;
  if (slots.some(({ pooling }) => pooling !== undefined)) return undefined;
  const others = first.head.inputs.filter(({ name }) => name !== DENSE);
  if (others.length === 0 || others.some(({ datatype }) => datatype !== 'BYTES')) return undefined;
  const { rowCount } = first.parsed.rows;
  const combined = findInput(first, CATEGORICAL);
  if (combined >= 0) return [{ position: combined, slot: undefined, isShared: false }];
  const inputs = slots.map(({ name }, slot): TextInput => {
    const position = findInput(first, name);
    // A slot without an input is missing in each row.
    const count = first.head.inputs[position]?.shape[0] ?? 1;
    return { position, slot, isShared: count === 1 && rowCount > 1 };
  });
  const given = inputs.filter(({ position }) => position >= 0);
  if (given.length < others.length) return undefined;
  // A value of an item that all rows share is refused.
  if (given.some(({ slot = 0, isShared }) => isShared && slots[slot]?.side === 'item')) {
    return undefined;
  }
  return inputs;
}

function findInput({ head }: FirstRequest, name: string): number {
  return head.inputs.findIndex((input) => input.name === name);
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
