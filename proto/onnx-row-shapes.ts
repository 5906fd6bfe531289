/**
 * Which operators of ONNX compute each row of a batch from the same row of their inputs, and the
 * dimensions of the result. A row has the dimensions after the first one, which is the batch.
 */
import type { Constant, GraphNode } from './onnx-graph.ts';

/** Dimensions of a row; undefined: unknown, or the value has no batch. */
export type RowDims = readonly number[] | undefined;

/** An input of a node: a value with rows, or a constant; a missing input is a constant too. */
export type Operand = { readonly row: RowDims } | { readonly constant: Constant | undefined };

/** Opset from which the axis of Softmax counts from the end by default. */
const LAST_AXIS_OPSET = 13;

const UNARY: ReadonlySet<string> = new Set(
  (
    'Abs Cast Ceil Celu Clip Dropout Elu Erf Exp Floor Gelu HardSigmoid HardSwish Identity ' +
    'LeakyRelu Log Mish Neg Not Reciprocal Relu Round Selu Sigmoid Sign Softplus Softsign Sqrt ' +
    'Tanh ThresholdedRelu'
  ).split(' '),
);
const ELEMENTWISE: ReadonlySet<string> = new Set(
  (
    'Add And Div Equal Greater GreaterOrEqual Less LessOrEqual Max Min Mul Or PRelu Pow Sub ' +
    'Where Xor'
  ).split(' '),
);
const SOFTMAX: ReadonlySet<string> = new Set(['Softmax', 'LogSoftmax']);

/**
 * @param operands the inputs of the node, in their order
 * @returns undefined when a row of the output may depend on other rows, when its dimensions are
 *   unknown, or when the node has several outputs
 */
export function inferRowDims(
  node: GraphNode,
  operands: readonly Operand[],
  opset: number,
): RowDims {
  if (node.domain !== '' || node.outputs.length !== 1 || node.hasBodies) return undefined;
  const { opType } = node;
  if (ELEMENTWISE.has(opType)) return broadcast(operands);
  if (opType === 'Concat') return concatenate(node, operands);
  const [first, ...others] = operands;
  if (first === undefined || !('row' in first) || first.row === undefined) return undefined;
  const { row } = first;
  if (opType === 'MatMul') return multiply(row, others[0]);
  // All others take one value with rows, and constants.
  if (others.some((operand) => 'row' in operand)) return undefined;
  const constants = others.map((operand) => ('constant' in operand ? operand.constant : undefined));
  const axes = (position: number): number[] | undefined =>
    resolveAxes(node.lists.get('axes') ?? constants[position]?.integers, row.length + 1);
  if (UNARY.has(opType)) return row;
  if (SOFTMAX.has(opType)) {
    const axis = node.numbers.get('axis') ?? (opset < LAST_AXIS_OPSET ? 1 : -1);
    return resolveAxes([axis], row.length + 1) === undefined ? undefined : row;
  }
  if (opType.startsWith('Reduce')) return reduce(row, axes(0), node.numbers.get('keepdims') ?? 1);
  switch (opType) {
    case 'Gemm': {
      const columns = constants[0]?.dims[node.numbers.get('transB') === 1 ? 0 : 1];
      const isPlain = row.length === 1 && node.numbers.get('transA') !== 1;
      return isPlain && columns !== undefined ? [columns] : undefined;
    }
    case 'BatchNormalization':
      return node.numbers.get('training_mode') === 1 ? undefined : row;
    case 'LayerNormalization':
      return resolveAxes([node.numbers.get('axis') ?? -1], row.length + 1) && row;
    case 'Flatten':
      return (node.numbers.get('axis') ?? 1) === 1 ? [countElements(row)] : undefined;
    case 'Reshape':
      return reshape(row, constants[0]?.integers, node.numbers.get('allowzero') === 1);
    case 'Squeeze': {
      const removed = axes(0);
      return removed && row.filter((_, i) => !removed.includes(i + 1));
    }
    case 'Unsqueeze':
      return unsqueeze(row, node.lists.get('axes') ?? constants[0]?.integers);
    case 'Transpose':
      return transpose(row, node.lists.get('perm'));
    case 'Gather':
      return gather(row, node.numbers.get('axis') ?? 0, constants[0]?.dims);
    case 'Slice':
      return slice(row, constants);
    default:
      return undefined;
  }
}

export function countElements(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}

/** @returns undefined without axes, or when one of them is the batch or does not exist */
function resolveAxes(axes: readonly number[] | undefined, rank: number): number[] | undefined {
  const resolved = axes?.map((axis) => (axis < 0 ? axis + rank : axis));
  return resolved?.every((axis) => axis >= 1 && axis < rank) ? resolved : undefined;
}

/** Operands with rows must have the same rank, else their batches would not meet. */
function broadcast(operands: readonly Operand[]): RowDims {
  const rows = operands.flatMap((operand) => ('row' in operand ? [operand.row] : []));
  const rank = rows[0]?.length;
  if (rank === undefined) return undefined;
  const result = new Array<number>(rank).fill(1);
  for (const operand of operands) {
    const dims: RowDims = 'row' in operand ? operand.row : toRowDims(operand.constant, rank);
    if (dims === undefined || ('row' in operand && dims.length !== rank)) return undefined;
    for (let i = 1; i <= dims.length; i++) {
      const [size, known] = [dims.at(-i) ?? 1, result.at(-i) ?? 1];
      if (size !== known && size !== 1 && known !== 1) return undefined;
      result[rank - i] = Math.max(size, known);
      if (size === 0 || known === 0) return undefined;
    }
  }
  return result;
}

