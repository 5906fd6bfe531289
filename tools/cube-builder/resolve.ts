/**
 * Records of one key range to what a layer holds: equal keys meet, the last one in input order is meant. In the order of
 * (high half of the mixed key, key) where that is asked for, else in that of the input: what is gathered then lies one after
 * another in memory.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { mixKey } from '../../lib/core/keys.ts';
import { DELETED, OLD_SIDE, payloadBytes, RECORD_HEAD_WORDS, recordWords } from './records.ts';
import type { Scratch } from './scratch.ts';

/** base: deleted keys are dropped · delta: they are kept apart · diff: what turns the old side into the new one. */
export type ResolveMode = 'base' | 'delta' | 'diff';

export interface ResolveOptions {
  readonly mode: ResolveMode;
  /** A key that comes twice is an error. */
  readonly distinct: boolean;
  /** In order of the mixed key. */
  readonly sorted: boolean;
  /** Leading bits of the mixed key that all records share. */
  readonly knownBits: number;
}

/** The records that are meant, as word offsets, in order. */
export interface Resolved {
  readonly upserts: Uint32Array;
  readonly deleted: Uint32Array;
}

/** Beyond this, a bin of equal mixed bits is sorted by the engine: insertion would be quadratic. */
const INSERTION_MAX = 32;

interface Scan {
  readonly offsets: Uint32Array;
  /** Keys ascend strictly. */
  readonly ascending: boolean;
  /** Nothing is deleted, nothing is of an old side: a key that comes once is a row. */
  readonly plain: boolean;
}

function scan(words: Uint32Array, count: number, scratch: Scratch): Scan {
  const offsets = scratch.words('offsets', count);
  let ascending = true;
  let plain = true;
  let lastLow = 0;
  let lastHigh = -1;
  for (let i = 0, at = 0; i < count; i++) {
    const low = words[at]!;
    const high = words[at + 1]!;
    const tag = words[at + 2]!;
    if (high < lastHigh || (high === lastHigh && low <= lastLow)) ascending = false;
    if (tag >= OLD_SIDE) plain = false;
    lastLow = low;
    lastHigh = high;
    offsets[i] = at;
    at += recordWords(tag);
  }
  return { offsets, ascending, plain };
}

/** @throws CubeError INVALID_ARGUMENT naming a key that comes twice, where that is an error */
export function resolveRecords(
  words: Uint32Array,
  count: number,
  options: ResolveOptions,
  scratch: Scratch,
): Resolved {
  const { offsets, ascending, plain } = scan(words, count, scratch);
  if (ascending && plain && !options.sorted) {
    return { upserts: offsets, deleted: new Uint32Array(0) };
  }
  const sorted = sortByMix(words, offsets, options.knownBits, scratch);
  const { upserts, deleted } = pick(words, sorted, plain, options);
  if (options.sorted) return { upserts, deleted };
  return { upserts: upserts.length === count ? offsets : upserts.sort(), deleted };
}

/** Offsets of records, and the high half of each one's mixed key. */
interface Sorted {
  readonly order: Uint32Array;
  readonly highs: Uint32Array;
}

/** Counting sort into about as many bins as records, then each bin by (mixed high half, key), stable. */
function sortByMix(
  words: Uint32Array,
  offsets: Uint32Array,
  knownBits: number,
  scratch: Scratch,
): Sorted {
  const count = offsets.length;
  const binBits = Math.max(1, Math.min(28, 31 - Math.clz32(Math.max(1, count)), 32 - knownBits));
  const shift = 32 - binBits;
  const known = Math.min(knownBits, 31);
  const highs = scratch.words('highs', count);
  const starts = scratch.words('starts', (1 << binBits) + 1).fill(0);
  const mixed = new Uint32Array(2);
  for (let i = 0; i < count; i++) {
    const at = offsets[i]!;
    mixKey(words[at]!, words[at + 1]!, mixed, 0);
    highs[i] = mixed[1]!;
    starts[((mixed[1]! << known) >>> shift) + 1]! += 1;
  }
  for (let bin = 0; bin < 1 << binBits; bin++) starts[bin + 1]! += starts[bin]!;
  const order = scratch.words('order', count);
  const sortedHighs = scratch.words('sorted highs', count);
  const ends = scratch.words('ends', 1 << binBits);
  ends.set(starts.subarray(0, 1 << binBits));
  for (let i = 0; i < count; i++) {
    const to = ends[(highs[i]! << known) >>> shift]!++;
    order[to] = offsets[i]!;
    sortedHighs[to] = highs[i]!;
  }
  for (let bin = 0; bin < 1 << binBits; bin++) {
    sortBin(words, order, sortedHighs, starts[bin]!, starts[bin + 1]!);
  }
  return { order, highs: sortedHighs };
}

function sortBin(
  words: Uint32Array,
  order: Uint32Array,
  highs: Uint32Array,
  start: number,
  end: number,
): void {
  if (end - start > INSERTION_MAX) {
    sortLargeBin(words, order, highs, start, end);
    return;
  }
  for (let i = start + 1; i < end; i++) {
    const offset = order[i]!;
    const high = highs[i]!;
    let at = i;
    for (; at > start; at--) {
      const before = order[at - 1]!;
      const difference =
        high - highs[at - 1]! ||
        words[offset + 1]! - words[before + 1]! ||
        words[offset]! - words[before]!;
      if (difference >= 0) break;
      order[at] = before;
      highs[at] = highs[at - 1]!;
    }
    order[at] = offset;
    highs[at] = high;
  }
}

