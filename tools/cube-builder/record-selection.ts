/**
 * Selects the records of a key range that a layer contains: the last record of each key. The
 * result is sorted by (high half of the mixed key, key) on request, else it is in input order,
 * so that copying rows reads memory sequentially.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { mixKey } from '../../lib/core/keys.ts';
import {
  DELETED_FLAG,
  getPayloadBytes,
  getRecordWords,
  OLD_INPUT_FLAG,
  RECORD_HEAD_WORDS,
  type ReusableArrays,
} from './records.ts';

/**
 * base: drop deleted keys; delta: return them separately; diff: return the changes from the old
 * to the new input.
 */
export type SelectionMode = 'base' | 'delta' | 'diff';

export interface SelectionOptions {
  readonly mode: SelectionMode;
  /** Fail on duplicate keys instead of keeping the last record. */
  readonly rejectDuplicates: boolean;
  /** Return the records sorted by mixed key. */
  readonly sorted: boolean;
  /** Number of leading bits of the mixed key that all records share. */
  readonly knownBits: number;
}

/** Word offsets of the selected records, in order. */
export interface SelectedRecords {
  readonly upserts: Uint32Array;
  readonly deleted: Uint32Array;
  /** Records of the old input of a diff that were only compared, and deleted nothing. */
  readonly compared: number;
}

/** Larger bins are sorted by the engine, because insertion sort is quadratic. */
const INSERTION_MAX = 32;

interface RecordScan {
  readonly offsets: Uint32Array;
  /** Keys are strictly ascending. */
  readonly isAscending: boolean;
  /** No record has a flag: a key that occurs once is a row. */
  readonly isPlain: boolean;
}

function scanRecords(words: Uint32Array, count: number, arrays: ReusableArrays): RecordScan {
  const offsets = arrays.get('offsets', count);
  let ascending = true;
  let plain = true;
  let lastLow = 0;
  let lastHigh = -1;
  for (let i = 0, at = 0; i < count; i++) {
    const low = words[at]!;
    const high = words[at + 1]!;
    const tag = words[at + 2]!;
    if (high < lastHigh || (high === lastHigh && low <= lastLow)) ascending = false;
    if (tag >= OLD_INPUT_FLAG) plain = false;
    lastLow = low;
    lastHigh = high;
    offsets[i] = at;
    at += getRecordWords(tag);
  }
  return { offsets, isAscending: ascending, isPlain: plain };
}

/** @throws CubeError INVALID_ARGUMENT for a duplicate key, with `rejectDuplicates` */
export function selectRecords(
  words: Uint32Array,
  count: number,
  options: SelectionOptions,
  arrays: ReusableArrays,
): SelectedRecords {
  const { offsets, isAscending, isPlain } = scanRecords(words, count, arrays);
  if (isAscending && isPlain && !options.sorted) {
    return { upserts: offsets, deleted: new Uint32Array(0), compared: 0 };
  }
  const sorted = sortByMixedKey(words, offsets, options.knownBits, arrays);
  const selected = selectLastRecords(words, sorted, isPlain, options);
  if (options.sorted) return selected;
  const { upserts } = selected;
  return { ...selected, upserts: upserts.length === count ? offsets : upserts.sort() };
}

/** Offsets of records and the high half of each mixed key. */
interface SortedRecords {
  readonly order: Uint32Array;
  readonly highs: Uint32Array;
}

