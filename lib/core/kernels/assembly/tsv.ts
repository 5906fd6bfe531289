/**
 * Parses lines of tab-separated columns to numbers and keys; params.ts lists the parameter block.
 */

import {
  HASH_MODULO,
  HASH_SEED,
  TSV_DENSE,
  TSV_DENSE_NUM,
  TSV_KEYS,
  TSV_LABELLED,
  TSV_LABELS,
  TSV_LINE_MAX,
  TSV_NEXT_LINE,
  TSV_NON_ASCII,
  TSV_OTHER_COUNT,
  TSV_OTHER_NUMBERS,
  TSV_PREFIXES,
  TSV_PREFIX_BYTES,
  TSV_SLOT_NUM,
  TSV_STAGE,
} from '../params';
import { hashBytes, hashWords } from './hashing';
import { wideBytes } from './texts';

const TAB: u8 = 9;
const NEWLINE: u8 = 10;
const CARRIAGE_RETURN: u8 = 13;
const MINUS: u8 = 45;
const ZERO: u8 = 48;
/** Any integer of this many digits is exact as a double. */
const DIGITS_MAX: usize = 15;
const NOT_PLAIN: i32 = -1;

export function countLines(at: usize, end: usize): u32 {
  let lines: u32 = 0;
  for (; at + 16 <= end; at += 16) {
    lines += popcnt<u32>(i8x16.bitmask(i8x16.eq(v128.load(at), i8x16.splat(NEWLINE))));
  }
  for (; at < end; at++) lines += <u32>(load<u8>(at) == NEWLINE);
  return lines;
}

/** Bytes up to the next tab or line break; 16 when it is farther. */
// @ts-ignore: decorator
@inline
function columnLength(at: usize): u32 {
  const bytes = v128.load(at);
  const stops = v128.or(i8x16.eq(bytes, i8x16.splat(TAB)), i8x16.eq(bytes, i8x16.splat(NEWLINE)));
  return ctz<u32>(i8x16.bitmask(stops) | 0x10000);
}

const ONES: u64 = 0x0101010101010101;
const HIGH_BITS: u64 = 0x8080808080808080;

/**
 * Parses an integer of up to seven characters, or nothing, before a tab: all digits at once.
 * @returns the start of the next column; `at` for other text
 */
// @ts-ignore: decorator
@inline
function shortInteger(at: usize, target: usize): usize {
  let word = load<u64>(at);
  const sign: u64 = select<u64>(1, 0, (word & 0xff) == MINUS);
  word >>= sign << 3;
  const untabbed = word ^ (ONES * TAB);
  const tabs = (untabbed - ONES) & ~untabbed & HIGH_BITS;
  const digits = ctz<u64>(tabs | HIGH_BITS << 56) >> 3;
  if (digits == 0 && sign == 0) {
    store<f64>(target, NaN);
    return at + 1;
  }
  // Adds zeros before the digits, which are in the highest bytes.
  const padded = digits == 0
    ? 0
    : (word << (64 - (digits << 3))) | ((ONES * ZERO) >> (digits << 3));
  let value = padded - ONES * ZERO;
  const isInteger = tabs != 0 && digits > 0 && ((value | (value + ONES * 0x76)) & HIGH_BITS) == 0;
  if (!isInteger) return at;
  value = ((value * 2561) >> 8) & 0x00ff00ff00ff00ff;
  value = ((value * 6553601) >> 16) & 0x0000ffff0000ffff;
  value = (value * 42949672960001) >> 32;
  store<f64>(target, sign != 0 ? -(<f64>value) : <f64>value);
  return at + <usize>(sign + digits) + 1;
}

/**
 * Parses an integer of up to 15 digits. @returns its end, which is a tab unless it is other text
 */
function longInteger(at: usize, target: usize): usize {
  const isNegative = load<u8>(at) == MINUS;
  if (isNegative) at++;
  const from = at;
  let integer: u64 = 0;
  let digit = <u32>load<u8>(at) - <u32>ZERO;
  while (digit <= 9) {
    integer = integer * 10 + digit;
    digit = <u32>load<u8>(++at) - <u32>ZERO;
  }
  const digits = at - from;
  store<f64>(target, isNegative ? -(<f64>integer) : <f64>integer);
  return digits > 0 && digits <= DIGITS_MAX ? at : from - <usize>isNegative;
}

