/**
 * Cuts the lookups out of a graph: each one's output becomes an input of the same name, so that no other node changes,
 * and whatever the outputs no longer need goes: nodes, tables, ids inputs, stale shape information.
 */
import type { GraphIndex } from './graph-index.ts';
import type { Lookup } from './lookup-finder.ts';
import {
  describeNode,
  GRAPH_SPARSE_INITIALIZER,
  type OnnxDim,
  type OnnxNode,
  type OnnxValue,
  type RawField,
} from './onnx-model.ts';
import type { GraphEdit, NewIdentity } from './onnx-writer.ts';

/** A lookup after the cut. */
export interface CutLookup extends Lookup {
  /** The new input: the lookup's output, or another name when that is an output of the graph. */
  readonly input: string;
  /** Of the new input: the shape of the indices, then the dim. */
  readonly shape: readonly OnnxDim[];
}

export interface Cut {
  readonly edit: GraphEdit;
  readonly lookups: readonly CutLookup[];
  /** Inputs of the full graph that the pruned one still has. */
  readonly keptInputs: readonly OnnxValue[];
  readonly removedInputs: readonly string[];
  /** Tables that the pruned graph still needs: who reads them. */
  readonly keptTables: ReadonlyMap<string, readonly string[]>;
  /** Nodes of the full graph that stay. */
  readonly keptNodes: ReadonlySet<OnnxNode>;
  readonly nodeCount: number;
}

export function cutLookups(index: GraphIndex, found: readonly Lookup[]): Cut {
  const given = new Set(found.map(({ output }) => output));
  const { nodes, names } = index.needed(given);
  const lookups = nameInputs(index, found);
  const replacements = new Map<RawField, NewIdentity>();
  for (const { node, input, output } of lookups) {
    if (input !== output) replacements.set(node.raw, { input, output });
  }
  const isKept = (name: string): boolean => names.has(name);
  const inputs = [...index.runtimeInputs.values()];
  const newInputs = lookups.map(({ input, shape }) => ({ name: input, shape }));
  return {
    edit: { removed: removedFields(index, nodes, names, given), replacements, newInputs },
    lookups,
    keptInputs: inputs.filter(({ name }) => isKept(name)),
    removedInputs: inputs.map(({ name }) => name).filter((name) => !isKept(name)),
    keptTables: new Map(
      lookups
        .filter(({ tableName }) => isKept(tableName))
        .map(({ tableName }) => [tableName, readersOf(index, tableName, nodes)]),
    ),
    keptNodes: nodes,
    nodeCount: nodes.size + replacements.size,
  };
}

function nameInputs(index: GraphIndex, found: readonly Lookup[]): CutLookup[] {
  const taken = new Set(index.names);
  return found.map((lookup) => {
    let input = lookup.output;
    if (index.isOutput(input)) {
      for (let i = 1; taken.has(input); i++) input = `${lookup.output}_rows${i === 1 ? '' : i}`;
      taken.add(input);
    }
    return { ...lookup, input, shape: [...lookup.ids.shape, lookup.table.dims[1]] };
  });
}

function readersOf(
  index: GraphIndex,
  table: string,
  kept: ReadonlySet<OnnxNode>,
): readonly string[] {
  const readers = index.readers(table).filter((node) => kept.has(node));
  const described = readers.map(describeNode);
  return index.isOutput(table) ? [...described, 'an output of the model'] : described;
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
  const sparse = graph.fields.filter((field) => field.field === GRAPH_SPARSE_INITIALIZER);
  sparse.forEach((field, i) => {
    if (!names.has(graph.sparseInitializers[i] ?? '')) removed.add(field);
  });
  const stays = (name: string): boolean => {
    const producer = index.producer(name);
    if (given.has(name)) return index.isOutput(name);
    return names.has(name) || (producer !== undefined && nodes.has(producer));
  };
  for (const { name, raw } of graph.values) if (!stays(name)) removed.add(raw);
  for (const [raw, name] of graph.annotations) if (!stays(name)) removed.add(raw);
  return removed;
}
