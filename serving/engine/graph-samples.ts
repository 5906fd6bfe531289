/** Inputs of graphs for checks: random, and the same in every process. */
import { CubeError } from '../../lib/core/errors.ts';
import { f16ToNumber, f32BitsToF16 } from '../../lib/core/half-floats.ts';
import type { OnnxTensor, OnnxValueInfo } from '../../lib/platform/onnx.ts';

/** Elements of a dynamic dimension other than the first. */
const DYNAMIC_ELEMENTS = 4;

export function toNumbers(tensor: OnnxTensor | undefined): number[] {
  if (tensor === undefined) return [];
  if (tensor.dtype === 'float16') return Array.from(tensor.data as Uint16Array, f16ToNumber);
  return Array.from(tensor.data, Number);
}

/** Numbers from 0 to 1; the same in every process. */
export function createRandom(): () => number {
  let state = 1;
  return () => {
    state = (state * 48_271) % 0x7fff_ffff;
    return state / 0x7fff_ffff;
  };
}

export interface SampleOptions {
  /** Numbers from 0 to 1. */
  readonly random: () => number;
  readonly batch: number;
  readonly source: string;
}

/** Floats from -1 to 1; integers 0 and 1, which are ids of most tables and rows of the batch. */
export function sampleInput(
  { name, dtype, shape }: OnnxValueInfo,
  { random, batch, source }: SampleOptions,
): OnnxTensor {
  const dims = shape.map((dim, i) => {
    if (typeof dim === 'number' && dim >= 0) return dim;
    return i === 0 ? batch : DYNAMIC_ELEMENTS;
  });
  const length = dims.reduce((product, dim) => product * dim, 1);
  const floats = (): number[] => Array.from({ length }, () => 2 * random() - 1);
  const one = batch > 1 ? 1 : 0;
  const bits = (): number[] => Array.from({ length }, () => (random() < 0.5 ? 0 : one));
  switch (dtype) {
    case 'float32':
      return { dtype, data: Float32Array.from(floats()), dims };
    case 'float16': {
      const bits32 = new Uint32Array(Float32Array.from(floats()).buffer);
      return { dtype, data: Uint16Array.from(bits32, f32BitsToF16), dims };
    }
    case 'float64':
      return { dtype, data: Float64Array.from(floats()), dims };
    case 'int64':
      return { dtype, data: BigInt64Array.from(bits(), BigInt), dims };
    case 'uint64':
      return { dtype, data: BigUint64Array.from(bits(), BigInt), dims };
    case 'int32':
      return { dtype, data: Int32Array.from(bits()), dims };
    case 'uint8':
      return { dtype, data: Uint8Array.from({ length }, () => 256 * random()), dims };
    case 'bool':
      return { dtype, data: Uint8Array.from(bits()), dims };
    default:
      throw new CubeError(
        'UNSUPPORTED',
        `${source}: input ${JSON.stringify(name)}: inputs of ${dtype} cannot be sampled, so a ` +
          'converted graph cannot be compared with the original',
      );
  }
}
