/** Dense row-major tensors of any type, as requests and plain models exchange them. */
import { TENSOR_TYPE_BYTES, type TensorType } from './graph-signature.ts';

/** `data` has exactly the product of `shape` elements. */
export interface Tensor {
  readonly dataType: TensorType;
  readonly shape: readonly number[];
  /** Little-endian elements; strings for BYTES. */
  readonly data: Uint8Array | readonly string[];
}

export interface NamedTensor extends Tensor {
  readonly name: string;
}

export function countElements(shape: readonly number[]): number {
  return shape.reduce((product, dim) => product * dim, 1);
}

/** Rows first … first + count - 1 of the first dimension, as a view. */
export function viewRows({ dataType, shape, data }: Tensor, first: number, count: number): Tensor {
  const [rows = 1, ...rest] = shape;
  if (first === 0 && count === rows) return { dataType, shape, data };
  const width = countElements(rest) * elementWidth(dataType);
  const [start, end] = [first * width, (first + count) * width];
  const part = data instanceof Uint8Array ? data.subarray(start, end) : data.slice(start, end);
  return { dataType, shape: [count, ...rest], data: part };
}

/**
 * The rows of all parts, whose types and other dimensions are equal.
 * @param allocate makes the memory of the result, which has as many bytes; default: new memory
 */
export function concatRows(
  parts: readonly Tensor[],
  allocate: (byteLength: number) => Uint8Array = (byteLength) => new Uint8Array(byteLength),
): Tensor {
  const { dataType, shape } = parts[0]!;
  const rows = parts.reduce((sum, part) => sum + (part.shape[0] ?? 1), 0);
  const merged = [rows, ...shape.slice(1)];
  if (dataType === 'BYTES') {
    return { dataType, shape: merged, data: parts.flatMap(({ data }) => data as string[]) };
  }
  const bytes = allocate(countElements(merged) * TENSOR_TYPE_BYTES[dataType]);
  let at = 0;
  for (const part of parts) {
    const data = part.data as Uint8Array;
    bytes.set(data, at);
    at += data.length;
  }
  return { dataType, shape: merged, data: bytes };
}

/** Bytes in `data` for each element; 1 place for a string. */
function elementWidth(dataType: TensorType): number {
  return dataType === 'BYTES' ? 1 : TENSOR_TYPE_BYTES[dataType];
}

/** Elements as numbers; those of FP16 and BF16 are their bits. */
export type ElementArray =
  | Int8Array
  | Uint8Array
  | Int16Array
  | Uint16Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array
  | Float32Array
  | Float64Array;

type ElementArrayType = new (
  buffer: ArrayBufferLike,
  byteOffset: number,
  length: number,
) => ElementArray;

const ELEMENT_ARRAYS: Readonly<Record<Exclude<TensorType, 'BYTES'>, ElementArrayType>> = {
  BOOL: Uint8Array,
  UINT8: Uint8Array,
  UINT16: Uint16Array,
  UINT32: Uint32Array,
  UINT64: BigUint64Array,
  INT8: Int8Array,
  INT16: Int16Array,
  INT32: Int32Array,
  INT64: BigInt64Array,
  FP16: Uint16Array,
  BF16: Uint16Array,
  FP32: Float32Array,
  FP64: Float64Array,
};

/** Views elements as numbers; copies them first when they are not aligned. */
export function viewElements(
  dataType: Exclude<TensorType, 'BYTES'>,
  bytes: Uint8Array,
): ElementArray {
  const size = TENSOR_TYPE_BYTES[dataType];
  const source = bytes.byteOffset % size === 0 ? bytes : new Uint8Array(bytes);
  const type = ELEMENT_ARRAYS[dataType];
  return new type(source.buffer, source.byteOffset, source.length / size);
}
