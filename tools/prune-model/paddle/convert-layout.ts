/** Operators as nodes of ONNX: those that only move elements. */
import { axisOf, numberOf, numbersOf, splitSizes } from './attributes.ts';
import { type Conversion, type Converter, cannotConvert } from './conversion.ts';
import { squeezedAxes, unsqueezedAxes } from './kernels-layout.ts';

/** A new shape: the dims that both runs had, and for the one that changes with the batch what is left. */
const reshape: Converter = (c) => {
  const { dims } = c.outputShape('Out');
  const from = c.shape('X').dims;
  // An open axis in its old place is copied; one that is new is what is left.
  const target = dims.map((dim, i) =>
    dim === -1 && from[i] === -1 && isCopied(dims, from, i) ? 0 : dim,
  );
  if (target.filter((dim) => dim === -1).length > 1) {
    throw cannotConvert(c.op, `[${dims.join(', ')}] has more than one open axis`);
  }
  const shape = c.graph.integers(c.between('shape'), target);
  c.graph.node('Reshape', [c.input('X'), shape], c.output('Out'));
};

/** What stands before the axis, and so its own place, is the same on both sides. */
function isCopied(dims: readonly number[], from: readonly number[], axis: number): boolean {
  return dims.slice(0, axis).every((dim, i) => dim === from[i]) && dims.length === from.length;
}

/** `axes` as an input, where there are any. */
function withAxes(c: Conversion, type: 'Squeeze' | 'Unsqueeze', axes: readonly number[]): void {
  if (axes.length === 0) {
    c.graph.node('Identity', [c.input('X')], c.output('Out'));
    return;
  }
  const names = [c.input('X'), c.graph.integers(c.between('axes'), axes)];
  c.graph.node(type, names, c.output('Out'));
}

const squeeze: Converter = (c) => {
  withAxes(c, 'Squeeze', squeezedAxes(c.op, c.shape('X').dims));
};

const unsqueeze: Converter = (c) => {
  withAxes(c, 'Unsqueeze', unsqueezedAxes(c.op, c.shape('X').dims.length) ?? []);
};

const flatten: Converter = (c) => {
  c.graph.node('Flatten', [c.input('X')], c.output('Out'), { axis: numberOf(c.op, 'axis', 1) });
};

const concat: Converter = (c) => {
  const axis = axisOf(numberOf(c.op, 'axis', 0), c.shape('X').dims.length);
  c.graph.node('Concat', c.inputs('X'), c.output('Out'), { axis });
};

const split: Converter = (c) => {
  const { dims } = c.shape('X');
  const axis = axisOf(numberOf(c.op, 'axis', 0), dims.length);
  const outputs = c.op.outputs.get('Out') ?? [];
  const sizes = dims[axis] === -1 ? undefined : splitSizes(c.op, dims[axis]!, outputs.length);
  if (sizes === undefined) throw cannotConvert(c.op, `axis ${axis} changes with the batch`);
  const names = [c.input('X'), c.graph.integers(c.between('sizes'), sizes)];
  c.graph.node(
    'Split',
    names,
    outputs.map((_, i) => c.output('Out', i)),
    { axis },
  );
};

const slice: Converter = (c) => {
  const { graph, op } = c;
  const rank = c.shape('Input').dims.length;
  const axes = numbersOf(op, 'axes').map((axis) => axisOf(axis, rank));
  const lists = [numbersOf(op, 'starts'), numbersOf(op, 'ends'), axes];
  const names = lists.map((list) => graph.integers(c.between('range'), list));
  const sliced = graph.node('Slice', [c.input('Input'), ...names], c.between('sliced'));
  const gone = numbersOf(op, 'decrease_axis');
  if (gone.length === 0) {
    graph.node('Identity', [sliced], c.output('Out'));
    return;
  }
  const isNumber = gone.length === rank && c.outputShape('Out').dims.length === 1;
  const kept = isNumber ? gone.slice(1) : gone;
  if (kept.length === 0) graph.node('Identity', [sliced], c.output('Out'));
  else graph.node('Squeeze', [sliced, graph.integers(c.between('gone'), kept)], c.output('Out'));
};

const transpose: Converter = (c) => {
  c.graph.node('Transpose', [c.input('X')], c.output('Out'), { perm: numbersOf(c.op, 'axis') });
};

export const LAYOUT: Readonly<Record<string, Converter>> = {
  ...{ reshape, reshape2: reshape, flatten_contiguous_range: reshape },
  ...{ squeeze, squeeze2: squeeze, unsqueeze, unsqueeze2: unsqueeze },
  ...{ flatten, flatten2: flatten, concat, split, slice, transpose, transpose2: transpose },
};