/** Stable: counting sort into about as many bins as records, then each bin by (high half, key). */
function sortByMixedKey(
  words: Uint32Array,
  offsets: Uint32Array,
  knownBits: number,
  arrays: ReusableArrays,
): SortedRecords {
  const count = offsets.length;
  const binBits = Math.max(1, Math.min(28, 31 - Math.clz32(Math.max(1, count)), 32 - knownBits));
  const shift = 32 - binBits;
  const known = Math.min(knownBits, 31);
  const highs = arrays.get('highs', count);
  const starts = arrays.get('starts', (1 << binBits) + 1).fill(0);
  const mixed = new Uint32Array(2);
  for (let i = 0; i < count; i++) {
    const at = offsets[i]!;
    mixKey(words[at]!, words[at + 1]!, mixed, 0);
    highs[i] = mixed[1]!;
    starts[((mixed[1]! << known) >>> shift) + 1]! += 1;
  }
  for (let bin = 0; bin < 1 << binBits; bin++) starts[bin + 1]! += starts[bin]!;
  const order = arrays.get('order', count);
  const sortedHighs = arrays.get('sorted highs', count);
  const ends = arrays.get('ends', 1 << binBits);
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

/** For repeated or colliding keys. Offsets ascend in input order, so they break ties. */
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

function hasSameKey(words: Uint32Array, one: number, other: number): boolean {
  return words[one] === words[other] && words[one + 1] === words[other + 1];
}

/**
 * Selects the last record of each key, separately for the old and new input of a diff. A record
 * without flags whose mixed key is unique is taken without reading it, which avoids a cache miss.
 */
function selectLastRecords(
  words: Uint32Array,
  { order, highs }: SortedRecords,
  plain: boolean,
  options: SelectionOptions,
): SelectedRecords {
  const { mode } = options;
  const deleted: number[] = [];
  const count = order.length;
  let kept = 0;
  let compared = 0;
  for (let i = 0; i < count; ) {
    const first = order[i]!;
    if (plain && (i + 1 === count || highs[i] !== highs[i + 1])) {
      order[kept++] = first;
      i += 1;
      continue;
    }
    let oldLast = -1;
    let newLast = -1;
    for (; i < count && hasSameKey(words, order[i]!, first); i++) {
      const at = order[i]!;
      const isOld = mode === 'diff' && (words[at + 2]! & OLD_INPUT_FLAG) !== 0;
      if (options.rejectDuplicates && (isOld ? oldLast : newLast) >= 0) failDuplicateKey(words, at);
      if (isOld) {
        oldLast = at;
        compared++;
      } else newLast = at;
    }
    const action = chooseAction(words, oldLast, newLast, mode);
    if (action === 'upsert') {
      // Overwriting `order` is safe: `kept` counts groups and `i` records, so kept <= i.
      order[kept++] = newLast;
    } else if (action === 'delete') {
      deleted.push(first);
      if (newLast < 0) compared--;
    }
  }
  return { upserts: order.subarray(0, kept), deleted: Uint32Array.from(deleted), compared };
}

function chooseAction(
  words: Uint32Array,
  oldAt: number,
  newAt: number,
  mode: SelectionMode,
): 'upsert' | 'delete' | 'nothing' {
  const exists = (at: number): boolean => at >= 0 && (words[at + 2]! & DELETED_FLAG) === 0;
  if (mode !== 'diff') {
    if (exists(newAt)) return 'upsert';
    return mode === 'delta' ? 'delete' : 'nothing';
  }
  if (!exists(newAt)) return exists(oldAt) ? 'delete' : 'nothing';
  return exists(oldAt) && hasSamePayload(words, oldAt, newAt) ? 'nothing' : 'upsert';
}

function hasSamePayload(words: Uint32Array, one: number, other: number): boolean {
  const bytes = getPayloadBytes(words[one + 2]!);
  if (bytes !== getPayloadBytes(words[other + 2]!)) return false;
  const end = getRecordWords(words[one + 2]!);
  for (let i = RECORD_HEAD_WORDS; i < end; i++) {
    if (words[one + i] !== words[other + i]) return false;
  }
  return true;
}

export function formatDuplicateKey(key: bigint): string {
  return `duplicate key ${key}; --on-duplicate last keeps the last row`;
}

function failDuplicateKey(words: Uint32Array, at: number): never {
  const key = (BigInt(words[at + 1]!) << 32n) | BigInt(words[at]!);
  throw new CubeError('INVALID_ARGUMENT', formatDuplicateKey(key));
}

/** @param keys 2n words, filled. @returns keys */
export function readKeys(words: Uint32Array, offsets: Uint32Array, keys: Uint32Array): Uint32Array {
  for (let i = 0; i < offsets.length; i++) {
    keys[2 * i] = words[offsets[i]!]!;
    keys[2 * i + 1] = words[offsets[i]! + 1]!;
  }
  return keys;
}

/** @param rows n · rowWords words, filled. @returns rows */
export function readRows(
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

/** Concatenates values. @returns the bytes and the end offset of each value */
export function readValues(
  words: Uint32Array,
  upserts: Uint32Array,
): { values: Uint8Array; ends: Uint32Array } {
  let total = 0;
  for (let i = 0; i < upserts.length; i++) total += getPayloadBytes(words[upserts[i]! + 2]!);
  const values = new Uint8Array(total);
  const ends = new Uint32Array(upserts.length);
  const bytes = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  let end = 0;
  for (let i = 0; i < upserts.length; i++) {
    const length = getPayloadBytes(words[upserts[i]! + 2]!);
    const from = 4 * (upserts[i]! + RECORD_HEAD_WORDS);
    values.set(bytes.subarray(from, from + length), end);
    end += length;
    ends[i] = end;
  }
  return { values, ends };
}
