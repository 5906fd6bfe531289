/** Kernels of the reference interpreter: products of matrices, element by element, activations. */
import { isSet, numberOf, textOf } from './attributes.ts';
import type { Kernel, Step } from './kernel.ts';
import {
  countOf,
  dtypeOf,
  makeTensor,
  stridesOf,
  type Tensor,
  type TensorDtype,
  withDims,
} from './tensor.ts';

/** Rows × columns of each of `batch` matrices; strides say where the elements lie. */
interface Matrices {
  readonly data: Float32Array | Float64Array;
  readonly rows: number;
  readonly columns: number;
  readonly rowStride: number;
  readonly columnStride: number;
  /** Where matrix i begins. */
  readonly begin: (i: number) => number;
}

function multiply(step: Step, x: Matrices, y: Matrices, batch: number, target: Tensor): void {
  if (x.columns !== y.rows)
    throw step.error(`it multiplies ${x.columns} columns with ${y.rows} rows`);
  step.spend(batch * x.rows * x.columns * y.columns);
  let at = 0;
  for (let b = 0; b < batch; b++) {
    const [xBegin, yBegin] = [x.begin(b), y.begin(b)];
    for (let row = 0; row < x.rows; row++) {
      for (let column = 0; column < y.columns; column++) {
        let sum = 0;
        for (let k = 0; k < x.columns; k++) {
          sum +=
            x.data[xBegin + row * x.rowStride + k * x.columnStride]! *
            y.data[yBegin + k * y.rowStride + column * y.columnStride]!;
        }
        target.data[at++] = sum;
      }
    }
  }
}

function plain(tensor: Tensor, rows: number, columns: number): Matrices {
  const { data } = tensor;
  return { data, rows, columns, rowStride: columns, columnStride: 1, begin: () => 0 };
}

/** Both flattened to matrices after their first axes. */
function flatProduct(step: Step, x: Tensor, y: Tensor, splits: [number, number]): Tensor {
  const [xSplit, ySplit] = splits;
  if (xSplit < 1 || ySplit < 1 || xSplit >= x.dims.length || ySplit >= y.dims.length) {
    throw step.error(`it flattens [${x.dims.join(', ')}] and [${y.dims.join(', ')}]`);
  }
  const left = x.dims.slice(0, xSplit);
  const right = y.dims.slice(ySplit);
  const target = makeTensor(x.dtype, [...left, ...right], x.lod);
  multiply(
    step,
    plain(x, countOf(left), countOf(x.dims.slice(xSplit))),
    plain(y, countOf(y.dims.slice(0, ySplit)), countOf(right)),
    1,
    target,
  );
  return target;
}

const mul: Kernel = (step) => {
  const splits: [number, number] = [
    numberOf(step.op, 'x_num_col_dims', 1),
    numberOf(step.op, 'y_num_col_dims', 1),
  ];
  step.set('Out', flatProduct(step, step.input('X'), step.input('Y'), splits));
};

const fc: Kernel = (step) => {
  const split = numberOf(step.op, 'in_num_col_dims', 1);
  const product = flatProduct(step, step.input('Input'), step.input('W'), [split, 1]);
  const bias = step.optional('Bias');
  if (bias !== undefined) {
    const width = bias.data.length;
    if (product.dims.at(-1) !== width) throw step.error(`its bias has ${width} elements`);
    product.data.forEach((value, i) => {
      product.data[i] = Math.fround(value) + bias.data[i % width]!;
    });
  }
  const activation = textOf(step.op, 'activation_type', '');
  if (activation !== '' && activation !== 'relu')
    throw step.unknown(`its activation is ${activation}`);
  if (activation === 'relu') {
    product.data.forEach((value, i) => {
      product.data[i] = Math.max(value, 0);
    });
  }
  step.set('Out', product);
};

