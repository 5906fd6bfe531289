/**
 * Follows the indices of a lookup back to the ids input they come from. Only operators that leave every id as it is are
 * followed, and only where it is certain which column of the input becomes which element: anything else is refused by
 * name. A new pattern is a new entry of TRANSFORMS.
 */
import { type IntegerList, integersOf } from './constants.ts';
import type { GraphIndex } from './graph-index.ts';
import {
  describeNode,
  ELEM_INT32,
  ELEM_INT64,
  elemName,
  type OnnxDim,
  type OnnxNode,
  type OnnxValue,
} from './onnx-model.ts';
import { refuse } from './refusal.ts';

/** Where a lookup's ids come from. */
export interface IdsPath {
  readonly input: OnnxValue;
  /** Columns of the input, in the order of the lookup's rows; [0] for an input of one column. */
  readonly columns: readonly number[];
  /** Of the indices: the batch, then the columns, with ones between. */
  readonly shape: readonly OnnxDim[];
}

/** Columns of one ids input; real ones have some tens. */
const COLUMN_COUNT_MAX = 100_000;
/** slots.json takes shapes of up to 16 dims, the last is the row's. */
const INDEX_RANK_MAX = 15;

type Axis = 'batch' | 'columns' | 'one';

/** The ids at one point of the path. Without an axis 'columns' there is exactly one column. */
interface IdsView {
  readonly axes: readonly Axis[];
  readonly columns: readonly number[];
}

/** The view after a node, or why it is not understood. `constant(i)` is the node's input i when it is integers. */
type Transform = (
  view: IdsView,
  node: OnnxNode,
  constant: (input: number) => IntegerList | undefined,
) => IdsView | string;

/** @throws CubeError UNSUPPORTED naming the node and tensor that are not understood */
export function traceIds(lookup: OnnxNode, table: string, index: GraphIndex): IdsPath {
  const steps: OnnxNode[] = [];
  let name = lookup.inputs[1] ?? '';
  let input = index.runtimeInputs.get(name);
  while (input === undefined) {
    const node = index.producer(name);
    if (node === undefined) refuse(lookup, table, `its ids ${JSON.stringify(name)} have no origin`);
    if (node.domain !== '' || !TRANSFORMS.has(node.opType)) {
      const op = node.opType;
      refuse(
        node,
        name,
        `ids of ${describeNode(lookup)} pass through ${op}, which is not supported`,
      );
    }
    steps.push(node);
    name = node.inputs[0] ?? '';
    input = index.runtimeInputs.get(name);
  }
  let view = viewOfInput(lookup, input);
  for (const node of steps.reverse()) {
    const constant = (i: number): IntegerList | undefined =>
      integersOf(index.scope.fact(node.inputs[i] ?? '').source);
    const next = TRANSFORMS.get(node.opType)!(view, node, constant);
    if (typeof next === 'string') {
      refuse(node, node.outputs[0] ?? '', `on the way of ids to ${describeNode(lookup)}, ${next}`);
    }
    view = next;
  }
  return { input, columns: view.columns, shape: shapeOf(lookup, input, view) };
}

function viewOfInput(lookup: OnnxNode, input: OnnxValue): IdsView {
  const { name, elemType, shape } = input;
  if (elemType !== ELEM_INT32 && elemType !== ELEM_INT64) {
    const type = elemName(elemType);
    refuse(
      lookup,
      name,
      `its ids come from an input of ${type}; only int32 and int64 are supported`,
    );
  }
  if (shape?.length === 1) return { axes: ['batch'], columns: [0] };
  const [, count] = shape ?? [];
  if (shape?.length === 2 && typeof count === 'number' && count <= COLUMN_COUNT_MAX) {
    return { axes: ['batch', 'columns'], columns: Array.from({ length: count }, (_, i) => i) };
  }
  const text = shape === undefined ? 'unknown' : `[${shape.map((dim) => dim ?? '?').join(', ')}]`;
  refuse(
    lookup,
    name,
    `the shape of its ids input is ${text}; supported are [batch] and [batch, n]`,
  );
}

function shapeOf(lookup: OnnxNode, input: OnnxValue, view: IdsView): OnnxDim[] {
  if (view.axes[0] !== 'batch') {
    refuse(lookup, lookup.inputs[1] ?? '', 'the first axis of its ids is not the batch');
  }
  if (view.axes.length > INDEX_RANK_MAX) {
    refuse(lookup, lookup.inputs[1] ?? '', `its ids have rank ${view.axes.length}`);
  }
  return view.axes.map((axis) => {
    if (axis === 'batch') return input.shape?.[0];
    return axis === 'columns' ? view.columns.length : 1;
  });
}

const TRANSFORMS: ReadonlyMap<string, Transform> = new Map<string, Transform>([
  ['Identity', (view) => view],
  ['Cast', cast],
  ['Squeeze', squeeze],
  ['Unsqueeze', unsqueeze],
  ['Reshape', reshape],
  ['Gather', selectColumns],
  ['Slice', sliceColumns],
]);

