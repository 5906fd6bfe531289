/**
 * The hot loops of the project, over one shared memory per instance. They trust their arguments:
 * addresses and counts were checked when the layer was loaded. `contract.ts` describes each kernel,
 * `params.ts` lists the parameter block, `portable.ts` does the same in TypeScript.
 */

import {
  BASE_ADDRESS,
  EMPTY_KEY,
  FIRST_KEY,
  FIRST_ROW,
  HOME_SLOTS,
  KEY_STEP,
  KEY_STEP_SHIFT,
  ROW_BYTES,
  ROW_COUNT,
  SEGMENT_COUNT,
  SEGMENT_INDEX,
  SHARD_INDEX,
  SHARD_NUM,
  STRIDE,
} from '../params';
import { mixKey, TOUCHED, touchSlot } from './key-search';
import { copyAny, copyRow } from './row-copy';

export { expandRows } from './expansion';
export { hashTexts, xxh64 } from './hashing';
export { scatterRows, sortBySegment, sortByShard } from './key-order';
export { lookupPlaced } from './segments';
export { hashInput } from './texts';
export { countLines, readTsv } from './tsv';

/**
 * Three passes over 32 keys: the first computes the home slots; the second touches what a search is
 * likely to read (up to three cache lines from the home slot), with so few instructions that a core
 * has all misses in progress at once; the third searches. The touches may read READ_AHEAD_BYTES
 * beyond the segment.
 */
// @ts-ignore: decorator
@inline
function inlineBatch(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
  rowBytes: usize,
): u32 {
  const emptyKey = load<u64>(params, EMPTY_KEY);
  const homeSlots = load<u64>(params, HOME_SLOTS);
  const base = <usize>load<u32>(params, BASE_ADDRESS);
  // The stride of the layout: 8 + rowBytes rounded up to 8; a constant where rowBytes is one.
  const stride = (rowBytes + 15) & ~7;
  let hits: u32 = 0;
  let touched: u32 = 0;
  for (let start: u32 = 0; start < count; start += 32) {
    const length = min<u32>(32, count - start);
    const first = keys + (<usize>start << 3);
    for (let i: u32 = 0; i < length; i++) {
      const mixed = mixKey(load<u64>(first + (<usize>i << 3)));
      const slot = base + <usize>(((mixed >> 32) * homeSlots) >> 32) * stride;
      store<u32>(work + (<usize>i << 2), <u32>slot);
    }
    for (let i: u32 = 0; i < length; i++) {
      touched += touchSlot(<usize>load<u32>(work + (<usize>i << 2)), rowBytes);
    }
    let bits: u32 = 0;
    for (let i: u32 = 0; i < length; i++) {
      const key = load<u64>(first + (<usize>i << 3));
      let slot = <usize>load<u32>(work + (<usize>i << 2));
      for (;;) {
        const slotKey = load<u64>(slot);
        if (slotKey == emptyKey) break;
        if (slotKey == key) {
          copyRow(rows + <usize>(start + i) * rowBytes, slot + 8, rowBytes);
          bits |= 1 << i;
          hits++;
          break;
        }
        slot += stride;
      }
    }
    store<u32>(found + (<usize>start >> 3), bits);
  }
  store<u32>(work + TOUCHED, touched);
  return hits;
}

/**
 * The same where not every key belongs here: one of several segments, or a layer of a chain. The
 * first pass collects up to 32 undecided keys of this segment without a branch; hits are added to
 * both bitmaps. One body serves all sizes of rows, because few lookups come here.
 */
function pickBatch(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
  decided: usize,
  rowBytes: usize,
): u32 {
  const emptyKey = load<u64>(params, EMPTY_KEY);
  const homeSlots = load<u64>(params, HOME_SLOTS);
  const base = <usize>load<u32>(params, BASE_ADDRESS);
  // The stride of the layout: 8 + rowBytes rounded up to 8.
  const stride = (rowBytes + 15) & ~7;
  const segment = load<u32>(params, SEGMENT_INDEX);
  const segmentCount = <u64>load<u32>(params, SEGMENT_COUNT);
  let hits: u32 = 0;
  let touched: u32 = 0;
  let next: u32 = 0;
  while (next < count) {
    let own: u32 = 0;
    while (next < count && own < 32) {
      const mixed = mixKey(load<u64>(keys + (<usize>next << 3)));
      const entry = work + (<usize>own << 3);
      store<u32>(entry, next);
      store<u32>(entry, <u32>(base + <usize>(((mixed >> 32) * homeSlots) >> 32) * stride), 4);
      const here = <u32>(<u32>(((mixed & 0xffffffff) * segmentCount) >> 32) == segment);
      own += here & ~((<u32>load<u8>(decided + <usize>(next >> 3))) >> (next & 7));
      next++;
    }
    for (let i: u32 = 0; i < own; i++) {
      touched += touchSlot(<usize>load<u32>(work + (<usize>i << 3), 4), rowBytes);
    }
    for (let i: u32 = 0; i < own; i++) {
      const entry = work + (<usize>i << 3);
      const place = load<u32>(entry);
      const key = load<u64>(keys + (<usize>place << 3));
      let slot = <usize>load<u32>(entry, 4);
      for (;;) {
        const slotKey = load<u64>(slot);
        if (slotKey == emptyKey) break;
        if (slotKey == key) {
          if (rowBytes != 0) copyRow(rows + <usize>place * rowBytes, slot + 8, rowBytes);
          const word = (<usize>place >> 5) << 2;
          const bit = <u32>1 << (place & 31);
          store<u32>(found + word, load<u32>(found + word) | bit);
          store<u32>(decided + word, load<u32>(decided + word) | bit);
          hits++;
          break;
        }
        slot += stride;
      }
    }
  }
  store<u32>(work + TOUCHED, touched);
  return hits;
}

