/** Decodes stored rows of f16, bf16 and i8 to rows of f32. */

import { DTYPE_BF16, DTYPE_F16, DTYPE_I8 } from '../params';
import { copyAny } from './row-copy';

/**
 * The f32 bits of four f16 at a time: scaled by 2^112, which is exact; infinities and NaN keep
 * their bits.
 */
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

/**
 * Decodes four elements at a time. Reads of the last ones stay within the row's padding, or the
 * next row's first bytes.
 */
export function expandRows(
  dtype: u32,
  dim: u32,
  rowBytes: u32,
  source: usize,
  target: usize,
  count: u32,
): void {
  for (let row: u32 = 0; row < count; row++) {
    if (dtype == DTYPE_F16) {
      for (let i: u32 = 0; i < dim; i += 4) {
        const halves = v128.load_ext<u16>(source + (<usize>i << 1));
        storeLanes(target + (<usize>i << 2), widenHalves(halves), dim - i);
      }
    } else if (dtype == DTYPE_BF16) {
      for (let i: u32 = 0; i < dim; i += 4) {
        const halves = v128.load_ext<u16>(source + (<usize>i << 1));
        storeLanes(target + (<usize>i << 2), i32x4.shl(halves, 16), dim - i);
      }
    } else if (dtype == DTYPE_I8) {
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