function cast(view: IdsView, node: OnnxNode): IdsView | string {
  const to = Number(node.attributes.get('to')?.int ?? 0n);
  return to === ELEM_INT32 || to === ELEM_INT64 ? view : `they are cast to ${elemName(to)}`;
}

/** The attribute (older opsets), else the constant input. */
function axesOf(node: OnnxNode, input: IntegerList | undefined): readonly number[] | undefined {
  return node.attributes.get('axes')?.ints.map(Number) ?? input?.values;
}

/** Axes counted from the front, or undefined when one is out of range or there twice. */
function normalize(axes: readonly number[] | undefined, rank: number): number[] | undefined {
  const normal = axes?.map((axis) => (axis < 0 ? axis + rank : axis));
  if (normal === undefined || new Set(normal).size !== normal.length) return undefined;
  return normal.every((axis) => axis >= 0 && axis < rank) ? normal : undefined;
}

function squeeze(...[view, node, constant]: Parameters<Transform>): IdsView | string {
  const axes = normalize(axesOf(node, constant(1)), view.axes.length);
  if (axes === undefined) return 'Squeeze without constant axes may also drop the batch';
  const drops = (axis: Axis | undefined): boolean =>
    axis === 'one' || (axis === 'columns' && view.columns.length === 1);
  if (!axes.every((axis) => drops(view.axes[axis]))) return 'Squeeze drops an axis that is not 1';
  return { ...view, axes: view.axes.filter((_, i) => !axes.includes(i)) };
}

function unsqueeze(...[view, node, constant]: Parameters<Transform>): IdsView | string {
  const given = axesOf(node, constant(1));
  const rank = view.axes.length + (given?.length ?? 0);
  const added = normalize(given, rank);
  if (added === undefined) return 'the axes of Unsqueeze are not constant';
  const rest = [...view.axes];
  const axes = Array.from({ length: rank }, (_, i) => (added.includes(i) ? 'one' : rest.shift()!));
  return { ...view, axes };
}

/** [batch, ...] to [-1 or 0, then ones and at most one axis of all columns]. */
function reshape(...[view, node, constant]: Parameters<Transform>): IdsView | string {
  const shape = constant(1)?.values;
  if (shape === undefined) return 'the shape of Reshape is not constant';
  const allowZero = node.attributes.get('allowzero')?.int === 1n;
  const [first, ...rest] = shape;
  const keepsBatch = first === -1 || (first === 0 && !allowZero);
  if (view.axes[0] !== 'batch' || !keepsBatch) return 'Reshape does not keep the batch first';
  const count = view.columns.length;
  const columnAxes = rest.filter((dim) => dim !== 1).length;
  const product = rest.reduce((total, dim) => total * dim, 1);
  if (product !== count || columnAxes > 1) {
    return `Reshape to [${shape.join(', ')}] mixes rows and columns`;
  }
  const axes = rest.map((dim): Axis => (dim === 1 ? 'one' : 'columns'));
  return { ...view, axes: ['batch', ...axes] };
}

/** ids[:, i] and ids[:, [i, j]]. */
function selectColumns(...[view, node, constant]: Parameters<Transform>): IdsView | string {
  const axis = normalize([Number(node.attributes.get('axis')?.int ?? 0n)], view.axes.length)?.[0];
  const selected = constant(1);
  if (axis === undefined || view.axes[axis] !== 'columns') {
    return 'Gather selects along another axis than the columns';
  }
  if (selected === undefined) return 'Gather selects columns that are not constant';
  const columns: number[] = [];
  for (const value of selected.values) {
    const column = view.columns.at(value);
    if (column === undefined) return `Gather selects column ${value} of ${view.columns.length}`;
    columns.push(column);
  }
  if (columns.length === 0) return 'Gather selects no column';
  const axes = selected.rank === 0 ? view.axes.filter((_, i) => i !== axis) : view.axes;
  return { axes, columns };
}

/** ids[:, start:end:step]. */
function sliceColumns(...[view, node, constant]: Parameters<Transform>): IdsView | string {
  const given = (name: string, input: number): readonly number[] | undefined =>
    node.attributes.get(name)?.ints.map(Number) ?? constant(input)?.values;
  const starts = given('starts', 1);
  const ends = given('ends', 2);
  if (starts?.length !== 1 || ends?.length !== 1) return 'Slice is not of one axis and constant';
  const hasSteps = (node.inputs[4] ?? '') !== '';
  const steps = hasSteps ? constant(4)?.values : [1];
  const hasAxes = node.attributes.has('axes') || (node.inputs[3] ?? '') !== '';
  const axis = normalize(hasAxes ? given('axes', 3) : [0], view.axes.length);
  const step = steps?.[0];
  if (axis?.length !== 1 || view.axes[axis[0]!] !== 'columns') {
    return 'Slice is along another axis than the columns';
  }
  if (step === undefined || step < 1) return 'the step of Slice is not a positive constant';
  const sliced = view.columns.slice(starts[0], ends[0]);
  const columns = sliced.filter((_, i) => i % step === 0);
  return columns.length === 0 ? 'Slice selects no column' : { ...view, columns };
}
