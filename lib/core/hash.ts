/**
 * Feature strings to keys (docs/formats/keys.md). `RowHasher` hashes whole batches of rows, one kernel call for all
 * their slots; `xxh64` is for headers, tests and any runtime.
 */
import { CubeError } from './errors.ts';
import type { Kernels } from './kernels/contract.ts';
import { createKernels, createMemory, type KernelKind } from './kernels/kernels.ts';
import { xxh64Words } from './kernels/xxh64.ts';
import type { HashSpec, Slot } from './slots.ts';

const U64_MAX = 0xffff_ffff_ffff_ffffn;
const words = new Uint32Array(2);

/** xxh64 in plain TypeScript. */
export function xxh64(bytes: Uint8Array, seed = 0n): bigint {
  const seedLow = Number(seed & 0xffff_ffffn);
  xxh64Words(bytes, 0, bytes.length, seedLow, Number((seed >> 32n) & 0xffff_ffffn), words, 0);
  return (BigInt(words[1]!) << 32n) | BigInt(words[0]!);
}

const PARAMS_AT = 0;
const ENDS_AT = 64;
const TEXTS_MAX = 4096;
const KEYS_AT = ENDS_AT + 4 * TEXTS_MAX;
const TEXT_AT = KEYS_AT + 8 * TEXTS_MAX;
const TEXT_BYTES = 128 << 10;

/** A thread's scratch memory for hashing: calls are synchronous, so all hashers of a thread share it. */
class HashScratch {
  readonly kernels: Kernels;
  readonly ends: Uint32Array;
  readonly keys: Uint32Array;
  readonly text: Uint8Array;
  readonly #params: BigUint64Array;

  constructor(kind: KernelKind | undefined) {
    const memory = createMemory(TEXT_AT + TEXT_BYTES);
    this.kernels = createKernels(memory, kind);
    this.#params = new BigUint64Array(memory.buffer, PARAMS_AT, 2);
    this.ends = new Uint32Array(memory.buffer, ENDS_AT, TEXTS_MAX);
    this.keys = new Uint32Array(memory.buffer, KEYS_AT, 2 * TEXTS_MAX);
    this.text = new Uint8Array(memory.buffer, TEXT_AT, TEXT_BYTES);
  }

  use(spec: HashSpec): void {
    this.#params[0] = spec.seed;
    this.#params[1] = spec.modulo;
  }

  hash(count: number): void {
    this.kernels.hashTexts(PARAMS_AT, TEXT_AT, ENDS_AT, count, KEYS_AT);
  }
}

const scratches = new Map<KernelKind | undefined, HashScratch>();

function scratchOf(kind: KernelKind | undefined): HashScratch {
  let scratch = scratches.get(kind);
  if (scratch === undefined) {
    scratch = new HashScratch(kind);
    scratches.set(kind, scratch);
  }
  return scratch;
}

/** Hashes rows of feature strings by one scheme. Holds no state between calls. */
export class RowHasher {
  readonly #spec: HashSpec;
  readonly #slots: readonly Slot[];
  /** What each slot puts before its feature: its index in decimal, then the tag. */
  readonly #prefixes: readonly Uint8Array[];
  readonly #scratch: HashScratch;
  readonly #encoder = new TextEncoder();

  /** @param kind for tests and benchmarks; otherwise the best there is */
  constructor(spec: HashSpec, slots: readonly Slot[], kind?: KernelKind) {
    this.#spec = spec;
    this.#slots = slots;
    const tag = spec.scheme === 'xxh64-tagged' ? '\0' : '';
    this.#prefixes = slots.map((slot) => this.#encoder.encode(`${slot.index}${tag}`));
    this.#scratch = scratchOf(kind);
  }