/** One axis is a row on the left and a column on the right, and goes again. */
function matrixProduct(step: Step, transposes: [boolean, boolean], alpha: number): Tensor {
  const [x, y] = [step.input('X'), step.input('Y')];
  const xDims = x.dims.length === 1 ? [1, ...x.dims] : x.dims;
  const yDims = y.dims.length === 1 ? [...y.dims, 1] : y.dims;
  if (x.dims.length === 0 || y.dims.length === 0) throw step.error('it multiplies a single number');
  if ((x.dims.length === 1 && transposes[0]) || (y.dims.length === 1 && transposes[1])) {
    throw step.unknown('it transposes one axis');
  }
  const batch = broadcastDims(step, xDims.slice(0, -2), yDims.slice(0, -2));
  const left = matricesOf(x, xDims, transposes[0], batch);
  const right = matricesOf(y, yDims, transposes[1], batch);
  const full = makeTensor(x.dtype, [...batch, left.rows, right.columns]);
  multiply(step, left, right, countOf(batch), full);
  if (alpha !== 1) {
    full.data.forEach((value, i) => {
      full.data[i] = Math.fround(value) * alpha;
    });
  }
  const dims = [
    ...batch,
    ...(x.dims.length === 1 ? [] : [left.rows]),
    ...(y.dims.length === 1 ? [] : [right.columns]),
  ];
  const result = withDims(full, dims);
  return x.lod !== undefined && dims[0] === x.dims[0] ? { ...result, lod: x.lod } : result;
}

function matricesOf(
  { data }: Tensor,
  dims: readonly number[],
  isTransposed: boolean,
  batch: readonly number[],
): Matrices {
  const [rows, columns] = dims.slice(-2) as [number, number];
  const size = rows * columns;
  const own = dims.slice(0, -2);
  const steps = broadcastSteps(own, batch);
  const begin = (i: number): number => offsetOf(i, batch, steps) * size;
  return isTransposed
    ? { data, rows: columns, columns: rows, rowStride: 1, columnStride: columns, begin }
    : { data, rows, columns, rowStride: columns, columnStride: 1, begin };
}

function broadcastDims(step: Step, a: readonly number[], b: readonly number[]): number[] {
  const rank = Math.max(a.length, b.length);
  return Array.from({ length: rank }, (_, i) => {
    const x = a[i - rank + a.length] ?? 1;
    const y = b[i - rank + b.length] ?? 1;
    if (x !== y && x !== 1 && y !== 1) {
      throw step.error(`[${a.join(', ')}] and [${b.join(', ')}] do not fit`);
    }
    return x === 1 ? y : x;
  });
}

/** Steps along the axes of `full` in a tensor of `dims`, whose last axes they are; 0 where it is repeated. */
function broadcastSteps(dims: readonly number[], full: readonly number[]): number[] {
  const strides = stridesOf(dims);
  return full.map((_, i) => {
    const axis = i - full.length + dims.length;
    return axis < 0 || dims[axis] === 1 ? 0 : strides[axis]!;
  });
}

function offsetOf(index: number, dims: readonly number[], steps: readonly number[]): number {
  let offset = 0;
  for (let axis = dims.length - 1; axis >= 0; axis--) {
    offset += (index % dims[axis]!) * steps[axis]!;
    index = Math.floor(index / dims[axis]!);
  }
  return offset;
}

/** Where Y stands below X: its dims, with ones up to X's last axis. Undefined when it does not fit below it. */
export function alignedDims(
  x: readonly number[],
  y: readonly number[],
  axis: number,
): number[] | undefined {
  // Nothing is to be aligned, whatever the axis says.
  if (x.join() === y.join()) return [...y];
  const at = axis === -1 ? x.length - y.length : axis;
  const dims = [...y];
  while (dims.length > 0 && at + dims.length > x.length && dims.at(-1) === 1) dims.pop();
  if (at < 0 || at + dims.length > x.length) return undefined;
  return [...dims, ...new Array<number>(x.length - at - dims.length).fill(1)];
}

function elementwise(compute: (a: number, b: number) => number): Kernel {
  return (step) => {
    const [x, y] = [step.input('X'), step.input('Y')];
    if (x.dtype !== y.dtype) throw step.unknown(`it takes ${x.dtype} and ${y.dtype}`);
    if (x.dtype === 'bool') throw step.unknown('it takes bools');
    const axis = numberOf(step.op, 'axis', -1);
    const isSwapped = y.dims.length > x.dims.length;
    const [long, short] = isSwapped ? [y, x] : [x, y];
    const aligned = alignedDims(long.dims, short.dims, axis);
    if (aligned === undefined) {
      throw step.error(`[${short.dims.join(', ')}] does not fit [${long.dims.join(', ')}]`);
    }
    const dims = broadcastDims(step, long.dims, aligned);
    const result = makeTensor(x.dtype, dims, x.lod ?? y.lod);
    const longSteps = broadcastSteps(long.dims, dims);
    const shortSteps = broadcastSteps(aligned, dims);
    for (let i = 0; i < result.data.length; i++) {
      const a = long.data[offsetOf(i, dims, longSteps)]!;
      const b = short.data[offsetOf(i, dims, shortSteps)]!;
      const value = isSwapped ? compute(b, a) : compute(a, b);
      result.data[i] = x.dtype.startsWith('int') ? Math.trunc(value) : value;
    }
    step.set('Out', result);
  };
}

