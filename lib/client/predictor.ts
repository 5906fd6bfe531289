/**
 * One predictor of the SDK of Paddle Serving's C++ clients: calls the general model service of one
 * variant. `PredictorApi` creates it.
 */
import {
  decodeGeneralResponse,
  encodeGeneralRequest,
  type FeedTensor,
  type GeneralAnswer,
} from '../../proto/general-model-client.ts';
import { CubeError } from '../core/errors.ts';
import { fromByteTensor, type PipelineTensor } from '../core/pipeline-tensor.ts';
import { toInputTensor } from './feed-tensors.ts';
import type { VariantConf } from './predictors-conf.ts';
import { countRows, joinAnswers, planParts, viewPart } from './request-parts.ts';
import type { ServiceClient } from './service-client.ts';

/** A tensor, a typed array, or (nested) lists of numbers, bigints, booleans or strings. */
export type FeedValue = PipelineTensor | ArrayBufferView | readonly unknown[];

export interface InferenceRequest {
  /** By the name of the input, or its alias on the server. */
  readonly tensors: Readonly<Record<string, FeedValue>>;
  /** Offsets of the rows of inputs of variable length, by name. Default: none. */
  readonly lods?: Readonly<Record<string, readonly number[]>>;
  /** Outputs to return. Default: all. */
  readonly fetch?: readonly string[];
  /** For the logs of the servers. Default 0. */
  readonly logId?: bigint;
  /** Ask for the times of the server's steps. Default false. */
  readonly profile?: boolean;
}

export interface InferenceOptions {
  /** For the whole call with retries. Default: the variant's rpc_timeout_ms. */
  readonly timeoutMs?: number;
  /** Cancels the call, which rejects with the signal's reason. */
  readonly signal?: AbortSignal;
  /** u32 for c_murmurhash and c_md5. Default: a hash of the request. */
  readonly requestCode?: number;
}

/** An output; rows of variable length have a `lod`. */
export type FetchedTensor = PipelineTensor & { readonly lod?: Int32Array };

export interface InferenceOutput {
  /** The model that answered. */
  readonly engine: string;
  /** By alias, or by name where the server gives none. */
  readonly tensors: Readonly<Record<string, FetchedTensor>>;
}

export interface InferenceResponse {
  /** The variant that answered. */
  readonly tag: string;
  /** One for each model of the service. */
  readonly outputs: readonly InferenceOutput[];
  readonly logId: bigint;
  /** Begin and end of the server's steps in microseconds; empty unless asked for. */
  readonly profileTimes: readonly number[];
  /** A remark of the server, for example that the answer is degraded; empty: none. */
  readonly remark: string;
}

export interface DebugResponse extends InferenceResponse {
  /** What the server says about the call. */
  readonly info: string;
}

export type InferenceCallback = (error: unknown, response: InferenceResponse | undefined) => void;

/** A call that was started with a callback. */
export interface InferenceCall {
  /** The callback gets an AbortError; does nothing after the call has ended. */
  cancel(): void;
}

/** A variant with its connections, which all its predictors share. */
export interface ConnectedVariant {
  readonly conf: VariantConf;
  readonly client: ServiceClient;
}

const RESPONSE_LIMITS = { tensors: 4096, values: 1 << 26 };
const DEBUG_ENGINE = 'debug';

export class Predictor {
  readonly name: string;
  readonly #variant: ConnectedVariant;
  readonly #isSplitting: boolean;
  #isFreed = false;
  #sent: { readonly response: Promise<InferenceResponse>; cancel(): void } | undefined;

  constructor(name: string, variant: ConnectedVariant, isSplitting: boolean) {
    this.name = name;
    this.#variant = variant;
    this.#isSplitting = isSplitting;
  }

  /** The tag of the variant that was chosen for this predictor. */
  get tag(): string {
    return this.#variant.conf.tag;
  }

