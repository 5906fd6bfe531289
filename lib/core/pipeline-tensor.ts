/** Tensors as ops see them: typed arrays with a shape. */
import { CubeError } from './errors.ts';
import type { TensorType } from './graph-signature.ts';
import { countElements, type Tensor } from './tensor.ts';

interface TensorArrays {
  /** 0 or 1. */
  BOOL: Uint8Array;
  UINT8: Uint8Array;
  UINT16: Uint16Array;
  UINT32: Uint32Array;
  UINT64: BigUint64Array;
  INT8: Int8Array;
  INT16: Int16Array;
  INT32: Int32Array;
  INT64: BigInt64Array;
  /** Bits of each element. */
  FP16: Uint16Array;
  BF16: Uint16Array;
  FP32: Float32Array;
  FP64: Float64Array;
  BYTES: readonly string[];
}

export type TensorArray = TensorArrays[TensorType];

/** A dense row-major tensor. `data` has exactly the product of `shape` elements. */
export interface PipelineTensor<Type extends TensorType = TensorType> {
  readonly dataType: Type;
  readonly shape: readonly number[];
  readonly data: TensorArrays[Type];
}

type NumericType = Exclude<TensorType, 'BYTES'>;
type NumericArray = TensorArrays[NumericType];

interface ArrayClass {
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): NumericArray;
  new (buffer: ArrayBufferLike, byteOffset: number, length: number): NumericArray;
}

const ARRAY_CLASSES: Readonly<Record<NumericType, ArrayClass>> = {
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

/** The element type of a bare typed array. */
const DEFAULT_TYPES: ReadonlyMap<unknown, NumericType> = new Map<unknown, NumericType>([
  [Uint8Array, 'UINT8'],
  [Uint16Array, 'UINT16'],
  [Uint32Array, 'UINT32'],
  [BigUint64Array, 'UINT64'],
  [Int8Array, 'INT8'],
  [Int16Array, 'INT16'],
  [Int32Array, 'INT32'],
  [BigInt64Array, 'INT64'],
  [Float32Array, 'FP32'],
  [Float64Array, 'FP64'],
]);

/** @throws CubeError INVALID_ARGUMENT when the shape and the number of elements differ */
export function createTensor<Type extends TensorType>(
  dataType: Type,
  shape: readonly number[],
  data: TensorArrays[Type],
): PipelineTensor<Type> {
  if (countElements(shape) !== data.length) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `a tensor of shape [${shape.join(', ')}] has ${countElements(shape)} elements, ` +
        `got ${data.length}`,
    );
  }
  return { dataType, shape, data };
}

export function isTensor(value: unknown): value is PipelineTensor {
  if (typeof value !== 'object' || value === null) return false;
  const { dataType, shape, data } = value as Partial<PipelineTensor>;
  return typeof dataType === 'string' && Array.isArray(shape) && data !== undefined;
}

/** The element type of a typed array; undefined for anything else. */
export function findArrayType(value: unknown): NumericType | undefined {
  return ArrayBuffer.isView(value) ? DEFAULT_TYPES.get(value.constructor) : undefined;
}

/** A typed view of the bytes; a copy where they are not aligned. */
export function fromByteTensor({ dataType, shape, data }: Tensor): PipelineTensor {
  if (dataType === 'BYTES' || !(data instanceof Uint8Array)) {
    return { dataType: 'BYTES', shape, data: data as readonly string[] };
  }
  const type = ARRAY_CLASSES[dataType];
  const itemBytes = type.BYTES_PER_ELEMENT;
  const bytes = data.byteOffset % itemBytes === 0 ? data : new Uint8Array(data);
  const elements = new type(bytes.buffer, bytes.byteOffset, bytes.length / itemBytes);
  return { dataType, shape, data: elements };
}

/** A view of the elements as bytes. */
export function toByteTensor({ dataType, shape, data }: PipelineTensor): Tensor {
  if (!ArrayBuffer.isView(data)) return { dataType, shape, data };
  const { buffer, byteOffset, byteLength } = data;
  return { dataType, shape, data: new Uint8Array(buffer, byteOffset, byteLength) };
}

/** Zeros. @throws CubeError UNSUPPORTED for types whose elements are not numbers */
export function createNumericArray(type: TensorType, length: number): (number | bigint)[] {
  if (type === 'BYTES' || type === 'FP16' || type === 'BF16') {
    throw new CubeError('UNSUPPORTED', `tensors of ${type} cannot be made from numbers`);
  }
  return new ARRAY_CLASSES[type](length) as unknown as (number | bigint)[];
}
