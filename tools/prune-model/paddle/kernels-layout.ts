/** Kernels of the reference interpreter: operators that only move elements, and the shapes that they give. */
import { axisOf, numberOf, numbersOf, sliceRange, splitSizes } from './attributes.ts';
import type { Kernel } from './kernel.ts';
import type { Op } from './program.ts';
import { aroundAxis, countOf, makeTensor, stridesOf, type Tensor, withDims } from './tensor.ts';

/** Dims after an operator that keeps the order of elements. @returns undefined when it does not fit */
export type Reshape = (op: Op, dims: readonly number[]) => readonly number[] | undefined;

const reshape: Reshape = (op, dims) => {
  const shape = numbersOf(op, 'shape');
  const known = shape.map((dim, i) => (dim === 0 ? (dims[i] ?? -2) : dim));
  const rest = known.reduce((product, dim) => (dim === -1 ? product : product * dim), 1);
  const free = known.filter((dim) => dim === -1).length;
  if (free > 1 || known.some((dim) => dim < -1)) return undefined;
  const count = countOf(dims);
  const filled = known.map((dim) => (dim === -1 ? (rest === 0 ? 0 : count / rest) : dim));
  return filled.every(Number.isInteger) && countOf(filled) === count ? filled : undefined;
};

/** The axes that go: those named, or all, where they are of one element. */
export function squeezedAxes(op: Op, dims: readonly number[]): number[] {
  const named = numbersOf(op, 'axes').map((axis) => axisOf(axis, dims.length));
  return dims
    .map((_, i) => i)
    .filter((i) => dims[i] === 1 && (named.length === 0 || named.includes(i)));
}

/** Where the new axes are in the end. @returns undefined when one is nowhere */
export function unsqueezedAxes(op: Op, rank: number): number[] | undefined {
  const places: boolean[] = new Array<boolean>(rank).fill(false);
  for (const axis of numbersOf(op, 'axes')) {
    const at = axis < 0 ? axis + places.length + 1 : axis;
    if (at < 0 || at > places.length) return undefined;
    places.splice(at, 0, true);
  }
  return places.map((isNew, i) => (isNew ? i : -1)).filter((i) => i >= 0);
}

const squeeze: Reshape = (op, dims) => {
  const gone = squeezedAxes(op, dims);
  return dims.filter((_, i) => !gone.includes(i));
};

const unsqueeze: Reshape = (op, dims) => {
  const axes = unsqueezedAxes(op, dims.length);
  if (axes === undefined) return undefined;
  const rest = [...dims];
  return Array.from({ length: dims.length + axes.length }, (_, i) =>
    axes.includes(i) ? 1 : rest.shift()!,
  );
};

const flatten: Reshape = (op, dims) => {
  const axis = numberOf(op, 'axis', 1);
  if (axis < 0 || axis > dims.length) return undefined;
  return [countOf(dims.slice(0, axis)), countOf(dims.slice(axis))];
};

const flattenRange: Reshape = (op, dims) => {
  const start = axisOf(numberOf(op, 'start_axis', 1), dims.length);
  const stop = axisOf(numberOf(op, 'stop_axis', -1), dims.length);
  if (start < 0 || stop < start || stop >= dims.length) return undefined;
  return [...dims.slice(0, start), countOf(dims.slice(start, stop + 1)), ...dims.slice(stop + 1)];
};

const RESHAPES: Readonly<Record<string, Reshape>> = {
  ...{ reshape, reshape2: reshape, squeeze, squeeze2: squeeze, unsqueeze, unsqueeze2: unsqueeze },
  ...{ flatten, flatten2: flatten, flatten_contiguous_range: flattenRange },
};

function reshaped(compute: Reshape): Kernel {
  return (step) => {
    const x = step.input('X');
    const dims = compute(step.op, x.dims);
    if (dims === undefined) throw step.error(`[${x.dims.join(', ')}] does not take its new shape`);
    step.set('Out', withDims(x, dims));
  };
}

/** Copies `width` elements of each of `count` pieces. */
function copy(
  from: { tensor: Tensor; at: number; stride: number },
  to: { tensor: Tensor; at: number; stride: number },
  count: number,
  width: number,
): void {
  for (let i = 0; i < count; i++) {
    const begin = from.at + i * from.stride;
    const piece = from.tensor.data.subarray(begin, begin + width);
    to.tensor.data.set(piece, to.at + i * to.stride);
  }
}

