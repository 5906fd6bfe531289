/**
 * Traces the indices of a lookup back to the ids inputs and records how each index is computed. The
 * supported operators are in ids-layout.ts and ids-arithmetic.ts; a new operator is a new entry
 * there. Other operators are refused by name.
 */

import { requireDefined } from '../../../lib/core/errors.ts';
import type { KeyExpression } from '../../../lib/core/key-expression.ts';
import { walkExpressions } from '../cut/cut-model.ts';
import { type IntegerConstant, readIntegerConstant } from './constants.ts';
import type { GraphScope } from './graph-index.ts';
import { ARITHMETIC_OPERATORS } from './ids-arithmetic.ts';
import { type IdsOperator, LAYOUT_OPERATORS, type OperatorCall } from './ids-layout.ts';
import {
  type Axis,
  getInputAxes,
  IdsBuilder,
  type IdsDtype,
  type IdsTensor,
  requireKeyExpression,
  UnsupportedIdsError,
} from './ids-tensor.ts';
import {
  describeNode,
  getElementTypeName,
  type NodeProto,
  refuseNode,
  type ValueInfo,
} from './onnx-model.ts';
import { UniqueNames } from './unique-names.ts';

/** Where a lookup's ids come from. */
export interface IdsOrigin {
  /** Inputs of the graph, in the order of their first use in `keys`. */
  readonly inputs: readonly ValueInfo[];
  /** Axes of the indices: known sizes, and names of unknown ones. */
  readonly axes: readonly Axis[];
  /** How each index of a row is computed; row-major over the axes of known size. */
  readonly keys: readonly KeyExpression[];
}

/** The lookup whose ids are traced; messages name it. */
export interface LookupReference {
  readonly node: NodeProto;
  readonly table: string;
}

/** Maximum elements of a constant that ids are mapped through; slots.json carries it. */
const MAP_COUNT_MAX = 4 << 20;
/** slots.json takes shapes of up to 16 dims; the last one belongs to the row. */
const INDEX_RANK_MAX = 15;
const IDS_DTYPES = new Set(['int64', 'int32', 'float32', 'float64']);

export class OnnxIdsTracer {
  /** Constants that ids are mapped through, by name. */
  readonly maps: Map<string, IntegerConstant> = new Map();
  readonly #mapNames = new UniqueNames();
  readonly #builder = new IdsBuilder();
  readonly #tensors = new Map<GraphScope, Map<string, IdsTensor>>();
  readonly #inputs = new Map<string, ValueInfo>();

  /** @throws CubeError UNSUPPORTED naming the node and tensor that are not supported */
  trace(lookup: LookupReference, name: string, scope: GraphScope): IdsOrigin {
    const tensor = this.traceTensor(lookup, name, scope);
    if (tensor.dtype !== 'int64' && tensor.dtype !== 'int32') {
      refuseNode(lookup.node, name, `its ids are ${tensor.dtype}, but they must be int64 or int32`);
    }
    if (tensor.axes.length > INDEX_RANK_MAX) {
      refuseNode(
        lookup.node,
        name,
        `its ids have rank ${tensor.axes.length}; the maximum is ${INDEX_RANK_MAX}`,
      );
    }
    try {
      this.#builder.countOperations(tensor.elements);
      return this.buildOrigin(tensor, tensor.elements.map(requireKeyExpression));
    } catch (error) {
      if (error instanceof UnsupportedIdsError) refuseNode(lookup.node, name, error.message);
      throw error;
    }
  }

  buildOrigin(tensor: IdsTensor, keys: readonly KeyExpression[]): IdsOrigin {
    const names = new Set<string>();
    for (const key of walkExpressions(keys)) if (key.op === 'column') names.add(key.input);
    const inputs = [...names].map((name) => {
      return requireDefined(this.#inputs.get(name), 'the input of ids');
    });
    return { inputs, axes: tensor.axes, keys };
  }

  /** What is known about any tensor of integers. @throws CubeError UNSUPPORTED */
  traceTensor(lookup: LookupReference, name: string, scope: GraphScope): IdsTensor {
    const stack: [string, GraphScope][] = [[name, scope]];
    const open = new Set<NodeProto>();
    for (let top = stack.at(-1); top !== undefined; top = stack.at(-1)) {
      const owner = findDefiningScope(top[0], top[1]);
      const [value] = top;
      if (owner === undefined || this.#find(value, owner) !== undefined) {
        if (owner === undefined)
          refuseNode(lookup.node, value, `nothing computes its ids ${JSON.stringify(value)}`);
        stack.pop();
        continue;
      }
      const producer = owner.findProducer(value);
      const leaf = this.#traceLeaf(lookup, value, owner, producer);
      if (leaf !== undefined) {
        this.#store(value, owner, leaf);
        continue;
      }
      const node = requireDefined(producer, 'the node that computes ids');
      const missing = node.inputs.filter((input) => {
        const at = input === '' ? undefined : findDefiningScope(input, owner);
        return input !== '' && (at === undefined || this.#find(input, at) === undefined);
      });
      if (missing.length === 0) this.#apply(lookup, node, owner);
      else if (open.has(node)) refuseNode(node, value, 'its inputs depend on its own output');
      else for (const input of missing) stack.push([input, owner]);
      open.add(node);
    }
    const owner = requireDefined(findDefiningScope(name, scope), 'the scope of ids');
    return requireDefined(this.#find(name, owner), 'the tensor of ids');
  }

  #find(name: string, owner: GraphScope): IdsTensor | undefined {
    return this.#tensors.get(owner)?.get(name);
  }

  #store(name: string, owner: GraphScope, tensor: IdsTensor): void {
    const tensors = this.#tensors.get(owner);
    if (tensors === undefined) this.#tensors.set(owner, new Map([[name, tensor]]));
    else tensors.set(name, tensor);
  }

  /** The tensor of an input or a constant; undefined for the output of a supported operator. */
  #traceLeaf(
    lookup: LookupReference,
    name: string,
    owner: GraphScope,
    node: NodeProto | undefined,
  ): IdsTensor | undefined {
    const { source } = owner.origins.get(name);
    const constant = source && readIntegerConstant(source, MAP_COUNT_MAX);
    if (constant !== undefined) return this.#traceConstant(constant);
    if (source?.tensor !== undefined) {
      const type = getElementTypeName(source.tensor.elemType);
      refuseNode(
        lookup.node,
        name,
        `its ids are computed with ${JSON.stringify(name)}, a constant of ${type}; use integers`,
      );
    }
    if (node === undefined) {
      const input = owner.findRuntimeInput(name);
      if (input === undefined) {
        refuseNode(
          lookup.node,
          name,
          'its ids come from a value that a loop hands to its body, which is not supported',
        );
      }
      return this.#traceInput(lookup, input);
    }
    if (node.domain === '' && findOperator(node) !== undefined) return undefined;
    refuseNode(
      node,
      name,
      `it computes the ids of ${describeNode(lookup.node)}, and ${node.opType} on ids is not ` +
        'supported; compute the ids before the model and feed the result',
    );
  }

