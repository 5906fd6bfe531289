/**
 * Feature strings to keys (docs/formats/keys.md). `RowHasher` hashes whole batches of rows, one kernel call for all
 * their slots; `xxh64` is for headers, tests and any runtime.
 */
import { CubeError } from './errors.ts';
import { type HashScratch, scratchOf, TEXT_BYTES, TEXTS_MAX } from './hash-scratch.ts';
import type { KernelKind } from './kernels/kernels.ts';
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

/** Where keys go, and for bags: the slot of each feature, and where each bag ends. */
interface HashTarget {
  readonly keys: Uint32Array;
  readonly keysOffset: number;
  readonly slotOf?: Uint16Array;
  readonly ends?: Uint32Array;
}

function refuseEnds(bag: number): never {
  throw new CubeError('INVALID_ARGUMENT', `bag ${bag + 1} ends before it begins`);
}

/** What each slot puts before its feature: its index in decimal, then the tag. */
export function slotPrefixes({ scheme }: HashSpec, slots: readonly Slot[]): Uint8Array[] {
  const tag = scheme === 'xxh64-tagged' ? '\0' : '';
  const encoder = new TextEncoder();
  return slots.map(({ index }) => encoder.encode(`${index}${tag}`));
}

/** Hashes rows of feature strings by one scheme. Holds no state between calls. */
export class RowHasher {
  readonly #spec: HashSpec;
  readonly #slots: readonly Slot[];
  readonly #prefixes: readonly Uint8Array[];
  readonly #scratch: HashScratch;
  readonly #encoder = new TextEncoder();

  /** @param kind for tests and benchmarks; otherwise the best there is */
  constructor(spec: HashSpec, slots: readonly Slot[], kind?: KernelKind) {
    this.#spec = spec;
    this.#slots = slots;
    this.#prefixes = slotPrefixes(spec, slots);
    this.#scratch = scratchOf(kind);
  }

  /**
   * @param features rowCount · slots strings, row-major; a missing feature is ''
   * @param keys receives the keys as words (low, high), from word `keysOffset`
   * @throws CubeError INVALID_ARGUMENT when a feature is no key (scheme raw only)
   */
  hashRows(features: readonly string[], rowCount: number, keys: Uint32Array, keysOffset = 0): void {
    this.#hash(features, rowCount * this.#slots.length, { keys, keysOffset });
  }

  /**
   * Hashes the values of bags: of (row, slot) i features[ends[i − 1] … ends[i]), row-major.
   * @param keys receives one key a feature @throws CubeError INVALID_ARGUMENT when ends fall, or a feature is no key
   */
  hashBags(features: readonly string[], ends: Uint32Array, keys: Uint32Array): void {
    const slotOf = new Uint16Array(features.length);
    let start = 0;
    for (let bag = 0, slot = 0; bag < ends.length; bag++) {
      const end = ends[bag]!;
      if (end < start) refuseEnds(bag);
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
        `rows of ${this.#slots.length} slots need ${count} features and ${2 * count} key words from ` +
          `${keysOffset} on; there are ${features.length} and ${keys.length}`,
      );
    }
    if (this.#spec.scheme === 'raw') this.#readKeys(features, count, target);
    else this.#hashTexts(features, count, target);
  }

  #hashTexts(features: readonly string[], count: number, target: HashTarget): void {
    const { keys, keysOffset, slotOf } = target;
    const scratch = this.#scratch;
    scratch.use(this.#spec);
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

  /** Copies prefixes and features into the scratch, as many as fit. @returns how many */
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

  /** A feature longer than the scratch. */
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
      `row ${row}, slot ${slot.name}: with hash scheme raw a feature is a decimal integer up to 2^64 - 1, ` +
        `got ${JSON.stringify(feature.slice(0, 40))}`,
    );
  }

  #store(hash: bigint, keys: Uint32Array, at: number): void {
    const key = this.#spec.modulo === 0n ? hash : hash % this.#spec.modulo;
    keys[at] = Number(key & 0xffff_ffffn);
    keys[at + 1] = Number(key >> 32n);
  }
}
