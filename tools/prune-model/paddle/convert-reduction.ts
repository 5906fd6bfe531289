/** Operators as nodes of ONNX: what takes many elements to few, and what scales elements by their neighbours. */
import { axisOf, isSet, numberOf } from './attributes.ts';
import { type Conversion, type Converter, cannotConvert } from './conversion.ts';
import { channelAxis, dropoutFactor, poolTypeOf, reducedAxes } from './kernels-reduction.ts';
import { ONNX_TYPES } from './onnx-graph.ts';
import { countOf } from './tensor.ts';

type Reduction = 'ReduceSum' | 'ReduceMean' | 'ReduceMax';

/** The axes are an input of ReduceSum and an attribute of the others. */
function reduceNode(
  { graph, between }: Conversion,
  type: Reduction,
  name: string,
  options: { axes: readonly number[]; keepdims: number; output: string },
): string {
  const { axes, keepdims, output } = options;
  if (type !== 'ReduceSum') return graph.node(type, [name], output, { axes, keepdims });
  return graph.node(type, [name, graph.integers(between('axes'), axes)], output, { keepdims });
}

function reduction(type: Reduction): Converter {
  return (c) => {
    const { graph, op } = c;
    const axes = reducedAxes(op, c.shape('X').dims.length);
    const keepdims = Number(isSet(op, 'keep_dim'));
    const { dtype } = c.outputShape('Out');
    const to = ONNX_TYPES[dtype];
    const isCast = dtype !== c.shape('X').dtype;
    const x = isCast ? graph.node('Cast', [c.input('X')], c.between('cast'), { to }) : c.input('X');
    if (axes.length === 0) {
      graph.node('Identity', [x], c.output('Out'));
      return;
    }
    const output = c.between('reduced');
    const reduced = reduceNode(c, type, x, { axes, keepdims, output });
    const isNumber = keepdims === 0 && axes.length === c.shape('X').dims.length;
    if (isNumber && c.outputShape('Out').dims.length === 1) {
      const shape = graph.integers(c.between('shape'), [1]);
      graph.node('Reshape', [reduced, shape], c.output('Out'));
    } else graph.node('Identity', [reduced], c.output('Out'));
  };
}

const softmax: Converter = (c) => {
  const axis = axisOf(numberOf(c.op, 'axis', -1), c.shape('X').dims.length);
  c.graph.node('Softmax', [c.input('X')], c.output('Out'), { axis });
};

const batchNorm: Converter = (c) => {
  const { graph, op } = c;
  const rank = c.shape('X').dims.length;
  const axis = channelAxis(op, rank);
  const factors = ['Scale', 'Bias', 'Mean', 'Variance'].map((parameter) => c.input(parameter));
  const epsilon = { float: numberOf(op, 'epsilon', 1e-5) };
  if (axis === 1) {
    graph.node('BatchNormalization', [c.input('X'), ...factors], c.output('Y'), { epsilon });
    return;
  }
  const order = Array.from({ length: rank }, (_, i) => i);
  const toFront = [0, rank - 1, ...order.slice(1, -1)];
  const back = order.map((i) => toFront.indexOf(i));
  const turned = graph.node('Transpose', [c.input('X')], c.between('turned'), { perm: toFront });
  const normal = graph.node('BatchNormalization', [turned, ...factors], c.between('normal'), {
    epsilon,
  });
  graph.node('Transpose', [normal], c.output('Y'), { perm: back });
};

const layerNorm: Converter = (c) => {
  const { graph, op } = c;
  const axis = numberOf(op, 'begin_norm_axis', 1);
  const dims = c.shape('X').dims.slice(axis);
  if (dims.some((dim) => dim < 0)) throw cannotConvert(op, 'it goes over an axis of open size');
  const factor = (parameter: string, otherwise: number): string => {
    const given = c.input(parameter);
    if (given === '') {
      return graph.floats(c.between(parameter), dims, new Array(countOf(dims)).fill(otherwise));
    }
    const shape = graph.integers(c.between('shape'), dims);
    return graph.node('Reshape', [given, shape], c.between(parameter));
  };
  const inputs = [c.input('X'), factor('Scale', 1), factor('Bias', 0)];
  const epsilon = { float: numberOf(op, 'epsilon', 1e-5) };
  graph.node('LayerNormalization', inputs, c.output('Y'), { axis, epsilon });
};

const dropout: Converter = (c) => {
  const { graph, op } = c;
  const factor = dropoutFactor(op);
  if (factor === 1) graph.node('Identity', [c.input('X')], c.output('Out'));
  else {
    const constant = graph.floats(c.between('kept'), [], [factor]);
    graph.node('Mul', [c.input('X'), constant], c.output('Out'));
  }
};

const POOL_REDUCTIONS: Readonly<Record<string, Reduction>> = {
  ...{ SUM: 'ReduceSum', SQRT: 'ReduceSum', AVERAGE: 'ReduceMean', MAX: 'ReduceMax' },
};

/** Sequences of one length are an axis: rows of one sequence follow one another. */
const sequencePool: Converter = (c) => {
  const { graph, op } = c;
  const length = c.sequenceLength('X');
  if (length === undefined) throw cannotConvert(op, 'its rows are not in sequences of one length');
  if (length === 1) {
    graph.node('Identity', [c.input('X')], c.output('Out'));
    return;
  }
  const [, ...tail] = c.shape('X').dims;
  const shape = graph.integers(c.between('shape'), [-1, length, ...tail]);
  const rows = graph.node('Reshape', [c.input('X'), shape], c.between('sequences'));
  const type = poolTypeOf(op);
  if (type === 'FIRST' || type === 'LAST') {
    const at = graph.integers(c.between('place'), [type === 'FIRST' ? 0 : length - 1], []);
    graph.node('Gather', [rows, at], c.output('Out'), { axis: 1 });
    return;
  }
  const reduction = POOL_REDUCTIONS[type];
  if (reduction === undefined) throw cannotConvert(op, `its pooltype is ${type}`);
  const pooled = reduceNode(c, reduction, rows, {
    ...{ axes: [1], keepdims: 0, output: c.between('pooled') },
  });
  if (type !== 'SQRT') graph.node('Identity', [pooled], c.output('Out'));
  else {
    const root = graph.floats(c.between('root'), [], [1 / Math.sqrt(length)]);
    graph.node('Mul', [pooled, root], c.output('Out'));
  }
};

export const REDUCTION: Readonly<Record<string, Converter>> = {
  reduce_sum: reduction('ReduceSum'),
  reduce_mean: reduction('ReduceMean'),
  reduce_max: reduction('ReduceMax'),
  softmax,
  batch_norm: batchNorm,
  layer_norm: layerNorm,
  dropout,
  sequence_pool: sequencePool,
};
