/** xxh64 of a range of bytes, and of the texts of whole rows. */

import { HASH_MODULO, HASH_SEED } from '../params';

const P1: u64 = 0x9e3779b185ebca87;
const P2: u64 = 0xc2b2ae3d27d4eb4f;
const P3: u64 = 0x165667b19e3779f9;
const P4: u64 = 0x85ebca77c2b2ae63;
const P5: u64 = 0x27d4eb2f165667c5;

// @ts-ignore: decorator
@inline
function round(acc: u64, lane: u64): u64 {
  return rotl<u64>(acc + lane * P2, 31) * P1;
}

// @ts-ignore: decorator
@inline
function merge(hash: u64, lane: u64): u64 {
  return (hash ^ round(0, lane)) * P1 + P4;
}

// @ts-ignore: decorator
@inline
function avalanche(hash: u64): u64 {
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}

// @ts-ignore: decorator
@inline
export function hashBytes(at: usize, length: usize, seed: u64): u64 {
  const end = at + length;
  let hash: u64;
  if (length >= 32) {
    let v1 = seed + P1 + P2;
    let v2 = seed + P2;
    let v3 = seed;
    let v4 = seed - P1;
    const lastStripe = end - 32;
    do {
      v1 = round(v1, load<u64>(at));
      v2 = round(v2, load<u64>(at, 8));
      v3 = round(v3, load<u64>(at, 16));
      v4 = round(v4, load<u64>(at, 24));
      at += 32;
    } while (at <= lastStripe);
    hash = rotl<u64>(v1, 1) + rotl<u64>(v2, 7) + rotl<u64>(v3, 12) + rotl<u64>(v4, 18);
    hash = merge(merge(merge(merge(hash, v1), v2), v3), v4);
  } else {
    hash = seed + P5;
  }
  hash += <u64>length;
  while (at + 8 <= end) {
    hash = rotl<u64>(hash ^ round(0, load<u64>(at)), 27) * P1 + P4;
    at += 8;
  }
  if (at + 4 <= end) {
    hash = rotl<u64>(hash ^ (<u64>load<u32>(at) * P1), 23) * P2 + P3;
    at += 4;
  }
  while (at < end) {
    hash = rotl<u64>(hash ^ (<u64>load<u8>(at) * P5), 11) * P1;
    at += 1;
  }
  return avalanche(hash);
}

/** xxh64 of up to 16 bytes in two words. Bytes of a word beyond the length are zero or ignored. */
// @ts-ignore: decorator
@inline
export function hashWords(first: u64, second: u64, length: u32, seed: u64): u64 {
  let hash = seed + P5 + <u64>length;
  let rest = first;
  let left = length;
  if (left >= 8) {
    hash = rotl<u64>(hash ^ round(0, first), 27) * P1 + P4;
    rest = second;
    left -= 8;
  }
  if (left == 8) return avalanche(rotl<u64>(hash ^ round(0, second), 27) * P1 + P4);
  if (left >= 4) {
    hash = rotl<u64>(hash ^ ((rest & 0xffffffff) * P1), 23) * P2 + P3;
    rest >>= 32;
    left -= 4;
  }
  for (; left > 0; left--) {
    hash = rotl<u64>(hash ^ ((rest & 0xff) * P5), 11) * P1;
    rest >>= 8;
  }
  return avalanche(hash);
}

export function xxh64(at: usize, length: usize, seedLow: u32, seedHigh: u32, hash: usize): void {
  store<u64>(hash, hashBytes(at, length, (<u64>seedHigh << 32) | <u64>seedLow));
}

export function hashTexts(params: usize, texts: usize, ends: usize, count: u32, keys: usize): void {
  const seed = load<u64>(params, HASH_SEED);
  const modulo = load<u64>(params, HASH_MODULO);
  let start: u32 = 0;
  for (let i: u32 = 0; i < count; i++) {
    const end = load<u32>(ends + (<usize>i << 2));
    let key = hashBytes(texts + start, end - start, seed);
    if (modulo != 0) key %= modulo;
    store<u64>(keys + (<usize>i << 3), key);
    start = end;
  }
}
