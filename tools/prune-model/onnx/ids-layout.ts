/** Operators that move ids without changing them. */
import { requireDefined } from '../../../lib/core/errors.ts';
import {
  type Axis,
  broadcastAxes,
  broadcastTo,
  countKnownElements,
  describeAxes,
  getConstantValues,
  type IdsBuilder,
  type IdsElement,
  type IdsTensor,
  nameFixedBatch,
  rearrange,
  requireKeyExpression,
  UnsupportedIdsError,
} from './ids-tensor.ts';
import { getIntAttribute, type NodeProto } from './onnx-model.ts';

/** A node to evaluate, with its inputs. */
export interface OperatorCall {
  readonly node: NodeProto;
  readonly builder: IdsBuilder;
  /** By position; undefined for an optional input that is absent. */
  readonly inputs: readonly (IdsTensor | undefined)[];
  /**
   * Registers input `i` as a map. @returns its name; undefined when it is not an integer constant
   */
  constantName(i: number): string | undefined;
}

export type IdsOperator = (call: OperatorCall) => IdsTensor | readonly IdsTensor[];

export function getInput({ inputs, node }: OperatorCall, i: number): IdsTensor {
  return inputs[i] ?? failUnsupported(`${node.opType} has no input ${i}`);
}

function failUnsupported(reason: string): never {
  throw new UnsupportedIdsError(reason);
}

/** Reads the attribute (older opsets) or the constant input; undefined without either. */
function getIntegers(
  { node, inputs }: OperatorCall,
  name: string,
  i: number,
): number[] | undefined {
  const attribute = node.attributes.get(name)?.ints;
  if (attribute !== undefined) return attribute.map(Number);
  if (inputs[i] === undefined) return undefined;
  const values = getConstantValues(inputs[i]);
  return values === undefined
    ? failUnsupported(`the ${name} of ${node.opType} are not constant`)
    : values.map(Number);
}

/** Counts a negative axis from the front. */
function normalizeAxis(axis: number, rank: number, { opType }: NodeProto): number {
  const at = axis < 0 ? axis + rank : axis;
  return at >= 0 && at < rank
    ? at
    : failUnsupported(`${opType} has axis ${axis} of a tensor of rank ${rank}`);
}

function requireKnownSize(axes: readonly Axis[], axis: number, what: string): number {
  const size = axes[axis];
  return typeof size === 'number'
    ? size
    : failUnsupported(`${what} an axis of unknown size, not the columns`);
}

function identity(call: OperatorCall): IdsTensor {
  return getInput(call, 0);
}

function squeeze(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const rank = tensor.axes.length;
  const given = getIntegers(call, 'axes', 1);
  if (given === undefined && tensor.axes.some((axis) => typeof axis === 'string')) {
    failUnsupported('Squeeze without axes may drop the batch; give it axes');
  }
  const axes = given?.map((axis) => normalizeAxis(axis, rank, call.node));
  const drops = (i: number): boolean => axes?.includes(i) ?? tensor.axes[i] === 1;
  if (tensor.axes.some((axis, i) => drops(i) && axis !== 1)) {
    failUnsupported('Squeeze drops an axis that is not 1');
  }
  return { ...tensor, axes: tensor.axes.filter((_, i) => !drops(i)) };
}

function unsqueeze(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const given = getIntegers(call, 'axes', 1) ?? [];
  const rank = tensor.axes.length + given.length;
  const added = new Set(given.map((axis) => normalizeAxis(axis, rank, call.node)));
  if (added.size !== given.length) failUnsupported('Unsqueeze adds an axis twice');
  const rest = [...tensor.axes];
  const axes = Array.from({ length: rank }, (_, i) =>
    added.has(i) ? 1 : requireDefined(rest.shift(), 'the size of an axis'),
  );
  return { ...tensor, axes };
}

