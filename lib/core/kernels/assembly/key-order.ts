/** Puts keys of a batch in the order of their parts, and their rows back in that of the batch. */
import { mixKey } from './key-search';
import { copyRow } from './row-copy';

/** `mask` is shardNum − 1 for a power of two, else 0. */
// @ts-ignore: decorator
@inline
function findShard(key: u64, shardNum: u32, mask: u64): u32 {
  return mask != 0 || shardNum == 1 ? <u32>(key & mask) : <u32>(key % <u64>shardNum);
}

/** @param parts the part of each key; `ends` counts the keys of each part */
function sortByPart(
  keys: usize,
  count: u32,
  partCount: u32,
  parts: usize,
  ends: usize,
  sorted: usize,
  places: usize,
): void {
  let start: u32 = 0;
  for (let part: u32 = 0; part < partCount; part++) {
    const end = ends + (<usize>part << 2);
    const own = load<u32>(end);
    store<u32>(end, start);
    start += own;
  }
  for (let i: u32 = 0; i < count; i++) {
    const end = ends + (<usize>load<u32>(parts + (<usize>i << 2)) << 2);
    const at = load<u32>(end);
    store<u32>(end, at + 1);
    if (sorted != 0) store<u64>(sorted + (<usize>at << 3), load<u64>(keys + (<usize>i << 3)));
    store<u32>(places + (<usize>at << 2), i);
  }
}

// @ts-ignore: decorator
@inline
function countPart(parts: usize, ends: usize, i: u32, part: u32): void {
  store<u32>(parts + (<usize>i << 2), part);
  const end = ends + (<usize>part << 2);
  store<u32>(end, load<u32>(end) + 1);
}

export function sortByShard(
  keys: usize,
  count: u32,
  shardNum: u32,
  shards: usize,
  ends: usize,
  sorted: usize,
  positions: usize,
): void {
  const mask: u64 = (shardNum & (shardNum - 1)) == 0 ? <u64>(shardNum - 1) : 0;
  memory.fill(ends, 0, <usize>shardNum << 2);
  for (let i: u32 = 0; i < count; i++) {
    countPart(shards, ends, i, findShard(load<u64>(keys + (<usize>i << 3)), shardNum, mask));
  }
  sortByPart(keys, count, shardNum, shards, ends, sorted, positions);
}

export function sortBySegment(
  keys: usize,
  count: u32,
  segmentCount: u32,
  segments: usize,
  ends: usize,
  places: usize,
): void {
  memory.fill(ends, 0, <usize>segmentCount << 2);
  for (let i: u32 = 0; i < count; i++) {
    const mixed = mixKey(load<u64>(keys + (<usize>i << 3)));
    countPart(segments, ends, i, <u32>(((mixed & 0xffffffff) * <u64>segmentCount) >> 32));
  }
  sortByPart(keys, count, segmentCount, segments, ends, 0, places);
}

// @ts-ignore: decorator
@inline
function scatter(
  source: usize,
  rowBytes: usize,
  positions: usize,
  count: u32,
  target: usize,
): void {
  for (let i: u32 = 0; i < count; i++) {
    const position = <usize>load<u32>(positions + (<usize>i << 2));
    copyRow(target + position * rowBytes, source, rowBytes);
    source += rowBytes;
  }
}

export function scatterRows(
  source: usize,
  rowBytes: usize,
  positions: usize,
  count: u32,
  target: usize,
): void {
  switch (<u32>rowBytes) {
    case 16: return scatter(source, 16, positions, count, target);
    case 32: return scatter(source, 32, positions, count, target);
    case 40: return scatter(source, 40, positions, count, target);
    case 64: return scatter(source, 64, positions, count, target);
    case 128: return scatter(source, 128, positions, count, target);
    default: return scatter(source, rowBytes, positions, count, target);
  }
}
