/**
 * Hashes feature strings to keys (docs/formats/keys.md) and bytes to xxh64 sums. `RowHasher` hashes
 * whole batches of rows with one kernel call for all their slots.
 */
import { CubeError } from './errors.ts';
import type { Kernels } from './kernels/contract.ts';
import { createKernels, createMemory, type KernelKind, shareByKind } from './kernels/kernels.ts';
import { xxh64Words } from './kernels/xxh64.ts';
import { SlotModulos } from './slot-modulos.ts';
import { getModulo, type HashSpec, type SlotKeyRule } from './slots.ts';

const PARAMS_AT = 0;
const ENDS_AT = 64;
const TEXTS_MAX = 4096;
const KEYS_AT = ENDS_AT + 4 * TEXTS_MAX;
const TEXT_AT = KEYS_AT + 8 * TEXTS_MAX;
const TEXT_BYTES: number = 128 << 10;
/** Up to this many bytes a loop copies faster than `set`. */
const LOOP_COPY_BYTES_MAX = 64;
const U64_MAX = 0xffff_ffff_ffff_ffffn;

/** A thread's scratch memory. Calls are synchronous, so all hashers of a thread share it. */
class HashScratch {
  readonly kernels: Kernels;
  readonly ends: Uint32Array;
  readonly keys: Uint32Array;
  readonly text: Uint8Array;
  readonly #params: BigUint64Array;
  readonly #sum: BigUint64Array;

  constructor(kind: KernelKind | undefined) {
    const memory = createMemory(TEXT_AT + TEXT_BYTES);
    const { buffer } = memory;
    this.kernels = createKernels(memory, kind);
    this.#params = new BigUint64Array(buffer, PARAMS_AT, 2);
    this.#sum = new BigUint64Array(buffer, KEYS_AT, 1);
    this.ends = new Uint32Array(buffer, ENDS_AT, TEXTS_MAX);
    this.keys = new Uint32Array(buffer, KEYS_AT, 2 * TEXTS_MAX);
    this.text = new Uint8Array(buffer, TEXT_AT, TEXT_BYTES);
  }

  setSpec(spec: HashSpec): void {
    this.#params[0] = spec.seed;
    this.#params[1] = spec.modulo;
  }

  /** Hashes the first `count` texts to `keys`. */
  hash(count: number): void {
    this.kernels.hashTexts(PARAMS_AT, TEXT_AT, ENDS_AT, count, KEYS_AT);
  }

  /** @param bytes at most TEXT_BYTES */
  hashBytes(bytes: Uint8Array, seedLow: number, seedHigh: number): bigint {
    const { length } = bytes;
    const { text } = this;
    if (length > LOOP_COPY_BYTES_MAX) text.set(bytes);
    else for (let i = 0; i < length; i++) text[i] = bytes[i]!;
    this.kernels.xxh64(TEXT_AT, length, seedLow, seedHigh, KEYS_AT);
    return this.#sum[0]!;
  }
}

const getHashScratch: (kind: KernelKind | undefined) => HashScratch = shareByKind(
  (kind) => new HashScratch(kind),
);

const words = new Uint32Array(2);

/** xxh64 of bytes, by the kernel where they fit in its scratch memory. */
export function xxh64(bytes: Uint8Array, seed = 0n): bigint {
  const seedLow = Number(seed & 0xffff_ffffn);
  const seedHigh = Number((seed >> 32n) & 0xffff_ffffn);
  if (bytes.length <= TEXT_BYTES) {
    return getHashScratch(undefined).hashBytes(bytes, seedLow, seedHigh);
  }
  xxh64Words(bytes, 0, bytes.length, seedLow, seedHigh, words, 0);
  return (BigInt(words[1]!) << 32n) | BigInt(words[0]!);
}

/** Destination of the keys; for bags, the slot of each feature and the end of each bag. */
interface HashTarget {
  readonly keys: Uint32Array;
  readonly keysOffset: number;
  readonly slotOf?: Uint16Array;
  readonly ends?: Uint32Array;
}

