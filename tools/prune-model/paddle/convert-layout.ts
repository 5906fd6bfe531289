/** ONNX nodes for operators that only move elements. */

import { requireDefined } from '../../../lib/core/errors.ts';
import { findSqueezedAxes, findUnsqueezedAxes } from './kernels-layout.ts';
import { type Conversion, type Converter, conversionError } from './onnx-graph-builder.ts';
import { computeSplitSizes, getNumber, getNumbers, normalizeAxis } from './op-attributes.ts';

/** Reshapes to the dims that both runs had; the dim that depends on the batch takes the rest. */
const reshape: Converter = (call) => {
  const { dims } = call.outputShape('Out');
  const from = call.shape('X').dims;
  // An open axis that keeps its position is copied (0); a new one takes the rest (-1).
  const target = dims.map((dim, i) =>
    dim === -1 && from[i] === -1 && isAxisCopied(dims, from, i) ? 0 : dim,
  );
  if (target.filter((dim) => dim === -1).length > 1) {
    throw conversionError(
      call.op,
      `[${dims.join(', ')}] has more than one axis that depends on the batch`,
    );
  }
  const shape = call.graph.addIntegers(call.claimName('shape'), target);
  call.graph.addNode('Reshape', [call.input('X'), shape], call.claimOutput('Out'));
};

/** Whether the dims before an axis, and so its position, stay the same. */
function isAxisCopied(dims: readonly number[], from: readonly number[], axis: number): boolean {
  return dims.slice(0, axis).every((dim, i) => dim === from[i]) && dims.length === from.length;
}

/** Adds a node with `axes` as an input; Identity when there are none. */
function addAxesNode(
  call: Conversion,
  type: 'Squeeze' | 'Unsqueeze',
  axes: readonly number[],
): void {
  if (axes.length === 0) {
    call.graph.addNode('Identity', [call.input('X')], call.claimOutput('Out'));
    return;
  }
  const names = [call.input('X'), call.graph.addIntegers(call.claimName('axes'), axes)];
  call.graph.addNode(type, names, call.claimOutput('Out'));
}

const squeeze: Converter = (call) => {
  addAxesNode(call, 'Squeeze', findSqueezedAxes(call.op, call.shape('X').dims));
};

const unsqueeze: Converter = (call) => {
  addAxesNode(call, 'Unsqueeze', findUnsqueezedAxes(call.op, call.shape('X').dims.length) ?? []);
};

const flatten: Converter = (call) => {
  call.graph.addNode('Flatten', [call.input('X')], call.claimOutput('Out'), {
    axis: getNumber(call.op, 'axis', 1),
  });
};

const concat: Converter = (call) => {
  const axis = normalizeAxis(getNumber(call.op, 'axis', 0), call.shape('X').dims.length);
  call.graph.addNode('Concat', call.inputs('X'), call.claimOutput('Out'), {
    axis,
  });
};

const split: Converter = (call) => {
  const { dims } = call.shape('X');
  const axis = normalizeAxis(getNumber(call.op, 'axis', 0), dims.length);
  const outputs = call.op.outputs.get('Out') ?? [];
  const size = requireDefined(dims[axis], 'the size of an axis');
  const sizes = size === -1 ? undefined : computeSplitSizes(call.op, size, outputs.length);
  if (sizes === undefined)
    throw conversionError(call.op, `axis ${axis} depends on the batch or its parts do not add up`);
  const names = [call.input('X'), call.graph.addIntegers(call.claimName('sizes'), sizes)];
  call.graph.addNode(
    'Split',
    names,
    outputs.map((_, i) => call.claimOutput('Out', i)),
    { axis },
  );
};

const slice: Converter = (call) => {
  const { graph, op } = call;
  const rank = call.shape('Input').dims.length;
  const axes = getNumbers(op, 'axes').map((axis) => normalizeAxis(axis, rank));
  const lists = [getNumbers(op, 'starts'), getNumbers(op, 'ends'), axes];
  const names = lists.map((list) => graph.addIntegers(call.claimName('range'), list));
  const sliced = graph.addNode('Slice', [call.input('Input'), ...names], call.claimName('sliced'));
  const removedAxes = getNumbers(op, 'decrease_axis');
  if (removedAxes.length === 0) {
    graph.addNode('Identity', [sliced], call.claimOutput('Out'));
    return;
  }
  const isNumber = removedAxes.length === rank && call.outputShape('Out').dims.length === 1;
  const kept = isNumber ? removedAxes.slice(1) : removedAxes;
  if (kept.length === 0) graph.addNode('Identity', [sliced], call.claimOutput('Out'));
  else
    graph.addNode(
      'Squeeze',
      [sliced, graph.addIntegers(call.claimName('gone'), kept)],
      call.claimOutput('Out'),
    );
};

const transpose: Converter = (call) => {
  call.graph.addNode('Transpose', [call.input('X')], call.claimOutput('Out'), {
    perm: getNumbers(call.op, 'axis'),
  });
};

export const LAYOUT_CONVERTERS: Readonly<Record<string, Converter>> = {
  reshape,
  reshape2: reshape,
  flatten_contiguous_range: reshape,
  squeeze,
  squeeze2: squeeze,
  unsqueeze,
  unsqueeze2: unsqueeze,
  flatten,
  flatten2: flatten,
  concat,
  split,
  slice,
  transpose,
  transpose2: transpose,
};
