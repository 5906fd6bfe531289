/**
 * Who makes and who reads each value of the main graph, bodies of If, Loop and Scan included, and what is needed for its
 * outputs. Building it checks what every step relies on: a name is made once, and before it is read.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import {
  describeNode,
  type OnnxGraph,
  type OnnxModel,
  type OnnxNode,
  type OnnxValue,
  usedNames,
} from './onnx-model.ts';
import { Scope } from './scope.ts';

/** One graph, or a body within it, as names are seen from inside. */
export interface Frame {
  readonly scope: Scope;
  /** Undefined: the main graph. */
  readonly outer: Frame | undefined;
  /** A name of its own that is one around it too: which of them is meant is not agreed upon. */
  readonly shadowing: string | undefined;
  defines(name: string): boolean;
  producer(name: string): OnnxNode | undefined;
  /** Undefined for what is no input, or one of a body. */
  runtimeInput(name: string): OnnxValue | undefined;
}

/** The frame of a body. */
export function bodyFrame(graph: OnnxGraph, outer: Frame): Frame {
  const producers = new Map<string, OnnxNode>();
  for (const node of graph.nodes) for (const name of node.outputs) producers.set(name, node);
  const values = new Set([...graph.inputs, ...graph.initializers].map(({ name }) => name));
  for (const name of graph.sparseInitializers) values.add(name);
  const isOuter = (name: string): boolean => {
    for (let at: Frame | undefined = outer; at !== undefined; at = at.outer) {
      if (at.defines(name)) return true;
    }
    return false;
  };
  return {
    scope: new Scope(graph, outer.scope),
    outer,
    shadowing: outer.shadowing ?? [...producers.keys(), ...values].find(isOuter),
    defines: (name) => producers.has(name) || values.has(name),
    producer: (name) => producers.get(name),
    runtimeInput: () => undefined,
  };
}

export class GraphIndex implements Frame {
  readonly outer = undefined;
  readonly shadowing = undefined;
  readonly graph: OnnxGraph;
  readonly scope: Scope;
  /** Inputs that a caller feeds: the graph's inputs without those that are initializers. */
  readonly runtimeInputs: ReadonlyMap<string, OnnxValue>;
  /** Every name in use at any level: a new name must not be one of them. */
  readonly names: ReadonlySet<string>;
  readonly #producers = new Map<string, OnnxNode>();
  readonly #readers = new Map<string, OnnxNode[]>();
  readonly #used = new Map<OnnxNode, readonly string[]>();
  readonly #defined: ReadonlySet<string>;
  /** Outputs that the pruned model keeps. */
  readonly #outputs: readonly OnnxValue[];

  /** @throws CubeError CORRUPT naming what breaks the rules of a graph */
  constructor({ graph }: OnnxModel, outputs: readonly OnnxValue[] = graph.outputs) {
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
    checkDistinct(graph);
    const defined = new Set([...initializers, ...this.runtimeInputs.keys()]);
    this.#link(defined);
    this.#defined = defined;
    this.names = collectNames(graph);
    this.scope = new Scope(graph);
  }

  defines(name: string): boolean {
    return this.#defined.has(name);
  }

  runtimeInput(name: string): OnnxValue | undefined {
    return this.runtimeInputs.get(name);
  }

  producer(name: string): OnnxNode | undefined {
    return this.#producers.get(name);
  }

  /** The nodes that read a value, those whose bodies read it included. */
  readers(name: string): readonly OnnxNode[] {
    return this.#readers.get(name) ?? [];
  }

  get outputs(): readonly OnnxValue[] {
    return this.#outputs;
  }

  isOutput(name: string): boolean {
    return this.#outputs.some((output) => output.name === name);
  }

  /**
   * What the graph's outputs need, when the values in `given` come from outside.
   * @param uses what the bodies of a changed node still take; undefined for others
   */
  needed(
    given: ReadonlySet<string>,
    uses: (node: OnnxNode) => Iterable<string> | undefined = () => undefined,
  ): { nodes: Set<OnnxNode>; names: Set<string> } {
    const nodes = new Set<OnnxNode>();
    const names = new Set<string>();
    const queue = this.#outputs.map(({ name }) => name);
    for (let name = queue.pop(); name !== undefined; name = queue.pop()) {
      if (names.has(name)) continue;
      names.add(name);
      const node = this.#producers.get(name);
      if (given.has(name) || node === undefined || nodes.has(node)) continue;
      nodes.add(node);
      const inner = uses(node);
      const used = inner === undefined ? this.#used.get(node) : [...node.inputs, ...inner];
      for (const input of used ?? []) if (input !== '') queue.push(input);
    }
    return { nodes, names };
  }

  #link(defined: Set<string>): void {
    for (const node of this.graph.nodes) {
      const used = usedNames(node);
      this.#used.set(node, used);
      for (const name of new Set(used)) {
        if (!defined.has(name)) {
          invalid(
            `${describeNode(node)} reads ${JSON.stringify(name)}, which nothing before it makes`,
          );
        }
        const readers = this.#readers.get(name);
        if (readers === undefined) this.#readers.set(name, [node]);
        else readers.push(node);
      }
      for (const name of node.outputs) {
        if (name === '') continue;
        if (defined.has(name)) invalid(`${JSON.stringify(name)} is made twice`);
        defined.add(name);
        this.#producers.set(name, node);
      }
    }
    for (const { name } of this.graph.outputs) {
      if (!defined.has(name)) invalid(`nothing makes the output ${JSON.stringify(name)}`);
    }
  }
}

function invalid(what: string): never {
  throw new CubeError('CORRUPT', `not a valid ONNX model: ${what}`);
}

function checkDistinct(graph: OnnxGraph): void {
  for (const [kind, values] of [
    ['initializer', graph.initializers],
    ['input', graph.inputs],
    ['output', graph.outputs],
  ] as const) {
    const seen = new Set<string>();
    for (const { name } of values) {
      if (name === '') invalid(`an ${kind} has no name`);
      if (seen.has(name)) invalid(`the ${kind} ${JSON.stringify(name)} is there twice`);
      seen.add(name);
    }
  }
}

export function collectNames(graph: OnnxGraph, names: Set<string> = new Set()): Set<string> {
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
