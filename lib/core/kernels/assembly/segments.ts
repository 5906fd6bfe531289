/** Lookups in a layer of several segments, whose keys were sorted by segment (`sortBySegment`). */

import {
  BASE_ADDRESS,
  EMPTY_KEY,
  HOME_SLOTS,
  ROW_BYTES,
  SEGMENT_INDEX,
  STRIDE,
} from '../params';
import { mixKey, TOUCHED, touchSlot } from './key-search';
import { copyRow } from './row-copy';

/**
 * Three passes over 32 keys, as in `inlineBatch`. The size of a row is no constant here: six bodies
 * would make the module larger, and gain less than a nanosecond per key.
 */
export function lookupPlaced(
  params: usize,
  work: usize,
  keys: usize,
  found: usize,
  rows: usize,
  ends: usize,
  places: usize,
): u32 {
  const rowBytes = <usize>load<u32>(params, ROW_BYTES);
  const stride = <usize>load<u32>(params, STRIDE);
  const emptyKey = load<u64>(params, EMPTY_KEY);
  const homeSlots = load<u64>(params, HOME_SLOTS);
  const base = <usize>load<u32>(params, BASE_ADDRESS);
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
      touched += touchSlot(<usize>load<u32>(work + (<usize>i << 2)), rowBytes);
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
