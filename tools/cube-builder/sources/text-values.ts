/**
 * Parses keys and floats from the bytes of a text, and hashes text keys. Keys are exact over 64
 * bits. Strings are created only for floats of more than 15 digits.
 */
import { RowHasher } from '../../../lib/core/hash.ts';

const ZERO = 48;
const NINE = 57;
/** Powers of ten that are exact as doubles. */
const POWERS = Float64Array.from({ length: 23 }, (_, i) => 10 ** i);
const FLOAT = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/;
const NOT_FINITE = /^([+-])?(?:(nan)|inf(?:inity)?)$/i;
/** Result of `parseFloatBytes` for text that is not a number; the text NaN gives NaN. */
export const NOT_A_NUMBER: undefined = undefined;

/** Parses an unsigned decimal key into two words. @returns false if it is not a 64-bit integer */
export function parseKey(
  bytes: Uint8Array,
  start: number,
  end: number,
  words: Uint32Array,
): boolean {
  while (start < end && bytes[start]! <= 32) start += 1;
  while (start < end && bytes[end - 1]! <= 32) end -= 1;
  if (start === end || end - start > 64) return false;
  let low = 0;
  let high = 0;
  for (let i = start; i < end; i++) {
    const digit = bytes[i]! - ZERO;
    if (digit < 0 || digit > 9) return false;
    low = low * 10 + digit;
    const carry = Math.floor(low / 0x1_0000_0000);
    low -= carry * 0x1_0000_0000;
    high = high * 10 + carry;
    if (high > 0xffff_ffff) return false;
  }
  words[0] = low;
  words[1] = high;
  return true;
}

/** Parses a decimal float, NaN or infinity with optional spaces. @returns NOT_A_NUMBER otherwise */
export function parseFloatBytes(bytes: Buffer, start: number, end: number): number | undefined {
  while (start < end && bytes[start]! <= 32) start += 1;
  while (start < end && bytes[end - 1]! <= 32) end -= 1;
  let i = start;
  const negative = bytes[i] === 45;
  if (negative || bytes[i] === 43) i += 1;
  let mantissa = 0;
  let digits = 0;
  let scale = 0;
  let isFraction = false;
  for (; i < end; i++) {
    const byte = bytes[i]!;
    if (byte >= ZERO && byte <= NINE) {
      mantissa = mantissa * 10 + (byte - ZERO);
      digits += 1;
      if (isFraction) scale -= 1;
    } else if (byte === 46 && !isFraction) {
      isFraction = true;
    } else {
      break;
    }
  }
  // Leading zeros count as digits, so some numbers use the slow path needlessly; that is harmless.
  if (digits === 0 || digits > 15) return parseFloatText(bytes, start, end);
  if (i < end) {
    const exponent = parseExponent(bytes, i, end);
    if (exponent === undefined) return parseFloatText(bytes, start, end);
    scale += exponent;
  }
  if (scale < -22 || scale > 22) return parseFloatText(bytes, start, end);
  // Both operands are exact, so the result is rounded only once and is correct.
  const value = scale < 0 ? mantissa / POWERS[-scale]! : mantissa * POWERS[scale]!;
  return negative ? -value : value;
}

/** Parses an exponent such as "e-07". */
function parseExponent(bytes: Buffer, start: number, end: number): number | undefined {
  if ((bytes[start]! | 32) !== 101) return undefined;
  let i = start + 1;
  const negative = bytes[i] === 45;
  if (negative || bytes[i] === 43) i += 1;
  if (i === end || end - i > 3) return undefined;
  let exponent = 0;
  for (; i < end; i++) {
    const digit = bytes[i]! - ZERO;
    if (digit < 0 || digit > 9) return undefined;
    exponent = exponent * 10 + digit;
  }
  return negative ? -exponent : exponent;
}

function parseFloatText(bytes: Buffer, start: number, end: number): number | undefined {
  if (end - start > 1024) return NOT_A_NUMBER;
  const text = bytes.toString('latin1', start, end);
  if (FLOAT.test(text)) return Number(text);
  const match = NOT_FINITE.exec(text);
  if (match === null) return NOT_A_NUMBER;
  if (match[2] !== undefined) return Number.NaN;
  return match[1] === '-' ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
}

function isSeparator(byte: number): boolean {
  return byte <= 32 || byte === 44;
}

/**
 * Parses floats separated by spaces or commas, with or without brackets, into `values`.
 * @returns the count, or −1 − i if element i is not a number
 */
export function parseFloatList(
  bytes: Buffer,
  start: number,
  end: number,
  values: number[],
): number {
  while (start < end && bytes[start]! <= 32) start += 1;
  while (start < end && bytes[end - 1]! <= 32) end -= 1;
  const open = bytes[start];
  if (start < end && (open === 91 || open === 40)) {
    if (bytes[end - 1] !== open + (open === 91 ? 2 : 1)) return -1;
    start += 1;
    end -= 1;
  }
  let count = 0;
  let at = start;
  for (;;) {
    while (at < end && isSeparator(bytes[at]!)) at += 1;
    if (at >= end) return count;
    let stop = at;
    while (stop < end && !isSeparator(bytes[stop]!)) stop += 1;
    const value = parseFloatBytes(bytes, at, stop);
    if (value === NOT_A_NUMBER) return -1 - count;
    values[count] = value;
    count += 1;
    at = stop;
  }
}

const hashers = new Map<number, RowHasher>();

/**
 * Hashes a text key as serving hashes features of slot `slot` (docs/formats/keys.md, scheme
 * `xxh64-concat`) into two words (low, high).
 */
export function signKey(slot: number, feature: string, words: Uint32Array): void {
  let hasher = hashers.get(slot);
  if (hasher === undefined) {
    const slots = [{ name: 'key', index: slot }];
    hasher = new RowHasher({ scheme: 'xxh64-concat', seed: 0n, modulo: 0n }, slots);
    hashers.set(slot, hasher);
  }
  hasher.hashRows([feature], 1, words);
}
