/**
 * Cuts lookups out of the bodies of If, Loop and Scan: their rows become inputs of the main graph,
 * which the body reads.
 */
import type { RawField } from '../cut/protobuf-fields.ts';
import type { GraphProto, NodeProto } from './onnx-model.ts';

/** The change to a node whose bodies contain lookups. */
export interface BodyCut {
  /** Names that its bodies still read from the graphs around them, new inputs included. */
  readonly captured: ReadonlySet<string>;
  /** Fields of its bodies to remove. */
  readonly removed: ReadonlySet<RawField>;
}

/** @param cuts new input of each lookup. @returns undefined when no body has a lookup */
export function cutNodeBodies(
  node: NodeProto,
  cuts: ReadonlyMap<NodeProto, string>,
): BodyCut | undefined {
  if (!node.bodies.some((body) => containsCutLookup(body, cuts))) return undefined;
  const captured = new Set<string>();
  const removed = new Set<RawField>();
  for (const body of node.bodies) collectBodyCut(body, cuts, captured, removed);
  return { captured, removed };
}

function containsCutLookup(graph: GraphProto, cuts: ReadonlyMap<NodeProto, string>): boolean {
  return graph.nodes.some(
    (node) => cuts.has(node) || node.bodies.some((body) => containsCutLookup(body, cuts)),
  );
}

/** Walks back from the outputs of a body and removes what they no longer need. */
function collectBodyCut(
  graph: GraphProto,
  cuts: ReadonlyMap<NodeProto, string>,
  captured: Set<string>,
  removed: Set<RawField>,
): void {
  const producers = new Map<string, NodeProto>();
  for (const node of graph.nodes) for (const name of node.outputs) producers.set(name, node);
  const own = new Set([...graph.inputs, ...graph.initializers].map(({ name }) => name));
  for (const name of graph.sparseInitializers) own.add(name);
  const used = new Set<string>();
  const kept = new Set<NodeProto>();
  const queue = graph.outputs.map(({ name }) => name);
  for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
    if (name === '' || used.has(name)) continue;
    used.add(name);
    const node = producers.get(name);
    if (node === undefined && !own.has(name)) captured.add(name);
    if (node === undefined || kept.has(node)) continue;
    kept.add(node);
    const input = cuts.get(node);
    if (input !== undefined) {
      captured.add(input);
      continue;
    }
    queue.push(...node.inputs);
    for (const body of node.bodies) {
      const inner = new Set<string>();
      collectBodyCut(body, cuts, inner, removed);
      queue.push(...inner);
    }
  }
  for (const node of graph.nodes) if (!kept.has(node)) removed.add(node.raw);
  for (const { name, raw } of graph.initializers) if (!used.has(name)) removed.add(raw);
  for (const { name, raw } of graph.values) if (!used.has(name)) removed.add(raw);
}
