/** Constants of a graph: where they come from, and the values of integer ones (axes, shapes, offsets, column numbers). */
import { ELEM_BOOL, ELEM_INT32, type OnnxNode, type OnnxTensor } from './onnx-model.ts';
import { readIntegers } from './tensor-data.ts';

/** A constant that stands in the file as it is: an initializer or a Constant node, also behind Identity nodes. */
export interface ConstantSource {
  /** The initializer's name, or the Constant node's output. */
  readonly name: string;
  readonly tensor: OnnxTensor | undefined;
  /** Values of a Constant node that has integers instead of a tensor. */
  readonly ints: IntegerTensor | undefined;
}

export interface IntegerTensor {
  readonly dtype: 'int64' | 'int32' | 'bool';
  readonly dims: readonly number[];
  readonly values: ArrayLike<bigint>;
}

/** Axes, shapes and offsets are short; nothing longer is decoded here. */
const INTEGER_COUNT_MAX = 100_000;

/** What a Constant node holds. */
export function constantOfNode(node: OnnxNode, name: string): ConstantSource {
  const int = node.attributes.get('value_int')?.int;
  const list = node.attributes.get('value_ints')?.ints;
  let ints: IntegerTensor | undefined;
  if (int !== undefined) ints = { dtype: 'int64', values: [int], dims: [] };
  else if (list !== undefined) ints = { dtype: 'int64', values: list, dims: [list.length] };
  return { name, tensor: node.attributes.get('value')?.tensor, ints };
}

/** The values of an integer or bool constant; undefined when it is not one, or longer than any axis list. */
export function integersOf(
  source: ConstantSource | undefined,
  countMax: number = INTEGER_COUNT_MAX,
): IntegerTensor | undefined {
  if (source === undefined || source.ints !== undefined) return source?.ints;
  const { tensor } = source;
  if (tensor === undefined) return undefined;
  if (tensor.elemType === ELEM_BOOL) return boolsOf(tensor, countMax);
  const values = readIntegers(tensor, countMax);
  const dtype = tensor.elemType === ELEM_INT32 ? 'int32' : 'int64';
  return values && { dtype, dims: tensor.dims, values };
}

function boolsOf(tensor: OnnxTensor, countMax: number): IntegerTensor | undefined {
  const bytes = tensor.data?.pieces.length === 1 ? tensor.data.pieces[0]! : undefined;
  const count = tensor.dims.reduce((product, dim) => product * dim, 1);
  if (bytes?.length !== count || count > countMax) return undefined;
  return {
    dtype: 'bool',
    dims: tensor.dims,
    values: Array.from(bytes, (byte) => BigInt(byte !== 0)),
  };
}
