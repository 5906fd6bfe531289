/** The elements of tensors that warm up plain models. */
import { TENSOR_TYPE_BYTES, type TensorType } from '../../lib/core/graph-signature.ts';
import { f32BitsToBf16, f32BitsToF16 } from '../../lib/core/half-floats.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';

/**
 * Zeros, empty texts or random floats. Random integers would be invalid where they are ids, so only
 * floats are random: from -1 to 1.
 */
export function createElements(
  dataType: TensorType,
  count: number,
  kind: 'zeros' | 'random',
): NamedTensor['data'] {
  if (dataType === 'BYTES') return new Array<string>(count).fill('');
  const isFloat = dataType.startsWith('FP') || dataType === 'BF16';
  if (kind === 'zeros' || !isFloat) return new Uint8Array(count * TENSOR_TYPE_BYTES[dataType]);
  const unit = (): number => 2 * Math.random() - 1;
  if (dataType === 'FP64') {
    return new Uint8Array(Float64Array.from({ length: count }, unit).buffer);
  }
  const { buffer } = Float32Array.from({ length: count }, unit);
  if (dataType === 'FP32') return new Uint8Array(buffer);
  const round = dataType === 'BF16' ? f32BitsToBf16 : f32BitsToF16;
  return new Uint8Array(Uint16Array.from(new Uint32Array(buffer), round).buffer);
}