  /**
   * @param features rowCount · slots strings, row-major; a missing feature is ''
   * @param keys receives the keys as words (low, high), from word `keysOffset`
   * @throws CubeError INVALID_ARGUMENT when a feature is no key (scheme raw only)
   */
  hashRows(features: readonly string[], rowCount: number, keys: Uint32Array, keysOffset = 0): void {
    const count = rowCount * this.#slots.length;
    if (features.length < count || keys.length < keysOffset + 2 * count) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${rowCount} rows of ${this.#slots.length} slots need ${count} features and ${2 * count} key words from ` +
          `${keysOffset} on; there are ${features.length} and ${keys.length}`,
      );
    }
    if (this.#spec.scheme === 'raw') this.#readKeys(features, count, keys, keysOffset);
    else this.#hashTexts(features, count, keys, keysOffset);
  }

  #hashTexts(
    features: readonly string[],
    count: number,
    keys: Uint32Array,
    keysOffset: number,
  ): void {
    const scratch = this.#scratch;
    scratch.use(this.#spec);
    let done = 0;
    while (done < count) {
      const packed = this.#pack(features, done, count);
      if (packed === 0) {
        this.#hashLong(features[done]!, done, keys, keysOffset + 2 * done);
        done += 1;
        continue;
      }
      scratch.hash(packed);
      const target = keysOffset + 2 * done;
      const hashed = scratch.keys;
      for (let i = 0; i < 2 * packed; i++) keys[target + i] = hashed[i]!;
      done += packed;
    }
  }

  /** Copies prefixes and features into the scratch, as many as fit. @returns how many */
  #pack(features: readonly string[], from: number, count: number): number {
    const { text, ends } = this.#scratch;
    const prefixes = this.#prefixes;
    const stop = Math.min(count - from, TEXTS_MAX);
    let slot = from % prefixes.length;
    let position = 0;
    for (let packed = 0; packed < stop; packed++) {
      const feature = features[from + packed]!;
      const prefix = prefixes[slot]!;
      const { length } = feature;
      // A UTF-16 unit becomes at most three bytes.
      if (position + prefix.length + 3 * length > TEXT_BYTES) return packed;
      for (let i = 0; i < prefix.length; i++) text[position++] = prefix[i]!;
      let seen = 0;
      for (let i = 0; i < length; i++) {
        const unit = feature.charCodeAt(i);
        seen |= unit;
        text[position + i] = unit;
      }
      if (seen < 0x80) position += length;
      else position += this.#encoder.encodeInto(feature, text.subarray(position)).written;
      ends[packed] = position;
      slot = slot + 1 === prefixes.length ? 0 : slot + 1;
    }
    return stop;
  }

  /** A feature longer than the scratch. */
  #hashLong(feature: string, at: number, keys: Uint32Array, keysAt: number): void {
    const prefix = this.#prefixes[at % this.#prefixes.length]!;
    const encoded = this.#encoder.encode(feature);
    const bytes = new Uint8Array(prefix.length + encoded.length);
    bytes.set(prefix);
    bytes.set(encoded, prefix.length);
    this.#store(xxh64(bytes, this.#spec.seed), keys, keysAt);
  }

  #readKeys(
    features: readonly string[],
    count: number,
    keys: Uint32Array,
    keysOffset: number,
  ): void {
    for (let i = 0; i < count; i++) {
      const feature = features[i]!;
      const key = /^\d{1,20}$/.test(feature) ? BigInt(feature) : U64_MAX + 1n;
      if (key > U64_MAX) {
        const slot = this.#slots[i % this.#slots.length]!;
        const row = Math.floor(i / this.#slots.length);
        throw new CubeError(
          'INVALID_ARGUMENT',
          `row ${row}, slot ${slot.name}: with hash scheme raw a feature is a decimal integer up to 2^64 - 1, ` +
            `got ${JSON.stringify(feature.slice(0, 40))}`,
        );
      }
      this.#store(key, keys, keysOffset + 2 * i);
    }
  }

  #store(hash: bigint, keys: Uint32Array, at: number): void {
    const key = this.#spec.modulo === 0n ? hash : hash % this.#spec.modulo;
    keys[at] = Number(key & 0xffff_ffffn);
    keys[at + 1] = Number(key >> 32n);
  }
}
