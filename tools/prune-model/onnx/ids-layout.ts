/** Operators that move ids without changing them: which element of the input becomes which of the output. */

import {
  type Axis,
  broadcastAxes,
  broadcastTo,
  constantValues,
  describeAxes,
  type Element,
  fixedAxis,
  type IdsBuilder,
  type IdsTensor,
  known,
  NotUnderstood,
  productOf,
  rearrange,
} from './ids-tensor.ts';
import type { OnnxNode } from './onnx-model.ts';

/** A node whose inputs are known. */
export interface Step {
  readonly node: OnnxNode;
  readonly builder: IdsBuilder;
  /** By position; undefined for an optional input left out. */
  readonly inputs: readonly (IdsTensor | undefined)[];
  /** The name of the constant that input `i` is. */
  constantName(i: number): string | undefined;
}

export type Operator = (step: Step) => IdsTensor | readonly IdsTensor[];

export function input({ inputs, node }: Step, i: number): IdsTensor {
  return inputs[i] ?? fail(`${node.opType} has no input ${i}`);
}

function fail(why: string): never {
  throw new NotUnderstood(why);
}

function int(step: Step, name: string, otherwise: number): number {
  return Number(step.node.attributes.get(name)?.int ?? otherwise);
}

/** The attribute (older opsets), else the input, which must be constant. Undefined: neither is there. */
function ints({ node, inputs }: Step, name: string, i: number): number[] | undefined {
  const attribute = node.attributes.get(name)?.ints;
  if (attribute !== undefined) return attribute.map(Number);
  if (inputs[i] === undefined) return undefined;
  const values = constantValues(inputs[i]);
  return values === undefined
    ? fail(`the ${name} of ${node.opType} are not constant`)
    : values.map(Number);
}

/** Counted from the front. */
function axisOf(axis: number, rank: number, { opType }: OnnxNode): number {
  const at = axis < 0 ? axis + rank : axis;
  return at >= 0 && at < rank ? at : fail(`${opType} has axis ${axis} of ${rank}`);
}

function staticSize(axes: readonly Axis[], axis: number, what: string): number {
  const size = axes[axis];
  return typeof size === 'number' ? size : fail(`${what} another axis than the columns`);
}

function identity(step: Step): IdsTensor {
  return input(step, 0);
}

function squeeze(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const rank = tensor.axes.length;
  const given = ints(step, 'axes', 1);
  if (given === undefined && tensor.axes.some((axis) => typeof axis === 'string')) {
    fail('Squeeze without axes may also drop the batch');
  }
  const axes = given?.map((axis) => axisOf(axis, rank, step.node));
  const drops = (i: number): boolean => axes?.includes(i) ?? tensor.axes[i] === 1;
  if (tensor.axes.some((axis, i) => drops(i) && axis !== 1)) {
    fail('Squeeze drops an axis that is not 1');
  }
  return { ...tensor, axes: tensor.axes.filter((_, i) => !drops(i)) };
}

function unsqueeze(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const given = ints(step, 'axes', 1) ?? [];
  const rank = tensor.axes.length + given.length;
  const added = new Set(given.map((axis) => axisOf(axis, rank, step.node)));
  if (added.size !== given.length) fail('Unsqueeze adds an axis twice');
  const rest = [...tensor.axes];
  const axes = Array.from({ length: rank }, (_, i) => (added.has(i) ? 1 : rest.shift()!));
  return { ...tensor, axes };
}

/** The same elements under other axes: what lies between axes of unknown size must stay there. */
function withAxes(tensor: IdsTensor, axes: readonly Axis[], what: string): IdsTensor {
  const parts = (list: readonly Axis[]): string => {
    const products = [1];
    for (const axis of list) {
      if (typeof axis === 'number') products.push(products.pop()! * axis);
      else products.push(Number.NaN, 1);
    }
    return products.join();
  };
  const unknown = (list: readonly Axis[]): string =>
    list.filter((a) => typeof a === 'string').join();
  if (unknown(axes) !== unknown(tensor.axes) || parts(axes) !== parts(tensor.axes)) {
    fail(`${what} mixes rows and columns (they are ${describeAxes(tensor.axes)})`);
  }
  return { ...tensor, axes };
}

