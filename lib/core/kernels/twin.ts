/**
 * The kernels in plain TypeScript over the same memory layout (drawn in contract.ts): what serves where WebAssembly
 * SIMD is missing, and what the kernels are held equal to. Words are 32-bit; no BigInt, no object per key.
 */
import { mixKey, multiplyHigh, shardOf } from '../keys.ts';
import type { Kernels } from './contract.ts';
import { xxh64Words } from './xxh64.ts';

/** x / y of unsigned 64-bit numbers is needed only for dense steps that are no power of two: exact, by BigInt words. */
const wide = new BigUint64Array(2);
const wideWords = new Uint32Array(wide.buffer);

/** The quotient's words, or false when the division leaves a rest. */
function divideExactly(low: number, high: number, step: bigint): boolean {
  wideWords[0] = low;
  wideWords[1] = high;
  const value = wide[0]!;
  if (value % step !== 0n) return false;
  wide[0] = value / step;
  return true;
}

class Twin implements Kernels {
  readonly #bytes: Uint8Array;
  readonly #words: Uint32Array;
  readonly #mixed = new Uint32Array(2);

  constructor(buffer: SharedArrayBuffer) {
    this.#bytes = new Uint8Array(buffer);
    this.#words = new Uint32Array(buffer);
  }

  xxh64(at: number, length: number, seedLow: number, seedHigh: number, hash: number): void {
    xxh64Words(this.#bytes, at, at + length, seedLow, seedHigh, this.#words, hash >>> 2);
  }

  hashTexts(params: number, texts: number, ends: number, count: number, keys: number): void {
    const words = this.#words;
    const seedLow = words[params >>> 2]!;
    const seedHigh = words[(params >>> 2) + 1]!;
    const modulo = (BigInt(words[(params >>> 2) + 3]!) << 32n) | BigInt(words[(params >>> 2) + 2]!);
    let start = 0;
    for (let i = 0; i < count; i++) {
      const end = words[(ends >>> 2) + i]!;
      const at = (keys >>> 2) + 2 * i;
      xxh64Words(this.#bytes, texts + start, texts + end, seedLow, seedHigh, words, at);
      if (modulo !== 0n) this.#reduce(at, modulo);
      start = end;
    }
  }

  lookupInline(
    params: number,
    _work: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
  ): number {
    const words = this.#words;
    const mixed = this.#mixed;
    const p = params >>> 2;
    const emptyLow = words[p]!;
    const emptyHigh = words[p + 1]!;
    const homeSlots = words[p + 4]!;
    const stride = words[p + 11]! >>> 2;
    const base = words[p + 10]! >>> 2;
    const rowWords = words[p + 12]! >>> 2;
    const segment = words[p + 13]!;
    const segmentCount = words[p + 14]!;
    let hits = 0;
    if (segment === 0) this.#clear(found, count);
    for (let i = 0; i < count; i++) {
      const low = words[(keys >>> 2) + 2 * i]!;
      const high = words[(keys >>> 2) + 2 * i + 1]!;
      mixKey(low, high, mixed, 0);
      if (segmentCount > 1 && multiplyHigh(mixed[0]!, segmentCount) !== segment) continue;
      let slot = base + multiplyHigh(mixed[1]!, homeSlots) * stride;
      for (;;) {
        const slotLow = words[slot]!;
        const slotHigh = words[slot + 1]!;
        if (slotLow === emptyLow && slotHigh === emptyHigh) break;
        if (slotLow === low && slotHigh === high) {
          this.#copyRow((rows >>> 2) + i * rowWords, slot + 2, rowWords);
          words[(found >>> 2) + (i >>> 5)]! |= 1 << (i & 31);
          hits++;
          break;
        }
        slot += stride;
      }
    }
    return hits;
  }

  lookupDense(
    params: number,
    _work: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
  ): number {
    const words = this.#words;
    const p = params >>> 2;
    const rowWords = words[p + 12]! >>> 2;
    const stride = words[p + 11]! >>> 2;
    const base = words[p + 10]! >>> 2;
    if (words[p + 13] === 0) this.#clear(found, count);
    let hits = 0;
    for (let i = 0; i < count; i++) {
      const row = this.#denseRow(p, words[(keys >>> 2) + 2 * i]!, words[(keys >>> 2) + 2 * i + 1]!);
      if (row < 0) continue;
      this.#copyRow((rows >>> 2) + i * rowWords, base + row * stride, rowWords);
      words[(found >>> 2) + (i >>> 5)]! |= 1 << (i & 31);
      hits++;
    }
    return hits;
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
    const p = params >>> 2;
    const rowWords = words[p + 12]! >>> 2;
    for (let i = 0; i < count; i++) {
      if ((words[(found >>> 2) + (i >>> 5)]! >>> (i & 31)) & 1) continue;
      const at = (keys >>> 2) + 2 * i;
      if (shardOf(words[at]!, words[at + 1]!, words[p + 18]!) !== words[p + 17]) return i;
      this.#copyRow((rows >>> 2) + i * rowWords, defaultRow >>> 2, rowWords);
    }
    return -1;
  }

  /** The row's number in this segment, or -1. */
  #denseRow(p: number, low: number, high: number): number {
    const words = this.#words;
    const firstLow = words[p]!;
    const firstHigh = words[p + 1]!;
    if (high < firstHigh || (high === firstHigh && low < firstLow)) return -1;
    const borrow = low < firstLow ? 1 : 0;
    const distanceLow = (low - firstLow) >>> 0;
    const distanceHigh = high - firstHigh - borrow;
    let row = distanceHigh * 0x1_0000_0000 + distanceLow;
    if (words[p + 2] !== 1 || words[p + 3] !== 0) {
      const step = (BigInt(words[p + 3]!) << 32n) | BigInt(words[p + 2]!);
      if (!divideExactly(distanceLow, distanceHigh, step)) return -1;
      row = wideWords[1]! * 0x1_0000_0000 + wideWords[0]!;
    }
    row -= words[p + 7]! * 0x1_0000_0000 + words[p + 6]!;
    return row < words[p + 9]! * 0x1_0000_0000 + words[p + 8]! ? row : -1;
  }

  #copyRow(target: number, source: number, length: number): void {
    const words = this.#words;
    if (length >= 64) {
      words.copyWithin(target, source, source + length);
      return;
    }
    for (let i = 0; i < length; i++) words[target + i] = words[source + i]!;
  }

  #clear(found: number, count: number): void {
    this.#words.fill(0, found >>> 2, (found >>> 2) + ((count + 31) >>> 5));
  }

  #reduce(at: number, modulo: bigint): void {
    const words = this.#words;
    const reduced = ((BigInt(words[at + 1]!) << 32n) | BigInt(words[at]!)) % modulo;
    words[at] = Number(reduced & 0xffff_ffffn);
    words[at + 1] = Number(reduced >> 32n);
  }
}

export function createTwin(buffer: SharedArrayBuffer): Kernels {
  return new Twin(buffer);
}
