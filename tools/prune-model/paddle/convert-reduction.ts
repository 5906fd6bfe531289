/** ONNX nodes for reductions, normalisations and pooling of sequences. */

import { countElements } from '../cut/table.ts';
import {
  findReducedAxes,
  getChannelAxis,
  getDropoutFactor,
  getPoolType,
} from './kernels-reduction.ts';
import {
  type Conversion,
  type Converter,
  conversionError,
  ONNX_TYPES,
} from './onnx-graph-builder.ts';
import { getNumber, isAttributeSet, normalizeAxis } from './op-attributes.ts';

type Reduction = 'ReduceSum' | 'ReduceMean' | 'ReduceMax';

/** The axes are an input of ReduceSum and an attribute of the others. */
function addReduceNode(
  { graph, claimName }: Conversion,
  type: Reduction,
  name: string,
  options: { axes: readonly number[]; keepdims: number; output: string },
): string {
  const { axes, keepdims, output } = options;
  if (type !== 'ReduceSum') return graph.addNode(type, [name], output, { axes, keepdims });
  return graph.addNode(type, [name, graph.addIntegers(claimName('axes'), axes)], output, {
    keepdims,
  });
}

function reduction(type: Reduction): Converter {
  return (call) => {
    const { graph, op } = call;
    const axes = findReducedAxes(op, call.shape('X').dims.length);
    const keepdims = Number(isAttributeSet(op, 'keep_dim'));
    const { dtype } = call.outputShape('Out');
    const to = ONNX_TYPES[dtype];
    const isCast = dtype !== call.shape('X').dtype;
    const x = isCast
      ? graph.addNode('Cast', [call.input('X')], call.claimName('cast'), { to })
      : call.input('X');
    if (axes.length === 0) {
      graph.addNode('Identity', [x], call.claimOutput('Out'));
      return;
    }
    const output = call.claimName('reduced');
    const reduced = addReduceNode(call, type, x, { axes, keepdims, output });
    const isNumber = keepdims === 0 && axes.length === call.shape('X').dims.length;
    if (isNumber && call.outputShape('Out').dims.length === 1) {
      const shape = graph.addIntegers(call.claimName('shape'), [1]);
      graph.addNode('Reshape', [reduced, shape], call.claimOutput('Out'));
    } else graph.addNode('Identity', [reduced], call.claimOutput('Out'));
  };
}

const softmax: Converter = (call) => {
  const axis = normalizeAxis(getNumber(call.op, 'axis', -1), call.shape('X').dims.length);
  call.graph.addNode('Softmax', [call.input('X')], call.claimOutput('Out'), {
    axis,
  });
};

const batchNorm: Converter = (call) => {
  const { graph, op } = call;
  const rank = call.shape('X').dims.length;
  const axis = getChannelAxis(op, rank);
  const factors = ['Scale', 'Bias', 'Mean', 'Variance'].map((parameter) => call.input(parameter));
  const epsilon = { float: getNumber(op, 'epsilon', 1e-5) };
  if (axis === 1) {
    graph.addNode('BatchNormalization', [call.input('X'), ...factors], call.claimOutput('Y'), {
      epsilon,
    });
    return;
  }
  const order = Array.from({ length: rank }, (_, i) => i);
  const toFront = [0, rank - 1, ...order.slice(1, -1)];
  const back = order.map((i) => toFront.indexOf(i));
  const turned = graph.addNode('Transpose', [call.input('X')], call.claimName('turned'), {
    perm: toFront,
  });
  const normal = graph.addNode(
    'BatchNormalization',
    [turned, ...factors],
    call.claimName('normal'),
    {
      epsilon,
    },
  );
  graph.addNode('Transpose', [normal], call.claimOutput('Y'), { perm: back });
};

const layerNorm: Converter = (call) => {
  const { graph, op } = call;
  const axis = getNumber(op, 'begin_norm_axis', 1);
  const dims = call.shape('X').dims.slice(axis);
  if (dims.some((dim) => dim < 0))
    throw conversionError(op, 'it normalises over an axis that depends on the batch');
  const factor = (parameter: string, defaultValue: number): string => {
    const given = call.input(parameter);
    if (given === '') {
      return graph.addFloats(
        call.claimName(parameter),
        dims,
        new Array(countElements(dims)).fill(defaultValue),
      );
    }
    const shape = graph.addIntegers(call.claimName('shape'), dims);
    return graph.addNode('Reshape', [given, shape], call.claimName(parameter));
  };
  const inputs = [call.input('X'), factor('Scale', 1), factor('Bias', 0)];
  const epsilon = { float: getNumber(op, 'epsilon', 1e-5) };
  graph.addNode('LayerNormalization', inputs, call.claimOutput('Y'), { axis, epsilon });
};

const dropout: Converter = (call) => {
  const { graph, op } = call;
  const factor = getDropoutFactor(op);
  if (factor === 1) graph.addNode('Identity', [call.input('X')], call.claimOutput('Out'));
  else {
    const constant = graph.addFloats(call.claimName('kept'), [], [factor]);
    graph.addNode('Mul', [call.input('X'), constant], call.claimOutput('Out'));
  }
};

const POOL_REDUCTIONS: Readonly<Record<string, Reduction>> = {
  SUM: 'ReduceSum',
  SQRT: 'ReduceSum',
  AVERAGE: 'ReduceMean',
  MAX: 'ReduceMax',
};

/** Sequences of one length become an axis, because their rows are adjacent. */
const sequencePool: Converter = (call) => {
  const { graph, op } = call;
  const length = call.sequenceLength('X');
  if (length === undefined)
    throw conversionError(
      op,
      'its rows are not in sequences of one length; set it with --sequence-length',
    );
  if (length === 1) {
    graph.addNode('Identity', [call.input('X')], call.claimOutput('Out'));
    return;
  }
  const [, ...tail] = call.shape('X').dims;
  const shape = graph.addIntegers(call.claimName('shape'), [-1, length, ...tail]);
  const rows = graph.addNode('Reshape', [call.input('X'), shape], call.claimName('sequences'));
  const type = getPoolType(op);
  if (type === 'FIRST' || type === 'LAST') {
    const at = graph.addIntegers(call.claimName('place'), [type === 'FIRST' ? 0 : length - 1], []);
    graph.addNode('Gather', [rows, at], call.claimOutput('Out'), { axis: 1 });
    return;
  }
  const reduction = POOL_REDUCTIONS[type];
  if (reduction === undefined) throw conversionError(op, `its pooltype ${type} is not supported`);
  const pooled = addReduceNode(call, reduction, rows, {
    axes: [1],
    keepdims: 0,
    output: call.claimName('pooled'),
  });
  if (type !== 'SQRT') graph.addNode('Identity', [pooled], call.claimOutput('Out'));
  else {
    const root = graph.addFloats(call.claimName('root'), [], [1 / Math.sqrt(length)]);
    graph.addNode('Mul', [pooled, root], call.claimOutput('Out'));
  }
};

export const REDUCTION_CONVERTERS: Readonly<Record<string, Converter>> = {
  reduce_sum: reduction('ReduceSum'),
  reduce_mean: reduction('ReduceMean'),
  reduce_max: reduction('ReduceMax'),
  softmax,
  batch_norm: batchNorm,
  layer_norm: layerNorm,
  dropout,
  sequence_pool: sequencePool,
};
