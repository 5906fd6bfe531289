/**
 * Cuts the lookups out of a graph: each one's output becomes an input of the same name, so that no other node changes,
 * and whatever the outputs no longer need goes: nodes, tables, ids inputs, stale shape information.
 */
import type { Dim } from '../cut-model.ts';
import { type BodyCut, cutBody } from './body-cutter.ts';
import { freshName } from './function-inliner.ts';
import type { GraphIndex } from './graph-index.ts';
import { type Axis, fixedSize } from './ids-tensor.ts';
import type { CutLookup, Lookup } from './lookup-finder.ts';
import {
  describeNode,
  ELEM_FLOAT,
  GRAPH_SPARSE_INITIALIZER,
  type OnnxNode,
  type OnnxValue,
  type RawField,
} from './onnx-model.ts';
import type { GraphEdit, NewNode } from './onnx-writer.ts';
import { replaceShapes } from './shape-nodes.ts';

export interface Cut {
  readonly edit: GraphEdit;
  readonly lookups: readonly CutLookup[];
  /** Inputs of the full graph that the pruned one still has. */
  readonly keptInputs: readonly OnnxValue[];
  /** Nodes of the full graph that stay. */
  readonly keptNodes: ReadonlySet<OnnxNode>;
  readonly nodeCount: number;
  /** Who still reads an initializer or Constant node in the pruned graph. */
  readersOf(name: string): readonly string[];
}

export function cutLookups(index: GraphIndex, found: readonly Lookup[], opset: number): Cut {
  const taken = new Set(index.names);
  const lookups = found.map((lookup) => nameInput(lookup, index, taken));
  const replacements = new Map<RawField, readonly NewNode[]>();
  for (const lookup of lookups) {
    const nodes = nodesFor(lookup, taken);
    if (nodes.length > 0) replacements.set(lookup.node.raw, nodes);
  }
  const cutNodes = new Map(lookups.map(({ node, input }) => [node, input]));
  const bodies = new Map<OnnxNode, BodyCut>();
  for (const node of index.graph.nodes) {
    const body = cutBody(node, cutNodes);
    if (body !== undefined) bodies.set(node, body);
  }
  const given = new Set(lookups.filter(({ frame }) => frame === index).map(({ output }) => output));
  const needs = (): ReturnType<GraphIndex['needed']> =>
    index.needed(given, (node) => bodies.get(node)?.captured);
  for (const [shape, nodes] of replaceShapes({ index, lookups, needed: needs(), opset, taken })) {
    replacements.set(shape.raw, nodes);
    for (const output of shape.outputs) given.add(output);
  }
  const { nodes, names } = needs();
  const isKept = (name: string): boolean => names.has(name);
  const removed = removedFields(index, nodes, names, given);
  for (const { removed: inner } of bodies.values()) for (const raw of inner) removed.add(raw);
  const inputs = [...index.runtimeInputs.values()];
  const newInputs = lookups.map(({ input, shape }) => ({ name: input, shape }));
  return {
    edit: {
      removed,
      replacements,
      newInputs,
      changed: new Set([...bodies.keys()].map(({ raw }) => raw)),
      newOutputs: index.outputs.filter((output) => !index.graph.outputs.includes(output)),
    },
    lookups,
    keptInputs: inputs.filter(({ name }) => isKept(name)),
    keptNodes: nodes,
    nodeCount: nodes.size + [...replacements.values()].flat().length,
    readersOf: (name) => (isKept(name) ? readersOf(index, name, nodes) : []),
  };
}

function nameInput(lookup: Lookup, index: GraphIndex, taken: Set<string>): CutLookup {
  const { output, frame, table, ids, bags } = lookup;
  const isOwn = frame === index && !index.isOutput(output) && !needsNodes(lookup);
  const input = isOwn ? output : freshName(`${output}_rows`, taken);
  const inner = table.dims.slice(1);
  const axes =
    bags === undefined
      ? ids.axes.map(toDim)
      : [batchOfBags(index, bags.offsets, bags.includesLast)];
  return { ...lookup, input, shape: [...axes, ...inner] };
}

function toDim(axis: Axis): Dim {
  if (typeof axis === 'number') return axis;
  const fixed = fixedSize(axis);
  if (fixed !== undefined) return fixed;
  return axis.includes('\0') ? undefined : axis;
}

function batchOfBags(index: GraphIndex, offsets: string, includesLast: boolean): Dim {
  return includesLast ? undefined : index.runtimeInput(offsets)?.shape?.at(-1);
}

/** The rows come as float32, one after another; where the graph had them otherwise, nodes make them so. */
function needsNodes({ isTransposed, table }: Lookup): boolean {
  return isTransposed || table.elemType !== ELEM_FLOAT;
}

function nodesFor(lookup: CutLookup, taken: Set<string>): NewNode[] {
  const { input, output, table, ids, isTransposed } = lookup;
  if (input === output) return [];
  const nodes: NewNode[] = [];
  let from = input;
  const add = (opType: string, ints: NewNode['attributes'], isLast: boolean): void => {
    const to = isLast ? output : freshName(`${input}_${opType.toLowerCase()}`, taken);
    nodes.push({ opType, inputs: [from], outputs: [to], attributes: ints });
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

function readersOf(
  index: GraphIndex,
  name: string,
  kept: ReadonlySet<OnnxNode>,
): readonly string[] {
  const readers = index.readers(name).filter((node) => kept.has(node));
  const described = readers.map(describeNode);
  return index.isOutput(name) ? [...described, 'an output of the model'] : described;
}

function removedFields(
  index: GraphIndex,
  nodes: ReadonlySet<OnnxNode>,
  names: ReadonlySet<string>,
  given: ReadonlySet<string>,
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
  const stays = (name: string): boolean => {
    const producer = index.producer(name);
    if (given.has(name)) return index.isOutput(name);
    return names.has(name) || (producer !== undefined && nodes.has(producer));
  };
  const declared = new Set(graph.outputs.map(({ name }) => name));
  for (const { name, raw } of graph.values) {
    const isNewOutput = index.isOutput(name) && !declared.has(name);
    if (isNewOutput || !stays(name)) removed.add(raw);
  }
  for (const [raw, name] of graph.annotations) if (!stays(name)) removed.add(raw);
  return removed;
}
