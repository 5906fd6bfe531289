/**
 * Which node computes and which nodes read each value of the main graph, bodies of If, Loop and
 * Scan included, and what the outputs need. Construction checks what every step relies on: each
 * name is defined once, before it is read.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import {
  describeNode,
  findUsedNames,
  type GraphProto,
  type ModelProto,
  type NodeProto,
  type ValueInfo,
} from './onnx-model.ts';
import { ValueOrigins } from './value-origins.ts';

/** The names that a graph, or a body inside it, can see. */
export interface GraphScope {
  readonly origins: ValueOrigins;
  /** Undefined for the main graph. */
  readonly outer: GraphScope | undefined;
  /** A name that it and a graph around it define; runtimes disagree on its meaning. */
  readonly shadowedName: string | undefined;
  defines(name: string): boolean;
  findProducer(name: string): NodeProto | undefined;
  /** Undefined for names that are not inputs and for inputs of a body. */
  findRuntimeInput(name: string): ValueInfo | undefined;
}

export function createBodyScope(graph: GraphProto, outer: GraphScope): GraphScope {
  const producers = new Map<string, NodeProto>();
  for (const node of graph.nodes) for (const name of node.outputs) producers.set(name, node);
  const values = new Set([...graph.inputs, ...graph.initializers].map(({ name }) => name));
  for (const name of graph.sparseInitializers) values.add(name);
  const isOuter = (name: string): boolean => {
    for (let at: GraphScope | undefined = outer; at !== undefined; at = at.outer) {
      if (at.defines(name)) return true;
    }
    return false;
  };
  return {
    origins: new ValueOrigins(graph, outer.origins),
    outer,
    shadowedName: outer.shadowedName ?? [...producers.keys(), ...values].find(isOuter),
    defines: (name) => producers.has(name) || values.has(name),
    findProducer: (name) => producers.get(name),
    findRuntimeInput: () => undefined,
  };
}

export class GraphIndex implements GraphScope {
  readonly outer = undefined;
  readonly shadowedName = undefined;
  readonly graph: GraphProto;
  readonly origins: ValueOrigins;
  /** Inputs that a caller feeds: those of the graph that are not initializers. */
  readonly runtimeInputs: ReadonlyMap<string, ValueInfo>;
  /** Every name in use at any level. A new name must differ from all of them. */
  readonly names: ReadonlySet<string>;
  readonly #producers = new Map<string, NodeProto>();
  readonly #readers = new Map<string, NodeProto[]>();
  readonly #used = new Map<NodeProto, readonly string[]>();
  readonly #defined: ReadonlySet<string>;
  readonly #outputs: readonly ValueInfo[];

  /** @throws CubeError CORRUPT naming the rule that the graph breaks */
  constructor({ graph }: ModelProto, outputs: readonly ValueInfo[] = graph.outputs) {
    this.#outputs = outputs;
    this.graph = graph;
    const initializers = new Set([
      ...graph.initializers.map(({ name }) => name),
      ...graph.sparseInitializers,
    ]);
    this.runtimeInputs = new Map(
      graph.inputs
        .filter(({ name }) => !initializers.has(name))
        .map((value) => [value.name, value]),
    );
    checkUniqueNames(graph);
    const defined = new Set([...initializers, ...this.runtimeInputs.keys()]);
    this.#link(defined);
    this.#defined = defined;
    this.names = collectNames(graph);
    this.origins = new ValueOrigins(graph);
  }

  defines(name: string): boolean {
    return this.#defined.has(name);
  }

  findRuntimeInput(name: string): ValueInfo | undefined {
    return this.runtimeInputs.get(name);
  }

  findProducer(name: string): NodeProto | undefined {
    return this.#producers.get(name);
  }

  /** Nodes that read a value themselves or in their bodies. */
  findReaders(name: string): readonly NodeProto[] {
    return this.#readers.get(name) ?? [];
  }

  get outputs(): readonly ValueInfo[] {
    return this.#outputs;
  }

  isOutput(name: string): boolean {
    return this.#outputs.some((output) => output.name === name);
  }

  /**
   * What the outputs need.
   * @param provided values that come from outside
   * @param findUses names that the bodies of a changed node still read; undefined for other nodes
   */
  findNeeded(
    provided: ReadonlySet<string>,
    findUses: (node: NodeProto) => Iterable<string> | undefined = () => undefined,
  ): { nodes: Set<NodeProto>; names: Set<string> } {
    const nodes = new Set<NodeProto>();
    const names = new Set<string>();
    const queue = this.#outputs.map(({ name }) => name);
    for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
      if (names.has(name)) continue;
      names.add(name);
      const node = this.#producers.get(name);
      if (provided.has(name) || node === undefined || nodes.has(node)) continue;
      nodes.add(node);
      const inner = findUses(node);
      const used = inner === undefined ? this.#used.get(node) : [...node.inputs, ...inner];
      for (const input of used ?? []) if (input !== '') queue.push(input);
    }
    return { nodes, names };
  }

  #link(defined: Set<string>): void {
    for (const node of this.graph.nodes) {
      const used = findUsedNames(node);
      this.#used.set(node, used);
      for (const name of new Set(used)) {
        if (!defined.has(name)) {
          failInvalid(
            `${describeNode(node)} reads ${JSON.stringify(name)}, which nothing before it computes`,
          );
        }
        const readers = this.#readers.get(name);
        if (readers === undefined) this.#readers.set(name, [node]);
        else readers.push(node);
      }
      for (const name of node.outputs) {
        if (name === '') continue;
        if (defined.has(name)) failInvalid(`${JSON.stringify(name)} is computed twice`);
        defined.add(name);
        this.#producers.set(name, node);
      }
    }
    for (const { name } of this.graph.outputs) {
      if (!defined.has(name)) failInvalid(`nothing computes the output ${JSON.stringify(name)}`);
    }
  }
}

function failInvalid(what: string): never {
  throw new CubeError('CORRUPT', `not a valid ONNX model: ${what}`);
}

function checkUniqueNames(graph: GraphProto): void {
  for (const [kind, values] of [
    ['initializer', graph.initializers],
    ['input', graph.inputs],
    ['output', graph.outputs],
  ] as const) {
    const seen = new Set<string>();
    for (const { name } of values) {
      if (name === '') failInvalid(`an ${kind} has no name`);
      if (seen.has(name)) failInvalid(`the ${kind} ${JSON.stringify(name)} is listed twice`);
      seen.add(name);
    }
  }
}

export function collectNames(graph: GraphProto, names: Set<string> = new Set()): Set<string> {
  for (const name of graph.sparseInitializers) names.add(name);
  for (const list of [graph.initializers, graph.inputs, graph.outputs, graph.values]) {
    for (const { name } of list) names.add(name);
  }
  for (const node of graph.nodes) {
    for (const name of [...node.inputs, ...node.outputs]) names.add(name);
    for (const body of node.bodies) collectNames(body, names);
  }
  return names;
}