function failDescendingEnds(bag: number): never {
  throw new CubeError('INVALID_ARGUMENT', `bag ${bag + 1} ends before it begins`);
}

/** The bytes that each slot prepends to its features: its index in decimal, then the tag. */
export function encodeSlotPrefixes(
  { scheme }: HashSpec,
  slots: readonly SlotKeyRule[],
): Uint8Array[] {
  const tag = scheme === 'xxh64-tagged' ? '\0' : '';
  const encoder = new TextEncoder();
  return slots.map(({ index }) => encoder.encode(`${index}${tag}`));
}

/** Whether all keys of rows depend on the hash spec and the slots' indices alone. */
export function hasPlainSlots({ modulo }: HashSpec, slots: readonly SlotKeyRule[]): boolean {
  return slots.every((slot) => slot.missing === undefined && (slot.modulo ?? modulo) === modulo);
}

/** Hashes rows of feature strings by one scheme. Holds no state between calls. */
export class RowHasher {
  /** Its modulo is what the kernel applies: 0 when slots have different ones. */
  readonly #spec: HashSpec;
  readonly #slots: readonly SlotKeyRule[];
  /** Set when slots have different ones. */
  readonly #modulos: SlotModulos | undefined;
  readonly #hasMissing: boolean;
  readonly #prefixes: readonly Uint8Array[];
  readonly #scratch: HashScratch;
  readonly #encoder = new TextEncoder();

  /** @param kind for tests and benchmarks; default: the fastest that the runtime supports */
  constructor(spec: HashSpec, slots: readonly SlotKeyRule[], kind?: KernelKind) {
    const modulos = slots.map((slot) => getModulo(spec, slot));
    const isOneModulo = modulos.every((modulo) => modulo === modulos[0]);
    this.#spec = { ...spec, modulo: isOneModulo ? (modulos[0] ?? spec.modulo) : 0n };
    this.#modulos = isOneModulo ? undefined : new SlotModulos(modulos);
    this.#slots = slots;
    this.#hasMissing = slots.some(({ missing }) => missing !== undefined);
    this.#prefixes = encodeSlotPrefixes(spec, slots);
    this.#scratch = getHashScratch(kind);
  }

  /**
   * @param features rowCount · slots strings, row-major; a missing feature is ''
   * @param keys receives the keys as words (low, high), from word `keysOffset`
   * @throws CubeError INVALID_ARGUMENT when a feature is not a key (scheme raw only)
   */
  hashRows(features: readonly string[], rowCount: number, keys: Uint32Array, keysOffset = 0): void {
    this.#hash(features, rowCount * this.#slots.length, { keys, keysOffset });
  }

  /**
   * Hashes the values of bags: bag i, row-major by (row, slot), has features[ends[i − 1] …
   * ends[i]).
   * @param keys receives one key per feature
   * @throws CubeError INVALID_ARGUMENT when ends decrease, or a feature is not a key
   */
  hashBags(features: readonly string[], ends: Uint32Array, keys: Uint32Array): void {
    const slotOf = new Uint16Array(features.length);
    let start = 0;
    for (let bag = 0, slot = 0; bag < ends.length; bag++) {
      const end = ends[bag]!;
      if (end < start) failDescendingEnds(bag);
      slotOf.fill(slot, start, end);
      start = end;
      slot = slot + 1 === this.#slots.length ? 0 : slot + 1;
    }
    this.#hash(features, start, { keys, keysOffset: 0, slotOf, ends });
  }

