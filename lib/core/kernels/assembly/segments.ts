/** Lookups in a layer of several segments: its keys are sorted once, not tested in each segment. */

import {
  BASE_ADDRESS,
  EMPTY_KEY,
  HOME_SLOTS,
  ROW_BYTES,
  SEGMENT_INDEX,
} from '../params';
import { mixKey, TOUCHED } from './key-search';
import { copyRow } from './row-copy';

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
    const segment = <u32>(((mixed & 0xffffffff) * <u64>segmentCount) >> 32);
    store<u32>(segments + (<usize>i << 2), segment);
    const end = ends + (<usize>segment << 2);
    store<u32>(end, load<u32>(end) + 1);
  }
  let start: u32 = 0;
  for (let segment: u32 = 0; segment < segmentCount; segment++) {
    const end = ends + (<usize>segment << 2);
    const own = load<u32>(end);
    store<u32>(end, start);
    start += own;
  }
  for (let i: u32 = 0; i < count; i++) {
    const end = ends + (<usize>load<u32>(segments + (<usize>i << 2)) << 2);
    const at = load<u32>(end);
    store<u32>(end, at + 1);
    store<u32>(places + (<usize>at << 2), i);
  }
}

/** Three passes over 32 keys, as in `inlineBatch`. */
// @ts-ignore: decorator
@inline
function placedBatch(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  ends: usize,
  places: usize,
  rowBytes: usize,
): u32 {
  const emptyKey = load<u64>(params, EMPTY_KEY);
  const homeSlots = load<u64>(params, HOME_SLOTS);
  const base = <usize>load<u32>(params, BASE_ADDRESS);
  // The stride of the layout: 8 + rowBytes rounded up to 8; a constant where rowBytes is one.
  const stride = (rowBytes + 15) & ~7;
  const segment = load<u32>(params, SEGMENT_INDEX);
  const end = load<u32>(ends + (<usize>segment << 2));
  let start: u32 = segment == 0 ? 0 : load<u32>(ends + (<usize>(segment - 1) << 2));
  let hits: u32 = 0;
  let touched: u32 = 0;
  for (; start < end; start += 32) {
    const length = min<u32>(32, end - start);
    const first = places + (<usize>start << 2);
    for (let i: u32 = 0; i < length; i++) {
      const place = <usize>load<u32>(first + (<usize>i << 2));
      const mixed = mixKey(load<u64>(keys + (place << 3)));
      const slot = base + <usize>(((mixed >> 32) * homeSlots) >> 32) * stride;
      store<u32>(work + (<usize>i << 2), <u32>slot);
    }
    for (let i: u32 = 0; i < length; i++) {
      const slot = <usize>load<u32>(work + (<usize>i << 2));
      touched += load<u32>(slot) + load<u32>(slot, 64);
      if (rowBytes >= 24) touched += load<u32>(slot, 128);
    }
    for (let i: u32 = 0; i < length; i++) {
      const place = <usize>load<u32>(first + (<usize>i << 2));
      const key = load<u64>(keys + (place << 3));
      let slot = <usize>load<u32>(work + (<usize>i << 2));
      for (;;) {
        const slotKey = load<u64>(slot);
        if (slotKey == emptyKey) break;
        if (slotKey == key) {
          copyRow(rows + place * rowBytes, slot + 8, rowBytes);
          const word = found + ((place >> 5) << 2);
          store<u32>(word, load<u32>(word) | (<u32>1 << (<u32>place & 31)));
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

export function lookupPlaced(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  ends: usize,
  places: usize,
): u32 {
  const rowBytes = load<u32>(params, ROW_BYTES);
  switch (rowBytes) {
    case 16: return placedBatch(params, work, keys, found, rows, ends, places, 16);
    case 32: return placedBatch(params, work, keys, found, rows, ends, places, 32);
    case 40: return placedBatch(params, work, keys, found, rows, ends, places, 40);
    case 64: return placedBatch(params, work, keys, found, rows, ends, places, 64);
    case 128: return placedBatch(params, work, keys, found, rows, ends, places, 128);
    default: return placedBatch(params, work, keys, found, rows, ends, places, <usize>rowBytes);
  }
}