/** Many copies of few keys, or keys made to collide. Offsets ascend with input order, so they break ties. */
function sortLargeBin(
  words: Uint32Array,
  order: Uint32Array,
  highs: Uint32Array,
  start: number,
  end: number,
): void {
  const indices = Array.from({ length: end - start }, (_, i) => start + i);
  indices.sort((a, b) => {
    const one = order[a]!;
    const other = order[b]!;
    return (
      highs[a]! - highs[b]! ||
      words[one + 1]! - words[other + 1]! ||
      words[one]! - words[other]! ||
      one - other
    );
  });
  const offsets = indices.map((i) => order[i]!);
  const sortedHighs = indices.map((i) => highs[i]!);
  order.set(offsets, start);
  highs.set(sortedHighs, start);
}

function sameKey(words: Uint32Array, one: number, other: number): boolean {
  return words[one] === words[other] && words[one + 1] === words[other + 1];
}

/**
 * Of each run of equal keys the last record counts: of each side, when two are compared. A plain record whose mixed key is
 * alone is a row, and not looked at: that would be a miss of the cache for each.
 */
function pick(
  words: Uint32Array,
  { order, highs }: Sorted,
  plain: boolean,
  options: ResolveOptions,
): Resolved {
  const { mode } = options;
  const deleted: number[] = [];
  const count = order.length;
  let kept = 0;
  for (let i = 0; i < count; ) {
    const first = order[i]!;
    if (plain && (i + 1 === count || highs[i] !== highs[i + 1])) {
      order[kept++] = first;
      i += 1;
      continue;
    }
    let oldLast = -1;
    let newLast = -1;
    for (; i < count && sameKey(words, order[i]!, first); i++) {
      const at = order[i]!;
      const isOld = mode === 'diff' && (words[at + 2]! & OLD_SIDE) !== 0;
      if (options.distinct && (isOld ? oldLast : newLast) >= 0) refuseTwice(words, at);
      if (isOld) oldLast = at;
      else newLast = at;
    }
    const outcome = decide(words, oldLast, newLast, mode);
    if (outcome === 'upsert') {
      // Never ahead of what is read: `kept` counts groups, `i` records.
      order[kept++] = newLast;
    } else if (outcome === 'delete') {
      deleted.push(first);
    }
  }
  return { upserts: order.subarray(0, kept), deleted: Uint32Array.from(deleted) };
}

function decide(
  words: Uint32Array,
  oldAt: number,
  newAt: number,
  mode: ResolveMode,
): 'upsert' | 'delete' | 'nothing' {
  const isHere = (at: number): boolean => at >= 0 && (words[at + 2]! & DELETED) === 0;
  if (mode !== 'diff') {
    if (isHere(newAt)) return 'upsert';
    return mode === 'delta' ? 'delete' : 'nothing';
  }
  if (!isHere(newAt)) return isHere(oldAt) ? 'delete' : 'nothing';
  return isHere(oldAt) && samePayload(words, oldAt, newAt) ? 'nothing' : 'upsert';
}

function samePayload(words: Uint32Array, one: number, other: number): boolean {
  const bytes = payloadBytes(words[one + 2]!);
  if (bytes !== payloadBytes(words[other + 2]!)) return false;
  const end = recordWords(words[one + 2]!);
  for (let i = RECORD_HEAD_WORDS; i < end; i++) {
    if (words[one + i] !== words[other + i]) return false;
  }
  return true;
}

function refuseTwice(words: Uint32Array, at: number): never {
  const key = (BigInt(words[at + 1]!) << 32n) | BigInt(words[at]!);
  throw new CubeError(
    'INVALID_ARGUMENT',
    `key ${key} comes twice (--on-duplicate last takes the last one)`,
  );
}

/** @param keys 2n words, filled. @returns keys */
export function keysOf(words: Uint32Array, offsets: Uint32Array, keys: Uint32Array): Uint32Array {
  for (let i = 0; i < offsets.length; i++) {
    keys[2 * i] = words[offsets[i]!]!;
    keys[2 * i + 1] = words[offsets[i]! + 1]!;
  }
  return keys;
}

/** @param rows n · rowWords words, filled. @returns rows */
export function rowsOf(
  words: Uint32Array,
  offsets: Uint32Array,
  rowWords: number,
  rows: Uint32Array,
): Uint32Array {
  let to = 0;
  for (let i = 0; i < offsets.length; i++) {
    const from = offsets[i]! + RECORD_HEAD_WORDS;
    for (let j = 0; j < rowWords; j++) rows[to++] = words[from + j]!;
  }
  return rows;
}

/** Values one after another, and where each ends. */
export function valuesOf(
  words: Uint32Array,
  upserts: Uint32Array,
): { values: Uint8Array; ends: Uint32Array } {
  let total = 0;
  for (let i = 0; i < upserts.length; i++) total += payloadBytes(words[upserts[i]! + 2]!);
  const values = new Uint8Array(total);
  const ends = new Uint32Array(upserts.length);
  const bytes = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  let end = 0;
  for (let i = 0; i < upserts.length; i++) {
    const length = payloadBytes(words[upserts[i]! + 2]!);
    const from = 4 * (upserts[i]! + RECORD_HEAD_WORDS);
    values.set(bytes.subarray(from, from + length), end);
    end += length;
    ends[i] = end;
  }
  return { values, ends };
}
