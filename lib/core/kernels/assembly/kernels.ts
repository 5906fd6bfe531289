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

/** Copies one row; `bytes` is a constant wherever this is inlined for a common size. */
// @ts-ignore: decorator
@inline
function copyRow(target: usize, source: usize, bytes: usize): void {
  if (bytes == 16) {
    v128.store(target, v128.load(source));
  } else if (bytes == 32) {
    v128.store(target, v128.load(source));
    v128.store(target, v128.load(source, 16), 16);
  } else if (bytes == 40) {
    v128.store(target, v128.load(source));
    v128.store(target, v128.load(source, 16), 16);
    store<u64>(target, load<u64>(source, 32), 32);
  } else if (bytes == 64) {
    v128.store(target, v128.load(source));
    v128.store(target, v128.load(source, 16), 16);
    v128.store(target, v128.load(source, 32), 32);
    v128.store(target, v128.load(source, 48), 48);
  } else {
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

/** The same for one of several segments: the first pass gathers up to 32 keys of this segment, without a branch. */
// @ts-ignore: decorator
@inline
function splitBatch(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, rowBytes: usize): u32 {
  const emptyKey = load<u64>(params);
  const homeSlots = load<u64>(params, 16);
  const base = <usize>load<u32>(params, 40);
  // As of the layout: 8 + rowBytes rounded up to 8; a constant where rowBytes is one.
  const stride = (rowBytes + 15) & ~7;
  const segment = load<u32>(params, 52);
  const segmentCount = <u64>load<u32>(params, 56);
  if (segment == 0) memory.fill(found, 0, ((<usize>count + 31) >> 5) << 2);
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
      own += <u32>(<u32>(((mixed & 0xffffffff) * segmentCount) >> 32) == segment);
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
          copyRow(rows + <usize>place * rowBytes, slot + 8, rowBytes);
          const mask = found + ((<usize>place >> 5) << 2);
          store<u32>(mask, load<u32>(mask) | (1 << (place & 31)));
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

function lookupSplit(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32): u32 {
  const rowBytes = load<u32>(params, 48);
  switch (rowBytes) {
    case 32: return splitBatch(params, work, keys, found, rows, count, 32);
    case 40: return splitBatch(params, work, keys, found, rows, count, 40);
    case 64: return splitBatch(params, work, keys, found, rows, count, 64);
    default: return splitBatch(params, work, keys, found, rows, count, <usize>rowBytes);
  }
}

export function lookupInline(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32): u32 {
  if (load<u32>(params, 56) > 1) return lookupSplit(params, work, keys, found, rows, count);
  const rowBytes = load<u32>(params, 48);
  switch (rowBytes) {
    case 16: return inlineBatch(params, work, keys, found, rows, count, 16);
    case 32: return inlineBatch(params, work, keys, found, rows, count, 32);
    case 40: return inlineBatch(params, work, keys, found, rows, count, 40);
    case 64: return inlineBatch(params, work, keys, found, rows, count, 64);
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

// @ts-ignore: decorator
@inline
function denseBatch(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32, rowBytes: usize): u32 {
  const firstKey = load<u64>(params);
  const keyStep = load<u64>(params, 8);
  const startRow = load<u64>(params, 24);
  const rowCount = load<u64>(params, 32);
  const base = <usize>load<u32>(params, 40);
  const stride = <usize>load<u32>(params, 44);
  const segment = load<u32>(params, 52);
  const shift = load<i32>(params, 64);
  let hits: u32 = 0;
  let touched: u32 = 0;
  for (let start: u32 = 0; start < count; start += 32) {
    const length = min<u32>(32, count - start);
    const first = keys + (<usize>start << 3);
    for (let i: u32 = 0; i < length; i++) {
      const key = load<u64>(first + (<usize>i << 3));
      const row = denseRow(key, firstKey, keyStep, shift, startRow, rowCount, base, stride);
      store<u32>(work + (<usize>i << 2), <u32>row);
      touched += <u32>load<u8>(row) + <u32>load<u8>(row + stride - 1);
    }
    const mask = found + (<usize>start >> 3);
    let bits: u32 = segment == 0 ? 0 : load<u32>(mask);
    for (let i: u32 = 0; i < length; i++) {
      const row = <usize>load<u32>(work + (<usize>i << 2));
      if (row != 0) {
        copyRow(rows + <usize>(start + i) * rowBytes, row, rowBytes);
        bits |= 1 << i;
        hits++;
      }
    }
    store<u32>(mask, bits);
  }
  store<u32>(work + TOUCHED, touched);
  return hits;
}

export function lookupDense(params: usize, work: usize, keys: usize, found: usize, rows: usize, count: u32): u32 {
  const rowBytes = load<u32>(params, 48);
  switch (rowBytes) {
    case 16: return denseBatch(params, work, keys, found, rows, count, 16);
    case 32: return denseBatch(params, work, keys, found, rows, count, 32);
    case 40: return denseBatch(params, work, keys, found, rows, count, 40);
    case 64: return denseBatch(params, work, keys, found, rows, count, 64);
    default: return denseBatch(params, work, keys, found, rows, count, <usize>rowBytes);
  }
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
