/** Operators as nodes of ONNX: products of matrices, element by element, activations. */
import { isSet, numberOf, textOf } from './attributes.ts';
import { type Conversion, type Converter, cannotConvert } from './conversion.ts';
import { alignedDims } from './kernels-arithmetic.ts';
import { ONNX_TYPES } from './onnx-graph.ts';
import { countOf } from './tensor.ts';

/** Both flattened to matrices; the result gets its axes back where they were more than two. */
function flatProduct(
  c: Conversion,
  parameters: [string, string],
  splits: [number, number],
): string {
  const { graph } = c;
  const [x, y] = parameters.map((parameter) => c.shape(parameter).dims) as [number[], number[]];
  const names = parameters.map((parameter, i) => {
    const { dims } = c.shape(parameter);
    if (dims.length === 2 && splits[i] === 1) return c.input(parameter);
    return graph.node('Flatten', [c.input(parameter)], c.between('flat'), { axis: splits[i]! });
  });
  const product = graph.node('MatMul', names, c.between('product'));
  if (splits[0] === 1 && y.length - splits[1] === 1) return product;
  const dims = [...x.slice(0, splits[0]), ...y.slice(splits[1])];
  return reshapeTo(c, product, dims);
}

/** Reshapes to dims of which one at most is open. */
function reshapeTo(c: Conversion, name: string, dims: readonly number[]): string {
  if (dims.filter((dim) => dim < 0).length > 1) {
    throw cannotConvert(c.op, `[${dims.join(', ')}] has more than one open axis`);
  }
  const shape = c.graph.integers(c.between('shape'), dims);
  return c.graph.node('Reshape', [name, shape], c.between('reshaped'));
}

const mul: Converter = (c) => {
  const splits: [number, number] = [
    numberOf(c.op, 'x_num_col_dims', 1),
    numberOf(c.op, 'y_num_col_dims', 1),
  ];
  finish(c, flatProduct(c, ['X', 'Y'], splits));
};

function finish(c: Conversion, name: string, parameter = 'Out'): void {
  c.graph.node('Identity', [name], c.output(parameter));
}

const fc: Converter = (c) => {
  const { graph, op } = c;
  let name = flatProduct(c, ['Input', 'W'], [numberOf(op, 'in_num_col_dims', 1), 1]);
  if (c.input('Bias') !== '') {
    const width = countOf(c.shape('Bias').dims);
    const bias = reshapeTo(c, c.input('Bias'), [width]);
    name = graph.node('Add', [name, bias], c.between('sum'));
  }
  if (textOf(op, 'activation_type', '') === 'relu') {
    name = graph.node('Relu', [name], c.between('relu'));
  }
  finish(c, name);
};

function matmul(names: { x: string; y: string }): Converter {
  return (c) => {
    const { graph, op } = c;
    const sides = (['X', 'Y'] as const).map((parameter) => {
      const { dims } = c.shape(parameter);
      const isTransposed = isSet(op, parameter === 'X' ? names.x : names.y);
      if (!isTransposed) return c.input(parameter);
      const perm = dims.map((_, axis) => axis);
      perm.push(...perm.splice(-2).reverse());
      return graph.node('Transpose', [c.input(parameter)], c.between('transposed'), { perm });
    });
    let name = graph.node('MatMul', sides, c.between('product'));
    const alpha = numberOf(op, 'alpha', 1);
    if (alpha !== 1 && op.type === 'matmul') {
      name = graph.node(
        'Mul',
        [name, graph.floats(c.between('alpha'), [], [alpha])],
        c.between('scaled'),
      );
    }
    const { dims } = c.outputShape('Out');
    const isNumber = ['X', 'Y'].every((parameter) => c.shape(parameter).dims.length === 1);
    if (isNumber && dims.length === 1) name = reshapeTo(c, name, [1]);
    finish(c, name);
  };
}

function elementwise(type: string): Converter {
  return (c) => {
    const { graph, op } = c;
    const [x, y] = [c.shape('X'), c.shape('Y')];
    const isSwapped = y.dims.length > x.dims.length;
    const [long, short] = isSwapped ? [y, x] : [x, y];
    const shortName = c.input(isSwapped ? 'X' : 'Y');
    const aligned = alignedDims(long.dims, short.dims, numberOf(op, 'axis', -1));
    if (aligned === undefined) throw cannotConvert(op, 'its sides do not fit each other');
    const same = aligned.length === short.dims.length;
    const fitted = same ? shortName : reshapeTo(c, shortName, aligned);
    const sides = isSwapped ? [fitted, c.input('Y')] : [c.input('X'), fitted];
    finish(c, graph.node(type, sides, c.between('result')));
  };
}

function unary(
  type: string,
  attributes: (c: Conversion) => Readonly<Record<string, { float: number }>> = () => ({}),
): Converter {
  return (c) => {
    c.graph.node(type, [c.input('X')], c.output('Out'), attributes(c));
  };
}

/** A number beside a tensor of the same type. */
function number(c: Conversion, what: string, value: number): string {
  const { dtype } = c.shape('X');
  if (dtype === 'float32') return c.graph.floats(c.between(what), [], [value]);
  throw cannotConvert(c.op, `it takes ${dtype}`);
}

const scale: Converter = (c) => {
  const { graph, op } = c;
  const steps: [string, number][] = [
    ['Mul', numberOf(op, 'scale', 1)],
    ['Add', numberOf(op, 'bias', 0)],
  ];
  if (!isSet(op, 'bias_after_scale', true)) steps.reverse();
  let name = c.input('X');
  for (const [type, value] of steps) {
    name = graph.node(type, [name, number(c, type.toLowerCase(), value)], c.between('step'));
  }
  finish(c, name);
};

const clip: Converter = (c) => {
  const { op } = c;
  const limits = (['min', 'max'] as const).map((what) => number(c, what, numberOf(op, what, 0)));
  c.graph.node('Clip', [c.input('X'), ...limits], c.output('Out'));
};

const cast: Converter = (c) => {
  const to = ONNX_TYPES[c.outputShape('Out').dtype];
  c.graph.node('Cast', [c.input('X')], c.output('Out'), { to });
};

/** ONNX has Sum for floats alone. */
const sum: Converter = (c) => {
  const [first, ...others] = c.inputs('X');
  const add = (x: string, y: string): string => c.graph.node('Add', [x, y], c.between('part'));
  finish(c, others.reduce(add, first!));
};

export const ARITHMETIC: Readonly<Record<string, Converter>> = {
  mul,
  fc,
  matmul: matmul({ x: 'transpose_X', y: 'transpose_Y' }),
  matmul_v2: matmul({ x: 'trans_x', y: 'trans_y' }),
  elementwise_add: elementwise('Add'),
  elementwise_sub: elementwise('Sub'),
  elementwise_mul: elementwise('Mul'),
  elementwise_div: elementwise('Div'),
  relu: unary('Relu'),
  sigmoid: unary('Sigmoid'),
  tanh: unary('Tanh'),
  leaky_relu: unary('LeakyRelu', ({ op }) => ({ alpha: { float: numberOf(op, 'alpha', 0.02) } })),
  assign: unary('Identity'),
  scale,
  clip,
  cast,
  sum,
};
