/**
 * Replaces Shape nodes that are the last readers of an ids input. The rows of a lookup over the
 * whole input have the shape of the ids plus one axis, so the shape is taken from them and the ids
 * need not be fed.
 */

import type { NewOnnxNode } from '../../../proto/onnx-encoding.ts';
import { WireWriter } from '../../../proto/wire.ts';
import type { GraphIndex } from './graph-index.ts';
import { getInputAxes } from './ids-tensor.ts';
import type { OnnxCutLookup } from './lookup-finder.ts';
import { ELEM_INT64, getIntAttribute, type NodeProto, type ValueInfo } from './onnx-model.ts';
import { claimFreshName } from './unique-names.ts';

/** The first opset whose Shape takes a range of axes. */
const SHAPE_RANGE_OPSET = 15;

export interface ShapeReplacementContext {
  readonly index: GraphIndex;
  readonly lookups: readonly OnnxCutLookup[];
  readonly needed: { readonly nodes: ReadonlySet<NodeProto> };
  readonly opset: number;
  readonly taken: Set<string>;
}

/** @returns Shape nodes of the pruned graph and the nodes that replace them */
export function replaceShapeNodes(
  sources: ShapeReplacementContext,
): Map<NodeProto, readonly NewOnnxNode[]> {
  const { index, lookups, needed, opset, taken } = sources;
  const replacements = new Map<NodeProto, readonly NewOnnxNode[]>();
  if (opset < SHAPE_RANGE_OPSET && opset < 10) return replacements;
  for (const value of index.runtimeInputs.values()) {
    const readers = index.findReaders(value.name).filter((node) => needed.nodes.has(node));
    const rows = lookups.find((lookup) => hasInputShape(lookup, value));
    if (rows === undefined || readers.length === 0 || index.isOutput(value.name)) continue;
    if (!readers.every(({ opType, domain }) => opType === 'Shape' && domain === '')) continue;
    const rank = rows.ids.axes.length;
    for (const node of readers) {
      replacements.set(
        node,
        opset >= SHAPE_RANGE_OPSET
          ? buildShapeRange(node, rows.input, rank)
          : buildShapeSlice(node, rows.input, rank, taken),
      );
    }
  }
  return replacements;
}

/** Whether the indices of the lookup are the input itself, with the same axes in the same order. */
function hasInputShape(
  { ids, bags, isTransposed, table }: OnnxCutLookup,
  { name, shape = [] }: ValueInfo,
): boolean {
  if (bags !== undefined || isTransposed || ids.inputs.length !== 1 || table.dims.length < 2)
    return false;
  const axes = getInputAxes(name, shape);
  const isWhole = ids.keys.every(
    (key, i) => key.op === 'column' && key.column === i && key.input === name,
  );
  const isSame = axes.length === ids.axes.length && axes.every((axis, i) => axis === ids.axes[i]);
  return isSame && isWhole;
}

function buildShapeRange(node: NodeProto, rows: string, rank: number): NewOnnxNode[] {
  const fromFront = (axis: number): number =>
    Math.min(Math.max(axis < 0 ? axis + rank : axis, 0), rank);
  const attributes = {
    start: fromFront(getIntAttribute(node, 'start', 0)),
    end: fromFront(getIntAttribute(node, 'end', rank)),
  };
  return [createNode('Shape', [rows], node.outputs[0] ?? '', attributes)];
}

function buildShapeSlice(
  node: NodeProto,
  rows: string,
  rank: number,
  taken: Set<string>,
): NewOnnxNode[] {
  const [output = ''] = node.outputs;
  const shape = claimFreshName(`${output}_rows`, taken);
  const start = claimFreshName(`${output}_start`, taken);
  const end = claimFreshName(`${output}_end`, taken);
  return [
    createNode('Shape', [rows], shape),
    createNode('Constant', [], start, { value: { tensor: encodeInteger(0) } }),
    createNode('Constant', [], end, { value: { tensor: encodeInteger(rank) } }),
    createNode('Slice', [shape, start, end], output),
  ];
}

function createNode(
  opType: string,
  inputs: readonly string[],
  output: string,
  attributes: NewOnnxNode['attributes'] = {},
): NewOnnxNode {
  return { opType, name: `${output}_${opType}`, inputs, outputs: [output], attributes };
}

/** A tensor with one int64 element. */
function encodeInteger(value: number): Uint8Array {
  return new WireWriter().uint(1, 1).uint(2, ELEM_INT64).uint(7, BigInt(value)).finish();
}
