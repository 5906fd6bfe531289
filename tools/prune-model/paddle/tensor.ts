/** Tensors of the reference interpreter: plain arrays, row-major; what is float32 in Paddle is rounded to it after every step. */
import { CubeError } from '../../../lib/core/errors.ts';
import { elementName } from './program.ts';

export type TensorDtype = 'float32' | 'float64' | 'int64' | 'int32' | 'bool';

export interface Tensor {
  readonly dtype: TensorDtype;
  readonly dims: readonly number[];
  /** Integers and bools lie in a Float64Array, exact up to 2^53. */
  readonly data: Float32Array | Float64Array;
  /** Where each sequence of rows begins, and the end of the last. */
  readonly lod?: readonly number[];
}

/** Elements of one tensor; a model that makes more of a handful of rows cannot be checked here. */
const ELEMENT_COUNT_MAX = 2 ** 26;

export function countOf(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}

/** A tensor of zeros. */
export function makeTensor(
  dtype: TensorDtype,
  dims: readonly number[],
  lod?: readonly number[],
): Tensor {
  const count = countOf(dims);
  if (!(count <= ELEMENT_COUNT_MAX)) throw unproved(`a tensor has ${count} elements`);
  const data = dtype === 'float32' ? new Float32Array(count) : new Float64Array(count);
  return { dtype, dims, data, ...(lod === undefined ? {} : { lod }) };
}

/** The same elements under other dims. */
export function withDims(tensor: Tensor, dims: readonly number[]): Tensor {
  const { dtype, data, lod } = tensor;
  const keepsRows = lod !== undefined && dims[0] === tensor.dims[0];
  return { dtype, dims, data, ...(keepsRows ? { lod } : {}) };
}

const DTYPES: Readonly<Record<string, TensorDtype>> = {
  ...{ float32: 'float32', float64: 'float64', int64: 'int64', int32: 'int32', bool: 'bool' },
};

/** @throws CubeError UNSUPPORTED for types that are not computed with here */
export function dtypeOf(elementType: number): TensorDtype {
  const name = elementName(elementType);
  return DTYPES[name] ?? fail(`it computes with ${name}`);
}

function fail(why: string): never {
  throw unproved(why);
}

/** @param why continues "not proved: " */
export function unproved(why: string): CubeError {
  return new CubeError(
    'UNSUPPORTED',
    `not proved: ${why}; --verify 0 accepts the model without proof`,
  );
}

/** The size of steps along each axis. */
export function stridesOf(dims: readonly number[]): number[] {
  const strides = new Array<number>(dims.length).fill(1);
  for (let axis = dims.length - 2; axis >= 0; axis--) {
    strides[axis] = strides[axis + 1]! * dims[axis + 1]!;
  }
  return strides;
}

/** Elements before, along and behind an axis. */
export function aroundAxis(dims: readonly number[], axis: number): [number, number, number] {
  return [countOf(dims.slice(0, axis)), dims[axis] ?? 1, countOf(dims.slice(axis + 1))];
}
