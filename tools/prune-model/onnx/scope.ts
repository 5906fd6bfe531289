/**
 * What is known of each value of a graph, seen from inside it: does it depend on a runtime input, and if it is a constant,
 * which. A body of If, Loop or Scan is a scope of its own that also sees the names around it.
 */
import { type ConstantSource, constantOfNode } from './constants.ts';
import { type OnnxGraph, type OnnxNode, usedNames } from './onnx-model.ts';

/** `shape`: on the shape of a runtime input only, as positions 0..n-1 do. `values`: on what is in it. */
type Dependence = 'constant' | 'shape' | 'values';

export interface Fact {
  readonly dependence: Dependence;
  readonly source: ConstantSource | undefined;
}

const RANK: Readonly<Record<Dependence, number>> = { constant: 0, shape: 1, values: 2 };
const RUNTIME: Fact = { dependence: 'values', source: undefined };
const SHAPE: Fact = { dependence: 'shape', source: undefined };
const COMPUTED_CONSTANT: Fact = { dependence: 'constant', source: undefined };

/** Their result does not depend on the values of their input, only on its shape (or is constant filling). */
const SHAPE_OPS = new Set(['Shape', 'Size', 'ConstantOfShape', 'EyeLike']);

export class Scope {
  readonly isNested: boolean;
  readonly #facts = new Map<string, Fact>();
  readonly #outer: Scope | undefined;

  /** @param outer the scope around a body; the bodies' own inputs count as runtime values */
  constructor(graph: OnnxGraph, outer?: Scope) {
    this.#outer = outer;
    this.isNested = outer !== undefined;
    for (const { name } of graph.inputs) this.#facts.set(name, RUNTIME);
    for (const name of graph.sparseInitializers) this.#facts.set(name, COMPUTED_CONSTANT);
    for (const tensor of graph.initializers) {
      const source = { name: tensor.name, tensor, ints: undefined };
      this.#facts.set(tensor.name, { dependence: 'constant', source });
    }
    for (const node of graph.nodes) this.#visit(node);
  }

  fact(name: string): Fact {
    return this.#facts.get(name) ?? this.#outer?.fact(name) ?? COMPUTED_CONSTANT;
  }

  #visit(node: OnnxNode): void {
    const isStandard = node.domain === '';
    if (isStandard && node.opType === 'Constant') {
      const [name = ''] = node.outputs;
      this.#facts.set(name, { dependence: 'constant', source: constantOfNode(node, name) });
      return;
    }
    let fact =
      isStandard && node.opType === 'Identity' ? this.fact(node.inputs[0] ?? '') : undefined;
    fact ??= this.#join(node);
    if (isStandard && SHAPE_OPS.has(node.opType) && fact.dependence === 'values') fact = SHAPE;
    for (const name of node.outputs) this.#facts.set(name, fact);
  }

  /** As dependent as the most dependent of what the node reads. */
  #join(node: OnnxNode): Fact {
    let rank = 0;
    for (const name of usedNames(node)) rank = Math.max(rank, RANK[this.fact(name).dependence]);
    return [COMPUTED_CONSTANT, SHAPE, RUNTIME][rank]!;
  }
}
