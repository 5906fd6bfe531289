/**
 * The kernels in portable TypeScript over the same memory layout (params.ts). They serve where
 * WebAssembly SIMD is missing, and tests compare the WebAssembly kernels with them. Words are
 * 32-bit; no BigInt and no object per key.
 */
import { bf16ToF32Bits, f16ToF32Bits, f16ToNumber } from '../half-floats.ts';
import { computeShard, mixKey, multiplyHigh } from '../keys.ts';
import type { Kernels } from './contract.ts';
import {
  BASE_ADDRESS,
  DTYPE_F16,
  DTYPE_F32,
  DTYPE_I8,
  EMPTY_KEY,
  FIRST_KEY,
  FIRST_ROW,
  HASH_MODULO,
  HASH_SEED,
  HOME_SLOTS,
  KEY_STEP,
  ROW_BYTES,
  ROW_COUNT,
  SEGMENT_COUNT,
  SEGMENT_INDEX,
  SHARD_INDEX,
  SHARD_NUM,
  STRIDE,
  TEXT_BYTES_MAX,
  TEXT_SLOT_BYTES,
  TEXT_SLOT_EMPTY_KEY,
  TEXT_SLOT_LENGTH,
} from './params.ts';
import { PortableTsvReader } from './portable-tsv.ts';
import { xxh64Words } from './xxh64.ts';

/**
 * Divides unsigned 64-bit numbers exactly. Needed only for dense steps that are not a power of two.
 */
const quotient = new BigUint64Array(2);
const quotientWords = new Uint32Array(quotient.buffer);

/** Writes the words of the quotient. @returns false when the division leaves a remainder */
function divideExactly(low: number, high: number, step: bigint): boolean {
  quotientWords[0] = low;
  quotientWords[1] = high;
  const value = quotient[0]!;
  if (value % step !== 0n) return false;
  quotient[0] = value / step;
  return true;
}

class PortableKernels implements Kernels {
  readonly #bytes: Uint8Array;
  readonly #words: Uint32Array;
  readonly #floats: Float32Array;
  readonly #view: DataView;
  readonly #mixed = new Uint32Array(2);
  readonly #tsv: PortableTsvReader;

  constructor(buffer: SharedArrayBuffer) {
    this.#bytes = new Uint8Array(buffer);
    this.#words = new Uint32Array(buffer);
    this.#floats = new Float32Array(buffer);
    this.#view = new DataView(buffer);
    this.#tsv = new PortableTsvReader(buffer);
  }