/** @param dtypes that it is defined for; float32 and float64 unless it says more */
function unary(compute: (step: Step) => (value: number) => number, integers = false): Kernel {
  return (step) => {
    const x = step.input('X');
    if (!integers && !x.dtype.startsWith('float')) throw step.unknown(`it takes ${x.dtype}`);
    const of = compute(step);
    const result = makeTensor(x.dtype, x.dims, x.lod);
    for (let i = 0; i < x.data.length; i++) result.data[i] = of(x.data[i]!);
    step.set('Out', result);
  };
}

const scale = unary(({ op }) => {
  const factor = numberOf(op, 'scale', 1);
  const bias = numberOf(op, 'bias', 0);
  return isSet(op, 'bias_after_scale', true)
    ? (value) => Math.fround(value * factor) + bias
    : (value) => Math.fround(value + bias) * factor;
});

const clip = unary(({ op }) => {
  const [min, max] = [numberOf(op, 'min', 0), numberOf(op, 'max', 0)];
  return (value) => Math.min(Math.max(value, min), max);
});

/** The same numbers as another type, as C++ turns them. */
export function castTo(x: Tensor, dtype: TensorDtype): Tensor {
  const result = makeTensor(dtype, x.dims, x.lod);
  for (let i = 0; i < x.data.length; i++) {
    const value = x.data[i]!;
    if (dtype === 'bool') result.data[i] = Number(value !== 0);
    else if (dtype === 'int32') result.data[i] = Math.trunc(value) | 0;
    else result.data[i] = dtype === 'int64' ? Math.trunc(value) : value;
  }
  return result;
}

const cast: Kernel = (step) => {
  step.set('Out', castTo(step.input('X'), dtypeOf(numberOf(step.op, 'out_dtype', 5))));
};

const sum: Kernel = (step) => {
  const terms = step.inputs('X');
  const [first] = terms;
  if (first === undefined) throw step.error('it has nothing to add');
  const result = makeTensor(first.dtype, first.dims, first.lod);
  for (const { data, dims } of terms) {
    if (dims.join() !== first.dims.join()) throw step.error(`it adds [${dims.join(', ')}]`);
    for (let i = 0; i < data.length; i++) result.data[i]! += data[i]!;
  }
  step.set('Out', result);
};

export const ARITHMETIC: Readonly<Record<string, Kernel>> = {
  mul,
  fc,
  matmul: (step) => {
    const { op } = step;
    const transposes: [boolean, boolean] = [isSet(op, 'transpose_X'), isSet(op, 'transpose_Y')];
    const product = matrixProduct(step, transposes, numberOf(op, 'alpha', 1));
    step.set('Out', product.dims.length === 0 ? withDims(product, [1]) : product);
  },
  matmul_v2: (step) => {
    const { op } = step;
    const product = matrixProduct(step, [isSet(op, 'trans_x'), isSet(op, 'trans_y')], 1);
    const isNumber = product.dims.length === 0 && step.declaredRank('Out') === 1;
    step.set('Out', isNumber ? withDims(product, [1]) : product);
  },
  elementwise_add: elementwise((a, b) => a + b),
  elementwise_sub: elementwise((a, b) => a - b),
  elementwise_mul: elementwise((a, b) => a * b),
  elementwise_div: elementwise((a, b) => a / b),
  relu: unary(() => (value) => Math.max(value, 0)),
  sigmoid: unary(() => (value) => 1 / (1 + Math.exp(-value))),
  tanh: unary(() => Math.tanh),
  leaky_relu: unary((step) => {
    const alpha = numberOf(step.op, 'alpha', 0.02);
    // Before 2.0 it was the greater of x and alpha * x.
    if (alpha < 0 || alpha > 1) {
      throw step.unknown(`its alpha is ${alpha}, which versions of Paddle compute differently`);
    }
    return (value) => (value >= 0 ? value : value * alpha);
  }),
  assign: unary(() => (value) => value, true),
  scale,
  clip,
  cast,
  sum,
};
