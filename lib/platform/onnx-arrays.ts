/**
 * Element types of tensors and their typed arrays. It is apart from onnx.ts because that loads
 * onnxruntime.
 */
interface OnnxArrays {
  /** Bits of each element (lib/core/half-floats.ts). */
  float16: Uint16Array;
  float32: Float32Array;
  float64: Float64Array;
  int8: Int8Array;
  uint8: Uint8Array;
  int16: Int16Array;
  uint16: Uint16Array;
  int32: Int32Array;
  uint32: Uint32Array;
  int64: BigInt64Array;
  uint64: BigUint64Array;
  bool: Uint8Array;
}

/** Element types that have a typed array. */
export type OnnxDtype = keyof OnnxArrays;
export type OnnxData = OnnxArrays[OnnxDtype];

interface ArrayType<A> {
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): A;
  new (buffer: ArrayBuffer, byteOffset: number, length: number): A;
}

export const ARRAY_TYPES: { readonly [D in OnnxDtype]: ArrayType<OnnxArrays[D]> } = {
  float16: Uint16Array,
  float32: Float32Array,
  float64: Float64Array,
  int8: Int8Array,
  uint8: Uint8Array,
  int16: Int16Array,
  uint16: Uint16Array,
  int32: Int32Array,
  uint32: Uint32Array,
  int64: BigInt64Array,
  uint64: BigUint64Array,
  bool: Uint8Array,
};