/** The same elements with other axes. Elements must not move across an axis of unknown size. */
function replaceAxes(tensor: IdsTensor, axes: readonly Axis[], what: string): IdsTensor {
  const parts = (list: readonly Axis[]): string => {
    const products: number[] = [];
    let product = 1;
    for (const axis of list) {
      if (typeof axis === 'number') {
        product *= axis;
        continue;
      }
      products.push(product, Number.NaN);
      product = 1;
    }
    return [...products, product].join();
  };
  const unknown = (list: readonly Axis[]): string =>
    list.filter((a) => typeof a === 'string').join();
  if (unknown(axes) !== unknown(tensor.axes) || parts(axes) !== parts(tensor.axes)) {
    failUnsupported(`${what} mixes rows and columns of ids of shape ${describeAxes(tensor.axes)}`);
  }
  return { ...tensor, axes };
}

function reshape(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const attribute = call.node.attributes.get('shape')?.ints;
  const target: readonly IdsElement[] =
    attribute?.map((value) => call.builder.int(value)) ?? getInput(call, 1).elements;
  const allowZero = getIntAttribute(call.node, 'allowzero', 0) === 1;
  const what = `Reshape to [${target.map((e) => (e.op === 'int' ? e.value : '?')).join(', ')}]`;
  const axes = target.map((element, i): Axis | undefined => {
    if (element.op === 'dim') return element.axis;
    if (element.op !== 'int') failUnsupported('the shape of Reshape is computed from ids');
    const size = Number(element.value);
    if (size === 0 && !allowZero)
      return (
        tensor.axes[i] ?? failUnsupported(`${what} keeps an axis that its input does not have`)
      );
    // A model with a fixed batch writes its size.
    if (i === 0 && tensor.axes[0] === nameFixedBatch(size)) return tensor.axes[0];
    return size === -1 ? undefined : size;
  });
  if (axes.filter((axis) => axis === undefined).length > 1)
    failUnsupported(`${what} leaves two sizes open`);
  const rest = axes.filter((axis) => axis !== undefined);
  const [lost, ...others] = tensor.axes.filter(
    (axis) => typeof axis === 'string' && !rest.includes(axis),
  );
  const open =
    lost !== undefined && others.length === 0
      ? lost
      : countKnownElements(tensor.axes) / countKnownElements(rest);
  return replaceAxes(
    tensor,
    axes.map((axis) => axis ?? open),
    what,
  );
}

function flatten(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const given = getIntAttribute(call.node, 'axis', 1);
  const axis = given < 0 ? given + tensor.axes.length : given;
  const merge = (axes: readonly Axis[]): Axis => {
    const [unknown, ...others] = axes.filter((size) => typeof size === 'string');
    if (unknown === undefined) return countKnownElements(axes);
    return others.length === 0
      ? unknown
      : failUnsupported('Flatten merges two axes of unknown size');
  };
  const axes = [merge(tensor.axes.slice(0, axis)), merge(tensor.axes.slice(axis))];
  return replaceAxes(tensor, axes, 'Flatten');
}

function transpose(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const rank = tensor.axes.length;
  const given = call.node.attributes.get('perm')?.ints.map(Number);
  const perm = given ?? tensor.axes.map((_, i) => rank - 1 - i);
  if (
    perm.length !== rank ||
    new Set(perm).size !== rank ||
    perm.some((p) => !(p in tensor.axes))
  ) {
    failUnsupported('the perm of Transpose is not a permutation');
  }
  const axes = perm.map((axis) => tensor.axes[axis]!);
  return rearrange(call.builder, tensor, axes, (coordinates) =>
    tensor.axes.map((_, axis) => coordinates[perm.indexOf(axis)]!),
  );
}

function expand(call: OperatorCall): IdsTensor {
  const tensor = getInput(call, 0);
  const target = getInput(call, 1).elements.map((element): Axis => {
    if (element.op === 'dim') return element.axis;
    return element.op === 'int'
      ? Number(element.value)
      : failUnsupported('the shape of Expand is computed from ids');
  });
  return broadcastTo(call.builder, tensor, broadcastAxes([tensor.axes, target]));
}