function reshape(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const attribute = step.node.attributes.get('shape')?.ints;
  const target: readonly Element[] =
    attribute?.map((value) => step.builder.int(value)) ?? input(step, 1).elements;
  const allowZero = int(step, 'allowzero', 0) === 1;
  const what = `Reshape to [${target.map((e) => (e.op === 'int' ? e.value : '?')).join(', ')}]`;
  const axes = target.map((element, i): Axis | undefined => {
    if (element.op === 'dim') return element.axis;
    if (element.op !== 'int') fail('the shape of Reshape is computed from ids');
    const size = Number(element.value);
    if (size === 0 && !allowZero)
      return tensor.axes[i] ?? fail(`${what} keeps an axis that is not there`);
    // A model of one batch size says that size.
    if (i === 0 && tensor.axes[0] === fixedAxis(size)) return tensor.axes[0];
    return size === -1 ? undefined : size;
  });
  if (axes.filter((axis) => axis === undefined).length > 1) fail(`${what} has two open sizes`);
  const rest = axes.filter((axis) => axis !== undefined);
  const lost = tensor.axes.filter((axis) => typeof axis === 'string' && !rest.includes(axis));
  const open = lost.length === 1 ? lost[0]! : productOf(tensor.axes) / productOf(rest);
  return withAxes(
    tensor,
    axes.map((axis) => axis ?? open),
    what,
  );
}

function flatten(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const given = int(step, 'axis', 1);
  const axis = given < 0 ? given + tensor.axes.length : given;
  const merge = (axes: readonly Axis[]): Axis => {
    const unknown = axes.filter((size) => typeof size === 'string');
    if (unknown.length === 0) return productOf(axes);
    return unknown.length === 1 ? unknown[0]! : fail('Flatten merges two axes of unknown size');
  };
  const axes = [merge(tensor.axes.slice(0, axis)), merge(tensor.axes.slice(axis))];
  return withAxes(tensor, axes, 'Flatten');
}

function transpose(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const rank = tensor.axes.length;
  const given = step.node.attributes.get('perm')?.ints.map(Number);
  const perm = given ?? tensor.axes.map((_, i) => rank - 1 - i);
  if (
    perm.length !== rank ||
    new Set(perm).size !== rank ||
    perm.some((p) => !(p in tensor.axes))
  ) {
    fail('the perm of Transpose is not one');
  }
  const axes = perm.map((axis) => tensor.axes[axis]!);
  return rearrange(step.builder, tensor, axes, (coordinates) =>
    tensor.axes.map((_, axis) => coordinates[perm.indexOf(axis)]!),
  );
}

function expand(step: Step): IdsTensor {
  const tensor = input(step, 0);
  const target = input(step, 1).elements.map((element): Axis => {
    if (element.op === 'dim') return element.axis;
    return element.op === 'int'
      ? Number(element.value)
      : fail('the shape of Expand is computed from ids');
  });
  return broadcastTo(step.builder, tensor, broadcastAxes([tensor.axes, target]));
}

function concat(step: Step): IdsTensor {
  const parts = step.inputs.map((_, i) => input(step, i));
  const first = parts[0] ?? fail('Concat has no input');
  const axis = axisOf(int(step, 'axis', 0), first.axes.length, step.node);
  const sizes = parts.map(({ axes, dtype }) => {
    const others = axes.every((size, i) => i === axis || size === first.axes[i]);
    if (axes.length !== first.axes.length || !others || dtype !== first.dtype) {
      fail(`Concat of ${parts.map((part) => describeAxes(part.axes)).join(' and ')}`);
    }
    return staticSize(axes, axis, 'Concat is along');
  });
  const total = sizes.reduce((sum, size) => sum + size, 0);
  const axes = first.axes.map((size, i) => (i === axis ? total : size));
  const starts = sizes.map((_, i) => sizes.slice(0, i).reduce((sum, size) => sum + size, 0));
  const moved = parts.map((part, p) =>
    rearrange(step.builder, part, axes, (at) =>
      at.map((c, i) => (i === axis ? Math.min(Math.max(c - starts[p]!, 0), sizes[p]! - 1) : c)),
    ),
  );
  const inner = productOf(axes.slice(axis + 1));
  return step.builder.tensor(first.dtype, axes, (i) => {
    const column = Math.floor(i / inner) % total;
    const part = starts.findLastIndex((start, p) => start <= column && sizes[p]! > 0);
    return moved[part]!.elements[i]!;
  });
}

