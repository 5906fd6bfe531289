/** Lines of tab-separated columns to numbers and keys; contract.ts draws the parameter block. */

import { hashBytes, hashWords } from './hashing';

const TAB: u8 = 9;
const NEWLINE: u8 = 10;
const CARRIAGE_RETURN: u8 = 13;
const MINUS: u8 = 45;
const ZERO: u8 = 48;
/** What a double holds exactly whatever the digits are. */
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

/** Bytes up to the next tab or line break; 16 for all that are farther. */
// @ts-ignore: decorator
@inline
function columnLength(at: usize): u32 {
  const bytes = v128.load(at);
  const stops = v128.or(i8x16.eq(bytes, i8x16.splat(TAB)), i8x16.eq(bytes, i8x16.splat(NEWLINE)));
  return ctz<u32>(i8x16.bitmask(stops) | 0x10000);
}

/** Not zero: some of the next bytes, up to 16, are beyond ASCII. */
// @ts-ignore: decorator
@inline
function wideBytes(at: usize, length: u32): u32 {
  return i8x16.bitmask(v128.load(at)) & ((1 << length) - 1);
}

const ONES: u64 = 0x0101010101010101;
const HIGH_BITS: u64 = 0x8080808080808080;

/**
 * An integer of up to seven characters, or nothing, with a tab behind it: all its digits at once.
 * @returns where the next column begins; `at` when it is something else
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
  // Zeros before the digits, which stand in the highest bytes.
  const padded = digits == 0 ? 0 : (word << (64 - (digits << 3))) | ((ONES * ZERO) >> (digits << 3));
  let value = padded - ONES * ZERO;
  const isInteger = tabs != 0 && digits > 0 && ((value | (value + ONES * 0x76)) & HIGH_BITS) == 0;
  if (!isInteger) return at;
  value = ((value * 2561) >> 8) & 0x00ff00ff00ff00ff;
  value = ((value * 6553601) >> 16) & 0x0000ffff0000ffff;
  value = (value * 42949672960001) >> 32;
  store<f64>(target, sign != 0 ? -(<f64>value) : <f64>value);
  return at + <usize>(sign + digits) + 1;
}

/** One of up to 15 digits. @returns where it ends: at a tab, or it is something else */
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
  const denseNum = load<u32>(params, 16);
  const slotNum = load<u32>(params, 20);
  const prefixes = <usize>load<u32>(params, 24);
  const stage = <usize>load<u32>(params, 28);
  const isLabelled = load<u32>(params, 32) != 0;
  const lineMax = <usize>load<u32>(params, 36);
  const seed = load<u64>(params);
  const modulo = load<u64>(params, 8);
  let keys = <usize>load<u32>(params, 40);
  let dense = <usize>load<u32>(params, 44);
  const labels = <usize>load<u32>(params, 48);
  const odd = <usize>load<u32>(params, 52);
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
      const prefix = prefixes + (<usize>slot << 4);
      const isLast = slot + 1 == slotNum;
      const prefixLength = <u32>load<u8>(prefix, 15);
      const length = columnLength(at);
      if (prefixLength - 1 < 7 && length + prefixLength <= 16 && !isLast) {
        // No detour through memory, where what was just written would be waited for.
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
  store<u32>(params, oddNum, 56);
  store<u32>(params, seen, 60);
  store<u32>(params, <u32>at, 64);
  return row;
}
