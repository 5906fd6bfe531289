/** IEEE 754 half precision: as it stands in a model, and as an ONNX Cast to it rounds. */

/** @param halves bits of half-precision numbers, as many as `target` takes */
export function float16ToFloat32(halves: Uint16Array, target: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i] = fromBits(halves[i]!);
}

function fromBits(bits: number): number {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 0x1f;
  const fraction = bits & 0x3ff;
  if (exponent === 0) return sign * fraction * 2 ** -24;
  if (exponent === 0x1f) return fraction === 0 ? sign * Number.POSITIVE_INFINITY : Number.NaN;
  return sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
}

/** The nearest half-precision number, ties to even. */
export function roundToFloat16(value: number): number {
  const size = Math.abs(value);
  if (!Number.isFinite(value) || size === 0) return value;
  if (size >= 65_520) return value < 0 ? Number.NEGATIVE_INFINITY : Number.POSITIVE_INFINITY;
  const exponent = Math.max(Math.floor(Math.log2(size)), -14);
  const unit = 2 ** (exponent - 10);
  const scaled = size / unit;
  let whole = Math.floor(scaled);
  const rest = scaled - whole;
  if (rest > 0.5 || (rest === 0.5 && whole % 2 === 1)) whole++;
  return Math.sign(value) * whole * unit;
}