export function readTsv(params: usize, at: usize, end: usize, rowsMax: u32): i32 {
  const denseNum = load<u32>(params, TSV_DENSE_NUM);
  const slotNum = load<u32>(params, TSV_SLOT_NUM);
  const prefixes = <usize>load<u32>(params, TSV_PREFIXES);
  const stage = <usize>load<u32>(params, TSV_STAGE);
  const isLabelled = load<u32>(params, TSV_LABELLED) != 0;
  const lineMax = <usize>load<u32>(params, TSV_LINE_MAX);
  const seed = load<u64>(params, HASH_SEED);
  const modulo = load<u64>(params, HASH_MODULO);
  let keys = <usize>load<u32>(params, TSV_KEYS);
  let dense = <usize>load<u32>(params, TSV_DENSE);
  const labels = <usize>load<u32>(params, TSV_LABELS);
  const odd = <usize>load<u32>(params, TSV_OTHER_NUMBERS);
  let oddNum: u32 = 0;
  let seen: u32 = 0;
  let row: u32 = 0;
  for (; row < rowsMax && at < end; row++) {
    const start = at;
    if (isLabelled) {
      const label = <u32>(load<u8>(at) - ZERO);
      if (label > 1 || load<u8>(at, 1) != TAB) return NOT_PLAIN;
      store<f32>(labels + (<usize>row << 2), <f32>label);
      at += 2;
    }
    for (let i: u32 = 0; i < denseNum; i++) {
      const from = at;
      at = shortInteger(at, dense);
      if (at == from) {
        at = longInteger(at, dense);
        if (load<u8>(at) != TAB) {
          while (load<u8>(at) != TAB && load<u8>(at) != NEWLINE) at++;
          if (load<u8>(at) == NEWLINE) return NOT_PLAIN;
          const own = odd + <usize>(12 * oddNum++);
          store<u32>(own, row * denseNum + i);
          store<u32>(own, <u32>from, 4);
          store<u32>(own, <u32>at, 8);
        }
        at++;
      }
      dense += 8;
    }
    for (let slot: u32 = 0; slot < slotNum; slot++) {
      const prefix = prefixes + <usize>(slot * TSV_PREFIX_BYTES);
      const isLast = slot + 1 == slotNum;
      const prefixLength = <u32>load<u8>(prefix, TSV_PREFIX_BYTES - 1);
      const length = columnLength(at);
      if (prefixLength - 1 < 7 && length + prefixLength <= 16 && !isLast) {
        // The text stays in registers: a load from memory just written would stall.
        if (load<u8>(at + length) == NEWLINE) return NOT_PLAIN;
        const shift = <u64>(prefixLength << 3);
        const start = load<u64>(at);
        const first = load<u64>(prefix) | (start << shift);
        const second = ((start >> 1) >> (63 - shift)) | (load<u64>(at, 8) << shift);
        seen |= wideBytes(at, length);
        let key = hashWords(first, second, prefixLength + length, seed);
        if (modulo != 0) key %= modulo;
        store<u64>(keys, key);
        keys += 8;
        at += length + 1;
        continue;
      }
      const textAt = stage + prefixLength;
      let to = textAt;
      v128.store(stage, v128.load(prefix));
      for (;;) {
        const bytes = v128.load(at);
        v128.store(to, bytes);
        const length = columnLength(at);
        seen |= wideBytes(at, length);
        at += length;
        to += length;
        if (length < 16) break;
        if (at - start > lineMax) return NOT_PLAIN;
      }
      if ((load<u8>(at) == NEWLINE) != isLast) return NOT_PLAIN;
      if (isLast && to > textAt && load<u8>(to - 1) == CARRIAGE_RETURN) to--;
      let key = hashBytes(stage, to - stage, seed);
      if (modulo != 0) key %= modulo;
      store<u64>(keys, key);
      keys += 8;
      at++;
    }
    if (at - start > lineMax) return NOT_PLAIN;
  }
  store<u32>(params, oddNum, TSV_OTHER_COUNT);
  store<u32>(params, seen, TSV_NON_ASCII);
  store<u32>(params, <u32>at, TSV_NEXT_LINE);
  return row;
}
