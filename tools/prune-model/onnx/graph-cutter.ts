/**
 * Cuts the lookups out of a graph: the output of each becomes an input of the same name, so that no
 * other node changes. Everything that the outputs no longer need is removed: nodes, tables, ids
 * inputs, shapes.
 */

import type { NewOnnxNode, OnnxAttributeValue } from '../../../proto/onnx-encoding.ts';
import type { Dim } from '../cut/cut-model.ts';
import type { RawField } from '../cut/protobuf-fields.ts';
import { type BodyCut, cutNodeBodies } from './body-cutter.ts';
import type { GraphIndex } from './graph-index.ts';
import { type Axis, getFixedBatchSize } from './ids-tensor.ts';
import type { OnnxCutLookup, OnnxLookup } from './lookup-finder.ts';
import {
  describeNode,
  ELEM_FLOAT,
  GRAPH_SPARSE_INITIALIZER,
  type NodeProto,
  type ValueInfo,
} from './onnx-model.ts';
import type { GraphEdit } from './onnx-writer.ts';
import { replaceShapeNodes } from './shape-nodes.ts';
import { claimFreshName } from './unique-names.ts';

export interface GraphCut {
  readonly edit: GraphEdit;
  readonly lookups: readonly OnnxCutLookup[];
  /** Inputs of the full graph that the pruned graph keeps. */
  readonly keptInputs: readonly ValueInfo[];
  /** Nodes of the full graph that the pruned graph keeps. */
  readonly keptNodes: ReadonlySet<NodeProto>;
  readonly nodeCount: number;
  /** Readers of an initializer or Constant node in the pruned graph. */
  describeReaders(name: string): readonly string[];
}

export function cutLookups(
  index: GraphIndex,
  found: readonly OnnxLookup[],
  opset: number,
): GraphCut {
  const taken = new Set(index.names);
  const lookups = found.map((lookup) => assignInput(lookup, index, taken));
  const replacements = new Map<RawField, readonly NewOnnxNode[]>();
  for (const lookup of lookups) {
    const nodes = buildConversionNodes(lookup, taken);
    if (nodes.length > 0) replacements.set(lookup.node.raw, nodes);
  }
  const cutNodes = new Map(lookups.map(({ node, input }) => [node, input]));
  const bodies = new Map<NodeProto, BodyCut>();
  for (const node of index.graph.nodes) {
    const body = cutNodeBodies(node, cutNodes);
    if (body !== undefined) bodies.set(node, body);
  }
  const provided = new Set(
    lookups.filter(({ scope }) => scope === index).map(({ output }) => output),
  );
  const needs = (): ReturnType<GraphIndex['findNeeded']> =>
    index.findNeeded(provided, (node) => bodies.get(node)?.captured);
  for (const [shape, nodes] of replaceShapeNodes({
    index,
    lookups,
    needed: needs(),
    opset,
    taken,
  })) {
    replacements.set(shape.raw, nodes);
    for (const output of shape.outputs) provided.add(output);
  }
  const { nodes, names } = needs();
  const isKept = (name: string): boolean => names.has(name);
  const removed = findRemovedFields(index, nodes, names, provided);
  for (const { removed: inner } of bodies.values()) for (const raw of inner) removed.add(raw);
  const inputs = [...index.runtimeInputs.values()];
  const newInputs = lookups.map(({ input, shape }) => ({ name: input, shape }));
  return {
    edit: {
      removed,
      replacements,
      newInputs,
      changedNodes: new Set([...bodies.keys()].map(({ raw }) => raw)),
      newOutputs: index.outputs.filter((output) => !index.graph.outputs.includes(output)),
    },
    lookups,
    keptInputs: inputs.filter(({ name }) => isKept(name)),
    keptNodes: nodes,
    nodeCount: nodes.size + [...replacements.values()].flat().length,
    describeReaders: (name) => (isKept(name) ? findRemainingReaders(index, name, nodes) : []),
  };
}