/** The dims of a constant that is the same for each row of this rank. */
function toRowDims(constant: Constant | undefined, rank: number): RowDims {
  if (constant === undefined || constant.dims.length <= rank) return constant?.dims;
  const [batch, ...rest] = constant.dims;
  return batch === 1 && rest.length === rank ? rest : undefined;
}

function concatenate({ numbers }: GraphNode, operands: readonly Operand[]): RowDims {
  const rows = operands.map((operand) => ('row' in operand ? operand.row : undefined));
  const [first] = rows;
  if (first === undefined) return undefined;
  const axis = resolveAxes([numbers.get('axis') ?? 1], first.length + 1)?.[0];
  if (axis === undefined) return undefined;
  const result = [...first];
  result[axis - 1] = 0;
  for (const row of rows) {
    if (row?.length !== first.length) return undefined;
    if (row.some((size, i) => i !== axis - 1 && size !== first[i])) return undefined;
    result[axis - 1]! += row[axis - 1]!;
  }
  return result;
}

function multiply(row: readonly number[], other: Operand | undefined): RowDims {
  if (other === undefined || row.length === 0) return undefined;
  const inner = row.at(-1);
  if ('constant' in other) {
    const dims = other.constant?.dims;
    if (dims?.length !== 2 || dims[0] !== inner) return undefined;
    return [...row.slice(0, -1), dims[1]!];
  }
  // The product of two matrices in each row.
  const right = other.row;
  const columns = right?.at(-1);
  if (columns === undefined || row.length < 2 || right?.length !== row.length) return undefined;
  const sameStack = row.slice(0, -2).every((size, i) => size === right[i]);
  return sameStack && right.at(-2) === inner ? [...row.slice(0, -1), columns] : undefined;
}

function reduce(
  row: readonly number[],
  axes: readonly number[] | undefined,
  keep: number,
): RowDims {
  if (axes === undefined || axes.length === 0) return undefined;
  if (keep === 1) return row.map((size, i) => (axes.includes(i + 1) ? 1 : size));
  return row.filter((_, i) => !axes.includes(i + 1));
}

function reshape(
  row: readonly number[],
  shape: readonly number[] | undefined,
  allowsZero: boolean,
): RowDims {
  const [batch, ...rest] = shape ?? [];
  if (batch !== -1 && batch !== 0) return undefined;
  if (allowsZero && shape?.includes(0)) return undefined;
  const dims = rest.map((size, i) => (size === 0 ? row[i] : size));
  const count = countElements(row);
  const known = dims.reduce<number>(
    (product, size) => product * (size === -1 ? 1 : (size ?? 0)),
    1,
  );
  if (known === 0) return undefined;
  const result = dims.map((size) => (size === -1 ? count / known : (size ?? 0)));
  const isOneFree = shape?.filter((size) => size === -1).length === (batch === -1 ? 1 : 0);
  const isFilled = dims.includes(-1) ? batch === 0 : isOneFree;
  return isFilled && countElements(result) === count ? result : undefined;
}

function unsqueeze(row: readonly number[], axes: readonly number[] | undefined): RowDims {
  const rank = row.length + 1 + (axes?.length ?? 0);
  const added = resolveAxes(axes, rank);
  if (added === undefined || new Set(added).size !== added.length) return undefined;
  let next = 0;
  return Array.from({ length: rank - 1 }, (_, i) => (added.includes(i + 1) ? 1 : row[next++]!));
}

function transpose(row: readonly number[], order: readonly number[] | undefined): RowDims {
  if (order === undefined || order[0] !== 0 || order.length !== row.length + 1) return undefined;
  return order.slice(1).map((axis) => row[axis - 1]!);
}

function gather(
  row: readonly number[],
  axis: number,
  indices: readonly number[] | undefined,
): RowDims {
  const [at] = resolveAxes([axis], row.length + 1) ?? [];
  if (at === undefined || indices === undefined) return undefined;
  return [...row.slice(0, at - 1), ...indices, ...row.slice(at)];
}

function slice(row: readonly number[], constants: readonly (Constant | undefined)[]): RowDims {
  const [starts, ends, axes, steps] = constants.map((constant) => constant?.integers);
  const resolved = resolveAxes(axes, row.length + 1);
  if (starts === undefined || ends === undefined || resolved === undefined) return undefined;
  if (steps?.some((step) => step !== 1)) return undefined;
  const result = [...row];
  resolved.forEach((axis, i) => {
    const size = row[axis - 1]!;
    const clamp = (at: number): number => Math.min(size, Math.max(0, at < 0 ? at + size : at));
    result[axis - 1] = Math.max(0, clamp(ends[i] ?? 0) - clamp(starts[i] ?? 0));
  });
  return result;
}
