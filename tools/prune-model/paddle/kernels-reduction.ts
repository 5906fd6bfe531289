/** Kernels of the reference interpreter: reductions, normalisations, and pooling of sequences. */

import { countElements } from '../cut/table.ts';
import { castTo } from './kernels-arithmetic.ts';
import { getNumber, getNumbers, getText, isAttributeSet, normalizeAxis } from './op-attributes.ts';
import type { Op } from './program.ts';
import {
  computeOffset,
  computeStrides,
  createTensor,
  getTensorDtype,
  type Kernel,
  type KernelCall,
  reshapeTensor,
  splitAtAxis,
  type Tensor,
  type TensorDtype,
} from './tensor.ts';

/** The axes that a reduction removes. */
export function findReducedAxes(op: Op, rank: number): number[] {
  const all = Array.from({ length: rank }, (_, axis) => axis);
  const named = getNumbers(op, 'dim');
  if (isAttributeSet(op, 'reduce_all') || (op.attrs.has('dim') && named.length === 0)) return all;
  const axes = (named.length === 0 ? [0] : named).map((axis) => normalizeAxis(axis, rank));
  return all.filter((axis) => axes.includes(axis));
}

/** The type in which a reduction adds. */
function getReducedDtype(op: Op, given: TensorDtype): TensorDtype {
  const requested = getNumber(op, 'out_dtype', -1);
  return requested < 0 ? given : getTensorDtype(requested);
}

function reduction(
  start: number,
  add: (sum: number, value: number) => number,
  finish: (sum: number, count: number) => number = (total) => total,
): Kernel {
  return (call) => {
    const given = call.input('X');
    const x = castTo(given, getReducedDtype(call.op, given.dtype));
    const axes = findReducedAxes(call.op, x.dims.length);
    const kept = x.dims.map((dim, axis) => (axes.includes(axis) ? 1 : dim));
    const result = createTensor(x.dtype, kept);
    const totals = new Float64Array(result.data.length).fill(start);
    const strides = computeStrides(kept).map((stride, axis) => (axes.includes(axis) ? 0 : stride));
    for (let i = 0; i < x.data.length; i++) {
      const target = computeOffset(i, x.dims, strides);
      totals[target] = add(totals[target]!, x.data[i]!);
    }
    const count = countElements(x.dims) / Math.max(1, countElements(kept));
    totals.forEach((total, i) => {
      result.data[i] = finish(total, count);
    });
    call.setOutput('Out', reshapeTensor(result, computeReducedDims(call, x, kept, axes)));
  };
}

function computeReducedDims(
  call: KernelCall,
  x: Tensor,
  kept: readonly number[],
  axes: readonly number[],
): readonly number[] {
  if (isAttributeSet(call.op, 'keep_dim')) return kept;
  const dims = x.dims.filter((_, axis) => !axes.includes(axis));
  return dims.length === 0 && call.declaredRank('Out') === 1 ? [1] : dims;
}

const softmax: Kernel = (call) => {
  const x = call.input('X');
  const axis = normalizeAxis(getNumber(call.op, 'axis', -1), x.dims.length);
  const [outer, size, inner] = splitAtAxis(x.dims, axis);
  const result = createTensor(x.dtype, x.dims, x.lod);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      const at = (k: number): number => (o * size + k) * inner + i;
      let [max, total] = [Number.NEGATIVE_INFINITY, 0];
      for (let k = 0; k < size; k++) max = Math.max(max, x.data[at(k)]!);
      for (let k = 0; k < size; k++) total += Math.exp(x.data[at(k)]! - max);
      for (let k = 0; k < size; k++) result.data[at(k)] = Math.exp(x.data[at(k)]! - max) / total;
    }
  }
  call.setOutput('Out', result);
};

/** The axis of the channels. */
export function getChannelAxis(op: Op, rank: number): number {
  return getText(op, 'data_layout', 'NCHW') === 'NHWC' ? rank - 1 : Math.min(1, rank - 1);
}

const batchNorm: Kernel = (call) => {
  const { op } = call;
  const x = call.input('X');
  if (!isAttributeSet(op, 'is_test') && !isAttributeSet(op, 'use_global_stats')) {
    throw call.unsupported(
      'it is in training form; --fetch converts the program to inference form',
    );
  }
  const [outer, size, inner] = splitAtAxis(x.dims, getChannelAxis(op, x.dims.length));
  const getChannels = (parameter: string): Tensor => {
    const tensor = call.input(parameter);
    if (tensor.data.length !== size)
      throw call.error(`its ${parameter} must have ${size} elements`);
    return tensor;
  };
  const scale = getChannels('Scale');
  const bias = getChannels('Bias');
  const mean = getChannels('Mean');
  const variance = getChannels('Variance');
  const epsilon = getNumber(op, 'epsilon', 1e-5);
  const result = createTensor(x.dtype, x.dims, x.lod);
  for (let o = 0; o < outer; o++) {
    for (let c = 0; c < size; c++) {
      const factor = scale.data[c]! / Math.sqrt(variance.data[c]! + epsilon);
      for (let i = 0; i < inner; i++) {
        const at = (o * size + c) * inner + i;
        result.data[at] = (x.data[at]! - mean.data[c]!) * factor + bias.data[c]!;
      }
    }
  }
  call.setOutput('Y', result);
};

