/**
 * Shape of an ids input, when that is all the pruned graph still wants of it: the rows that took its place have the same shape and
 * one more axis, so it is taken from them, and the ids need not be fed.
 */
import { freshName } from './function-inliner.ts';
import type { GraphIndex } from './graph-index.ts';
import { inputAxes } from './ids-tensor.ts';
import type { CutLookup } from './lookup-finder.ts';
import type { OnnxNode, OnnxValue } from './onnx-model.ts';
import type { NewNode } from './onnx-writer.ts';

/** From this version on, Shape takes a range of axes. */
const SHAPE_RANGE_OPSET = 15;

export interface ShapeSources {
  readonly index: GraphIndex;
  readonly lookups: readonly CutLookup[];
  readonly needed: { readonly nodes: ReadonlySet<OnnxNode> };
  readonly opset: number;
  readonly taken: Set<string>;
}

/** Shape nodes of the pruned graph, and what stands for them. */
export function replaceShapes(sources: ShapeSources): Map<OnnxNode, readonly NewNode[]> {
  const { index, lookups, needed, opset, taken } = sources;
  const replacements = new Map<OnnxNode, readonly NewNode[]>();
  if (opset < SHAPE_RANGE_OPSET && opset < 10) return replacements;
  for (const value of index.runtimeInputs.values()) {
    const readers = index.readers(value.name).filter((node) => needed.nodes.has(node));
    const rows = lookups.find((lookup) => isOverInput(lookup, value));
    if (rows === undefined || readers.length === 0 || index.isOutput(value.name)) continue;
    if (!readers.every(({ opType, domain }) => opType === 'Shape' && domain === '')) continue;
    const rank = rows.ids.axes.length;
    for (const node of readers) {
      replacements.set(
        node,
        opset >= SHAPE_RANGE_OPSET
          ? rangeOf(node, rows.input, rank)
          : sliceOf(node, rows.input, rank, taken),
      );
    }
  }
  return replacements;
}

/** Whether the lookup's indices are the input itself: its elements, under the same axes in the same order. */
function isOverInput(
  { ids, bags, isTransposed, table }: CutLookup,
  { name, shape = [] }: OnnxValue,
): boolean {
  if (bags !== undefined || isTransposed || ids.inputs.length !== 1 || table.dims.length < 2)
    return false;
  const axes = inputAxes(name, shape);
  const isWhole = ids.keys.every(
    (key, i) => key.op === 'column' && key.column === i && key.input === name,
  );
  const isSame = axes.length === ids.axes.length && axes.every((axis, i) => axis === ids.axes[i]);
  return isSame && isWhole;
}

function rangeOf(node: OnnxNode, rows: string, rank: number): NewNode[] {
  const int = (name: string, otherwise: number): number =>
    Number(node.attributes.get(name)?.int ?? otherwise);
  const fromFront = (axis: number): number =>
    Math.min(Math.max(axis < 0 ? axis + rank : axis, 0), rank);
  const attributes = { start: fromFront(int('start', 0)), end: fromFront(int('end', rank)) };
  return [{ opType: 'Shape', inputs: [rows], outputs: [node.outputs[0]!], attributes }];
}

function sliceOf(node: OnnxNode, rows: string, rank: number, taken: Set<string>): NewNode[] {
  const [output = ''] = node.outputs;
  const shape = freshName(`${output}_rows`, taken);
  const start = freshName(`${output}_start`, taken);
  const end = freshName(`${output}_end`, taken);
  return [
    { opType: 'Shape', inputs: [rows], outputs: [shape], attributes: {} },
    { opType: 'Constant', inputs: [], outputs: [start], attributes: {}, value: 0 },
    { opType: 'Constant', inputs: [], outputs: [end], attributes: {}, value: rank },
    { opType: 'Slice', inputs: [shape, start, end], outputs: [output], attributes: {} },
  ];
}
