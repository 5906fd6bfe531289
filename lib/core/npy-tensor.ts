/** `.npy` files of any element type as tensors: a C-order, little-endian array. */
import { CubeError } from './errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from './graph-signature.ts';
import { readNpyHeader } from './npy.ts';
import { quoteInput } from './shown-input.ts';
import { countElements, type Tensor } from './tensor.ts';

/** By the type of a header, without its byte order. */
const TYPES: Readonly<Record<string, TensorType>> = {
  b1: 'BOOL',
  u1: 'UINT8',
  u2: 'UINT16',
  u4: 'UINT32',
  u8: 'UINT64',
  i1: 'INT8',
  i2: 'INT16',
  i4: 'INT32',
  i8: 'INT64',
  f2: 'FP16',
  f4: 'FP32',
  f8: 'FP64',
};

/**
 * Copies the elements.
 * @param source name of the file in errors
 * @throws CubeError CORRUPT for damaged bytes, UNSUPPORTED for arrays of another kind
 */
export function decodeNpyTensor(bytes: Uint8Array, source: string): Tensor {
  const { descr, fortranOrder, shape, dataOffset } = readNpyHeader(bytes, source);
  const name = /^[<|=]/.test(descr) ? descr.slice(1) : '';
  const dataType = Object.hasOwn(TYPES, name) ? TYPES[name] : undefined;
  if (dataType === undefined) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: elements of type ${quoteInput(descr)}; supported are numbers and bool`,
    );
  }
  if (fortranOrder) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: the array is in Fortran order; save it with numpy.ascontiguousarray`,
    );
  }
  const data = bytes.slice(dataOffset);
  const expected = countElements(shape) * TENSOR_TYPE_BYTES[dataType];
  if (data.length !== expected) {
    throw new CubeError(
      'CORRUPT',
      `${source}: shape (${shape.join(', ')}) of ${name} needs ${expected} bytes, ` +
        `${data.length} follow the header`,
    );
  }
  return { dataType, shape, data };
}
