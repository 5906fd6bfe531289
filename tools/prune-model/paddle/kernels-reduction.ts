/** Kernels of the reference interpreter: what takes many elements to few, and what scales elements by their neighbours. */
import { axisOf, isSet, numberOf, numbersOf, textOf } from './attributes.ts';
import type { Kernel, Step } from './kernel.ts';
import { castTo } from './kernels-arithmetic.ts';
import type { Op } from './program.ts';
import {
  aroundAxis,
  countOf,
  dtypeOf,
  makeTensor,
  stridesOf,
  type Tensor,
  type TensorDtype,
  withDims,
} from './tensor.ts';

/** Axes that a reduction goes over. */
export function reducedAxes(op: Op, rank: number): number[] {
  const all = Array.from({ length: rank }, (_, axis) => axis);
  const named = numbersOf(op, 'dim');
  if (isSet(op, 'reduce_all') || (op.attrs.has('dim') && named.length === 0)) return all;
  const axes = (named.length === 0 ? [0] : named).map((axis) => axisOf(axis, rank));
  return all.filter((axis) => axes.includes(axis));
}

/** The type that a reduction adds in. */
function reducedDtype(op: Op, given: TensorDtype): TensorDtype {
  const asked = numberOf(op, 'out_dtype', -1);
  return asked < 0 ? given : dtypeOf(asked);
}

function reduction(
  start: number,
  add: (sum: number, value: number) => number,
  finish: (sum: number, count: number) => number = (total) => total,
): Kernel {
  return (step) => {
    const given = step.input('X');
    const x = castTo(given, reducedDtype(step.op, given.dtype));
    const axes = reducedAxes(step.op, x.dims.length);
    const kept = x.dims.map((dim, axis) => (axes.includes(axis) ? 1 : dim));
    const target = makeTensor(x.dtype, kept);
    const totals = new Float64Array(target.data.length).fill(start);
    const strides = stridesOf(kept).map((stride, axis) => (axes.includes(axis) ? 0 : stride));
    for (let i = 0; i < x.data.length; i++) {
      let [rest, to] = [i, 0];
      for (let axis = kept.length - 1; axis >= 0; axis--) {
        to += (rest % x.dims[axis]!) * strides[axis]!;
        rest = Math.floor(rest / x.dims[axis]!);
      }
      totals[to] = add(totals[to]!, x.data[i]!);
    }
    const count = countOf(x.dims) / Math.max(1, countOf(kept));
    totals.forEach((total, i) => {
      target.data[i] = finish(total, count);
    });
    step.set('Out', withDims(target, reducedDims(step, x, kept, axes)));
  };
}

function reducedDims(
  step: Step,
  x: Tensor,
  kept: readonly number[],
  axes: readonly number[],
): readonly number[] {
  if (isSet(step.op, 'keep_dim')) return kept;
  const dims = x.dims.filter((_, axis) => !axes.includes(axis));
  return dims.length === 0 && step.declaredRank('Out') === 1 ? [1] : dims;
}

const softmax: Kernel = (step) => {
  const x = step.input('X');
  const axis = axisOf(numberOf(step.op, 'axis', -1), x.dims.length);
  const [outer, size, inner] = aroundAxis(x.dims, axis);
  const result = makeTensor(x.dtype, x.dims, x.lod);
  for (let o = 0; o < outer; o++) {
    for (let i = 0; i < inner; i++) {
      const at = (k: number): number => (o * size + k) * inner + i;
      let [max, total] = [Number.NEGATIVE_INFINITY, 0];
      for (let k = 0; k < size; k++) max = Math.max(max, x.data[at(k)]!);
      for (let k = 0; k < size; k++) total += Math.exp(x.data[at(k)]! - max);
      for (let k = 0; k < size; k++) result.data[at(k)] = Math.exp(x.data[at(k)]! - max) / total;
    }
  }
  step.set('Out', result);
};

/** The axis of the channels. */
export function channelAxis(op: Op, rank: number): number {
  return textOf(op, 'data_layout', 'NCHW') === 'NHWC' ? rank - 1 : Math.min(1, rank - 1);
}