function concat(call: OperatorCall): IdsTensor {
  const parts = call.inputs.map((_, i) => getInput(call, i));
  const first = parts[0] ?? failUnsupported('Concat has no input');
  const axis = normalizeAxis(getIntAttribute(call.node, 'axis', 0), first.axes.length, call.node);
  const sizes = parts.map(({ axes, dtype }) => {
    const others = axes.every((size, i) => i === axis || size === first.axes[i]);
    if (axes.length !== first.axes.length || !others || dtype !== first.dtype) {
      failUnsupported(
        'Concat joins tensors that do not fit: ' +
          `${parts.map((part) => describeAxes(part.axes)).join(' and ')}`,
      );
    }
    return requireKnownSize(axes, axis, 'Concat is along');
  });
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const axes = first.axes.map((size, i) => (i === axis ? total : size));
  const starts = sizes.map((_, i) => sizes.slice(0, i).reduce((sum, size) => sum + size, 0));
  const moved = parts.map((part, p) =>
    rearrange(call.builder, part, axes, (at) =>
      at.map((c, i) => (i === axis ? Math.min(Math.max(c - starts[p]!, 0), sizes[p]! - 1) : c)),
    ),
  );
  const inner = countKnownElements(axes.slice(axis + 1));
  return call.builder.tensor(first.dtype, axes, (i) => {
    const column = Math.floor(i / inner) % total;
    const part = starts.findLastIndex((start, p) => start <= column && sizes[p]! > 0);
    return moved[part]!.elements[i]!;
  });
}

/** Takes the columns of an axis in the given order. */
function selectColumns(
  call: OperatorCall,
  tensor: IdsTensor,
  axis: number,
  columns: readonly number[],
): IdsTensor {
  if (columns.length === 0) failUnsupported(`${call.node.opType} selects no column`);
  const axes = tensor.axes.map((size, i) => (i === axis ? columns.length : size));
  return rearrange(call.builder, tensor, axes, (at) =>
    at.map((coordinate, i) => (i === axis ? columns[coordinate]! : coordinate)),
  );
}

function split(call: OperatorCall): IdsTensor[] {
  const tensor = getInput(call, 0);
  const axis = normalizeAxis(getIntAttribute(call.node, 'axis', 0), tensor.axes.length, call.node);
  const size = requireKnownSize(tensor.axes, axis, 'Split is along');
  const count = call.node.outputs.length;
  const equal = Math.ceil(size / count);
  const sizes =
    getIntegers(call, 'split', 1) ??
    Array.from({ length: count }, (_, i) => Math.min(equal, size - i * equal));
  let start = 0;
  return sizes.slice(0, count).map((length) => {
    const columns = Array.from({ length: Math.max(length, 0) }, (_, i) => start + i);
    start += length;
    if (start > size) failUnsupported(`Split takes ${start} columns of ${size}`);
    return selectColumns(call, tensor, axis, columns);
  });
}

function slice(call: OperatorCall): IdsTensor {
  let tensor = getInput(call, 0);
  const starts = getIntegers(call, 'starts', 1) ?? failUnsupported('Slice has no starts');
  const ends = getIntegers(call, 'ends', 2) ?? failUnsupported('Slice has no ends');
  const axes = getIntegers(call, 'axes', 3) ?? starts.map((_, i) => i);
  const steps = getIntegers(call, 'steps', 4) ?? starts.map(() => 1);
  axes.forEach((given, i) => {
    const axis = normalizeAxis(given, tensor.axes.length, call.node);
    const [start = 0, end = 0, stride = 1] = [starts[i], ends[i], steps[i]];
    const isWhole = start === 0 && stride === 1 && end >= 2 ** 31 - 1;
    if (isWhole && typeof tensor.axes[axis] === 'string') return;
    const size = requireKnownSize(tensor.axes, axis, 'Slice is along');
    if (stride === 0) failUnsupported('Slice has steps of 0');
    tensor = selectColumns(call, tensor, axis, computeSliceColumns(size, start, end, stride));
  });
  return tensor;
}

