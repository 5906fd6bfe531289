/**
 * Tensors and kernels of the reference interpreter. Tensors are plain row-major arrays. Values that
 * are float32 in Paddle are rounded to float32 after every operator.
 */
import type { CubeError } from '../../../lib/core/errors.ts';

import { notVerifiedError } from '../cut/refusals.ts';
import { countElements } from '../cut/table.ts';
import { getElementTypeName, type Op } from './program.ts';

export type TensorDtype = 'float32' | 'float64' | 'int64' | 'int32' | 'bool';

export interface Tensor {
  readonly dtype: TensorDtype;
  readonly dims: readonly number[];
  /** Integers and bools are in a Float64Array, exact up to 2^53. */
  readonly data: Float32Array | Float64Array;
  /** The first row of each sequence, and the end of the last one. */
  readonly lod?: readonly number[];
}

/** Maximum elements of one tensor; a model that needs more for a few rows cannot be verified. */
const ELEMENT_COUNT_MAX = 2 ** 26;

/** A tensor of zeros. */
export function createTensor(
  dtype: TensorDtype,
  dims: readonly number[],
  lod?: readonly number[],
): Tensor {
  const count = countElements(dims);
  if (!(count <= ELEMENT_COUNT_MAX))
    throw notVerifiedError(`a tensor has ${count} elements; the maximum is ${ELEMENT_COUNT_MAX}`);
  const data = dtype === 'float32' ? new Float32Array(count) : new Float64Array(count);
  return { dtype, dims, data, ...(lod === undefined ? {} : { lod }) };
}

/** The same elements with other dims. */
export function reshapeTensor(tensor: Tensor, dims: readonly number[]): Tensor {
  const { dtype, data, lod } = tensor;
  const keepsRows = lod !== undefined && dims[0] === tensor.dims[0];
  return { dtype, dims, data, ...(keepsRows ? { lod } : {}) };
}

const DTYPES: Readonly<Record<string, TensorDtype>> = {
  float32: 'float32',
  float64: 'float64',
  int64: 'int64',
  int32: 'int32',
  bool: 'bool',
};

/** @throws CubeError UNSUPPORTED for types that the interpreter does not support */
export function getTensorDtype(elementType: number): TensorDtype {
  const name = getElementTypeName(elementType);
  const dtype = DTYPES[name];
  if (dtype === undefined)
    throw notVerifiedError(`the type ${name} is not supported by the verification`);
  return dtype;
}

/** Elements between neighbours along each axis. */
export function computeStrides(dims: readonly number[]): number[] {
  const strides = new Array<number>(dims.length).fill(1);
  for (let axis = dims.length - 2; axis >= 0; axis--) {
    strides[axis] = strides[axis + 1]! * dims[axis + 1]!;
  }
  return strides;
}

/** @returns the number of elements before, along and after an axis */
export function splitAtAxis(dims: readonly number[], axis: number): [number, number, number] {
  return [countElements(dims.slice(0, axis)), dims[axis] ?? 1, countElements(dims.slice(axis + 1))];
}

/** The offset of element `index` of `dims` in a tensor with these strides; 0 repeats. */
export function computeOffset(
  index: number,
  dims: readonly number[],
  strides: readonly number[],
): number {
  let offset = 0;
  for (let axis = dims.length - 1; axis >= 0; axis--) {
    offset += (index % dims[axis]!) * strides[axis]!;
    index = Math.floor(index / dims[axis]!);
  }
  return offset;
}

/** One execution of an operator by its kernel. */
export interface KernelCall {
  readonly op: Op;
  /** The first variable of a parameter. */
  input(parameter: string): Tensor;
  optionalInput(parameter: string): Tensor | undefined;
  inputs(parameter: string): readonly Tensor[];
  /** Number of axes that the program declares for an output. */
  declaredRank(parameter: string): number;
  setOutput(parameter: string, tensor: Tensor, position?: number): void;
  /** Counts multiplications, so that hostile sizes end. */
  countOperations(operations: number): void;
  /** The inputs do not fit. @param reason a clause about the operator */
  error(reason: string): CubeError;
  /** The operator is valid but not supported here. @param reason a clause about the operator */
  unsupported(reason: string): CubeError;
}

export type Kernel = (call: KernelCall) => void;
