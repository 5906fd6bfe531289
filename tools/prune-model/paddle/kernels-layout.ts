/** Kernels of operators that only move elements, and the shapes of their results. */

import { requireDefined } from '../../../lib/core/errors.ts';
import { countElements } from '../cut/table.ts';
import {
  computeSliceRange,
  computeSplitSizes,
  getNumber,
  getNumbers,
  normalizeAxis,
} from './op-attributes.ts';
import type { Op } from './program.ts';
import {
  computeOffset,
  computeStrides,
  createTensor,
  type Kernel,
  reshapeTensor,
  splitAtAxis,
  type Tensor,
} from './tensor.ts';

/** Computes the dims of a result with the same elements; undefined when they do not fit. */
export type ReshapeRule = (op: Op, dims: readonly number[]) => readonly number[] | undefined;

const reshape: ReshapeRule = (op, dims) => {
  const shape = getNumbers(op, 'shape');
  const known = shape.map((dim, i) => (dim === 0 ? (dims[i] ?? -2) : dim));
  const rest = known.reduce((product, dim) => (dim === -1 ? product : product * dim), 1);
  const free = known.filter((dim) => dim === -1).length;
  if (free > 1 || known.some((dim) => dim < -1)) return undefined;
  const count = countElements(dims);
  const filled = known.map((dim) => (dim === -1 ? (rest === 0 ? 0 : count / rest) : dim));
  return filled.every(Number.isInteger) && countElements(filled) === count ? filled : undefined;
};

/** The axes of size 1 that are removed: the named ones, or all. */
export function findSqueezedAxes(op: Op, dims: readonly number[]): number[] {
  const named = getNumbers(op, 'axes').map((axis) => normalizeAxis(axis, dims.length));
  return dims
    .map((_, i) => i)
    .filter((i) => dims[i] === 1 && (named.length === 0 || named.includes(i)));
}

/** Final positions of the new axes. @returns undefined when one is out of range */
export function findUnsqueezedAxes(op: Op, rank: number): number[] | undefined {
  const isNewAxis: boolean[] = new Array<boolean>(rank).fill(false);
  for (const axis of getNumbers(op, 'axes')) {
    const at = axis < 0 ? axis + isNewAxis.length + 1 : axis;
    if (at < 0 || at > isNewAxis.length) return undefined;
    isNewAxis.splice(at, 0, true);
  }
  return isNewAxis.map((isNew, i) => (isNew ? i : -1)).filter((i) => i >= 0);
}

const squeeze: ReshapeRule = (op, dims) => {
  const removedAxes = findSqueezedAxes(op, dims);
  return dims.filter((_, i) => !removedAxes.includes(i));
};

const unsqueeze: ReshapeRule = (op, dims) => {
  const axes = findUnsqueezedAxes(op, dims.length);
  if (axes === undefined) return undefined;
  const rest = [...dims];
  return Array.from({ length: dims.length + axes.length }, (_, i) =>
    axes.includes(i) ? 1 : requireDefined(rest.shift(), 'the size of an axis'),
  );
};

const flatten: ReshapeRule = (op, dims) => {
  const axis = getNumber(op, 'axis', 1);
  if (axis < 0 || axis > dims.length) return undefined;
  return [countElements(dims.slice(0, axis)), countElements(dims.slice(axis))];
};

const flattenRange: ReshapeRule = (op, dims) => {
  const start = normalizeAxis(getNumber(op, 'start_axis', 1), dims.length);
  const stop = normalizeAxis(getNumber(op, 'stop_axis', -1), dims.length);
  if (start < 0 || stop < start || stop >= dims.length) return undefined;
  return [
    ...dims.slice(0, start),
    countElements(dims.slice(start, stop + 1)),
    ...dims.slice(stop + 1),
  ];
};

const RESHAPES: Readonly<Record<string, ReshapeRule>> = {
  reshape,
  reshape2: reshape,
  squeeze,
  squeeze2: squeeze,
  unsqueeze,
  unsqueeze2: unsqueeze,
  flatten,
  flatten2: flatten,
  flatten_contiguous_range: flattenRange,
};

function createReshapeKernel(compute: ReshapeRule): Kernel {
  return (call) => {
    const x = call.input('X');
    const dims = compute(call.op, x.dims);
    if (dims === undefined) throw call.error(`[${x.dims.join(', ')}] does not fit its new shape`);
    call.setOutput('Out', reshapeTensor(x, dims));
  };
}