  /** Calls `done` once, with an error or a response. */
  inference(request: InferenceRequest, done: InferenceCallback): InferenceCall;
  inference(
    request: InferenceRequest,
    options: InferenceOptions,
    done: InferenceCallback,
  ): InferenceCall;
  /**
   * @throws CubeError with the server's own code; OVERLOADED, UNAVAILABLE, DEADLINE_EXCEEDED. The
   *   reason of `signal` when it aborts
   */
  inference(request: InferenceRequest, options?: InferenceOptions): Promise<InferenceResponse>;
  inference(
    request: InferenceRequest,
    given: InferenceOptions | InferenceCallback = {},
    callback?: InferenceCallback,
  ): Promise<InferenceResponse> | InferenceCall {
    const options = typeof given === 'function' ? {} : given;
    const done = typeof given === 'function' ? given : callback;
    if (done === undefined) return this.#infer(request, options);
    const { response, cancel } = this.#start(request, options);
    response.then(
      (result) => done(undefined, result),
      (error: unknown) => done(error, undefined),
    );
    return { cancel };
  }

  /** As `inference`, with what the server says about the call; never split. */
  async debug(request: InferenceRequest, options: InferenceOptions = {}): Promise<DebugResponse> {
    const payload = encode(toFeedTensors(request), request);
    const read = (bytes: Uint8Array, attachment: Uint8Array) => ({
      answer: decodeGeneralResponse(bytes, RESPONSE_LIMITS),
      text: new TextDecoder().decode(attachment),
    });
    const { answer, text } = await this.#call('debug', payload, read, options);
    const response = toResponse(answer, this.tag);
    const said = answer.outputs
      .filter(({ engineName }) => engineName === DEBUG_ENGINE)
      .flatMap(({ tensors }) => tensors.flatMap(({ data }) => data as readonly string[]));
    const outputs = response.outputs.filter(({ engine }) => engine !== DEBUG_ENGINE);
    return { ...response, outputs, info: [text, ...said].filter((line) => line !== '').join('\n') };
  }

  /**
   * Calls a method of a service that has its own messages.
   * @param message the request in protobuf
   * @returns the response in protobuf
   */
  inferenceBytes(
    message: Uint8Array,
    options: InferenceOptions & { readonly method?: string } = {},
  ): Promise<Uint8Array> {
    const { method = 'inference', ...call } = options;
    return this.#call(method, message, (bytes) => bytes.slice(), call);
  }

  /** Starts a call whose response `recvInference` returns. One at a time. */
  sendInference(request: InferenceRequest, options: InferenceOptions = {}): void {
    if (this.#sent !== undefined) {
      const text = `predictor ${this.name}: a call was sent already; receive it first`;
      throw new CubeError('INVALID_ARGUMENT', text);
    }
    this.#sent = this.#start(request, options);
    // It may fail before anybody receives it.
    this.#sent.response.catch(() => undefined);
  }

  async recvInference(): Promise<InferenceResponse> {
    const sent = this.#sent;
    if (sent === undefined) {
      const text = `predictor ${this.name}: no call was sent; call sendInference first`;
      throw new CubeError('INVALID_ARGUMENT', text);
    }
    try {
      return await sent.response;
    } finally {
      this.#sent = undefined;
    }
  }

  /** `recvInference` rejects with an AbortError. Does nothing when no call was sent. */
  cancelInference(): void {
    this.#sent?.cancel();
  }

  /** Later calls are refused; calls in flight go on. */
  free(): void {
    this.#isFreed = true;
  }

