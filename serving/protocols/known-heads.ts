/**
 * JSON heads of KServe requests over HTTP that need no parsing, because they came before: a client
 * sends the same JSON for all requests of one shape, and the binary data after it differs. Heads
 * are compared without two kinds of values, which change: the sizes of the binary data, and an id
 * that is the first member, as Triton's clients send it. A head is kept when it comes a second
 * time, if all its inputs are binary and the request had no mistake.
 */
import { TENSOR_TYPE_BYTES } from '../../lib/core/graph-signature.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { ParsedRequest } from './handle-prediction.ts';
import { HEAD_BYTES_MAX, HeadText, type KeptText } from './head-text.ts';
import { type InferRequest, readExperimentKey } from './infer.ts';
import { createBinaryChoice, type InferBody } from './infer-json.ts';
import { InputTensor, type TensorHeader } from './input-tensor.ts';

/** Texts of all kept heads. */
export const ALL_HEADS_BYTES_MAX: number = 1 << 20;
/** A power of two. */
export const HEADS_MAX = 256;

/** What a head means for a version, whose requests need no further checks of names and shapes. */
export interface PreparedRequests {
  /** The name in requests, which responses repeat. */
  readonly model: string;
  /**
   * @param data after the head
   * @returns undefined for data that must be parsed as that of an unknown head
   * @throws CubeError INVALID_ARGUMENT for values
   */
  parse(
    bundle: LoadedBundle,
    found: FoundHead,
    data: Uint8Array,
  ): ParsedRequest<InferBody> | undefined;
}

/** A parsed request of a head, from which the next ones with this head are prepared. */
export interface FirstRequest {
  readonly model: string;
  readonly parsed: ParsedRequest<InferBody>;
  readonly head: KnownHead;
  /** Names of the outputs that the request asks for; empty: all. */
  readonly outputs: readonly string[];
}

/** Requests with one head, as it is for all of them. */
export class KnownHead {
  readonly inputs: readonly TensorHeader[];
  readonly experimentKey: string | undefined;
  readonly isBinary: (output: string) => boolean;
  /** What was prepared for the versions that requests with this head were parsed for. */
  readonly prepared: WeakMap<LoadedVersion, PreparedRequests> = new WeakMap();
  readonly #request: Omit<InferRequest, 'inputs'>;
  /** The size of each input; -1 for BYTES, where requests have different ones. */
  readonly #sizes: readonly number[];
  /** Where the data of each input ends; undefined when that depends on the request. */
  readonly #ends: readonly number[] | undefined;

  constructor({ inputs, ...request }: InferRequest) {
    this.#request = request;
    this.inputs = inputs.map(({ name, datatype, shape }) => ({ name, datatype, shape }));
    this.#sizes = inputs.map(({ datatype, byteLength = 0 }) =>
      TENSOR_TYPE_BYTES[datatype] === 0 ? -1 : byteLength,
    );
    this.#ends = this.#sizes.includes(-1) ? undefined : sumUp(this.#sizes);
    this.experimentKey = readExperimentKey(request.parameters);
    this.isBinary = createBinaryChoice(request);
  }

  /** The id of requests whose id is not cut out. */
  get id(): string {
    return this.#request.id;
  }

  /**
   * Where the data of each input ends in the `dataBytes` after a head with these sizes. @returns
   * undefined when they do not fit
   */
  findEnds(sizes: readonly number[], dataBytes: number): readonly number[] | undefined {
    const known = this.#sizes;
    for (let i = 0; i < known.length; i++) {
      if (known[i]! >= 0 && sizes[i] !== known[i]) return undefined;
    }
    const ends = this.#ends ?? sumUp(sizes);
    return ends.at(-1) === dataBytes ? ends : undefined;
  }

  /** Makes the request of a body. @throws CubeError INVALID_ARGUMENT */
  toRequest({ id, ends }: FoundHead, data: Uint8Array): InferRequest {
    const inputs = this.inputs.map((header, i) => {
      return InputTensor.fromBytes(header, data.subarray(i === 0 ? 0 : ends[i - 1], ends[i]));
    });
    return { ...this.#request, id, inputs };
  }
}

