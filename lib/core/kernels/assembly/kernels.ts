/**
 * The hot loops of the project, over one shared memory per instance. They trust their arguments: every address and
 * count was checked when the layer was loaded. `lib/core/kernels/contract.ts` says what each does and draws the
 * parameter block; `twin.ts` is the same in plain TypeScript.
 */

const P1: u64 = 0x9e3779b185ebca87;
const P2: u64 = 0xc2b2ae3d27d4eb4f;
const P3: u64 = 0x165667b19e3779f9;
const P4: u64 = 0x85ebca77c2b2ae63;
const P5: u64 = 0x27d4eb2f165667c5;

// @ts-ignore: decorator
@inline
function round(acc: u64, lane: u64): u64 {
  return rotl<u64>(acc + lane * P2, 31) * P1;
}

// @ts-ignore: decorator
@inline
function merge(hash: u64, lane: u64): u64 {
  return (hash ^ round(0, lane)) * P1 + P4;
}

// @ts-ignore: decorator
@inline
function hashBytes(at: usize, length: usize, seed: u64): u64 {
  const end = at + length;
  let hash: u64;
  if (length >= 32) {
    let v1 = seed + P1 + P2;
    let v2 = seed + P2;
    let v3 = seed;
    let v4 = seed - P1;
    const lastStripe = end - 32;
    do {
      v1 = round(v1, load<u64>(at));
      v2 = round(v2, load<u64>(at, 8));
      v3 = round(v3, load<u64>(at, 16));
      v4 = round(v4, load<u64>(at, 24));
      at += 32;
    } while (at <= lastStripe);
    hash = rotl<u64>(v1, 1) + rotl<u64>(v2, 7) + rotl<u64>(v3, 12) + rotl<u64>(v4, 18);
    hash = merge(merge(merge(merge(hash, v1), v2), v3), v4);
  } else {
    hash = seed + P5;
  }
  hash += <u64>length;
  while (at + 8 <= end) {
    hash = rotl<u64>(hash ^ round(0, load<u64>(at)), 27) * P1 + P4;
    at += 8;
  }
  if (at + 4 <= end) {
    hash = rotl<u64>(hash ^ (<u64>load<u32>(at) * P1), 23) * P2 + P3;
    at += 4;
  }
  while (at < end) {
    hash = rotl<u64>(hash ^ (<u64>load<u8>(at) * P5), 11) * P1;
    at += 1;
  }
  hash = (hash ^ (hash >> 33)) * P2;
  hash = (hash ^ (hash >> 29)) * P3;
  return hash ^ (hash >> 32);
}

export function xxh64(at: usize, length: usize, seedLow: u32, seedHigh: u32, hash: usize): void {
  store<u64>(hash, hashBytes(at, length, (<u64>seedHigh << 32) | <u64>seedLow));
}

export function hashTexts(params: usize, texts: usize, ends: usize, count: u32, keys: usize): void {
  const seed = load<u64>(params);
  const modulo = load<u64>(params, 8);
  let start: u32 = 0;
  for (let i: u32 = 0; i < count; i++) {
    const end = load<u32>(ends + (<usize>i << 2));
    let key = hashBytes(texts + start, end - start, seed);
    if (modulo != 0) key %= modulo;
    store<u64>(keys + (<usize>i << 3), key);
    start = end;
  }
}

/** Copies one row of a multiple of 4 bytes; `bytes` is a constant wherever this is inlined for a common size. */
// @ts-ignore: decorator
@inline
function copyRow(target: usize, source: usize, bytes: usize): void {
  switch (<u32>bytes) {
    case 8:
      store<u64>(target, load<u64>(source));
      return;
    case 16:
      v128.store(target, v128.load(source));
      return;
    case 20:
      v128.store(target, v128.load(source));
      store<u32>(target, load<u32>(source, 16), 16);
      return;
    case 24:
      v128.store(target, v128.load(source));
      store<u64>(target, load<u64>(source, 16), 16);
      return;
    case 32:
      copy32(target, source);
      return;
    case 40:
      copy32(target, source);
      store<u64>(target, load<u64>(source, 32), 32);
      return;
    case 64:
      copy32(target, source);
      copy32(target + 32, source + 32);
      return;
    case 128:
      copy32(target, source);
      copy32(target + 32, source + 32);
      copy32(target + 64, source + 64);
      copy32(target + 96, source + 96);
      return;
    default:
      copyAny(target, source, bytes);
  }
}

