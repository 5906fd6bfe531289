/**
 * Where keys belong in a searched table (layout inline, the index of layout indexed, the deleted
 * keys of a delta): segment, home slot and order; and what all keys of a shard determine: the empty
 * key, and whether they are a progression. A function of the set of keys alone. A writer that never
 * holds all keys in memory can use it too.
 */
import { CubeError } from './errors.ts';
import { keyToBigint, mixKey, multiplyHigh } from './keys.ts';

/** The smallest number of segments worth trying: with fewer, no table of `count` keys fits. */
export function minSegmentCount(count: number, slotsMax: number): number {
  return Math.ceil((1.25 * count) / Math.max(1, slotsMax - 1));
}

/** @param mixed of the key, by `mixKey`, at `mixed[at]` */
export function computeSegment(mixed: Uint32Array, at: number, segmentCount: number): number {
  return multiplyHigh(mixed[at]!, segmentCount);
}

/** @param mixed of the key, by `mixKey`, at `mixed[at]` */
export function computeHomeSlot(mixed: Uint32Array, at: number, homeSlots: number): number {
  return multiplyHigh(mixed[at + 1]!, homeSlots);
}

/**
 * Assigns slots of a segment to keys in (home, key) order: each at its home slot or the next free
 * slot.
 */
export class SlotCursor {
  /** Index after the last slot taken. */
  used = 0;

  /** @returns the slot of the next key */
  takeSlot(home: number): number {
    const slot = Math.max(home, this.used);
    this.used = slot + 1;
    return slot;
  }

  /** Number of slots of the segment. The last one is always empty. */
  slotCount(homeSlots: number): number {
    return Math.max(this.used, homeSlots) + 1;
  }
}

/** Finds the largest u64 that is not among the keys added. */
export class EmptyKeyFinder {
  readonly #window: number;
  /** Bit i: 2^64 − 1 − i is a key. Among n keys the empty key is one of the last n + 1 numbers. */
  #taken: Uint8Array | undefined;

  /** @param keyCount maximum number of keys to be added */
  constructor(keyCount: number) {
    this.#window = Math.min(keyCount + 1, 2 ** 32);
  }

  add(keys: Uint32Array): void {
    for (let i = 0; i < keys.length; i += 2) {
      if (keys[i + 1] !== 0xffff_ffff) continue;
      const fromEnd = 0xffff_ffff - keys[i]!;
      if (fromEnd >= this.#window) continue;
      this.#taken ??= new Uint8Array(Math.ceil(this.#window / 8));
      this.#taken[Math.floor(fromEnd / 8)]! |= 1 << (fromEnd % 8);
    }
  }

  emptyKey(): bigint {
    let fromEnd = 0;
    const taken = this.#taken;
    if (taken !== undefined) {
      while ((taken[Math.floor(fromEnd / 8)]! >>> (fromEnd % 8)) & 1) fromEnd += 1;
    }
    return 2n ** 64n - 1n - BigInt(fromEnd);
  }
}

/** Keys first + i · step, i = 0 … count − 1. */
export interface Progression {
  readonly firstLow: number;
  readonly firstHigh: number;
  readonly step: number;
}

/** key − first as a number, exact while its magnitude is below 2^53. */
export function keyDistance(
  low: number,
  high: number,
  firstLow: number,
  firstHigh: number,
): number {
  return (high - firstHigh) * 0x1_0000_0000 + (low - firstLow);
}

/**
 * Determines whether distinct keys, added in any order, are a progression that spans less than
 * 2^53.
 */
export class ProgressionFinder {
  #count = 0;
  #firstLow = 0;
  #firstHigh = 0;
  /** Distances of the smallest and the largest key from the first one added. */
  #least = 0;
  #greatest = 0;
  /** Greatest common divisor of all distances. */
  #divisor = 0;
  #possible = true;

