/**
 * What a set of kernels over one shared memory does, in WebAssembly or in portable TypeScript. All
 * arguments are byte addresses and counts inside the memory. Kernels trust them: the caller checks.
 *
 * `params` is the address of a parameter block; `params.ts` lists its fields. `work` is WORK_BYTES
 * of scratch memory that belongs to the calling thread. `found` is a bitmap, 4-byte aligned,
 * written in whole words.
 *
 * - Several segments: the caller looks up the segments of a layer one after another. Segment 0
 *   overwrites `found`, the others add to it. Where all segments are inline and the layer is alone,
 *   it sorts the keys by segment before, so that each segment handles its own keys only.
 * - Chains: the caller looks up the newest layer first. `decided` is a bitmap of the same size as
 *   `found`: keys that a newer layer has or deletes are skipped, and hits are added to both
 *   bitmaps. The caller clears both before the newest layer. A key that is decided and not found
 *   was deleted.
 * - Indexed layers: an index is inline segments with rowBytes 8, whose rows are locations. Rows of
 *   one size lie in segments that map a location to a row as dense segments map keys: firstKey 0,
 *   keyStep 1. Location 2^64 − 1 is a miss.
 */
import { DTYPE_BF16, DTYPE_F16, DTYPE_F32, DTYPE_I8 } from './params.ts';

export { PARAMS_BYTES } from './params.ts';

export const WORK_BYTES = 320;
/** Bytes beyond a segment that a lookup may read (and ignore); the memory must contain them. */
export const READ_AHEAD_BYTES = 256;

/** The numbers of dtypes with elements, as in a layer's header. */
export const DTYPE_NUMBERS: Readonly<Record<'f32' | 'f16' | 'bf16' | 'i8', number>> = {
  f32: DTYPE_F32,
  f16: DTYPE_F16,
  bf16: DTYPE_BF16,
  i8: DTYPE_I8,
};

export interface Kernels {
  /** Writes xxh64 of a range as a u64 at `hash`. At most 1 MiB per call. */
  xxh64(at: number, length: number, seedLow: number, seedHigh: number, hash: number): void;
  /** Writes the keys of `count` texts that end at the u32 offsets `ends`. */
  hashTexts(params: number, texts: number, ends: number, count: number, keys: number): void;
  /**
   * Writes the keys of `count` texts, each after its length as a u32, `step` bytes apart. The texts
   * belong to the slots in turn. It may read 16 bytes after the end, and overwrites the texts and
   * up to 15 bytes before them. @returns 0 when the lengths do not fit the range, a text is too
   * long, or not ASCII
   */
  hashInput(
    params: number,
    at: number,
    end: number,
    count: number,
    slots: number,
    slotNum: number,
    keys: number,
    step: number,
  ): number;
  /** Counts the line breaks in a range. */
  countLines(at: number, end: number): number;
  /**
   * Parses up to `rowsMax` lines of [label,] dense features and categorical features to f64 (NaN:
   * missing), f32 labels and keys. Every line ends in a line break. It may read 16 bytes after the
   * last line. @returns the number of lines parsed, or -1 when a line is not plain
   */
  readTsv(params: number, at: number, end: number, rowsMax: number): number;
  /** Copies the rows of the keys in this segment, each to its position in `rows`. @returns hits */
  lookupInline: SegmentLookup;
  lookupDense: SegmentLookup;
  /**
   * Sorts the places of keys in a batch by the segments of their keys; places of one segment keep
   * their order. `ends` gets a u32 for each segment, where its places end; `segments` is scratch
   * memory of a u32 for each key.
   */
  sortBySegment(
    keys: number,
    count: number,
    segmentCount: number,
    segments: number,
    ends: number,
    places: number,
  ): void;
  /**
   * Like `lookupInline` for the keys that `sortBySegment` found to be in this segment. Every
   * segment adds to `found`, which the caller clears. @returns hits
   */
  lookupPlaced(
    params: number,
    work: number,
    keys: number,
    found: number,
    rows: number,
    ends: number,
    places: number,
  ): number;
  /** The same for a layer of a chain, newest first. @returns hits */
  chainInline: ChainLookup;
  chainDense: ChainLookup;
  /**
   * Decides the keys that a layer of a chain deletes. The section of deleted keys is searched as an
   * inline segment of rowBytes 0, whose homeSlots are the header's deletedHomeSlots. @returns how
   * many keys it decided
   */
  chainDeleted(params: number, work: number, keys: number, count: number, decided: number): number;
  /**
   * Decodes `count` stored rows, one after another, to rows of `dim` f32. Source and target must
   * not overlap. It may read 8 bytes beyond the last row.
   * @param dtype its number in a layer's header (DTYPE_NUMBERS)
   */
  expandRows(
    dtype: number,
    dim: number,
    rowBytes: number,
    source: number,
    target: number,
    count: number,
  ): void;
  /**
   * Copies the default row for each key not found. @returns the index of the first key of another
   * shard, where it stops, or -1
   */
  fillMissing(
    params: number,
    keys: number,
    found: number,
    rows: number,
    count: number,
    defaultRow: number,
  ): number;
  /**
   * Sorts keys by shard and writes the position that each had; keys of one shard keep their order.
   * `ends` gets a u32 for each shard, where its keys end; `shards` is scratch memory of a u32 for
   * each key.
   */
  sortByShard(
    keys: number,
    count: number,
    shardNum: number,
    shards: number,
    ends: number,
    sorted: number,
    positions: number,
  ): void;
  /**
   * Copies row i of `source` to row positions[i] of `target`, which must not overlap it. The length
   * of a row is a multiple of 4.
   */
  scatterRows(
    source: number,
    rowBytes: number,
    positions: number,
    count: number,
    target: number,
  ): void;
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