  /** Elements are created when they are read: a map is only named. */
  #traceConstant({ dtype, dims, values }: IntegerConstant): IdsTensor {
    const builder = this.#builder;
    let elements: IdsTensor['elements'] | undefined;
    return {
      dtype,
      axes: dims,
      get elements() {
        elements ??= builder.tensor(dtype, dims, (i) => builder.int(values[i] ?? 0n)).elements;
        return elements;
      },
    };
  }

  #traceInput(lookup: LookupReference, input: ValueInfo): IdsTensor {
    const { name, shape } = input;
    const dtype = getElementTypeName(input.elemType);
    if (!IDS_DTYPES.has(dtype)) {
      refuseNode(
        lookup.node,
        name,
        `its ids come from an input of ${dtype}; feed them as int64, int32, float32 or float64`,
      );
    }
    if (shape === undefined || shape.length === 0) {
      const text = shape === undefined ? 'unknown' : '[]';
      refuseNode(
        lookup.node,
        name,
        `the shape of its ids input is ${text}; declare it with the batch as its first axis`,
      );
    }
    this.#inputs.set(name, input);
    const axes = getInputAxes(name, shape);
    try {
      return this.#builder.tensor(dtype as IdsDtype, axes, (i) => this.#builder.column(name, i));
    } catch (error) {
      if (!(error instanceof UnsupportedIdsError)) throw error;
      const text = shape.map((dim) => dim ?? '?').join(', ');
      refuseNode(lookup.node, name, `the shape of its ids input is [${text}]: ${error.message}`);
    }
  }

  #apply(lookup: LookupReference, node: NodeProto, owner: GraphScope): void {
    const sources = node.inputs.map((name) =>
      name === '' ? undefined : findDefiningScope(name, owner),
    );
    const call: OperatorCall = {
      node,
      builder: this.#builder,
      inputs: node.inputs.map((name, i) => {
        const source = sources[i];
        return source && this.#find(name, source);
      }),
      constantName: (i) => {
        const { source } = owner.origins.get(node.inputs[i] ?? '');
        const values = source && readIntegerConstant(source, MAP_COUNT_MAX);
        if (source === undefined || values === undefined) return undefined;
        const name = this.#mapNames.getName(source.name, source.tensor ?? source.ints);
        this.maps.set(name, values);
        return name;
      },
    };
    // The value of ConstantOfShape is an attribute.
    const filling = node.opType === 'ConstantOfShape' ? readFillValue(node) : undefined;
    const inputs =
      filling === undefined ? call.inputs : [call.inputs[0], this.#traceConstant(filling)];
    try {
      const result = requireDefined(findOperator(node), node.opType)({ ...call, inputs });
      const outputs = Array.isArray(result) ? (result as IdsTensor[]) : [result as IdsTensor];
      node.outputs.forEach((name, i) => {
        const output = outputs[i];
        if (name !== '' && output !== undefined) this.#store(name, owner, output);
      });
    } catch (error) {
      if (!(error instanceof UnsupportedIdsError)) throw error;
      const reason = `it computes the ids of ${describeNode(lookup.node)}, and ${error.message}`;
      refuseNode(node, node.outputs[0] ?? '', reason);
    }
  }
}

function findOperator({ opType }: NodeProto): IdsOperator | undefined {
  return LAYOUT_OPERATORS.get(opType) ?? ARITHMETIC_OPERATORS.get(opType);
}

function readFillValue(node: NodeProto): IntegerConstant | undefined {
  const tensor = node.attributes.get('value')?.tensor;
  return tensor && readIntegerConstant({ name: '', tensor, ints: undefined }, 1);
}

/** The graph or body that defines a name that the scope sees. */
function findDefiningScope(name: string, scope: GraphScope): GraphScope | undefined {
  for (let at: GraphScope | undefined = scope; at !== undefined; at = at.outer) {
    if (at.defines(name)) return at;
  }
  return undefined;
}