// @ts-ignore: decorator
@inline
function copy32(target: usize, source: usize): void {
  v128.store(target, v128.load(source));
  v128.store(target, v128.load(source, 16), 16);
}

// @ts-ignore: decorator
@inline
function copyAny(target: usize, source: usize, bytes: usize): void {
  const end = target + bytes;
  while (target + 16 <= end) {
    v128.store(target, v128.load(source));
    target += 16;
    source += 16;
  }
  if (target + 8 <= end) {
    store<u64>(target, load<u64>(source));
    target += 8;
    source += 8;
  }
  if (target < end) store<u32>(target, load<u32>(source));
}

// @ts-ignore: decorator
@inline
function mixKey(key: u64): u64 {
  let x = key ^ (key >> 32);
  x *= 0x9e3779b97f4a7c15;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93;
  return x ^ (x >> 32);
}

/** Where the sums of touched bytes go, after the 32 entries of `work`: without a use the loads would be dropped. */
const TOUCHED: usize = 256;

/**
 * Passes over 32 keys: one computes the home slots; one touches what a probe is likely to read (up to three cache lines
 * from the home slot), with so few instructions that a core has all the misses under way at once; one probes. The
 * touches may read READ_AHEAD_BYTES beyond the segment.
 */
// @ts-ignore: decorator
@inline
function inlineBatch(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, rowBytes: usize): u32 {
  const emptyKey = load<u64>(params);
  const homeSlots = load<u64>(params, 16);
  const base = <usize>load<u32>(params, 40);
  // As of the layout: 8 + rowBytes rounded up to 8; a constant where rowBytes is one.
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
      const slot = <usize>load<u32>(work + (<usize>i << 2));
      touched += load<u32>(slot) + load<u32>(slot, 64);
      if (rowBytes >= 24) touched += load<u32>(slot, 128);
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
 * The same where not every key is asked for: one of several segments, or a layer of a chain. The first pass gathers up to
 * 32 keys of this segment that are not decided, without a branch; hits are added to both bitmaps.
 */
// @ts-ignore: decorator
@inline
function pickBatch(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, decided: usize, rowBytes: usize): u32 {
  const emptyKey = load<u64>(params);
  const homeSlots = load<u64>(params, 16);
  const base = <usize>load<u32>(params, 40);
  // As of the layout: 8 + rowBytes rounded up to 8; a constant where rowBytes is one.
  const stride = (rowBytes + 15) & ~7;
  const segment = load<u32>(params, 52);
  const segmentCount = <u64>load<u32>(params, 56);
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
      const slot = <usize>load<u32>(work + (<usize>i << 3), 4);
      touched += load<u32>(slot) + load<u32>(slot, 64);
      if (rowBytes >= 24) touched += load<u32>(slot, 128);
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

export function chainInline(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, decided: usize): u32 {
  const rowBytes = load<u32>(params, 48);
  switch (rowBytes) {
    case 8: return pickBatch(params, work, keys, found, rows, count, decided, 8);
    case 16: return pickBatch(params, work, keys, found, rows, count, decided, 16);
    case 40: return pickBatch(params, work, keys, found, rows, count, decided, 40);
    default: return pickBatch(params, work, keys, found, rows, count, decided, <usize>rowBytes);
  }
}

export function chainDeleted(params: usize, work: usize, keys: usize, count: u32, decided: usize): u32 {
  return pickBatch(params, work, keys, decided, 0, count, decided, 0);
}

export function lookupInline(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32): u32 {
  if (load<u32>(params, 56) > 1) {
    // A key is in one segment at most: what another one found need not be asked again.
    if (load<u32>(params, 52) == 0) memory.fill(found, 0, ((<usize>count + 31) >> 5) << 2);
    return chainInline(params, work, keys, found, rows, count, found);
  }
  const rowBytes = load<u32>(params, 48);
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

/** The row's address, or 0 when the key is not in this segment. `shift` < 0: the step is no power of two. */
// @ts-ignore: decorator
@inline
function denseRow(key: u64, firstKey: u64, keyStep: u64, shift: i32, startRow: u64, rowCount: u64, base: usize, stride: usize): usize {
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

/** `decided` 0: the layer is alone. */
// @ts-ignore: decorator
@inline
function denseBatch(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, decided: usize): u32 {
  const firstKey = load<u64>(params);
  const keyStep = load<u64>(params, 8);
  const startRow = load<u64>(params, 24);
  const rowCount = load<u64>(params, 32);
  const base = <usize>load<u32>(params, 40);
  const stride = <usize>load<u32>(params, 44);
  const rowBytes = <usize>load<u32>(params, 48);
  const overwrite = decided == 0 && load<u32>(params, 52) == 0;
  const shift = load<i32>(params, 64);
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

export function lookupDense(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32): u32 {
  return denseBatch(params, work, keys, found, rows, count, 0);
}

export function chainDense(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, decided: usize): u32 {
  return denseBatch(params, work, keys, found, rows, count, decided);
}

export function fillMissing(params: usize, keys: usize, found: usize, rows: usize, count: u32, defaultRow: usize): i32 {
  const rowBytes = <usize>load<u32>(params, 48);
  const shardIndex = <u64>load<u32>(params, 68);
  const shardNum = <u64>load<u32>(params, 72);
  for (let start: u32 = 0; start < count; start += 32) {
    const length = min<u32>(32, count - start);
    let missing = ~load<u32>(found + (<usize>start >> 3));
    if (length < 32) missing &= (1 << length) - 1;
    while (missing != 0) {
      const i = start + <u32>ctz<u32>(missing);
      missing &= missing - 1;
      if (load<u64>(keys + (<usize>i << 3)) % shardNum != shardIndex) return <i32>i;
      copyRow(rows + <usize>i * rowBytes, defaultRow, rowBytes);
    }
  }
  return -1;
}

/** The bits of an f16's f32, of four at a time: scaled by 2^112, which is exact; infinities and NaN keep their bits. */
// @ts-ignore: decorator
@inline
function widenHalves(halves: v128): v128 {
  const magnitude = v128.and(halves, i32x4.splat(0x7fff));
  const shifted = i32x4.shl(magnitude, 13);
  const scaled = f32x4.mul(shifted, f32x4.splat(reinterpret<f32>(0x77800000)));
  const infinite = i32x4.gt_s(magnitude, i32x4.splat(0x7bff));
  const special = v128.or(shifted, i32x4.splat(0x7f800000));
  const sign = i32x4.shl(v128.and(halves, i32x4.splat(0x8000)), 16);
  return v128.or(v128.bitselect(special, scaled, infinite), sign);
}

/** Stores the first `length` (1 to 4) lanes. */
// @ts-ignore: decorator
@inline
function storeLanes(target: usize, lanes: v128, length: u32): void {
  if (length >= 4) {
    v128.store(target, lanes);
    return;
  }
  store<u32>(target, i32x4.extract_lane(lanes, 0));
  if (length > 1) store<u32>(target, i32x4.extract_lane(lanes, 1), 4);
  if (length > 2) store<u32>(target, i32x4.extract_lane(lanes, 2), 8);
}

// @ts-ignore: decorator
@inline
function halfToFloat(half: u32): f32 {
  return reinterpret<f32>(<u32>i32x4.extract_lane(widenHalves(i32x4.splat(<i32>half)), 0));
}

/** Four elements at a time; the reads of the last ones stay within the row's padding, or the next row's first bytes. */
export function expandRows(dtype: u32, dim: u32, rowBytes: u32, source: usize, target: usize, count: u32): void {
  for (let row: u32 = 0; row < count; row++) {
    if (dtype == 1) {
      for (let i: u32 = 0; i < dim; i += 4) {
        const halves = v128.load_ext<u16>(source + (<usize>i << 1));
        storeLanes(target + (<usize>i << 2), widenHalves(halves), dim - i);
      }
    } else if (dtype == 2) {
      for (let i: u32 = 0; i < dim; i += 4) {
        const halves = v128.load_ext<u16>(source + (<usize>i << 1));
        storeLanes(target + (<usize>i << 2), i32x4.shl(halves, 16), dim - i);
      }
    } else if (dtype == 3) {
      const scale = f32x4.splat(halfToFloat(<u32>load<u16>(source)));
      const offset = f32x4.splat(halfToFloat(<u32>load<u16>(source, 2)));
      for (let i: u32 = 0; i < dim; i += 4) {
        const bytes = v128.load_zero<u32>(source + 4 + <usize>i);
        const levels = i32x4.extend_low_i16x8_u(i16x8.extend_low_i8x16_u(bytes));
        const floats = f32x4.add(offset, f32x4.mul(f32x4.convert_i32x4_s(levels), scale));
        storeLanes(target + (<usize>i << 2), floats, dim - i);
      }
    } else {
      copyAny(target, source, <usize>rowBytes);
    }
    source += <usize>rowBytes;
    target += <usize>dim << 2;
  }
}