  #start(request: InferenceRequest, options: InferenceOptions) {
    const controller = new AbortController();
    const { signal: given } = options;
    const own = controller.signal;
    const signal = given === undefined ? own : AbortSignal.any([given, own]);
    const response = this.#infer(request, { ...options, signal });
    return { response, cancel: () => controller.abort() };
  }

  async #infer(request: InferenceRequest, options: InferenceOptions): Promise<InferenceResponse> {
    const tensors = toFeedTensors(request);
    const { packageSize, channelsMax } = this.#variant.conf;
    const isSplit = this.#isSplitting && packageSize > 0;
    const parts = isSplit ? planParts(countRows(tensors), packageSize, channelsMax) : [];
    const read = (bytes: Uint8Array) => decodeGeneralResponse(bytes, RESPONSE_LIMITS);
    if (parts.length <= 1) {
      const answer = await this.#call('inference', encode(tensors, request), read, options);
      return toResponse(answer, this.tag);
    }
    // The first failure ends the other parts: nobody waits for them.
    const controller = new AbortController();
    const { signal: given } = options;
    const own = controller.signal;
    const signal = given === undefined ? own : AbortSignal.any([given, own]);
    try {
      const answers = await Promise.all(
        parts.map((part) => {
          const payload = encode(viewPart(tensors, part), request);
          return this.#call('inference', payload, read, { ...options, signal });
        }),
      );
      return toResponse(joinAnswers(answers), this.tag);
    } catch (error) {
      controller.abort();
      throw error;
    }
  }

  async #call<T>(
    method: string,
    payload: Uint8Array,
    read: (bytes: Uint8Array, attachment: Uint8Array) => T,
    { timeoutMs, signal, requestCode }: InferenceOptions,
  ): Promise<T> {
    if (this.#isFreed) {
      const text = `predictor ${this.name} was freed; fetch another one`;
      throw new CubeError('INVALID_ARGUMENT', text);
    }
    const { client, conf } = this.#variant;
    const limitMs = timeoutMs ?? conf.rpcTimeoutMs;
    return client.call(method, payload, read, { timeoutMs: limitMs, signal, requestCode });
  }
}

function encode(
  tensors: readonly FeedTensor[],
  { fetch = [], logId = 0n, profile = false }: InferenceRequest,
): Uint8Array {
  return encodeGeneralRequest(tensors, { fetchNames: fetch, logId, profileServer: profile });
}

function toFeedTensors({ tensors, lods = {} }: InferenceRequest): FeedTensor[] {
  const unknown = Object.keys(lods).find((name) => !Object.hasOwn(tensors, name));
  if (unknown !== undefined) {
    throw new CubeError('INVALID_ARGUMENT', `lods: there is no tensor ${JSON.stringify(unknown)}`);
  }
  return Object.entries(tensors).map(([name, value]) => {
    const lod = Object.hasOwn(lods, name) ? lods[name] : undefined;
    const tensor = toInputTensor(name, value, {});
    if (lod !== undefined) checkLod(name, lod, tensor.shape[0] ?? 1);
    return { ...tensor, aliasName: '', lod };
  });
}

/** @throws CubeError INVALID_ARGUMENT unless the offsets divide all values into rows */
export function checkLod(name: string, lod: readonly number[], valueCount: number): void {
  const isOrdered = lod.every((offset, i) => {
    return Number.isInteger(offset) && offset >= (i === 0 ? 0 : (lod[i - 1] ?? 0));
  });
  if (lod.length > 0 && isOrdered && lod[0] === 0 && lod.at(-1) === valueCount) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `lod of ${name}: expected ascending offsets from 0 to ${valueCount}, ` +
      `got [${lod.slice(0, 10).join(', ')}${lod.length > 10 ? ', …' : ''}]`,
  );
}

function toResponse(answer: GeneralAnswer, tag: string): InferenceResponse {
  const outputs = answer.outputs.map(({ engineName, tensors }) => ({
    engine: engineName,
    tensors: Object.fromEntries(tensors.map((tensor) => [toKey(tensor), toFetched(tensor)])),
  }));
  const { logId, profileTime: profileTimes, errMsg: remark } = answer;
  return { tag, outputs, logId, profileTimes, remark };
}

function toKey({ name, aliasName }: FeedTensor): string {
  return aliasName === '' ? name : aliasName;
}

function toFetched(tensor: FeedTensor): FetchedTensor {
  const { lod } = tensor;
  return { ...fromByteTensor(tensor), ...(lod !== undefined && { lod: Int32Array.from(lod) }) };
}
