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
 *
 * In a chain of layers the newest is asked first. `decided` is a bitmap beside `found`: keys that a newer layer has, or
 * deletes, are passed over; hits are added to both. Whoever calls clears both before the newest layer. What is decided and
 * not found was deleted.
 *
 * An index (layout indexed) is inline segments of rowBytes 8, whose rows are places. Rows of one size lie in segments
 * that answer places as dense ones answer keys: firstKey 0, keyStep 1; a place of 2^64 − 1 is a miss.
 *
 * The parameter block of readTsv (u32 but for the first two; what it writes itself stands last):
 *
 *      0 u64 seed                               36 bytes of the longest line
 *      8 u64 modulo (0: none)                   40 keys      44 dense values      48 labels (all addresses)
 *     16 dense features     20 slots            52 address of odd numbers: where it goes, start, end; for others to read
 *     24 address of prefixes: 16 bytes each     56 odd numbers found
 *        slot, the last of which is a length    60 not zero: features hold bytes beyond ASCII
 *     28 address of a stage to hash in, a       64 where the next line begins
 *        longest line and 32 bytes long
 *     32 not zero: lines have labels
 */

export const PARAMS_BYTES = 128;
export const WORK_BYTES = 320;
/** A lookup may read (and ignore) this much beyond a segment; the memory must reach that far. */
export const READ_AHEAD_BYTES = 256;

/** The numbers of dtypes with elements, as in a layer's header. */
export const DTYPE_NUMBERS = { f32: 0, f16: 1, bf16: 2, i8: 3 } as const;

export interface Kernels {
  /** xxh64 of a range as a u64 at `hash`. Call it over at most 1 MiB at a time. */
  xxh64(at: number, length: number, seedLow: number, seedHigh: number, hash: number): void;
  /** Keys of `count` texts that end at the u32 offsets `ends`; params: u64 seed, u64 modulo (0: none). */
  hashTexts(params: number, texts: number, ends: number, count: number, keys: number): void;
  /** Line breaks in a range. */
  countLines(at: number, end: number): number;
  /**
   * Reads up to `rowsMax` lines of [label,] dense features and categorical features, which go to f64 (NaN: none), f32 labels and
   * keys. Every line ends in a line break, and 16 bytes behind the last one may be read. @returns how many lines it read, or
   * -1 for what is no plain line
   */
  readTsv(params: number, at: number, end: number, rowsMax: number): number;
  /** Rows of the keys that are in this segment, at their place in `rows`. @returns hits */
  lookupInline: SegmentLookup;
  lookupDense: SegmentLookup;
  /** The same for a layer of a chain, newest first. @returns hits */
  chainInline: ChainLookup;
  chainDense: ChainLookup;
  /**
   * Decides the keys that a layer of a chain deletes. Its section of deleted keys is asked as an inline segment of
   * rowBytes 0, whose homeSlots are the header's deletedHomeSlots. @returns how many it decided
   */
  chainDeleted(params: number, work: number, keys: number, count: number, decided: number): number;
  /**
   * `count` stored rows, one after the other, as rows of `dim` f32. Source and target do not overlap. It may read 8 bytes
   * beyond the last row. @param dtype its number in a layer's header (DTYPE_NUMBERS)
   */
  expandRows(
    dtype: number,
    dim: number,
    rowBytes: number,
    source: number,
    target: number,
    count: number,
  ): void;
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

type ChainLookup = (
  params: number,
  work: number,
  keys: number,
  found: number,
  rows: number,
  count: number,
  decided: number,
) => number;
