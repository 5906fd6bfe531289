/** Constants of a graph: where they come from, and the values of small integer ones (axes, shapes, column numbers). */
import { CubeError } from '../../../lib/core/errors.ts';
import { WireReader } from '../../../proto/wire.ts';
import { ELEM_INT32, ELEM_INT64, type OnnxNode, type OnnxTensor } from './onnx-model.ts';

/** A constant that stands in the file as it is: an initializer or a Constant node, also behind Identity nodes. */
export interface ConstantSource {
  /** The initializer's name, or the Constant node's output. */
  readonly name: string;
  readonly tensor: OnnxTensor | undefined;
  /** Values of a Constant node that has integers instead of a tensor. */
  readonly ints: IntegerList | undefined;
}

export interface IntegerList {
  readonly values: readonly number[];
  /** 0: a scalar, which as an index removes its axis. */
  readonly rank: number;
}

/** Axes, shapes and column numbers are short; nothing longer is decoded. */
const INTEGER_COUNT_MAX = 100_000;

/** What a Constant node holds. */
export function constantOfNode(node: OnnxNode, name: string): ConstantSource {
  const int = node.attributes.get('value_int')?.int;
  const list = node.attributes.get('value_ints')?.ints;
  let ints: IntegerList | undefined;
  if (int !== undefined) ints = { values: [Number(int)], rank: 0 };
  else if (list !== undefined) ints = { values: list.map(Number), rank: 1 };
  return { name, tensor: node.attributes.get('value')?.tensor, ints };
}

/** The values of an integer constant; undefined when it is not one, or longer than any axis list. */
export function integersOf(source: ConstantSource | undefined): IntegerList | undefined {
  if (source === undefined || source.ints !== undefined) return source?.ints;
  const { tensor } = source;
  if (tensor === undefined || tensor.dims.length > 1) return undefined;
  const count = tensor.dims[0] ?? 1;
  if (count > INTEGER_COUNT_MAX) return undefined;
  const values = decodeIntegers(tensor);
  if (values === undefined) return undefined;
  if (values.length !== count) throw wrongLength(tensor, `${count} elements`, values.length);
  return { values, rank: tensor.dims.length };
}

/** @throws CubeError CORRUPT: a tensor whose data does not fill its dims */
export function wrongLength(tensor: OnnxTensor, expected: string, found: number): CubeError {
  const shape = `[${tensor.dims.join(', ')}]`;
  return new CubeError(
    'CORRUPT',
    `not a valid ONNX model: tensor ${JSON.stringify(tensor.name)} of shape ${shape} needs ${expected}, it has ${found}`,
  );
}

function decodeIntegers({ elemType, data }: OnnxTensor): number[] | undefined {
  if (elemType !== ELEM_INT32 && elemType !== ELEM_INT64) return undefined;
  if (data === undefined) return [];
  const values: number[] = [];
  for (const piece of data.pieces) {
    if (data.encoding === 'varints') {
      const reader = new WireReader(piece);
      while (reader.position < reader.end) values.push(Number(reader.int64()));
      continue;
    }
    const view = new DataView(piece.buffer, piece.byteOffset, piece.length);
    const itemBytes = elemType === ELEM_INT32 ? 4 : 8;
    for (let at = 0; at + itemBytes <= piece.length; at += itemBytes) {
      values.push(itemBytes === 4 ? view.getInt32(at, true) : Number(view.getBigInt64(at, true)));
    }
  }
  return values;
}