const concat: Kernel = (step) => {
  const parts = step.inputs('X');
  const [first] = parts;
  if (first === undefined) throw step.error('it has no parts');
  const axis = axisOf(numberOf(step.op, 'axis', 0), first.dims.length);
  const rest = (dims: readonly number[]): string => dims.filter((_, i) => i !== axis).join();
  if (axis < 0 || axis >= first.dims.length) throw step.error(`it has no axis ${axis}`);
  for (const { dims } of parts) {
    if (dims.length === first.dims.length && rest(dims) === rest(first.dims)) continue;
    throw step.error(`it puts [${dims.join(', ')}] beside [${first.dims.join(', ')}]`);
  }
  const size = parts.reduce((total, { dims }) => total + dims[axis]!, 0);
  const dims = first.dims.map((dim, i) => (i === axis ? size : dim));
  const result = makeTensor(first.dtype, dims, axis === 0 ? undefined : first.lod);
  const [outer, , inner] = aroundAxis(first.dims, axis);
  let at = 0;
  for (const tensor of parts) {
    const width = tensor.dims[axis]! * inner;
    const to = { tensor: result, at, stride: size * inner };
    copy({ tensor, at: 0, stride: width }, to, outer, width);
    at += width;
  }
  step.set('Out', result);
};

const split: Kernel = (step) => {
  const x = step.input('X');
  const axis = axisOf(numberOf(step.op, 'axis', 0), x.dims.length);
  const [outer, size, inner] = aroundAxis(x.dims, axis);
  const sizes = splitSizes(step.op, size, step.op.outputs.get('Out')?.length ?? 0);
  if (sizes === undefined) throw step.error(`its parts do not fill [${x.dims.join(', ')}]`);
  let at = 0;
  sizes.forEach((part, position) => {
    const dims = x.dims.map((dim, i) => (i === axis ? part : dim));
    const tensor = makeTensor(x.dtype, dims, axis === 0 ? undefined : x.lod);
    const width = part * inner;
    const from = { tensor: x, at, stride: size * inner };
    copy(from, { tensor, at: 0, stride: width }, outer, width);
    at += width;
    step.set('Out', tensor, position);
  });
};

/** The axes that a slice takes away again; one of all stays in older programs. */
const slice: Kernel = (step) => {
  const { op } = step;
  let tensor = step.input('Input');
  const axes = numbersOf(op, 'axes');
  if (new Set(axes).size < axes.length) throw step.unknown('it slices an axis twice');
  axes.forEach((named, i) => {
    const axis = axisOf(named, tensor.dims.length);
    const [outer, size, inner] = aroundAxis(tensor.dims, axis);
    const start = numbersOf(op, 'starts')[i] ?? 0;
    const end = numbersOf(op, 'ends')[i] ?? 0;
    const [from, to] = sliceRange(start, end, size);
    const dims = tensor.dims.map((dim, at) => (at === axis ? to - from : dim));
    const target = makeTensor(tensor.dtype, dims, axis === 0 ? undefined : tensor.lod);
    const width = (to - from) * inner;
    const source = { tensor, at: from * inner, stride: size * inner };
    copy(source, { tensor: target, at: 0, stride: width }, outer, width);
    tensor = target;
  });
  const gone = numbersOf(op, 'decrease_axis');
  if (gone.some((axis) => tensor.dims[axis] !== 1)) {
    throw step.error(`[${tensor.dims.join(', ')}] cannot lose its axes ${gone.join(', ')}`);
  }
  const rest = tensor.dims.filter((_, i) => !gone.includes(i));
  const isNumber = rest.length === 0 && step.declaredRank('Out') === 1;
  step.set('Out', withDims(tensor, isNumber ? [1] : rest));
};

const transpose: Kernel = (step) => {
  const x = step.input('X');
  const order = numbersOf(step.op, 'axis');
  const isWhole = [...order].sort((a, b) => a - b).every((axis, i) => axis === i);
  if (!isWhole || order.length !== x.dims.length)
    throw step.error(`its axes are [${order.join(', ')}]`);
  const strides = stridesOf(x.dims);
  const dims = order.map((axis) => x.dims[axis]!);
  const steps = order.map((axis) => strides[axis]!);
  const result = makeTensor(x.dtype, dims, order[0] === 0 ? x.lod : undefined);
  for (let i = 0; i < result.data.length; i++) {
    let [rest, from] = [i, 0];
    for (let axis = dims.length - 1; axis >= 0; axis--) {
      from += (rest % dims[axis]!) * steps[axis]!;
      rest = Math.floor(rest / dims[axis]!);
    }
    result.data[i] = x.data[from]!;
  }
  step.set('Out', result);
};

export const LAYOUT: Readonly<Record<string, Kernel>> = {
  ...Object.fromEntries(Object.entries(RESHAPES).map(([type, of]) => [type, reshaped(of)])),
  ...{ concat, split, slice, transpose, transpose2: transpose },
};