  #hash(features: readonly string[], count: number, target: HashTarget): void {
    const { keys, keysOffset } = target;
    if (features.length < count || keys.length < keysOffset + 2 * count) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `rows of ${this.#slots.length} slots need ${count} features and ${2 * count} key words ` +
          `from ${keysOffset} on; there are ${features.length} and ${keys.length}`,
      );
    }
    const given = this.#hasMissing ? this.#fillMissing(features, count, target.slotOf) : features;
    if (this.#spec.scheme === 'raw') this.#readKeys(given, count, target);
    else this.#hashTexts(given, count, target);
    this.#modulos?.reduce(keys, { at: keysOffset, first: 0, count }, target.slotOf);
  }

  /** Replaces missing values by those that their slots define. */
  #fillMissing(
    features: readonly string[],
    count: number,
    slotOf: Uint16Array | undefined,
  ): readonly string[] {
    const slots = this.#slots;
    return features.slice(0, count).map((feature, i) => {
      if (feature !== '') return feature;
      return slots[slotOf?.[i] ?? i % slots.length]!.missing ?? '';
    });
  }

  #hashTexts(features: readonly string[], count: number, target: HashTarget): void {
    const { keys, keysOffset, slotOf } = target;
    const scratch = this.#scratch;
    scratch.setSpec(this.#spec);
    let done = 0;
    while (done < count) {
      const packed = this.#pack(features, done, count, slotOf);
      if (packed === 0) {
        const prefix = this.#prefixes[slotOf?.[done] ?? done % this.#prefixes.length]!;
        this.#hashLong(prefix, features[done]!, keys, keysOffset + 2 * done);
        done += 1;
        continue;
      }
      scratch.hash(packed);
      const to = keysOffset + 2 * done;
      const hashed = scratch.keys;
      for (let i = 0; i < 2 * packed; i++) keys[to + i] = hashed[i]!;
      done += packed;
    }
  }

  /** Copies prefixes and features into the scratch memory until it is full. @returns how many */
  #pack(
    features: readonly string[],
    from: number,
    count: number,
    slotOf: Uint16Array | undefined,
  ): number {
    const { text, ends } = this.#scratch;
    const prefixes = this.#prefixes;
    const stop = Math.min(count - from, TEXTS_MAX);
    let slot = from % prefixes.length;
    let position = 0;
    for (let packed = 0; packed < stop; packed++) {
      const feature = features[from + packed]!;
      if (slotOf !== undefined) slot = slotOf[from + packed]!;
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

  /** Hashes a feature that is longer than the scratch memory. */
  #hashLong(prefix: Uint8Array, feature: string, keys: Uint32Array, keysAt: number): void {
    const encoded = this.#encoder.encode(feature);
    const bytes = new Uint8Array(prefix.length + encoded.length);
    bytes.set(prefix);
    bytes.set(encoded, prefix.length);
    this.#store(xxh64(bytes, this.#spec.seed), keys, keysAt);
  }

  #readKeys(features: readonly string[], count: number, target: HashTarget): void {
    for (let i = 0; i < count; i++) {
      const feature = features[i]!;
      const key = /^\d{1,20}$/.test(feature) ? BigInt(feature) : U64_MAX + 1n;
      if (key > U64_MAX) this.#refuseKey(feature, i, target);
      this.#store(key, target.keys, target.keysOffset + 2 * i);
    }
  }

  #refuseKey(feature: string, i: number, { ends }: HashTarget): never {
    const bag = ends === undefined ? i : ends.findIndex((end) => end > i);
    const slot = this.#slots[bag % this.#slots.length]!;
    const row = Math.floor(bag / this.#slots.length) + 1;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `row ${row}, slot ${slot.name}: with hash scheme raw a feature is a decimal integer up to ` +
        `2^64 - 1, got ${JSON.stringify(feature.slice(0, 40))}` +
        (feature === '' ? '; the field "missing" of a slot gives the id of missing values' : ''),
    );
  }

  #store(hash: bigint, keys: Uint32Array, at: number): void {
    const key = this.#spec.modulo === 0n ? hash : hash % this.#spec.modulo;
    keys[at] = Number(key & 0xffff_ffffn);
    keys[at + 1] = Number(key >> 32n);
  }
}
