/** Cuts lookups out of the bodies of If, Loop and Scan: their rows become inputs of the main graph, which the body reads. */
import type { OnnxGraph, OnnxNode, RawField } from './onnx-model.ts';

/** What becomes of a node whose bodies hold lookups. */
export interface BodyCut {
  /** Names that its bodies still take from around them, new inputs included. */
  readonly captured: ReadonlySet<string>;
  /** Fields of its bodies that go. */
  readonly removed: ReadonlySet<RawField>;
}

/** @param cuts lookups and their new inputs. @returns undefined when no body of the node holds a lookup */
export function cutBody(node: OnnxNode, cuts: ReadonlyMap<OnnxNode, string>): BodyCut | undefined {
  if (!node.bodies.some((body) => holdsCut(body, cuts))) return undefined;
  const captured = new Set<string>();
  const removed = new Set<RawField>();
  for (const body of node.bodies) captureBody(body, cuts, captured, removed);
  return { captured, removed };
}

function holdsCut(graph: OnnxGraph, cuts: ReadonlyMap<OnnxNode, string>): boolean {
  return graph.nodes.some(
    (node) => cuts.has(node) || node.bodies.some((body) => holdsCut(body, cuts)),
  );
}

/** Walks back from the body's outputs; what they do not need any more is removed. */
function captureBody(
  graph: OnnxGraph,
  cuts: ReadonlyMap<OnnxNode, string>,
  captured: Set<string>,
  removed: Set<RawField>,
): void {
  const producers = new Map<string, OnnxNode>();
  for (const node of graph.nodes) for (const name of node.outputs) producers.set(name, node);
  const own = new Set([...graph.inputs, ...graph.initializers].map(({ name }) => name));
  for (const name of graph.sparseInitializers) own.add(name);
  const used = new Set<string>();
  const kept = new Set<OnnxNode>();
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
      captureBody(body, cuts, inner, removed);
      queue.push(...inner);
    }
  }
  for (const node of graph.nodes) if (!kept.has(node)) removed.add(node.raw);
  for (const { name, raw } of graph.initializers) if (!used.has(name)) removed.add(raw);
  for (const { name, raw } of graph.values) if (!used.has(name)) removed.add(raw);
}
