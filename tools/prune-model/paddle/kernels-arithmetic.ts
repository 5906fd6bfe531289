/** Kernels of the reference interpreter: matrix products, element-wise operators, activations. */

import { countElements } from '../cut/table.ts';
import { getNumber, getText, isAttributeSet } from './op-attributes.ts';
import {
  computeOffset,
  computeStrides,
  createTensor,
  getTensorDtype,
  type Kernel,
  type KernelCall,
  reshapeTensor,
  type Tensor,
  type TensorDtype,
} from './tensor.ts';

/** A batch of matrices; strides give the positions of their elements. */
interface Matrices {
  readonly data: Float32Array | Float64Array;
  readonly rows: number;
  readonly columns: number;
  readonly rowStride: number;
  readonly columnStride: number;
  /** Position of the first element of matrix i. */
  readonly begin: (i: number) => number;
}

function multiply(call: KernelCall, x: Matrices, y: Matrices, batch: number, target: Tensor): void {
  if (x.columns !== y.rows)
    throw call.error(`it multiplies ${x.columns} columns with ${y.rows} rows`);
  call.countOperations(batch * x.rows * x.columns * y.columns);
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

function toMatrix(tensor: Tensor, rows: number, columns: number): Matrices {
  const { data } = tensor;
  return { data, rows, columns, rowStride: columns, columnStride: 1, begin: () => 0 };
}

/** Both flattened to matrices after their first axes. */
function multiplyFlattened(
  call: KernelCall,
  x: Tensor,
  y: Tensor,
  splits: [number, number],
): Tensor {
  const [xSplit, ySplit] = splits;
  if (xSplit < 1 || ySplit < 1 || xSplit >= x.dims.length || ySplit >= y.dims.length) {
    throw call.error(`it flattens [${x.dims.join(', ')}] and [${y.dims.join(', ')}]`);
  }
  const left = x.dims.slice(0, xSplit);
  const right = y.dims.slice(ySplit);
  const target = createTensor(x.dtype, [...left, ...right], x.lod);
  multiply(
    call,
    toMatrix(x, countElements(left), countElements(x.dims.slice(xSplit))),
    toMatrix(y, countElements(y.dims.slice(0, ySplit)), countElements(right)),
    1,
    target,
  );
  return target;
}

const mul: Kernel = (call) => {
  const splits: [number, number] = [
    getNumber(call.op, 'x_num_col_dims', 1),
    getNumber(call.op, 'y_num_col_dims', 1),
  ];
  call.setOutput('Out', multiplyFlattened(call, call.input('X'), call.input('Y'), splits));
};

const fc: Kernel = (call) => {
  const split = getNumber(call.op, 'in_num_col_dims', 1);
  const product = multiplyFlattened(call, call.input('Input'), call.input('W'), [split, 1]);
  const bias = call.optionalInput('Bias');
  if (bias !== undefined) {
    const width = bias.data.length;
    if (product.dims.at(-1) !== width) throw call.error(`its bias has ${width} elements`);
    product.data.forEach((value, i) => {
      product.data[i] = Math.fround(value) + bias.data[i % width]!;
    });
  }
  const activation = getText(call.op, 'activation_type', '');
  if (activation !== '' && activation !== 'relu')
    throw call.unsupported(`its activation ${activation} is not supported`);
  if (activation === 'relu') {
    product.data.forEach((value, i) => {
      product.data[i] = Math.max(value, 0);
    });
  }
  call.setOutput('Out', product);
};

/**
 * A tensor of one axis is a row on the left and a column on the right; the result loses that axis.
 */
function multiplyMatrices(call: KernelCall, transposes: [boolean, boolean], alpha: number): Tensor {
  const [x, y] = [call.input('X'), call.input('Y')];
  const xDims = x.dims.length === 1 ? [1, ...x.dims] : x.dims;
  const yDims = y.dims.length === 1 ? [...y.dims, 1] : y.dims;
  if (x.dims.length === 0 || y.dims.length === 0) throw call.error('it multiplies a single number');
  if ((x.dims.length === 1 && transposes[0]) || (y.dims.length === 1 && transposes[1])) {
    throw call.unsupported('transposing a tensor of one axis is not supported');
  }
  const batch = broadcastDims(call, xDims.slice(0, -2), yDims.slice(0, -2));
  const left = toMatrices(x, xDims, transposes[0], batch);
  const right = toMatrices(y, yDims, transposes[1], batch);
  const full = createTensor(x.dtype, [...batch, left.rows, right.columns]);
  multiply(call, left, right, countElements(batch), full);
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
  const result = reshapeTensor(full, dims);
  return x.lod !== undefined && dims[0] === x.dims[0] ? { ...result, lod: x.lod } : result;
}

function toMatrices(
  { data }: Tensor,
  dims: readonly number[],
  isTransposed: boolean,
  batch: readonly number[],
): Matrices {
  const [rows, columns] = dims.slice(-2) as [number, number];
  const size = rows * columns;
  const own = dims.slice(0, -2);
  const steps = broadcastSteps(own, batch);
  const begin = (i: number): number => computeOffset(i, batch, steps) * size;
  return isTransposed
    ? { data, rows: columns, columns: rows, rowStride: 1, columnStride: columns, begin }
    : { data, rows, columns, rowStride: columns, columnStride: 1, begin };
}

function broadcastDims(call: KernelCall, a: readonly number[], b: readonly number[]): number[] {
  const rank = Math.max(a.length, b.length);
  return Array.from({ length: rank }, (_, i) => {
    const x = a[i - rank + a.length] ?? 1;
    const y = b[i - rank + b.length] ?? 1;
    if (x !== y && x !== 1 && y !== 1) {
      throw call.error(`[${a.join(', ')}] and [${b.join(', ')}] do not fit`);
    }
    return x === 1 ? y : x;
  });
}

/** Strides of a tensor of `dims` along the last axes of `full`; 0 where it is repeated. */
function broadcastSteps(dims: readonly number[], full: readonly number[]): number[] {
  const strides = computeStrides(dims);
  return full.map((_, i) => {
    const axis = i - full.length + dims.length;
    return axis < 0 || dims[axis] === 1 ? 0 : strides[axis]!;
  });
}

/** The dims of Y aligned to X at an axis, padded with ones. Undefined when they do not fit. */
export function alignDims(
  x: readonly number[],
  y: readonly number[],
  axis: number,
): number[] | undefined {
  // Equal dims need no alignment; the axis is ignored.
  if (x.join() === y.join()) return [...y];
  const at = axis === -1 ? x.length - y.length : axis;
  const dims = [...y];
  while (dims.length > 0 && at + dims.length > x.length && dims.at(-1) === 1) dims.pop();
  if (at < 0 || at + dims.length > x.length) return undefined;
  return [...dims, ...new Array<number>(x.length - at - dims.length).fill(1)];
}

function elementwise(compute: (a: number, b: number) => number): Kernel {
  return (call) => {
    const [x, y] = [call.input('X'), call.input('Y')];
    if (x.dtype !== y.dtype)
      throw call.unsupported(`inputs of ${x.dtype} and ${y.dtype} are not supported`);
    if (x.dtype === 'bool') throw call.unsupported('bool inputs are not supported');
    const axis = getNumber(call.op, 'axis', -1);
    const isSwapped = y.dims.length > x.dims.length;
    const [long, short] = isSwapped ? [y, x] : [x, y];
    const aligned = alignDims(long.dims, short.dims, axis);
    if (aligned === undefined) {
      throw call.error(`[${short.dims.join(', ')}] does not fit [${long.dims.join(', ')}]`);
    }
    const dims = broadcastDims(call, long.dims, aligned);
    const result = createTensor(x.dtype, dims, x.lod ?? y.lod);
    const longSteps = broadcastSteps(long.dims, dims);
    const shortSteps = broadcastSteps(aligned, dims);
    for (let i = 0; i < result.data.length; i++) {
      const a = long.data[computeOffset(i, dims, longSteps)]!;
      const b = short.data[computeOffset(i, dims, shortSteps)]!;
      const value = isSwapped ? compute(b, a) : compute(a, b);
      result.data[i] = x.dtype.startsWith('int') ? Math.trunc(value) : value;
    }
    call.setOutput('Out', result);
  };
}

/** @param integers accepts integers too, not only float32 and float64 */
function unary(compute: (call: KernelCall) => (value: number) => number, integers = false): Kernel {
  return (call) => {
    const x = call.input('X');
    if (!integers && !x.dtype.startsWith('float'))
      throw call.unsupported(`inputs of ${x.dtype} are not supported`);
    const apply = compute(call);
    const result = createTensor(x.dtype, x.dims, x.lod);
    for (let i = 0; i < x.data.length; i++) result.data[i] = apply(x.data[i]!);
    call.setOutput('Out', result);
  };
}

const scale = unary(({ op }) => {
  const factor = getNumber(op, 'scale', 1);
  const bias = getNumber(op, 'bias', 0);
  return isAttributeSet(op, 'bias_after_scale', true)
    ? (value) => Math.fround(value * factor) + bias
    : (value) => Math.fround(value + bias) * factor;
});

const clip = unary(({ op }) => {
  const [min, max] = [getNumber(op, 'min', 0), getNumber(op, 'max', 0)];
  return (value) => Math.min(Math.max(value, min), max);
});

/** Converts to another type as C++ does. */
export function castTo(x: Tensor, dtype: TensorDtype): Tensor {
  const result = createTensor(dtype, x.dims, x.lod);
  for (let i = 0; i < x.data.length; i++) {
    const value = x.data[i]!;
    if (dtype === 'bool') result.data[i] = Number(value !== 0);
    else if (dtype === 'int32') result.data[i] = Math.trunc(value) | 0;
    else result.data[i] = dtype === 'int64' ? Math.trunc(value) : value;
  }
  return result;
}

const cast: Kernel = (call) => {
  call.setOutput(
    'Out',
    castTo(call.input('X'), getTensorDtype(getNumber(call.op, 'out_dtype', 5))),
  );
};

const sum: Kernel = (call) => {
  const terms = call.inputs('X');
  const [first] = terms;
  if (first === undefined) throw call.error('it has no input');
  const result = createTensor(first.dtype, first.dims, first.lod);
  for (const { data, dims } of terms) {
    if (dims.join() !== first.dims.join()) throw call.error(`it adds [${dims.join(', ')}]`);
    for (let i = 0; i < data.length; i++) result.data[i]! += data[i]!;
  }
  call.setOutput('Out', result);
};

export const ARITHMETIC_KERNELS: Readonly<Record<string, Kernel>> = {
  mul,
  fc,
  matmul: (call) => {
    const { op } = call;
    const transposes: [boolean, boolean] = [
      isAttributeSet(op, 'transpose_X'),
      isAttributeSet(op, 'transpose_Y'),
    ];
    const product = multiplyMatrices(call, transposes, getNumber(op, 'alpha', 1));
    call.setOutput('Out', product.dims.length === 0 ? reshapeTensor(product, [1]) : product);
  },
  matmul_v2: (call) => {
    const { op } = call;
    const product = multiplyMatrices(
      call,
      [isAttributeSet(op, 'trans_x'), isAttributeSet(op, 'trans_y')],
      1,
    );
    const isNumber = product.dims.length === 0 && call.declaredRank('Out') === 1;
    call.setOutput('Out', isNumber ? reshapeTensor(product, [1]) : product);
  },
  elementwise_add: elementwise((a, b) => a + b),
  elementwise_sub: elementwise((a, b) => a - b),
  elementwise_mul: elementwise((a, b) => a * b),
  elementwise_div: elementwise((a, b) => a / b),
  relu: unary(() => (value) => Math.max(value, 0)),
  sigmoid: unary(() => (value) => 1 / (1 + Math.exp(-value))),
  tanh: unary(() => Math.tanh),
  leaky_relu: unary((call) => {
    const alpha = getNumber(call.op, 'alpha', 0.02);
    // Paddle before 2.0 computes max(x, alpha * x).
    if (alpha < 0 || alpha > 1) {
      throw call.unsupported(`its alpha is ${alpha}, which versions of Paddle compute differently`);
    }
    return (value) => (value >= 0 ? value : value * alpha);
  }),
  assign: unary(() => (value) => value, true),
  scale,
  clip,
  cast,
  sum,
};
