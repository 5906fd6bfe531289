/**
 * The origin of each value in a graph or body, known before a run: whether the value depends on a
 * runtime input and, for a constant, where it comes from. The body of an If, Loop or Scan also sees
 * the names of the graphs around it.
 */
import { type ConstantSource, readConstantNode } from './constants.ts';
import { findUsedNames, type GraphProto, type NodeProto } from './onnx-model.ts';

/**
 * `shape`: depends on the shape of a runtime input only, as positions 0..n-1 do.
 * `values`: depends on its content.
 */
type Dependence = 'constant' | 'shape' | 'values';

export interface ValueOrigin {
  readonly dependence: Dependence;
  readonly source: ConstantSource | undefined;
}

const RANK: Readonly<Record<Dependence, number>> = { constant: 0, shape: 1, values: 2 };
const RUNTIME: ValueOrigin = { dependence: 'values', source: undefined };
const SHAPE: ValueOrigin = { dependence: 'shape', source: undefined };
const COMPUTED_CONSTANT: ValueOrigin = { dependence: 'constant', source: undefined };

/** Operators whose result depends on the shape of their input only. */
const SHAPE_OPS = new Set(['Shape', 'Size', 'ConstantOfShape', 'EyeLike']);

export class ValueOrigins {
  readonly #origins = new Map<string, ValueOrigin>();
  readonly #outer: ValueOrigins | undefined;

  /**
   * @param outer origins of the graph around a body; the inputs of a body count as runtime values
   */
  constructor(graph: GraphProto, outer?: ValueOrigins) {
    this.#outer = outer;
    for (const { name } of graph.inputs) this.#origins.set(name, RUNTIME);
    for (const name of graph.sparseInitializers) this.#origins.set(name, COMPUTED_CONSTANT);
    for (const tensor of graph.initializers) {
      const source = { name: tensor.name, tensor, ints: undefined };
      this.#origins.set(tensor.name, { dependence: 'constant', source });
    }
    for (const node of graph.nodes) this.#visit(node);
  }

  get(name: string): ValueOrigin {
    return this.#origins.get(name) ?? this.#outer?.get(name) ?? COMPUTED_CONSTANT;
  }

  #visit(node: NodeProto): void {
    const isStandard = node.domain === '';
    if (isStandard && node.opType === 'Constant') {
      const [name = ''] = node.outputs;
      this.#origins.set(name, { dependence: 'constant', source: readConstantNode(node, name) });
      return;
    }
    let origin =
      isStandard && node.opType === 'Identity' ? this.get(node.inputs[0] ?? '') : undefined;
    origin ??= this.#join(node);
    if (isStandard && SHAPE_OPS.has(node.opType) && origin.dependence === 'values') origin = SHAPE;
    for (const name of node.outputs) this.#origins.set(name, origin);
  }

  /** A node is as dependent as the most dependent value it reads. */
  #join(node: NodeProto): ValueOrigin {
    let rank = 0;
    for (const name of findUsedNames(node)) rank = Math.max(rank, RANK[this.get(name).dependence]);
    return [COMPUTED_CONSTANT, SHAPE][rank] ?? RUNTIME;
  }
}