/** Copies `width` elements of each of `count` pieces. */
function copyPieces(
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

const concat: Kernel = (call) => {
  const parts = call.inputs('X');
  const [first] = parts;
  if (first === undefined) throw call.error('it has no input');
  const axis = normalizeAxis(getNumber(call.op, 'axis', 0), first.dims.length);
  const rest = (dims: readonly number[]): string => dims.filter((_, i) => i !== axis).join();
  if (axis < 0 || axis >= first.dims.length) throw call.error(`it has no axis ${axis}`);
  for (const { dims } of parts) {
    if (dims.length === first.dims.length && rest(dims) === rest(first.dims)) continue;
    throw call.error(`it joins [${first.dims.join(', ')}] and [${dims.join(', ')}]`);
  }
  const size = parts.reduce((total, { dims }) => total + dims[axis]!, 0);
  const dims = first.dims.map((dim, i) => (i === axis ? size : dim));
  const result = createTensor(first.dtype, dims, axis === 0 ? undefined : first.lod);
  const [outer, , inner] = splitAtAxis(first.dims, axis);
  let at = 0;
  for (const tensor of parts) {
    const width = tensor.dims[axis]! * inner;
    const to = { tensor: result, at, stride: size * inner };
    copyPieces({ tensor, at: 0, stride: width }, to, outer, width);
    at += width;
  }
  call.setOutput('Out', result);
};

const split: Kernel = (call) => {
  const x = call.input('X');
  const axis = normalizeAxis(getNumber(call.op, 'axis', 0), x.dims.length);
  const [outer, size, inner] = splitAtAxis(x.dims, axis);
  const sizes = computeSplitSizes(call.op, size, call.op.outputs.get('Out')?.length ?? 0);
  if (sizes === undefined) throw call.error(`its parts do not fill [${x.dims.join(', ')}]`);
  let at = 0;
  sizes.forEach((part, position) => {
    const dims = x.dims.map((dim, i) => (i === axis ? part : dim));
    const tensor = createTensor(x.dtype, dims, axis === 0 ? undefined : x.lod);
    const width = part * inner;
    const from = { tensor: x, at, stride: size * inner };
    copyPieces(from, { tensor, at: 0, stride: width }, outer, width);
    at += width;
    call.setOutput('Out', tensor, position);
  });
};

const slice: Kernel = (call) => {
  const { op } = call;
  let tensor = call.input('Input');
  const axes = getNumbers(op, 'axes');
  if (new Set(axes).size < axes.length)
    throw call.unsupported('slicing an axis twice is not supported');
  axes.forEach((named, i) => {
    const axis = normalizeAxis(named, tensor.dims.length);
    const [outer, size, inner] = splitAtAxis(tensor.dims, axis);
    const start = getNumbers(op, 'starts')[i] ?? 0;
    const end = getNumbers(op, 'ends')[i] ?? 0;
    const [from, to] = computeSliceRange(start, end, size);
    const dims = tensor.dims.map((dim, at) => (at === axis ? to - from : dim));
    const target = createTensor(tensor.dtype, dims, axis === 0 ? undefined : tensor.lod);
    const width = (to - from) * inner;
    const source = { tensor, at: from * inner, stride: size * inner };
    copyPieces(source, { tensor: target, at: 0, stride: width }, outer, width);
    tensor = target;
  });
  const removedAxes = getNumbers(op, 'decrease_axis');
  if (removedAxes.some((axis) => tensor.dims[axis] !== 1)) {
    throw call.error(
      `[${tensor.dims.join(', ')}] has no single element along its axes ${removedAxes.join(', ')}`,
    );
  }
  const rest = tensor.dims.filter((_, i) => !removedAxes.includes(i));
  const isNumber = rest.length === 0 && call.declaredRank('Out') === 1;
  call.setOutput('Out', reshapeTensor(tensor, isNumber ? [1] : rest));
};

const transpose: Kernel = (call) => {
  const x = call.input('X');
  const order = getNumbers(call.op, 'axis');
  const isWhole = [...order].sort((a, b) => a - b).every((axis, i) => axis === i);
  if (!isWhole || order.length !== x.dims.length)
    throw call.error(`its axes are [${order.join(', ')}]`);
  const strides = computeStrides(x.dims);
  const dims = order.map((axis) => x.dims[axis]!);
  const steps = order.map((axis) => strides[axis]!);
  const result = createTensor(x.dtype, dims, order[0] === 0 ? x.lod : undefined);
  for (let i = 0; i < result.data.length; i++) {
    result.data[i] = x.data[computeOffset(i, dims, steps)]!;
  }
  call.setOutput('Out', result);
};

export const LAYOUT_KERNELS: Readonly<Record<string, Kernel>> = {
  ...Object.fromEntries(
    Object.entries(RESHAPES).map(([type, of]) => [type, createReshapeKernel(of)]),
  ),
  concat,
  split,
  slice,
  transpose,
  transpose2: transpose,
};