  xxh64(at: number, length: number, seedLow: number, seedHigh: number, hash: number): void {
    xxh64Words(this.#bytes, at, at + length, seedLow, seedHigh, this.#words, hash >>> 2);
  }

  hashTexts(params: number, texts: number, ends: number, count: number, keys: number): void {
    const words = this.#words;
    const seedLow = words[(params + HASH_SEED) >>> 2]!;
    const seedHigh = words[(params + HASH_SEED + 4) >>> 2]!;
    const modulo = this.#readBigint(params + HASH_MODULO);
    let start = 0;
    for (let i = 0; i < count; i++) {
      const end = words[(ends >>> 2) + i]!;
      const at = (keys >>> 2) + 2 * i;
      xxh64Words(this.#bytes, texts + start, texts + end, seedLow, seedHigh, words, at);
      if (modulo !== 0n) this.#reduce(at, modulo);
      start = end;
    }
  }

  hashInput(
    params: number,
    at: number,
    end: number,
    count: number,
    slots: number,
    slotNum: number,
    keys: number,
    step: number,
  ): number {
    const bytes = this.#bytes;
    const words = this.#words;
    const modulo = this.#readBigint(params + HASH_MODULO);
    const lengthMax = words[(params + TEXT_BYTES_MAX) >>> 2]!;
    const seedLow = words[(params + HASH_SEED) >>> 2]!;
    const seedHigh = words[(params + HASH_SEED + 4) >>> 2]!;
    let from = at;
    for (let i = 0; i < count; i++) {
      const start = from + 4;
      if (start > end) return 0;
      const length = this.#view.getUint32(from, true);
      if (length > lengthMax || start + length > end) return 0;
      const slot = slots + TEXT_SLOT_BYTES * (i % slotNum);
      const key = (keys + i * step) >>> 2;
      from = start + length;
      if (length === 0) {
        const empty = (slot + TEXT_SLOT_EMPTY_KEY) >>> 2;
        words.copyWithin(key, empty, empty + 2);
        continue;
      }
      for (let at = start; at < from; at++) if (bytes[at]! > 0x7f) return 0;
      const prefixLength = bytes[slot + TEXT_SLOT_LENGTH]!;
      bytes.copyWithin(start - prefixLength, slot, slot + prefixLength);
      xxh64Words(bytes, start - prefixLength, from, seedLow, seedHigh, words, key);
      if (modulo !== 0n) this.#reduce(key, modulo);
    }
    return from === end ? 1 : 0;
  }

  countLines(at: number, end: number): number {
    return this.#tsv.countLines(at, end);
  }

  readTsv(params: number, at: number, end: number, rowsMax: number): number {
    return this.#tsv.readTsv(params, at, end, rowsMax);
  }

  lookupInline(
    params: number,
    work: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
  ): number {
    // A key is in at most one segment: keys found in another one need no search here.
    if (this.#words[(params + SEGMENT_INDEX) >>> 2] === 0) this.#clear(found, count);
    return this.chainInline(params, work, keys, found, rows, count, found);
  }

  lookupDense(
    params: number,
    work: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
  ): number {
    if (this.#words[(params + SEGMENT_INDEX) >>> 2] === 0) this.#clear(found, count);
    return this.chainDense(params, work, keys, found, rows, count, found);
  }

  sortBySegment(
    keys: number,
    count: number,
    segmentCount: number,
    segments: number,
    ends: number,
    places: number,
  ): void {
    const words = this.#words;
    const mixed = this.#mixed;
    for (let i = 0; i < count; i++) {
      const at = (keys >>> 2) + 2 * i;
      mixKey(words[at]!, words[at + 1]!, mixed, 0);
      words[(segments >>> 2) + i] = multiplyHigh(mixed[0]!, segmentCount);
    }
    const endOf = this.#countParts(segments, count, ends, segmentCount);
    for (let i = 0; i < count; i++) {
      words[(places >>> 2) + endOf[words[(segments >>> 2) + i]!]!++] = i;
    }
  }

  lookupPlaced(
    params: number,
    _work: number,
    keys: number,
    found: number,
    rows: number,
    ends: number,
    places: number,
  ): number {
    const words = this.#words;
    const segment = words[(params + SEGMENT_INDEX) >>> 2]!;
    const end = words[(ends >>> 2) + segment]!;
    let hits = 0;
    for (let i = segment === 0 ? 0 : words[(ends >>> 2) + segment - 1]!; i < end; i++) {
      hits += this.#take(params, keys, found, rows, found, words[(places >>> 2) + i]!);
    }
    return hits;
  }

  chainDeleted(params: number, work: number, keys: number, count: number, decided: number): number {
    return this.chainInline(params, work, keys, decided, 0, count, decided);
  }

  chainInline(
    params: number,
    _work: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
    decided: number,
  ): number {
    const words = this.#words;
    const mixed = this.#mixed;
    const segment = words[(params + SEGMENT_INDEX) >>> 2]!;
    const segmentCount = words[(params + SEGMENT_COUNT) >>> 2]!;
    let hits = 0;
    for (let i = 0; i < count; i++) {
      if (this.#isDecided(decided, i)) continue;
      const at = (keys >>> 2) + 2 * i;
      mixKey(words[at]!, words[at + 1]!, mixed, 0);
      if (segmentCount > 1 && multiplyHigh(mixed[0]!, segmentCount) !== segment) continue;
      hits += this.#take(params, keys, found, rows, decided, i);
    }
    return hits;
  }

  chainDense(
    params: number,
    _work: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
    decided: number,
  ): number {
    const words = this.#words;
    const rowWords = words[(params + ROW_BYTES) >>> 2]! >>> 2;
    const stride = words[(params + STRIDE) >>> 2]! >>> 2;
    const base = words[(params + BASE_ADDRESS) >>> 2]! >>> 2;
    let hits = 0;
    for (let i = 0; i < count; i++) {
      if (this.#isDecided(decided, i)) continue;
      const row = this.#denseRow(
        params,
        words[(keys >>> 2) + 2 * i]!,
        words[(keys >>> 2) + 2 * i + 1]!,
      );
      if (row < 0) continue;
      this.#copyRow((rows >>> 2) + i * rowWords, base + row * stride, rowWords);
      this.#mark(found, decided, i);
      hits++;
    }
    return hits;
  }

  expandRows(
    dtype: number,
    dim: number,
    rowBytes: number,
    source: number,
    target: number,
    count: number,
  ): void {
    for (let row = 0; row < count; row++) {
      const from = source + row * rowBytes;
      const to = (target >>> 2) + row * dim;
      if (dtype === DTYPE_I8) this.#expandLevels(from, to, dim);
      else if (dtype === DTYPE_F32) this.#copyRow(to, from >>> 2, dim);
      else this.#expandHalves(dtype, from, to, dim);
    }
  }

  fillMissing(
    params: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
    defaultRow: number,
  ): number {
    const words = this.#words;
    const rowWords = words[(params + ROW_BYTES) >>> 2]! >>> 2;
    for (let i = 0; i < count; i++) {
      if ((words[(found >>> 2) + (i >>> 5)]! >>> (i & 31)) & 1) continue;
      const at = (keys >>> 2) + 2 * i;
      if (
        computeShard(words[at]!, words[at + 1]!, words[(params + SHARD_NUM) >>> 2]!) !==
        words[(params + SHARD_INDEX) >>> 2]
      )
        return i;
      this.#copyRow((rows >>> 2) + i * rowWords, defaultRow >>> 2, rowWords);
    }
    return -1;
  }

  sortByShard(
    keys: number,
    count: number,
    shardNum: number,
    shards: number,
    ends: number,
    sorted: number,
    positions: number,
  ): void {
    const words = this.#words;
    for (let i = 0; i < count; i++) {
      const at = (keys >>> 2) + 2 * i;
      words[(shards >>> 2) + i] = computeShard(words[at]!, words[at + 1]!, shardNum);
    }
    const endOf = this.#countParts(shards, count, ends, shardNum);
    for (let i = 0; i < count; i++) {
      const at = endOf[words[(shards >>> 2) + i]!]!++;
      this.#copyRow((sorted >>> 2) + 2 * at, (keys >>> 2) + 2 * i, 2);
      words[(positions >>> 2) + at] = i;
    }
  }

  scatterRows(
    source: number,
    rowBytes: number,
    positions: number,
    count: number,
    target: number,
  ): void {
    const rowWords = rowBytes >>> 2;
    for (let i = 0; i < count; i++) {
      const position = this.#words[(positions >>> 2) + i]!;
      this.#copyRow((target >>> 2) + position * rowWords, (source >>> 2) + i * rowWords, rowWords);
    }
  }

  /**
   * Counts the entries of each part. @param parts address of the part of each entry
   * @returns the words at `ends`: where the entries of each part start, once sorted
   */
  #countParts(parts: number, count: number, ends: number, partCount: number): Uint32Array {
    const words = this.#words;
    const startOf = words.subarray(ends >>> 2, (ends >>> 2) + partCount).fill(0);
    for (let i = 0; i < count; i++) startOf[words[(parts >>> 2) + i]!]!++;
    let start = 0;
    for (let part = 0; part < partCount; part++) {
      const own = startOf[part]!;
      startOf[part] = start;
      start += own;
    }
    return startOf;
  }

  /** Copies the row of key `i` if an inline segment has it. @returns hits */
  #take(
    params: number,
    keys: number,
    found: number,
    rows: number,
    decided: number,
    i: number,
  ): number {
    const words = this.#words;
    const mixed = this.#mixed;
    const field = (offset: number): number => words[(params + offset) >>> 2]!;
    const low = words[(keys >>> 2) + 2 * i]!;
    const high = words[(keys >>> 2) + 2 * i + 1]!;
    const emptyLow = field(EMPTY_KEY);
    const emptyHigh = field(EMPTY_KEY + 4);
    const stride = field(STRIDE) >>> 2;
    const rowWords = field(ROW_BYTES) >>> 2;
    mixKey(low, high, mixed, 0);
    let slot = (field(BASE_ADDRESS) >>> 2) + multiplyHigh(mixed[1]!, field(HOME_SLOTS)) * stride;
    for (; ; slot += stride) {
      const [slotLow, slotHigh] = [words[slot]!, words[slot + 1]!];
      // First, because the key that is looked up may be the empty key.
      if (slotLow === emptyLow && slotHigh === emptyHigh) return 0;
      if (slotLow === low && slotHigh === high) break;
    }
    this.#copyRow((rows >>> 2) + i * rowWords, slot + 2, rowWords);
    this.#mark(found, decided, i);
    return 1;
  }

  /** The row's number in this segment, or -1. */
  #denseRow(params: number, low: number, high: number): number {
    const words = this.#words;
    const firstLow = words[(params + FIRST_KEY) >>> 2]!;
    const firstHigh = words[(params + FIRST_KEY + 4) >>> 2]!;
    if (high < firstHigh || (high === firstHigh && low < firstLow)) return -1;
    const borrow = low < firstLow ? 1 : 0;
    const distanceLow = (low - firstLow) >>> 0;
    const distanceHigh = high - firstHigh - borrow;
    let row = distanceHigh * 0x1_0000_0000 + distanceLow;
    if (words[(params + KEY_STEP) >>> 2] !== 1 || words[(params + KEY_STEP + 4) >>> 2] !== 0) {
      const step = this.#readBigint(params + KEY_STEP);
      if (!divideExactly(distanceLow, distanceHigh, step)) return -1;
      row = quotientWords[1]! * 0x1_0000_0000 + quotientWords[0]!;
    }
    row -=
      words[(params + FIRST_ROW + 4) >>> 2]! * 0x1_0000_0000 + words[(params + FIRST_ROW) >>> 2]!;
    return row <
      words[(params + ROW_COUNT + 4) >>> 2]! * 0x1_0000_0000 + words[(params + ROW_COUNT) >>> 2]!
      ? row
      : -1;
  }

  #copyRow(target: number, source: number, length: number): void {
    const words = this.#words;
    if (length >= 64) {
      words.copyWithin(target, source, source + length);
      return;
    }
    for (let i = 0; i < length; i++) words[target + i] = words[source + i]!;
  }

  #expandHalves(dtype: number, from: number, to: number, dim: number): void {
    const words = this.#words;
    const widen = dtype === DTYPE_F16 ? f16ToF32Bits : bf16ToF32Bits;
    for (let i = 0; i < dim; i++) words[to + i] = widen(this.#half(from + 2 * i));
  }

  #expandLevels(from: number, to: number, dim: number): void {
    const bytes = this.#bytes;
    const floats = this.#floats;
    const scale = f16ToNumber(this.#half(from));
    const offset = f16ToNumber(this.#half(from + 2));
    for (let i = 0; i < dim; i++) floats[to + i] = offset + bytes[from + 4 + i]! * scale;
  }

  #half(at: number): number {
    return this.#bytes[at]! | (this.#bytes[at + 1]! << 8);
  }

  #isDecided(decided: number, i: number): boolean {
    return ((this.#words[(decided >>> 2) + (i >>> 5)]! >>> (i & 31)) & 1) === 1;
  }

  #mark(found: number, decided: number, i: number): void {
    this.#words[(found >>> 2) + (i >>> 5)]! |= 1 << (i & 31);
    this.#words[(decided >>> 2) + (i >>> 5)]! |= 1 << (i & 31);
  }

  #clear(found: number, count: number): void {
    this.#words.fill(0, found >>> 2, (found >>> 2) + ((count + 31) >>> 5));
  }

  /** A u64 at a byte address. */
  #readBigint(address: number): bigint {
    const at = address >>> 2;
    return (BigInt(this.#words[at + 1]!) << 32n) | BigInt(this.#words[at]!);
  }

  #reduce(at: number, modulo: bigint): void {
    const words = this.#words;
    const reduced = this.#readBigint(4 * at) % modulo;
    words[at] = Number(reduced & 0xffff_ffffn);
    words[at + 1] = Number(reduced >> 32n);
  }
}

export function createPortableKernels(buffer: SharedArrayBuffer): Kernels {
  return new PortableKernels(buffer);
}
