/**
 * Follows the indices of a lookup back to the ids inputs they come from, and says for each of them how it is computed. Operators
 * are in ids-layout.ts and ids-arithmetic.ts; a new one is a new entry there. Anything else is refused by name.
 */
import type { KeyExpression } from '../../../lib/core/key-expression.ts';
import { type IntegerTensor, integersOf } from './constants.ts';
import { DistinctNames } from './distinct-names.ts';
import type { Frame } from './graph-index.ts';
import { ARITHMETIC_OPERATORS } from './ids-arithmetic.ts';
import { LAYOUT_OPERATORS, type Operator, type Step } from './ids-layout.ts';
import {
  type Axis,
  IdsBuilder,
  type IdsDtype,
  type IdsTensor,
  inputAxes,
  known,
  NotUnderstood,
} from './ids-tensor.ts';
import { describeNode, elemName, type OnnxNode, type OnnxValue } from './onnx-model.ts';
import { refuse } from './refusal.ts';

/** Where a lookup's ids come from. */
export interface IdsPath {
  /** Inputs of the graph, in the order in which the expressions name them first. */
  readonly inputs: readonly OnnxValue[];
  /** Of the indices: known sizes, and names of unknown ones. */
  readonly axes: readonly Axis[];
  /** Row-major over the axes of known size: how each index of a row is computed. */
  readonly keys: readonly KeyExpression[];
}

/** The lookup whose ids are followed, for messages. */
export interface Traced {
  readonly node: OnnxNode;
  readonly table: string;
}

/** Elements of a constant that ids index; slots.json carries it. */
const MAP_COUNT_MAX = 4 << 20;
/** slots.json takes shapes of up to 16 dims, the last is the row's. */
const INDEX_RANK_MAX = 15;
const IDS_DTYPES = new Set(['int64', 'int32', 'float32', 'float64']);

export class IdsTracer {
  /** Constants that ids index, by name. */
  readonly maps: Map<string, IntegerTensor> = new Map();
  readonly #mapNames = new DistinctNames();
  readonly #builder = new IdsBuilder();
  readonly #tensors = new Map<Frame, Map<string, IdsTensor>>();
  readonly #inputs = new Map<string, OnnxValue>();

  /** @throws CubeError UNSUPPORTED naming the node and tensor that are not understood */
  trace(traced: Traced, name: string, frame: Frame): IdsPath {
    const tensor = this.tensor(traced, name, frame);
    if (tensor.dtype !== 'int64' && tensor.dtype !== 'int32') {
      refuse(traced.node, name, `its ids are ${tensor.dtype}`);
    }
    if (tensor.axes.length > INDEX_RANK_MAX) {
      refuse(traced.node, name, `its ids have rank ${tensor.axes.length}`);
    }
    try {
      this.#builder.write(tensor.elements);
      return this.path(tensor, tensor.elements.map(known));
    } catch (error) {
      if (error instanceof NotUnderstood) refuse(traced.node, name, error.message);
      throw error;
    }
  }

  /** The path of a tensor whose elements are these. */
  path(tensor: IdsTensor, keys: readonly KeyExpression[]): IdsPath {
    const names = new Set<string>();
    const seen = new Set<KeyExpression>();
    const queue = [...keys].reverse();
    for (let key = queue.pop(); key !== undefined; key = queue.pop()) {
      if (seen.has(key)) continue;
      seen.add(key);
      if (key.op === 'column') names.add(key.input);
      else if (key.op !== 'int') queue.push(...[...key.of].reverse());
    }
    return { inputs: [...names].map((name) => this.#inputs.get(name)!), axes: tensor.axes, keys };
  }

  /** What is known of any tensor of integers. @throws CubeError UNSUPPORTED */
  tensor(traced: Traced, name: string, frame: Frame): IdsTensor {
    const stack: [string, Frame][] = [[name, frame]];
    const open = new Set<OnnxNode>();
    for (let top = stack.at(-1); top !== undefined; top = stack.at(-1)) {
      const home = homeOf(top[0], top[1]);
      const [value] = top;
      if (home === undefined || this.#known(value, home) !== undefined) {
        if (home === undefined)
          refuse(traced.node, value, `its ids ${JSON.stringify(value)} have no origin`);
        stack.pop();
        continue;
      }
      const node = home.producer(value);
      const leaf = this.#leaf(traced, value, home, node);
      if (leaf !== undefined) {
        this.#remember(value, home, leaf);
        continue;
      }
      const missing = node!.inputs.filter((input) => {
        const at = input === '' ? undefined : homeOf(input, home);
        return input !== '' && (at === undefined || this.#known(input, at) === undefined);
      });
      if (missing.length === 0) this.#apply(traced, node!, home);
      else if (open.has(node!)) refuse(node!, value, 'its inputs depend on its own output');
      else for (const input of missing) stack.push([input, home]);
      open.add(node!);
    }
    return this.#known(name, homeOf(name, frame)!)!;
  }

  #known(name: string, home: Frame): IdsTensor | undefined {
    return this.#tensors.get(home)?.get(name);
  }

  #remember(name: string, home: Frame, tensor: IdsTensor): void {
    const tensors = this.#tensors.get(home);
    if (tensors === undefined) this.#tensors.set(home, new Map([[name, tensor]]));
    else tensors.set(name, tensor);
  }

  /** An input or a constant; undefined for what a node of known kind makes. */
  #leaf(
    traced: Traced,
    name: string,
    home: Frame,
    node: OnnxNode | undefined,
  ): IdsTensor | undefined {
    const { source } = home.scope.fact(name);
    const constant = source && integersOf(source, MAP_COUNT_MAX);
    if (constant !== undefined) return this.#constant(constant);
    if (source?.tensor !== undefined) {
      const type = elemName(source.tensor.elemType);
      refuse(
        traced.node,
        name,
        `its ids are computed with ${JSON.stringify(name)}, a constant of ${type}`,
      );
    }
    if (node === undefined) {
      const input = home.runtimeInput(name);
      if (input === undefined) {
        refuse(
          traced.node,
          name,
          'its ids come from what a loop hands to its body, which is not supported',
        );
      }
      return this.#input(traced, input);
    }
    if (node.domain === '' && operatorOf(node) !== undefined) return undefined;
    const lookup = describeNode(traced.node);
    const why = `ids of ${lookup} pass through ${node.opType}, which is not supported`;
    refuse(node, name, why);
  }

