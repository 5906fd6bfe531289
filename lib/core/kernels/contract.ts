/**
 * What a set of kernels over one shared memory does, whichever way it is made. All
 * arguments are byte addresses and counts inside the memory; they are trusted, so whoever calls checked them.
 *
 * A segment's parameter block (little-endian, PARAMS_BYTES):
 *
 *      0 u64 emptyKey (inline) / firstKey (dense)     44 u32 stride
 *      8 u64 keyStep (dense)                          48 u32 rowBytes (a multiple of 4)
 *     16 u64 homeSlots (inline)                       52 u32 segment index
 *     24 u64 first row of the segment (dense)         56 u32 segment count
 *     32 u64 rows of the segment (dense)              60 u32 zero
 *     40 u32 address of the first slot or row         64 i32 log2(keyStep), or -1 when it is no power of two
 *                                                     68 u32 shard index    72 u32 shard number
 *
 * `work` is WORK_BYTES of scratch that belongs to the calling thread. `found` is a bitmap, 4-byte aligned, written in
 * whole words. The segments of a layer are asked in turn: segment 0 overwrites `found`, the others add to it.
 */

export const PARAMS_BYTES = 128;
export const WORK_BYTES = 320;
/** A lookup may read (and ignore) this much beyond a segment; the memory must reach that far. */
export const READ_AHEAD_BYTES = 256;

export interface Kernels {
  /** xxh64 of a range as a u64 at `hash`. Call it over at most 1 MiB at a time. */
  xxh64(at: number, length: number, seedLow: number, seedHigh: number, hash: number): void;
  /** Keys of `count` texts that end at the u32 offsets `ends`; params: u64 seed, u64 modulo (0: none). */
  hashTexts(params: number, texts: number, ends: number, count: number, keys: number): void;
  /** Rows of the keys that are in this segment, at their place in `rows`. @returns hits */
  lookupInline: SegmentLookup;
  lookupDense: SegmentLookup;
  /** The default row for each key not found. @returns the first one of another shard, where it stops, or -1 */
  fillMissing(
    params: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
    defaultRow: number,
  ): number;
}

type SegmentLookup = (
  params: number,
  work: number,
  keys: number,
  found: number,
  rows: number,
  count: number,
) => number;