const layerNorm: Kernel = (call) => {
  const { op } = call;
  const x = call.input('X');
  const begin = getNumber(op, 'begin_norm_axis', 1);
  if (begin < 1 || begin >= x.dims.length)
    throw call.unsupported(`begin_norm_axis ${begin} is not supported`);
  const width = countElements(x.dims.slice(begin));
  const [scale, bias] = [call.optionalInput('Scale'), call.optionalInput('Bias')];
  for (const given of [scale, bias]) {
    if (given !== undefined && given.data.length !== width) {
      throw call.error(`it has ${given.data.length} factors for ${width} elements`);
    }
  }
  const epsilon = getNumber(op, 'epsilon', 1e-5);
  const result = createTensor(x.dtype, x.dims, x.lod);
  for (let at = 0; at < x.data.length; at += width) {
    const row = x.data.subarray(at, at + width);
    let [total, squares] = [0, 0];
    for (const value of row) total += value;
    const mean = total / width;
    for (const value of row) squares += (value - mean) ** 2;
    const deviation = Math.sqrt(squares / width + epsilon);
    for (let i = 0; i < width; i++) {
      const normal = (row[i]! - mean) / deviation;
      result.data[at + i] = normal * (scale?.data[i] ?? 1) + (bias?.data[i] ?? 0);
    }
  }
  call.setOutput('Y', result);
};

/** The factor of dropout in inference. */
export function getDropoutFactor(op: Op): number {
  const isUpscaled =
    getText(op, 'dropout_implementation', 'downgrade_in_infer') === 'upscale_in_train';
  return isUpscaled ? 1 : Math.fround(1 - getNumber(op, 'dropout_prob', 0.5));
}

const dropout: Kernel = (call) => {
  const x = call.input('X');
  if (!isAttributeSet(call.op, 'is_test')) {
    throw call.unsupported(
      'it is in training form; --fetch converts the program to inference form',
    );
  }
  const factor = getDropoutFactor(call.op);
  const result = createTensor(x.dtype, x.dims, x.lod);
  for (let i = 0; i < x.data.length; i++) result.data[i] = x.data[i]! * factor;
  call.setOutput('Out', result);
};

/** Pools the values of one sequence. */
const POOLS: Readonly<Record<string, (values: readonly number[]) => number>> = {
  SUM: (values) => values.reduce((total, value) => total + value, 0),
  AVERAGE: (values) => values.reduce((total, value) => total + value, 0) / values.length,
  SQRT: (values) => values.reduce((total, value) => total + value, 0) / Math.sqrt(values.length),
  MAX: (values) => values.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY),
  LAST: (values) => values.at(-1) ?? Number.NaN,
  FIRST: (values) => values[0] ?? Number.NaN,
};

export function getPoolType(op: Op): string {
  return getText(op, 'pooltype', 'AVERAGE').toUpperCase();
}

const sequencePool: Kernel = (call) => {
  const x = call.input('X');
  const type = getPoolType(call.op);
  const pool = Object.hasOwn(POOLS, type) ? POOLS[type] : undefined;
  if (pool === undefined) throw call.unsupported(`its pooltype ${type} is not supported`);
  const { lod } = x;
  if (lod === undefined || lod.at(-1) !== x.dims[0])
    throw call.error('its rows are not in sequences');
  const padding = getNumber(call.op, 'pad_value', 0);
  const width = countElements(x.dims.slice(1));
  const result = createTensor(x.dtype, [lod.length - 1, ...x.dims.slice(1)]);
  for (let s = 0; s + 1 < lod.length; s++) {
    const rows = Array.from({ length: lod[s + 1]! - lod[s]! }, (_, i) => lod[s]! + i);
    for (let d = 0; d < width; d++) {
      const values = rows.map((row) => x.data[row * width + d]!);
      result.data[s * width + d] = values.length === 0 ? padding : pool(values);
    }
  }
  call.setOutput('Out', result);
};

export const REDUCTION_KERNELS: Readonly<Record<string, Kernel>> = {
  reduce_sum: reduction(0, (total, value) => total + value),
  reduce_mean: reduction(
    0,
    (total, value) => total + value,
    (total, count) => total / count,
  ),
  reduce_max: reduction(Number.NEGATIVE_INFINITY, Math.max),
  softmax,
  batch_norm: batchNorm,
  layer_norm: layerNorm,
  dropout,
  sequence_pool: sequencePool,
};
