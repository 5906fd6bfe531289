/**
 * The inputs and outputs of an ONNX graph: names, element types and dimensions, with the type names
 * of the Open Inference Protocol (KServe v2).
 */

export type TensorType =
  | 'BOOL'
  | `${'' | 'U'}INT${8 | 16 | 32 | 64}`
  | 'BF16'
  | `FP${16 | 32 | 64}`
  | 'BYTES';

/** Bytes of an element; 0 for BYTES, whose elements have different lengths. */
export const TENSOR_TYPE_BYTES: Readonly<Record<TensorType, number>> = {
  BOOL: 1,
  UINT8: 1,
  UINT16: 2,
  UINT32: 4,
  UINT64: 8,
  INT8: 1,
  INT16: 2,
  INT32: 4,
  INT64: 8,
  FP16: 2,
  BF16: 2,
  FP32: 4,
  FP64: 8,
  BYTES: 0,
};

/** A fixed size, or the name of a dynamic dimension; '' when it has no name. */
export type TensorDim = number | string;

export interface TensorSpec {
  readonly name: string;
  readonly dataType: TensorType;
  /** Empty for a scalar; undefined when not even the rank is declared. */
  readonly dims: readonly TensorDim[] | undefined;
}

export interface GraphSignature {
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
}

/** -1 for each dynamic dimension, as in KServe, Triton and TensorFlow. */
export function toWireShape(dims: readonly TensorDim[]): number[] {
  return dims.map((dim) => (typeof dim === 'number' ? dim : -1));
}

/**
 * Whether the first dimension of every tensor is the batch: dynamic everywhere, and not under two
 * names among the inputs. An output of unknown rank is assumed to have it, too.
 */
export function hasBatchDimension({ inputs, outputs }: GraphSignature): boolean {
  const firsts = inputs.map(({ dims }) => dims?.[0]);
  const names = new Set(firsts.filter((dim) => dim !== ''));
  return (
    firsts.length > 0 &&
    firsts.every((dim) => typeof dim === 'string') &&
    names.size <= 1 &&
    outputs.every(({ dims }) => dims === undefined || typeof dims[0] === 'string')
  );
}
