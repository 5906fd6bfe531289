/** What all searches by key share. */

/** Where a key belongs: the low word selects the segment, the high word the home slot. */
// @ts-ignore: decorator
@inline
export function mixKey(key: u64): u64 {
  let x = key ^ (key >> 32);
  x *= 0x9e3779b97f4a7c15;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

/**
 * Offset of the sums of touched bytes in `work`, after its 32 entries. Without a use the loads
 * would be optimised away.
 */
export const TOUCHED: usize = 256;