export function chainInline(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
  decided: usize,
): u32 {
  const rowBytes = <usize>load<u32>(params, ROW_BYTES);
  return pickBatch(params, work, keys, found, rows, count, decided, rowBytes);
}

export function chainDeleted(
  params: usize,
  work: usize,
  keys: usize,
  count: u32,
  decided: usize,
): u32 {
  return pickBatch(params, work, keys, decided, 0, count, decided, 0);
}

export function lookupInline(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
): u32 {
  if (load<u32>(params, SEGMENT_COUNT) > 1) {
    // A key is in at most one segment: keys found in another one need no search here.
    if (load<u32>(params, SEGMENT_INDEX) == 0) {
      memory.fill(found, 0, ((<usize>count + 31) >> 5) << 2);
    }
    return chainInline(params, work, keys, found, rows, count, found);
  }
  const rowBytes = load<u32>(params, ROW_BYTES);
  switch (rowBytes) {
    case 8: return inlineBatch(params, work, keys, found, rows, count, 8);
    case 16: return inlineBatch(params, work, keys, found, rows, count, 16);
    case 20: return inlineBatch(params, work, keys, found, rows, count, 20);
    case 24: return inlineBatch(params, work, keys, found, rows, count, 24);
    case 32: return inlineBatch(params, work, keys, found, rows, count, 32);
    case 40: return inlineBatch(params, work, keys, found, rows, count, 40);
    case 64: return inlineBatch(params, work, keys, found, rows, count, 64);
    case 128: return inlineBatch(params, work, keys, found, rows, count, 128);
    default: return inlineBatch(params, work, keys, found, rows, count, <usize>rowBytes);
  }
}

/**
 * The address of the row, or 0 when the key is not in this segment. `shift` < 0: the step is not a
 * power of two.
 */
// @ts-ignore: decorator
@inline
function denseRow(
  key: u64,
  firstKey: u64,
  keyStep: u64,
  shift: i32,
  startRow: u64,
  rowCount: u64,
  base: usize,
  stride: usize,
): usize {
  const distance = key - firstKey;
  let row: u64;
  if (shift >= 0) {
    row = distance >> <u64>shift;
    if (distance & (keyStep - 1)) return 0;
  } else {
    row = distance / keyStep;
    if (row * keyStep != distance) return 0;
  }
  row -= startRow;
  return key >= firstKey && row < rowCount ? base + <usize>row * stride : 0;
}

/** `decided` is 0 when the layer is not in a chain. */
// @ts-ignore: decorator
@inline
function denseBatch(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
  decided: usize,
): u32 {
  const firstKey = load<u64>(params, FIRST_KEY);
  const keyStep = load<u64>(params, KEY_STEP);
  const startRow = load<u64>(params, FIRST_ROW);
  const rowCount = load<u64>(params, ROW_COUNT);
  const base = <usize>load<u32>(params, BASE_ADDRESS);
  const stride = <usize>load<u32>(params, STRIDE);
  const rowBytes = <usize>load<u32>(params, ROW_BYTES);
  const overwrite = decided == 0 && load<u32>(params, SEGMENT_INDEX) == 0;
  const shift = load<i32>(params, KEY_STEP_SHIFT);
  let hits: u32 = 0;
  let touched: u32 = 0;
  for (let start: u32 = 0; start < count; start += 32) {
    const length = min<u32>(32, count - start);
    const first = keys + (<usize>start << 3);
    const word = <usize>(start >> 3);
    const passed: u32 = decided == 0 ? 0 : load<u32>(decided + word);
    for (let i: u32 = 0; i < length; i++) {
      const key = load<u64>(first + (<usize>i << 3));
      const row = denseRow(key, firstKey, keyStep, shift, startRow, rowCount, base, stride);
      store<u32>(work + (<usize>i << 2), (passed >> i) & 1 ? 0 : <u32>row);
      touched += <u32>load<u8>(row) + <u32>load<u8>(row + stride - 1);
    }
    let bits: u32 = overwrite ? 0 : load<u32>(found + word);
    let own: u32 = 0;
    for (let i: u32 = 0; i < length; i++) {
      const row = <usize>load<u32>(work + (<usize>i << 2));
      if (row != 0) {
        copyRow(rows + <usize>(start + i) * rowBytes, row, rowBytes);
        own |= 1 << i;
        hits++;
      }
    }
    store<u32>(found + word, bits | own);
    if (decided != 0) store<u32>(decided + word, passed | own);
  }
  store<u32>(work + TOUCHED, touched);
  return hits;
}

export function lookupDense(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
): u32 {
  return denseBatch(params, work, keys, found, rows, count, 0);
}

export function chainDense(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
  decided: usize,
): u32 {
  return denseBatch(params, work, keys, found, rows, count, decided);
}

export function fillMissing(
  params: usize,
  keys: usize,
  found: usize,
  rows: usize,
  count: u32,
  defaultRow: usize,
): i32 {
  const rowBytes = <usize>load<u32>(params, ROW_BYTES);
  const shardIndex = <u64>load<u32>(params, SHARD_INDEX);
  const shardNum = <u64>load<u32>(params, SHARD_NUM);
  for (let start: u32 = 0; start < count; start += 32) {
    const length = min<u32>(32, count - start);
    let missing = ~load<u32>(found + (<usize>start >> 3));
    if (length < 32) missing &= (1 << length) - 1;
    while (missing != 0) {
      const i = start + <u32>ctz<u32>(missing);
      missing &= missing - 1;
      if (load<u64>(keys + (<usize>i << 3)) % shardNum != shardIndex) return <i32>i;
      copyAny(rows + <usize>i * rowBytes, defaultRow, rowBytes);
    }
  }
  return -1;
}
