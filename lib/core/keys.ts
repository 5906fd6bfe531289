/**
 * Keys are unsigned 64-bit numbers stored as pairs of 32-bit words (low, high) in a `Uint32Array`,
 * so that the hot path makes no BigInt. All functions are exact over the whole range, 0 and 2^64 −
 * 1 included.
 */

/**
 * key mod shardNum, unsigned. Exact for every `shardNum` in 1..2^32; a power of two takes the last
 * bits.
 */
export function computeShard(low: number, high: number, shardNum: number): number {
  if ((shardNum & (shardNum - 1)) === 0) return (low & (shardNum - 1)) >>> 0;
  if (shardNum <= 65_536) {
    // Three 32-bit divisions: each remainder is below 2^16, so the next dividend fits in 32 bits.
    const step = (high >>> 0) % shardNum;
    const middle = (((step << 16) | (low >>> 16)) >>> 0) % shardNum;
    return (((middle << 16) | (low & 0xffff)) >>> 0) % shardNum;
  }
  const step = (high >>> 0) % shardNum;
  const middle = (step * 65_536 + (low >>> 16)) % shardNum;
  return (middle * 65_536 + (low & 0xffff)) % shardNum;
}

/** The i-th key of a batch as a BigInt; for messages and tests, not for the hot path. */
export function keyToBigint(keys: Uint32Array, i: number): bigint {
  return (BigInt(keys[2 * i + 1]!) << 32n) | BigInt(keys[2 * i]!);
}

export function setKey(keys: Uint32Array, i: number, key: bigint): void {
  keys[2 * i] = Number(key & 0xffff_ffffn);
  keys[2 * i + 1] = Number(key >> 32n);
}

/** The high word of a 32 × 32 → 64-bit product, unsigned. */
export function multiplyHigh(a: number, b: number): number {
  const aLow = a & 0xffff;
  const aHigh = a >>> 16;
  const bLow = b & 0xffff;
  const bHigh = b >>> 16;
  const middle = aHigh * bLow + ((aLow * bLow) >>> 16);
  const carry = aLow * bHigh + (middle & 0xffff);
  return (aHigh * bHigh + (middle >>> 16) + (carry >>> 16)) >>> 0;
}

/**
 * The key mix of layer format version 1 (docs/formats/layer.md) as two words at `mixed[at]`: the
 * low word selects the segment, the high word the home slot.
 */
export function mixKey(low: number, high: number, mixed: Uint32Array, at: number): void {
  let x = (low ^ high) >>> 0;
  let y = high >>> 0;
  let carry = multiplyHigh(x, 0x7f4a_7c15);
  y = (carry + Math.imul(y, 0x7f4a_7c15) + Math.imul(x, 0x9e37_79b9)) >>> 0;
  x = (Math.imul(x, 0x7f4a_7c15) ^ y) >>> 0;
  carry = multiplyHigh(x, 0x6659_fd93);
  y = (carry + Math.imul(y, 0x6659_fd93) + Math.imul(x, 0xd6e8_feb8)) >>> 0;
  mixed[at] = Math.imul(x, 0x6659_fd93) ^ y;
  mixed[at + 1] = y;
}
