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

/**
 * Reads what a search is likely to read: up to three cache lines from the home slot. @returns their
 * sum
 */
// @ts-ignore: decorator
@inline
export function touchSlot(slot: usize, rowBytes: usize): u32 {
  let sum = load<u32>(slot) + load<u32>(slot, 64);
  if (rowBytes >= 24) sum += load<u32>(slot, 128);
  return sum;
}
