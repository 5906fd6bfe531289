/** ONNX nodes for matrix products, element-wise operators and activations. */

import { requireDefined } from '../../../lib/core/errors.ts';
import { countElements } from '../cut/table.ts';
import { alignDims } from './kernels-arithmetic.ts';
import {
  type Conversion,
  type Converter,
  conversionError,
  ONNX_TYPES,
} from './onnx-graph-builder.ts';
import { getNumber, getText, isAttributeSet } from './op-attributes.ts';

/** Flattens both inputs to matrices and multiplies them; further axes are restored. */
function addFlatProduct(
  call: Conversion,
  parameters: [string, string],
  splits: [number, number],
): string {
  const { graph } = call;
  const [x, y] = parameters.map((parameter) => call.shape(parameter).dims) as [number[], number[]];
  const names = parameters.map((parameter, i) => {
    const { dims } = call.shape(parameter);
    const axis = requireDefined(splits[i], 'the axis of a product');
    if (dims.length === 2 && axis === 1) return call.input(parameter);
    return graph.addNode('Flatten', [call.input(parameter)], call.claimName('flat'), {
      axis,
    });
  });
  const product = graph.addNode('MatMul', names, call.claimName('product'));
  if (splits[0] === 1 && y.length - splits[1] === 1) return product;
  const dims = [...x.slice(0, splits[0]), ...y.slice(splits[1])];
  return addReshape(call, product, dims);
}

/** Reshapes to dims with at most one open axis. */
function addReshape(call: Conversion, name: string, dims: readonly number[]): string {
  if (dims.filter((dim) => dim < 0).length > 1) {
    throw conversionError(
      call.op,
      `[${dims.join(', ')}] has more than one axis that depends on the batch`,
    );
  }
  const shape = call.graph.addIntegers(call.claimName('shape'), dims);
  return call.graph.addNode('Reshape', [name, shape], call.claimName('reshaped'));
}

const mul: Converter = (call) => {
  const splits: [number, number] = [
    getNumber(call.op, 'x_num_col_dims', 1),
    getNumber(call.op, 'y_num_col_dims', 1),
  ];
  addOutput(call, addFlatProduct(call, ['X', 'Y'], splits));
};

function addOutput(call: Conversion, name: string, parameter = 'Out'): void {
  call.graph.addNode('Identity', [name], call.claimOutput(parameter));
}

const fc: Converter = (call) => {
  const { graph, op } = call;
  let name = addFlatProduct(call, ['Input', 'W'], [getNumber(op, 'in_num_col_dims', 1), 1]);
  if (call.input('Bias') !== '') {
    const width = countElements(call.shape('Bias').dims);
    const bias = addReshape(call, call.input('Bias'), [width]);
    name = graph.addNode('Add', [name, bias], call.claimName('sum'));
  }
  if (getText(op, 'activation_type', '') === 'relu') {
    name = graph.addNode('Relu', [name], call.claimName('relu'));
  }
  addOutput(call, name);
};

function matmul(names: { x: string; y: string }): Converter {
  return (call) => {
    const { graph, op } = call;
    const operands = (['X', 'Y'] as const).map((parameter) => {
      const { dims } = call.shape(parameter);
      const isTransposed = isAttributeSet(op, parameter === 'X' ? names.x : names.y);
      if (!isTransposed) return call.input(parameter);
      const perm = dims.map((_, axis) => axis);
      perm.push(...perm.splice(-2).reverse());
      return graph.addNode('Transpose', [call.input(parameter)], call.claimName('transposed'), {
        perm,
      });
    });
    let name = graph.addNode('MatMul', operands, call.claimName('product'));
    const alpha = getNumber(op, 'alpha', 1);
    if (alpha !== 1 && op.type === 'matmul') {
      name = graph.addNode(
        'Mul',
        [name, graph.addFloats(call.claimName('alpha'), [], [alpha])],
        call.claimName('scaled'),
      );
    }
    const { dims } = call.outputShape('Out');
    const isNumber = ['X', 'Y'].every((parameter) => call.shape(parameter).dims.length === 1);
    if (isNumber && dims.length === 1) name = addReshape(call, name, [1]);
    addOutput(call, name);
  };
}

function elementwise(type: string): Converter {
  return (call) => {
    const { graph, op } = call;
    const [x, y] = [call.shape('X'), call.shape('Y')];
    const isSwapped = y.dims.length > x.dims.length;
    const [long, short] = isSwapped ? [y, x] : [x, y];
    const shortName = call.input(isSwapped ? 'X' : 'Y');
    const aligned = alignDims(long.dims, short.dims, getNumber(op, 'axis', -1));
    if (aligned === undefined) throw conversionError(op, 'the shapes of its inputs do not fit');
    const same = aligned.length === short.dims.length;
    const fitted = same ? shortName : addReshape(call, shortName, aligned);
    const operands = isSwapped ? [fitted, call.input('Y')] : [call.input('X'), fitted];
    addOutput(call, graph.addNode(type, operands, call.claimName('result')));
  };
}

function unary(
  type: string,
  attributes: (call: Conversion) => Readonly<Record<string, { float: number }>> = () => ({}),
): Converter {
  return (call) => {
    call.graph.addNode(type, [call.input('X')], call.claimOutput('Out'), attributes(call));
  };
}

/** Adds a float constant of the type of X. */
function addFloatConstant(call: Conversion, what: string, value: number): string {
  const { dtype } = call.shape('X');
  if (dtype === 'float32') return call.graph.addFloats(call.claimName(what), [], [value]);
  throw conversionError(call.op, `inputs of ${dtype} are not supported`);
}

const scale: Converter = (call) => {
  const { graph, op } = call;
  const steps: [string, number][] = [
    ['Mul', getNumber(op, 'scale', 1)],
    ['Add', getNumber(op, 'bias', 0)],
  ];
  if (!isAttributeSet(op, 'bias_after_scale', true)) steps.reverse();
  let name = call.input('X');
  for (const [type, value] of steps) {
    name = graph.addNode(
      type,
      [name, addFloatConstant(call, type.toLowerCase(), value)],
      call.claimName('step'),
    );
  }
  addOutput(call, name);
};

const clip: Converter = (call) => {
  const { op } = call;
  const limits = (['min', 'max'] as const).map((what) =>
    addFloatConstant(call, what, getNumber(op, what, 0)),
  );
  call.graph.addNode('Clip', [call.input('X'), ...limits], call.claimOutput('Out'));
};

const cast: Converter = (call) => {
  const to = ONNX_TYPES[call.outputShape('Out').dtype];
  call.graph.addNode('Cast', [call.input('X')], call.claimOutput('Out'), { to });
};

/** ONNX has Sum for floats only. */
const sum: Converter = (call) => {
  const [first, ...others] = call.inputs('X');
  const add = (x: string, y: string): string =>
    call.graph.addNode('Add', [x, y], call.claimName('part'));
  addOutput(call, others.reduce(add, requireDefined(first, 'the input X of sum')));
};

export const ARITHMETIC_CONVERTERS: Readonly<Record<string, Converter>> = {
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
  leaky_relu: unary('LeakyRelu', ({ op }) => ({ alpha: { float: getNumber(op, 'alpha', 0.02) } })),
  assign: unary('Identity'),
  scale,
  clip,
  cast,
  sum,
};
