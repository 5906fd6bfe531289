/**
 * 16-bit floats as bits: IEEE binary16 (f16) and bfloat16 (bf16). Conversions work on the bits of
 * an f32, so that the result does not depend on how the machine treats a NaN. They round to
 * nearest, ties to even, and keep infinities and NaN.
 */

/** Largest finite f16. */
export const F16_MAX = 65_504;

/** @param bits of an f32, unsigned @returns bits of the nearest f16 */
export function f32BitsToF16(bits: number): number {
  const sign = (bits >>> 16) & 0x8000;
  const magnitude = bits & 0x7fff_ffff;
  if (magnitude > 0x7f80_0000) return sign | 0x7e00 | ((magnitude >>> 13) & 0x3ff);
  // 2^16 and above, infinity included. Values from 65,520 to 2^16 are carried up to it below.
  if (magnitude >= 0x4780_0000) return sign | 0x7c00;
  if (magnitude >= 0x3880_0000) {
    const rebased = magnitude - 0x3800_0000;
    return sign | ((rebased + 0xfff + ((rebased >>> 13) & 1)) >>> 13);
  }
  // Below 2^-14 the result counts units of 2^-24.
  if (magnitude < 0x3300_0000) return sign;
  const shift = 126 - (magnitude >>> 23);
  const significand = (magnitude & 0x7f_ffff) | 0x80_0000;
  const units = significand >>> shift;
  const rest = significand & ((1 << shift) - 1);
  const half = 1 << (shift - 1);
  return sign | (units + (rest > half || (rest === half && (units & 1) === 1) ? 1 : 0));
}

/** @returns bits of the equal f32, unsigned */
export function f16ToF32Bits(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >>> 10) & 31;
  const fraction = half & 0x3ff;
  if (exponent === 31) return (sign | 0x7f80_0000 | (fraction << 13)) >>> 0;
  if (exponent > 0) return (sign | ((exponent + 112) << 23) | (fraction << 13)) >>> 0;
  if (fraction === 0) return sign >>> 0;
  const shift = Math.clz32(fraction) - 21;
  return (sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3ff) << 13)) >>> 0;
}

/** @param bits of an f32, unsigned @returns bits of the nearest bf16 */
export function f32BitsToBf16(bits: number): number {
  if ((bits & 0x7fff_ffff) > 0x7f80_0000) return (bits >>> 16) | 0x40;
  return (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

/** @returns bits of the equal f32, unsigned */
export function bf16ToF32Bits(half: number): number {
  return (half << 16) >>> 0;
}

const float = new Float32Array(1);
const floatBits = new Uint32Array(float.buffer);

export function f16ToNumber(half: number): number {
  floatBits[0] = f16ToF32Bits(half);
  return float[0]!;
}

export function bf16ToNumber(half: number): number {
  floatBits[0] = bf16ToF32Bits(half);
  return float[0]!;
}

function roundToF16(value: number): number {
  float[0] = value;
  return f32BitsToF16(floatBits[0]!);
}

/** The f16 nearest to `value`, ties to even, as a number. */
export function nearestF16Value(value: number): number {
  return f16ToNumber(roundToF16(value));
}

/**
 * @returns bits of the largest f16 that is at most `value` (which is at least −65,504); never −0
 */
export function roundDownToF16(value: number): number {
  const half = roundToF16(value);
  const below = f16ToNumber(half) <= value ? half : stepDown(half);
  return below === 0x8000 ? 0 : below;
}

/** @returns bits of the smallest f16 that is at least `value`, which is not negative */
export function roundUpToF16(value: number): number {
  const half = roundToF16(value);
  return f16ToNumber(half) >= value ? half : half + 1;
}

function stepDown(half: number): number {
  if (half === 0) return 0x8001;
  return half & 0x8000 ? half + 1 : half - 1;
}
