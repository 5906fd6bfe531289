/** Hashes texts that follow their lengths, such as the elements of a string tensor. */

import {
  HASH_MODULO,
  HASH_SEED,
  TEXT_BYTES_MAX,
  TEXT_SLOT_BYTES,
  TEXT_SLOT_EMPTY_KEY,
  TEXT_SLOT_LENGTH,
} from '../params';
import { hashBytes, hashWords } from './hashing';

/** Not zero when the next `length` bytes, up to 16, contain one beyond ASCII. */
// @ts-ignore: decorator
@inline
export function wideBytes(at: usize, length: u32): u32 {
  return i8x16.bitmask(v128.load(at)) & ((1 << length) - 1);
}

/** The same for any number of bytes. */
function findWide(at: usize, length: usize): u32 {
  const end = at + length;
  let seen: u32 = 0;
  for (; at + 16 <= end; at += 16) seen |= wideBytes(at, 16);
  return seen | wideBytes(at, <u32>(end - at));
}

export function hashInput(
  params: usize,
  at: usize,
  end: usize,
  count: u32,
  slots: usize,
  slotNum: u32,
  keys: usize,
  step: usize,
): u32 {
  const seed = load<u64>(params, HASH_SEED);
  const modulo = load<u64>(params, HASH_MODULO);
  const lengthMax = load<u32>(params, TEXT_BYTES_MAX);
  const slotsEnd = slots + <usize>(slotNum * TEXT_SLOT_BYTES);
  let slot = slots;
  let seen: u32 = 0;
  for (let i: u32 = 0; i < count; i++) {
    if (at + 4 > end) return 0;
    const length = load<u32>(at);
    at += 4;
    if (length > lengthMax || at + length > end) return 0;
    let key: u64;
    if (length == 0) {
      key = load<u64>(slot, TEXT_SLOT_EMPTY_KEY);
    } else {
      const prefixLength = <u32>load<u8>(slot, TEXT_SLOT_LENGTH);
      if (prefixLength - 1 < 7 && length + prefixLength <= 16) {
        // The text stays in registers: a load from memory just written would stall.
        const shift = <u64>(prefixLength << 3);
        const start = load<u64>(at);
        const first = load<u64>(slot) | (start << shift);
        const second = ((start >> 1) >> (63 - shift)) | (load<u64>(at, 8) << shift);
        seen |= wideBytes(at, length);
        key = hashWords(first, second, prefixLength + length, seed);
      } else {
        const from = at - <usize>prefixLength;
        for (let p: u32 = 0; p < prefixLength; p++) {
          store<u8>(from + <usize>p, load<u8>(slot + <usize>p));
        }
        seen |= findWide(at, length);
        key = hashBytes(from, prefixLength + length, seed);
      }
      if (modulo != 0) key %= modulo;
    }
    store<u64>(keys, key);
    keys += step;
    at += length;
    slot += TEXT_SLOT_BYTES;
    if (slot == slotsEnd) slot = slots;
  }
  return <u32>(at == end && seen == 0);
}