  /** Its elements are made when somebody needs them: a map is only named. */
  #constant({ dtype, dims, values }: IntegerTensor): IdsTensor {
    const builder = this.#builder;
    let elements: IdsTensor['elements'] | undefined;
    return {
      dtype,
      axes: dims,
      get elements() {
        elements ??= builder.tensor(dtype, dims, (i) => builder.int(values[i]!)).elements;
        return elements;
      },
    };
  }

  #input(traced: Traced, input: OnnxValue): IdsTensor {
    const { name, shape } = input;
    const dtype = elemName(input.elemType);
    if (!IDS_DTYPES.has(dtype)) {
      refuse(traced.node, name, `its ids come from an input of ${dtype}, which is not supported`);
    }
    if (shape === undefined || shape.length === 0) {
      const text = shape === undefined ? 'unknown' : '[]';
      refuse(traced.node, name, `the shape of its ids input is ${text}; the batch must come first`);
    }
    this.#inputs.set(name, input);
    const axes = inputAxes(name, shape);
    try {
      return this.#builder.tensor(dtype as IdsDtype, axes, (i) => this.#builder.column(name, i));
    } catch (error) {
      if (!(error instanceof NotUnderstood)) throw error;
      const text = shape.map((dim) => dim ?? '?').join(', ');
      refuse(traced.node, name, `the shape of its ids input is [${text}]: ${error.message}`);
    }
  }

  #apply(traced: Traced, node: OnnxNode, home: Frame): void {
    const sources = node.inputs.map((name) => (name === '' ? undefined : homeOf(name, home)));
    const step: Step = {
      node,
      builder: this.#builder,
      inputs: node.inputs.map((name, i) => sources[i] && this.#known(name, sources[i]!)),
      constantName: (i) => {
        const { source } = home.scope.fact(node.inputs[i] ?? '');
        const values = source && integersOf(source, MAP_COUNT_MAX);
        if (values === undefined) return undefined;
        const name = this.#mapNames.nameOf(source!.name, source!.tensor ?? source!.ints);
        this.maps.set(name, values);
        return name;
      },
    };
    // The value of ConstantOfShape is an attribute.
    const filling = node.opType === 'ConstantOfShape' ? fillingOf(node) : undefined;
    const inputs = filling === undefined ? step.inputs : [step.inputs[0], this.#constant(filling)];
    try {
      const result = operatorOf(node)!({ ...step, inputs });
      const outputs = Array.isArray(result) ? (result as IdsTensor[]) : [result as IdsTensor];
      node.outputs.forEach((name, i) => {
        if (name !== '' && outputs[i] !== undefined) this.#remember(name, home, outputs[i]!);
      });
    } catch (error) {
      if (!(error instanceof NotUnderstood)) throw error;
      const why = `on the way of ids to ${describeNode(traced.node)}, ${error.message}`;
      refuse(node, node.outputs[0] ?? '', why);
    }
  }
}

function operatorOf({ opType }: OnnxNode): Operator | undefined {
  return LAYOUT_OPERATORS.get(opType) ?? ARITHMETIC_OPERATORS.get(opType);
}

function fillingOf(node: OnnxNode): IntegerTensor | undefined {
  const tensor = node.attributes.get('value')?.tensor;
  return tensor && integersOf({ name: '', tensor, ints: undefined }, 1);
}

/** The graph that defines a name as seen from a frame. */
function homeOf(name: string, frame: Frame): Frame | undefined {
  for (let at: Frame | undefined = frame; at !== undefined; at = at.outer) {
    if (at.defines(name)) return at;
  }
  return undefined;
}