function assignInput(lookup: OnnxLookup, index: GraphIndex, taken: Set<string>): OnnxCutLookup {
  const { output, scope, table, ids, bags } = lookup;
  const isOwn = scope === index && !index.isOutput(output) && !needsConversion(lookup);
  const input = isOwn ? output : claimFreshName(`${output}_rows`, taken);
  const inner = table.dims.slice(1);
  const axes =
    bags === undefined
      ? ids.axes.map(toDim)
      : [findBagBatch(index, bags.offsets, bags.includesLast)];
  return { ...lookup, input, shape: [...axes, ...inner] };
}

function toDim(axis: Axis): Dim {
  if (typeof axis === 'number') return axis;
  const fixed = getFixedBatchSize(axis);
  if (fixed !== undefined) return fixed;
  return axis.includes('\0') ? undefined : axis;
}

function findBagBatch(index: GraphIndex, offsets: string, includesLast: boolean): Dim {
  return includesLast ? undefined : index.findRuntimeInput(offsets)?.shape?.at(-1);
}

/** New inputs are row-major float32; other forms need conversion nodes behind the input. */
function needsConversion({ isTransposed, table }: OnnxLookup): boolean {
  return isTransposed || table.elemType !== ELEM_FLOAT;
}

function buildConversionNodes(lookup: OnnxCutLookup, taken: Set<string>): NewOnnxNode[] {
  const { input, output, table, ids, isTransposed } = lookup;
  if (input === output) return [];
  const nodes: NewOnnxNode[] = [];
  let from = input;
  const add = (
    opType: string,
    attributes: Record<string, OnnxAttributeValue>,
    isLast: boolean,
  ): void => {
    const to = isLast ? output : claimFreshName(`${input}_${opType.toLowerCase()}`, taken);
    nodes.push({ opType, name: `${to}_${opType}`, inputs: [from], outputs: [to], attributes });
    from = to;
  };
  const isCast = table.elemType !== ELEM_FLOAT;
  if (isTransposed) {
    const rank = ids.axes.length;
    const perm = [rank, ...Array.from({ length: rank }, (_, i) => i)];
    add('Transpose', { perm }, !isCast);
  }
  if (isCast) add('Cast', { to: table.elemType }, true);
  if (nodes.length === 0) add('Identity', {}, true);
  return nodes;
}

function findRemainingReaders(
  index: GraphIndex,
  name: string,
  kept: ReadonlySet<NodeProto>,
): readonly string[] {
  const readers = index.findReaders(name).filter((node) => kept.has(node));
  const described = readers.map(describeNode);
  return index.isOutput(name) ? [...described, 'an output of the model'] : described;
}

function findRemovedFields(
  index: GraphIndex,
  nodes: ReadonlySet<NodeProto>,
  names: ReadonlySet<string>,
  provided: ReadonlySet<string>,
): Set<RawField> {
  const { graph } = index;
  const removed = new Set<RawField>();
  for (const node of graph.nodes) if (!nodes.has(node)) removed.add(node.raw);
  for (const { name, raw } of [...graph.initializers, ...graph.inputs]) {
    if (!names.has(name)) removed.add(raw);
  }
  for (const { name, raw } of graph.outputs) if (!index.isOutput(name)) removed.add(raw);
  const sparse = graph.fields.filter((field) => field.field === GRAPH_SPARSE_INITIALIZER);
  sparse.forEach((field, i) => {
    if (!names.has(graph.sparseInitializers[i] ?? '')) removed.add(field);
  });
  const isKeptName = (name: string): boolean => {
    const producer = index.findProducer(name);
    if (provided.has(name)) return index.isOutput(name);
    return names.has(name) || (producer !== undefined && nodes.has(producer));
  };
  const declared = new Set(graph.outputs.map(({ name }) => name));
  for (const { name, raw } of graph.values) {
    const isNewOutput = index.isOutput(name) && !declared.has(name);
    if (isNewOutput || !isKeptName(name)) removed.add(raw);
  }
  for (const [raw, name] of graph.annotations) if (!isKeptName(name)) removed.add(raw);
  return removed;
}
