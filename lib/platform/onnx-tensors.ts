/** Tensors of requests as tensors of onnxruntime, and back. */
import { requireDefined } from '../core/errors.ts';
import type { TensorType } from '../core/graph-signature.ts';
import { bf16ToF32Bits } from '../core/half-floats.ts';
import type { NamedTensor, Tensor } from '../core/tensor.ts';
import type { AnyOnnxTensor } from './onnx.ts';
import { ARRAY_TYPES, type OnnxDtype } from './onnx-arrays.ts';

/** Graphs exchange BF16 as float32 (proto/onnx-bfloat16.ts). */
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

/** @param tensor its bytes start at a multiple of the element size; only BF16 is copied */
export function toOnnxTensor({ dataType, shape: dims, data }: Tensor): AnyOnnxTensor {
  if (dataType === 'BF16') return { dtype: 'float32', data: widenBfloat16(data), dims };
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
 * @param declared the type in the graph's file, which may be BF16
 */
export function fromOnnxTensor(
  name: string,
  tensor: AnyOnnxTensor,
  declared?: TensorType,
): NamedTensor {
  const dataType = requireDefined(TYPES.get(tensor.dtype), 'the type of an output');
  const shape = tensor.dims;
  if (declared === 'BF16' && tensor.data instanceof Float32Array) {
    return { name, dataType: declared, shape, data: narrowToBfloat16(tensor.data) };
  }
  if (tensor.dtype === 'string') return { name, dataType, shape, data: tensor.data };
  const { buffer, byteOffset, byteLength } = tensor.data;
  const view = new Uint8Array(buffer, byteOffset, byteLength);
  const isOwn = byteLength === buffer.byteLength && buffer instanceof ArrayBuffer;
  return { name, dataType, shape, data: isOwn ? view : new Uint8Array(view) };
}

function widenBfloat16(data: Tensor['data']): Float32Array {
  const { buffer, byteOffset, length } = data as Uint8Array<ArrayBuffer>;
  const halves = new Uint16Array(buffer, byteOffset, length / Uint16Array.BYTES_PER_ELEMENT);
  return new Float32Array(Uint32Array.from(halves, bf16ToF32Bits).buffer);
}

/** The values were bfloat16 in the graph: the low bits are zero. */
function narrowToBfloat16({ buffer, byteOffset, length }: Float32Array): Uint8Array {
  const bits = new Uint32Array(buffer, byteOffset, length);
  return new Uint8Array(Uint16Array.from(bits, (word) => word >>> 16).buffer);
}