/** The columns of an axis, in the order given. */
function select(
  step: Step,
  tensor: IdsTensor,
  axis: number,
  columns: readonly number[],
): IdsTensor {
  if (columns.length === 0) fail(`${step.node.opType} selects no column`);
  const axes = tensor.axes.map((size, i) => (i === axis ? columns.length : size));
  return rearrange(step.builder, tensor, axes, (at) =>
    at.map((coordinate, i) => (i === axis ? columns[coordinate]! : coordinate)),
  );
}

function split(step: Step): IdsTensor[] {
  const tensor = input(step, 0);
  const axis = axisOf(int(step, 'axis', 0), tensor.axes.length, step.node);
  const size = staticSize(tensor.axes, axis, 'Split is along');
  const count = step.node.outputs.length;
  const equal = Math.ceil(size / count);
  const sizes =
    ints(step, 'split', 1) ??
    Array.from({ length: count }, (_, i) => Math.min(equal, size - i * equal));
  let start = 0;
  return sizes.slice(0, count).map((length) => {
    const columns = Array.from({ length: Math.max(length, 0) }, (_, i) => start + i);
    start += length;
    if (start > size) fail(`Split takes ${start} columns of ${size}`);
    return select(step, tensor, axis, columns);
  });
}

function slice(step: Step): IdsTensor {
  let tensor = input(step, 0);
  const starts = ints(step, 'starts', 1) ?? fail('Slice has no starts');
  const ends = ints(step, 'ends', 2) ?? fail('Slice has no ends');
  const axes = ints(step, 'axes', 3) ?? starts.map((_, i) => i);
  const steps = ints(step, 'steps', 4) ?? starts.map(() => 1);
  axes.forEach((given, i) => {
    const axis = axisOf(given, tensor.axes.length, step.node);
    const [start = 0, end = 0, stride = 1] = [starts[i], ends[i], steps[i]];
    const isWhole = start === 0 && stride === 1 && end >= 2 ** 31 - 1;
    if (isWhole && typeof tensor.axes[axis] === 'string') return;
    const size = staticSize(tensor.axes, axis, 'Slice is along');
    if (stride === 0) fail('Slice has steps of 0');
    tensor = select(step, tensor, axis, sliceOf(size, start, end, stride));
  });
  return tensor;
}

/** As ONNX clamps: forwards within [0, size], backwards within [−1, size − 1]. */
function sliceOf(size: number, start: number, end: number, stride: number): number[] {
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

/** Columns of ids, elements of a shape; or an element of an integer constant for each id. */
function gather(step: Step): IdsTensor {
  const data = input(step, 0);
  const index = input(step, 1);
  const axis = axisOf(int(step, 'axis', 0), data.axes.length, step.node);
  const columns = constantValues(index);
  if (columns === undefined) return remap(step, data, index);
  const size = staticSize(data.axes, axis, 'Gather selects along');
  const at = columns.map((value) => {
    const column = Number(value < 0n ? value + BigInt(size) : value);
    return column >= 0 && column < size
      ? column
      : fail(`Gather selects column ${value} of ${size}`);
  });
  const selected = select(step, data, axis, at);
  const before = data.axes.slice(0, axis);
  return { ...selected, axes: [...before, ...index.axes, ...data.axes.slice(axis + 1)] };
}

function remap(step: Step, data: IdsTensor, index: IdsTensor): IdsTensor {
  const name = step.constantName(0);
  if (name === undefined) fail('Gather selects columns that are not constant');
  if (data.axes.length !== 1 || data.dtype === 'bool' || data.dtype.startsWith('float')) {
    fail(`${JSON.stringify(name)} of ${describeAxes(data.axes)} is no list of integers`);
  }
  return step.builder.tensor(data.dtype, index.axes, (i) =>
    step.builder.map(name, known(index.elements[i]!)),
  );
}

function shape(step: Step): IdsTensor {
  const { axes } = input(step, 0);
  const start = int(step, 'start', 0);
  const end = int(step, 'end', axes.length);
  const kept = axes.slice(start, end);
  return step.builder.tensor('int64', [kept.length], (i) => step.builder.dim(kept[i]!));
}

function constantOfShape(step: Step): IdsTensor {
  const axes = input(step, 0).elements.map((element): Axis => {
    if (element.op === 'dim') return element.axis;
    return element.op === 'int' ? Number(element.value) : fail('a shape is computed from ids');
  });
  const value = step.inputs[1];
  if (value === undefined) fail('ConstantOfShape fills with floats');
  return step.builder.tensor(value.dtype, axes, () => value.elements[0]!);
}

export const LAYOUT_OPERATORS: ReadonlyMap<string, Operator> = new Map<string, Operator>([
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
