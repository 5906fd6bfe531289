/** 16-bit floats to 32-bit ones: IEEE binary16 by table, bfloat16 by shift. Exact, NaN and infinities kept. */

let f16Table: Uint32Array | undefined;

/** The f32 bits of every f16. */
export function f16Bits(): Uint32Array {
  f16Table ??= Uint32Array.from({ length: 1 << 16 }, (_, half) => widen(half));
  return f16Table;
}

function widen(half: number): number {
  const sign = (half & 0x8000) << 16;
  const exponent = (half >> 10) & 0x1f;
  const fraction = half & 0x3ff;
  if (exponent === 0x1f) return (sign | 0x7f80_0000 | (fraction << 13)) >>> 0;
  if (exponent !== 0) return (sign | ((exponent + 112) << 23) | (fraction << 13)) >>> 0;
  if (fraction === 0) return sign >>> 0;
  // Subnormal: the highest bit becomes the hidden one.
  const shift = Math.clz32(fraction) - 21;
  return (sign | ((113 - shift) << 23) | (((fraction << shift) & 0x3ff) << 13)) >>> 0;
}