const batchNorm: Kernel = (step) => {
  const { op } = step;
  const x = step.input('X');
  if (!isSet(op, 'is_test') && !isSet(op, 'use_global_stats')) {
    throw step.unknown('it is in training form; --fetch puts a program in the form that answers');
  }
  const [outer, size, inner] = aroundAxis(x.dims, channelAxis(op, x.dims.length));
  const of = (parameter: string): Tensor => {
    const tensor = step.input(parameter);
    if (tensor.data.length !== size) throw step.error(`its ${parameter} has not ${size} elements`);
    return tensor;
  };
  const [scale, bias, mean, variance] = ['Scale', 'Bias', 'Mean', 'Variance'].map(of);
  const epsilon = numberOf(op, 'epsilon', 1e-5);
  const result = makeTensor(x.dtype, x.dims, x.lod);
  for (let o = 0; o < outer; o++) {
    for (let c = 0; c < size; c++) {
      const factor = scale!.data[c]! / Math.sqrt(variance!.data[c]! + epsilon);
      for (let i = 0; i < inner; i++) {
        const at = (o * size + c) * inner + i;
        result.data[at] = (x.data[at]! - mean!.data[c]!) * factor + bias!.data[c]!;
      }
    }
  }
  step.set('Y', result);
};

const layerNorm: Kernel = (step) => {
  const { op } = step;
  const x = step.input('X');
  const begin = numberOf(op, 'begin_norm_axis', 1);
  if (begin < 1 || begin >= x.dims.length) throw step.unknown(`it begins at axis ${begin}`);
  const width = countOf(x.dims.slice(begin));
  const [scale, bias] = [step.optional('Scale'), step.optional('Bias')];
  for (const given of [scale, bias]) {
    if (given !== undefined && given.data.length !== width) {
      throw step.error(`it has ${given.data.length} factors for ${width} elements`);
    }
  }
  const epsilon = numberOf(op, 'epsilon', 1e-5);
  const result = makeTensor(x.dtype, x.dims, x.lod);
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
  step.set('Y', result);
};

/** What dropout leaves of a value when a model answers. */
export function dropoutFactor(op: Op): number {
  const isUpscaled =
    textOf(op, 'dropout_implementation', 'downgrade_in_infer') === 'upscale_in_train';
  return isUpscaled ? 1 : Math.fround(1 - numberOf(op, 'dropout_prob', 0.5));
}

const dropout: Kernel = (step) => {
  const x = step.input('X');
  if (!isSet(step.op, 'is_test')) {
    throw step.unknown('it is in training form; --fetch puts a program in the form that answers');
  }
  const factor = dropoutFactor(step.op);
  const result = makeTensor(x.dtype, x.dims, x.lod);
  for (let i = 0; i < x.data.length; i++) result.data[i] = x.data[i]! * factor;
  step.set('Out', result);
};

/** Takes each sequence of rows to one row. */
const POOLS: Readonly<Record<string, (values: readonly number[]) => number>> = {
  SUM: (values) => values.reduce((total, value) => total + value, 0),
  AVERAGE: (values) => values.reduce((total, value) => total + value, 0) / values.length,
  SQRT: (values) => values.reduce((total, value) => total + value, 0) / Math.sqrt(values.length),
  MAX: (values) => values.reduce((most, value) => Math.max(most, value), Number.NEGATIVE_INFINITY),
  LAST: (values) => values.at(-1)!,
  FIRST: (values) => values[0]!,
};

export function poolTypeOf(op: Op): string {
  return textOf(op, 'pooltype', 'AVERAGE').toUpperCase();
}

const sequencePool: Kernel = (step) => {
  const x = step.input('X');
  const type = poolTypeOf(step.op);
  const pool = Object.hasOwn(POOLS, type) ? POOLS[type] : undefined;
  if (pool === undefined) throw step.unknown(`its pooltype is ${type}`);
  const { lod } = x;
  if (lod === undefined || lod.at(-1) !== x.dims[0])
    throw step.error('its rows are not in sequences');
  const padding = numberOf(step.op, 'pad_value', 0);
  const width = countOf(x.dims.slice(1));
  const result = makeTensor(x.dtype, [lod.length - 1, ...x.dims.slice(1)]);
  for (let s = 0; s + 1 < lod.length; s++) {
    const rows = Array.from({ length: lod[s + 1]! - lod[s]! }, (_, i) => lod[s]! + i);
    for (let d = 0; d < width; d++) {
      const values = rows.map((row) => x.data[row * width + d]!);
      result.data[s * width + d] = values.length === 0 ? padding : pool(values);
    }
  }
  step.set('Out', result);
};

export const REDUCTION: Readonly<Record<string, Kernel>> = {
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