function sumUp(sizes: readonly number[]): number[] {
  let end = 0;
  return sizes.map((size) => {
    end += size;
    return end;
  });
}

interface Entry {
  readonly head: KnownHead;
  readonly text: KeptText;
  readonly hash: number;
  /** It was found since another head wanted its place. */
  isUsed: boolean;
}

/** The head of a request, with what differs from other requests. */
export interface FoundHead {
  readonly head: KnownHead;
  readonly id: string;
  /** Where the data of each input ends, from the end of the head on. */
  readonly ends: readonly number[];
}

/** A table of bounded size in which each head has one place. */
export class KnownHeads {
  readonly #text = new HeadText();
  #entries: (Entry | undefined)[] = new Array(HEADS_MAX).fill(undefined);
  /** The hash of the last head that was missed at each place. */
  readonly #missed = new Int32Array(HEADS_MAX);
  /** The last one that was found: the next request often has the same. */
  #last: Entry | undefined;
  #bytes = 0;

  /** Kept heads, and their bytes. */
  get size(): { readonly count: number; readonly bytes: number } {
    const count = this.#entries.reduce((sum, entry) => sum + (entry === undefined ? 0 : 1), 0);
    return { count, bytes: this.#bytes };
  }

  /**
   * @param length of the head, with which the body begins
   * @returns undefined also when the data does not have the sizes of the head
   */
  find(body: Uint8Array, length: number): FoundHead | undefined {
    if (length === 0 || length > HEAD_BYTES_MAX) return undefined;
    const text = this.#text;
    const last = this.#last;
    const entry =
      last !== undefined && text.readSame(last.text, body, length)
        ? last
        : this.#findEntry(body, length);
    if (entry === undefined || text.sizes.length !== entry.head.inputs.length) return undefined;
    const { head } = entry;
    const ends = head.findEnds(text.sizes, body.length - length);
    if (ends === undefined) return undefined;
    this.#last = entry;
    entry.isUsed = true;
    return { head, id: text.readId(body) ?? head.id, ends };
  }

  #findEntry(body: Uint8Array, length: number): Entry | undefined {
    const text = this.#text;
    text.read(body, length);
    const entry = this.#entries[text.hash & (HEADS_MAX - 1)];
    return entry?.hash === text.hash && text.equals(entry.text) ? entry : undefined;
  }

  /** Keeps the head of a request that was parsed, when it comes the second time. */
  note(body: Uint8Array, length: number, request: InferRequest): void {
    if (length === 0 || length > HEAD_BYTES_MAX) return;
    const { inputs } = request;
    const text = this.#text;
    text.read(body, length);
    const { hash, sizes } = text;
    if (sizes.length !== inputs.length) return;
    const place = hash & (HEADS_MAX - 1);
    if (this.#missed[place] !== hash) {
      this.#missed[place] = hash;
      return;
    }
    const old = this.#entries[place];
    // Two heads in use that share a place do not replace each other in turn.
    if (old?.isUsed === true) {
      old.isUsed = false;
      return;
    }
    if (!text.isUnambiguous(body, length)) return;
    const kept = text.copy();
    const { length: byteCount } = kept.bytes;
    this.#bytes += byteCount - (old?.text.bytes.length ?? 0);
    if (this.#bytes > ALL_HEADS_BYTES_MAX) this.#clear(byteCount);
    if (this.#last === old) this.#last = undefined;
    this.#entries[place] = { head: new KnownHead(request), text: kept, hash, isUsed: false };
  }

  /** Heads in use come again soon. */
  #clear(byteCount: number): void {
    this.#entries = new Array(HEADS_MAX).fill(undefined);
    this.#last = undefined;
    this.#bytes = byteCount;
  }
}
