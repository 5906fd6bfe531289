/** The f32 bits of every f16, as a table: a row's elements are converted by one read each. */
import { f16ToF32Bits } from '../../../lib/core/half-floats.ts';

let table: Uint32Array | undefined;

export function f16Bits(): Uint32Array {
  table ??= Uint32Array.from({ length: 1 << 16 }, (_, half) => f16ToF32Bits(half));
  return table;
}