  add(keys: Uint32Array): void {
    for (let i = 0; i < keys.length && this.#possible; i += 2) this.#addKey(keys[i]!, keys[i + 1]!);
  }

  #addKey(low: number, high: number): void {
    if (this.#count === 0) {
      this.#firstLow = low;
      this.#firstHigh = high;
    }
    this.#count += 1;
    const distance = keyDistance(low, high, this.#firstLow, this.#firstHigh);
    if (distance < this.#least) this.#least = distance;
    if (distance > this.#greatest) this.#greatest = distance;
    if (this.#greatest - this.#least > Number.MAX_SAFE_INTEGER) this.#possible = false;
    else this.#divisor = greatestCommonDivisor(Math.abs(distance), this.#divisor);
  }

  /** @returns undefined when the keys are no progression, or when there are none */
  progression(): Progression | undefined {
    const count = this.#count;
    if (count === 0 || !this.#possible) return undefined;
    if (count > 1 && this.#divisor === 0) return undefined;
    if (this.#greatest - this.#least !== this.#divisor * (count - 1)) return undefined;
    const first = ((BigInt(this.#firstHigh) << 32n) | BigInt(this.#firstLow)) + BigInt(this.#least);
    return {
      firstLow: Number(first & 0xffff_ffffn),
      firstHigh: Number(first >> 32n),
      step: count === 1 ? 1 : this.#divisor,
    };
  }
}

function greatestCommonDivisor(a: number, b: number): number {
  while (a !== 0) {
    const rest = b % a;
    b = a;
    a = rest;
  }
  return b;
}

/** The keys of one segment, as indexes into the input, in (home, key) order. */
export interface SegmentOrder {
  readonly order: Uint32Array;
  readonly slots: number;
}

/**
 * Splits keys that are all in memory into segments and orders each segment by (home, key).
 * @param repeated verb phrase for a duplicate key in the error
 * @throws CubeError INVALID_ARGUMENT naming a duplicate key
 */
export function orderKeys(
  keys: Uint32Array,
  segmentCount: number,
  homeSlots: number,
  repeated = 'comes twice',
): SegmentOrder[] {
  const count = keys.length / 2;
  const homes = new Uint32Array(count);
  const segmentOfKey = new Uint8Array(segmentCount > 1 ? count : 0);
  const inSegment = new Uint32Array(segmentCount);
  const mixed = new Uint32Array(2);
  for (let i = 0; i < count; i++) {
    mixKey(keys[2 * i]!, keys[2 * i + 1]!, mixed, 0);
    homes[i] = computeHomeSlot(mixed, 0, homeSlots);
    const segment = segmentCount > 1 ? computeSegment(mixed, 0, segmentCount) : 0;
    if (segmentCount > 1) segmentOfKey[i] = segment;
    inSegment[segment]! += 1;
  }
  return Array.from({ length: segmentCount }, (_, segment) => {
    const order = new Uint32Array(inSegment[segment]!);
    sortByHome(segmentOfKey, segment, homes, homeSlots, order);
    sortRuns(keys, homes, order, repeated);
    const cursor = new SlotCursor();
    for (let i = 0; i < order.length; i++) cursor.takeSlot(homes[order[i]!]!);
    return { order, slots: cursor.slotCount(homeSlots) };
  });
}

/** Counting sort by home slot of the keys of one segment. */
function sortByHome(
  segmentOfKey: Uint8Array,
  segment: number,
  homes: Uint32Array,
  homeSlots: number,
  order: Uint32Array,
): void {
  const split = segmentOfKey.length > 0;
  const starts = new Uint32Array(homeSlots + 1);
  for (let i = 0; i < homes.length; i++) {
    if (!split || segmentOfKey[i] === segment) starts[homes[i]! + 1]! += 1;
  }
  for (let home = 0; home < homeSlots; home++) starts[home + 1]! += starts[home]!;
  for (let i = 0; i < homes.length; i++) {
    if (split && segmentOfKey[i] !== segment) continue;
    const home = homes[i]!;
    order[starts[home]!] = i;
    starts[home]! += 1;
  }
}

/** Insertion sort by key among keys with the same home slot: they are few. Detects duplicates. */
function sortRuns(
  keys: Uint32Array,
  homes: Uint32Array,
  order: Uint32Array,
  repeated: string,
): void {
  for (let i = 1; i < order.length; i++) {
    const key = order[i]!;
    let at = i;
    for (; at > 0; at--) {
      const before = order[at - 1]!;
      if (homes[before] !== homes[key]) break;
      const difference =
        keys[2 * key + 1]! - keys[2 * before + 1]! || keys[2 * key]! - keys[2 * before]!;
      if (difference > 0) break;
      if (difference === 0) {
        throw new CubeError('INVALID_ARGUMENT', `key ${keyToBigint(keys, key)} ${repeated}`);
      }
      order[at] = before;
    }
    order[at] = key;
  }
}
