/** Tensors of requests as tensors of onnxruntime, and back. */
import { CubeError, requireDefined } from '../core/errors.ts';
import type { TensorType } from '../core/graph-signature.ts';
import type { NamedTensor, Tensor } from '../core/tensor.ts';
import type { AnyOnnxTensor } from './onnx.ts';
import { ARRAY_TYPES, type OnnxDtype } from './onnx-arrays.ts';

const DTYPES: Readonly<Record<Exclude<TensorType, 'BF16'>, OnnxDtype | 'string'>> = {
  BOOL: 'bool',
  UINT8: 'uint8',
  UINT16: 'uint16',
  UINT32: 'uint32',
  UINT64: 'uint64',
  INT8: 'int8',
  INT16: 'int16',
  INT32: 'int32',
  INT64: 'int64',
  FP16: 'float16',
  FP32: 'float32',
  FP64: 'float64',
  BYTES: 'string',
};

const TYPES: ReadonlyMap<string, TensorType> = new Map(
  Object.entries(DTYPES).map(([type, dtype]) => [dtype, type as TensorType]),
);

/** Whether onnxruntime's interface for Node can exchange tensors of this type. */
export function isRuntimeType(type: TensorType): boolean {
  return type !== 'BF16';
}

/**
 * @param tensor its bytes start at a multiple of the element size; they are not copied
 * @throws CubeError UNSUPPORTED for BF16
 */
export function toOnnxTensor({ dataType, shape: dims, data }: Tensor): AnyOnnxTensor {
  if (dataType === 'BF16') throw new CubeError('UNSUPPORTED', 'BF16 tensors are not supported');
  const dtype = DTYPES[dataType];
  if (dtype === 'string' || !(data instanceof Uint8Array)) {
    return { dtype: 'string', data: data as readonly string[], dims };
  }
  const { buffer, byteOffset, length } = data;
  const type = ARRAY_TYPES[dtype];
  const elements = new type(buffer as ArrayBuffer, byteOffset, length / type.BYTES_PER_ELEMENT);
  return { dtype, data: elements, dims };
}

/**
 * Views the elements, which the runtime puts into a buffer of their own, and copies them otherwise:
 * the buffer can be transferred.
 */
export function fromOnnxTensor(name: string, tensor: AnyOnnxTensor): NamedTensor {
  const dataType = requireDefined(TYPES.get(tensor.dtype), 'the type of an output');
  const shape = tensor.dims;
  if (tensor.dtype === 'string') return { name, dataType, shape, data: tensor.data };
  const { buffer, byteOffset, byteLength } = tensor.data;
  const view = new Uint8Array(buffer, byteOffset, byteLength);
  const isOwn = byteLength === buffer.byteLength && buffer instanceof ArrayBuffer;
  return { name, dataType, shape, data: isOwn ? view : new Uint8Array(view) };
}
