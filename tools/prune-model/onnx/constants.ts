/** Constants of a graph: where they are, and the values of integer ones (axes, shapes, offsets). */
import { countElements } from '../cut/table.ts';
import { ELEM_BOOL, ELEM_INT32, type NodeProto, type TensorProto } from './onnx-model.ts';
import { readIntegers } from './tensor-data.ts';

/**
 * A constant stored in the file: an initializer or a Constant node, possibly behind Identity nodes.
 */
export interface ConstantSource {
  /** The initializer's name, or the Constant node's output. */
  readonly name: string;
  readonly tensor: TensorProto | undefined;
  /** Values of a Constant node that has integers instead of a tensor. */
  readonly ints: IntegerConstant | undefined;
}

export interface IntegerConstant {
  readonly dtype: 'int64' | 'int32' | 'bool';
  readonly dims: readonly number[];
  readonly values: ArrayLike<bigint>;
}

/** Default limit: axes, shapes and offsets are short. */
const INTEGER_COUNT_MAX = 100_000;

export function readConstantNode(node: NodeProto, name: string): ConstantSource {
  const int = node.attributes.get('value_int')?.int;
  const list = node.attributes.get('value_ints')?.ints;
  let ints: IntegerConstant | undefined;
  if (int !== undefined) ints = { dtype: 'int64', values: [int], dims: [] };
  else if (list !== undefined) ints = { dtype: 'int64', values: list, dims: [list.length] };
  return { name, tensor: node.attributes.get('value')?.tensor, ints };
}

/**
 * @returns undefined when the constant is not integer or bool, or has more than `countMax` elements
 */
export function readIntegerConstant(
  source: ConstantSource | undefined,
  countMax: number = INTEGER_COUNT_MAX,
): IntegerConstant | undefined {
  if (source === undefined || source.ints !== undefined) return source?.ints;
  const { tensor } = source;
  if (tensor === undefined) return undefined;
  if (tensor.elemType === ELEM_BOOL) return readBools(tensor, countMax);
  const values = readIntegers(tensor, countMax);
  const dtype = tensor.elemType === ELEM_INT32 ? 'int32' : 'int64';
  return values && { dtype, dims: tensor.dims, values };
}

function readBools(tensor: TensorProto, countMax: number): IntegerConstant | undefined {
  const pieces = tensor.data?.pieces ?? [];
  const bytes = pieces.length === 1 ? pieces[0] : undefined;
  const count = countElements(tensor.dims);
  if (bytes?.length !== count || count > countMax) return undefined;
  return {
    dtype: 'bool',
    dims: tensor.dims,
    values: Array.from(bytes, (byte) => BigInt(byte !== 0)),
  };
}