/** Clamps as ONNX does: forwards within [0, size], backwards within [−1, size − 1]. */
function computeSliceColumns(size: number, start: number, end: number, stride: number): number[] {
  const from = start < 0 ? start + size : start;
  const to = end < 0 ? end + size : end;
  const clamp = (at: number, low: number, high: number): number =>
    Math.min(Math.max(at, low), high);
  const columns: number[] = [];
  if (stride > 0) {
    for (let at = clamp(from, 0, size); at < clamp(to, 0, size); at += stride) columns.push(at);
  } else {
    const last = clamp(to, -1, size - 1);
    for (let at = clamp(from, 0, size - 1); at > last; at += stride) columns.push(at);
  }
  return columns;
}

/** Selects columns of ids or elements of a shape, or maps each id through an integer constant. */
function gather(call: OperatorCall): IdsTensor {
  const data = getInput(call, 0);
  const index = getInput(call, 1);
  const axis = normalizeAxis(getIntAttribute(call.node, 'axis', 0), data.axes.length, call.node);
  const columns = getConstantValues(index);
  if (columns === undefined) return mapIds(call, data, index);
  const size = requireKnownSize(data.axes, axis, 'Gather selects along');
  const at = columns.map((value) => {
    const column = Number(value < 0n ? value + BigInt(size) : value);
    return column >= 0 && column < size
      ? column
      : failUnsupported(`Gather selects column ${value} of ${size}`);
  });
  const selected = selectColumns(call, data, axis, at);
  const before = data.axes.slice(0, axis);
  return { ...selected, axes: [...before, ...index.axes, ...data.axes.slice(axis + 1)] };
}

function mapIds(call: OperatorCall, data: IdsTensor, index: IdsTensor): IdsTensor {
  const name = call.constantName(0);
  if (name === undefined) failUnsupported('Gather selects columns that are not constant');
  if (data.axes.length !== 1 || data.dtype === 'bool' || data.dtype.startsWith('float')) {
    failUnsupported(
      `${JSON.stringify(name)} of ${describeAxes(data.axes)} is not a list of integers`,
    );
  }
  return call.builder.tensor(data.dtype, index.axes, (i) =>
    call.builder.map(name, requireKeyExpression(index.elements[i]!)),
  );
}

function shape(call: OperatorCall): IdsTensor {
  const { axes } = getInput(call, 0);
  const start = getIntAttribute(call.node, 'start', 0);
  const end = getIntAttribute(call.node, 'end', axes.length);
  const kept = axes.slice(start, end);
  return call.builder.tensor('int64', [kept.length], (i) => call.builder.dim(kept[i]!));
}

function constantOfShape(call: OperatorCall): IdsTensor {
  const axes = getInput(call, 0).elements.map((element): Axis => {
    if (element.op === 'dim') return element.axis;
    return element.op === 'int'
      ? Number(element.value)
      : failUnsupported('a shape is computed from ids');
  });
  const value = call.inputs[1];
  if (value === undefined) failUnsupported('ConstantOfShape fills with floats');
  const [filling] = value.elements;
  return call.builder.tensor(value.dtype, axes, () => requireDefined(filling, 'the value to fill'));
}

export const LAYOUT_OPERATORS: ReadonlyMap<string, IdsOperator> = new Map<string, IdsOperator>([
  ['Identity', identity],
  ['Squeeze', squeeze],
  ['Unsqueeze', unsqueeze],
  ['Reshape', reshape],
  ['Flatten', flatten],
  ['Transpose', transpose],
  ['Expand', expand],
  ['Concat', concat],
  ['Split', split],
  ['Slice', slice],
  ['Gather', gather],
  ['Shape', shape],
  ['ConstantOfShape', constantOfShape],
]);
