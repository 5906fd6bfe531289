/**
 * Rewrites a ranking graph so that the part that depends only on the user runs once for each user
 * of a batch, not once for each candidate. Inputs with user-side columns get a batch of users, and
 * a new input says which user each row has. Where a value of the users meets one of the rows, a
 * Gather repeats it for the rows; where a matrix product takes both, its matrix is split by rows:
 *
 *     [user, item] · W  =  repeat(user · W_user) + item · W_item
 *
 * The outputs stay the same up to the order of additions.
 */
import { requireDefined } from '../lib/core/errors.ts';
import { encodeOnnxNode, encodeTensor, encodeValueInfo } from './onnx-encoding.ts';
import { type FloatWeight, type GraphNode, OnnxGraph } from './onnx-graph.ts';
import { countElements, inferRowDims, type Operand, type RowDims } from './onnx-row-shapes.ts';

const ELEM_FLOAT = 1;
const ELEM_INT64 = 7;
/** Names the number of users in the inputs' shapes; it differs from the name of the batch. */
const USERS_DIM = 'hypercube_users';
/** Operators that give a row other dimensions and keep its elements in order. */
const VIEWS: ReadonlySet<string> = new Set([
  'Flatten',
  'Identity',
  'Reshape',
  'Squeeze',
  'Unsqueeze',
]);

/** An input of embeddings. */
export interface ColumnInput {
  readonly name: string;
  /** Dimensions of a row. */
  readonly dims: readonly number[];
  /** Elements of a column. */
  readonly width: number;
  /** For each column, whether it belongs to the user. */
  readonly isUser: readonly boolean[];
}

/** What the rewritten graph takes instead of a `ColumnInput`. */
export interface SplitInput {
  readonly name: string;
  /** Rows are users. */
  readonly isUser: boolean;
  /** Positions in the columns of the original input. */
  readonly columns: readonly number[];
  /** Dimensions of a row. */
  readonly dims: readonly number[];
}

export interface UserSplit {
  readonly model: Uint8Array;
  /** Input of int64 [rows]: the position of each row's user in the batch of users. */
  readonly rowUsers: string;
  /** For each of the `ColumnInput`s, the inputs that it became. */
  readonly inputs: readonly (readonly SplitInput[])[];
}

/** Part of a row: all elements of a tensor's row, which has them once for each user or row. */
interface Piece {
  readonly tensor: string;
  readonly isUser: boolean;
  /** First element in the row of the tensor, and how many. */
  readonly start: number;
  readonly length: number;
}

/** Not computed unless needed: its rows are made of pieces. */
interface MixedValue {
  readonly kind: 'mixed';
  readonly dims: readonly number[];
  readonly pieces: readonly Piece[];
}

/** How the rows of a value come about: one for each user, or one for each row of the batch. */
type Value =
  | { readonly kind: 'constant' }
  | { readonly kind: 'user'; readonly dims: RowDims }
  | { readonly kind: 'item'; readonly dims: RowDims }
  | MixedValue;

/**
 * @param inputs the inputs of embeddings; every other input has a row for each row
 * @returns undefined when no column belongs to the user, or the graph has graphs inside
 */
export function splitUserSide(
  model: Uint8Array,
  inputs: readonly ColumnInput[],
  source: string,
): UserSplit | undefined {
  if (!inputs.some(({ isUser }) => isUser.includes(true))) return undefined;
  const graph = new OnnxGraph(model, source);
  if (graph.nodes.some(({ hasBodies }) => hasBodies)) return undefined;
  return new UserSplitter(graph, inputs).split();
}

class UserSplitter {
  readonly #graph: OnnxGraph;
  readonly #columnInputs: readonly ColumnInput[];
  readonly #values = new Map<string, Value>();
  /** Nodes whose outputs are mixed, by output: they run only where their output is needed. */
  readonly #deferred = new Map<string, GraphNode>();
  /** Values of users that were repeated for the rows, and mixed values that were computed. */
  readonly #full = new Map<string, string>();
  readonly #nodes = new Map<number, readonly Uint8Array[]>();
  readonly #ports = new Map<number, readonly Uint8Array[]>();
  readonly #initializers: Uint8Array[] = [];
  readonly #replaced = new Set<GraphNode>();
  readonly #names: Set<string>;
  /** Nodes to write before the node that is being rewritten. */
  #pending: Uint8Array[] = [];
  readonly #rowUsers: string;

  constructor(graph: OnnxGraph, inputs: readonly ColumnInput[]) {
    this.#graph = graph;
    this.#columnInputs = inputs;
    this.#names = new Set([
      ...graph.inputs.keys(),
      ...graph.constants.keys(),
      ...graph.nodes.flatMap(({ outputs }) => outputs),
    ]);
    this.#rowUsers = this.#newName('row_users');
  }

  split(): UserSplit {
    for (const name of ['', ...this.#graph.constants.keys()]) {
      this.#values.set(name, { kind: 'constant' });
    }
    for (const [name, { dims }] of this.#graph.inputs) {
      const row = dims.slice(1);
      const isKnown = row.every((size): size is number => typeof size === 'number' && size > 0);
      this.#values.set(name, { kind: 'item', dims: isKnown ? row : undefined });
    }
    const inputs = this.#columnInputs.map((input) => this.#splitInput(input));
    for (const node of this.#graph.nodes) this.#visit(node);
    for (const name of this.#unusedWeights()) this.#nodes.set(name, []);
    return {
      model: this.#graph.write({
        nodes: this.#nodes,
        inputs: this.#ports,
        firstNodes: [],
        initializers: this.#initializers,
        dropsShapes: true,
      }),
      rowUsers: this.#rowUsers,
      inputs,
    };
  }

  /** Declares the inputs that an input of embeddings becomes. */
  #splitInput({ name, dims, width, isUser }: ColumnInput): SplitInput[] {
    const port = this.#graph.inputs.get(name);
    const all = isUser.map((_, i) => i);
    const userColumns = all.filter((i) => isUser[i]);
    if (port === undefined || userColumns.length === 0) {
      return [{ name, isUser: false, columns: all, dims }];
    }
    const declare = (own: string, batch: number | string | undefined, row: readonly number[]) =>
      encodeValueInfo(own, port.elemType, [batch, ...row]);
    const ports: Uint8Array[] = [];
    if (this.#ports.size === 0) {
      ports.push(encodeValueInfo(this.#rowUsers, ELEM_INT64, [port.dims[0]]));
    }
    if (userColumns.length === all.length) {
      this.#ports.set(port.position, [...ports, declare(name, USERS_DIM, dims)]);
      this.#values.set(name, { kind: 'user', dims });
      return [{ name, isUser: true, columns: all, dims }];
    }
    const sides = [true, false].map((side): SplitInput => {
      const columns = all.filter((i) => isUser[i] === side);
      const own = this.#newName(`${name}@${side ? 'user' : 'item'}`);
      return { name: own, isUser: side, columns, dims: [columns.length * width] };
    });
    for (const { name: own, isUser: side, dims: row } of sides) {
      ports.push(declare(own, side ? USERS_DIM : port.dims[0], row));
      this.#values.set(own, side ? { kind: 'user', dims: row } : { kind: 'item', dims: row });
    }
    this.#ports.set(port.position, ports);
    const next = [0, 0];
    const pieces = isUser.map((side): Piece => {
      const i = side ? 0 : 1;
      const start = next[i]!;
      next[i]! += width;
      return { tensor: sides[i]!.name, isUser: side, start, length: width };
    });
    this.#values.set(name, { kind: 'mixed', dims, pieces });
    return sides;
  }

  #visit(node: GraphNode): void {
    const operands = node.inputs.map((name) => this.#toOperand(name));
    const dims = inferRowDims(node, operands, this.#graph.opset);
    const kinds = new Set(node.inputs.map((name) => this.#getValue(name).kind));
    kinds.delete('constant');
    const [output = ''] = node.outputs;
    const isOutput = this.#graph.outputs.includes(output);
    if (kinds.size === 0) {
      this.#setOutputs(node, { kind: 'constant' });
    } else if (dims !== undefined && !isOutput && kinds.size === 1 && kinds.has('user')) {
      this.#setOutputs(node, { kind: 'user', dims });
    } else if (dims === undefined || isOutput || !this.#defer(node, dims, kinds)) {
      // Outputs of the graph have a row for each row of the batch.
      this.#setOutputs(node, { kind: 'item', dims });
      if (dims !== undefined && this.#splitProduct(node)) return;
      if (!kinds.has('user') && !kinds.has('mixed')) return;
      const written = this.#writeForRows(node);
      this.#nodes.set(node.position, [...this.#takePending(), written]);
    }
  }

  /** Leaves a node out unless its output is needed as a whole. @returns false if it must run */
  #defer(node: GraphNode, dims: readonly number[], kinds: ReadonlySet<string>): boolean {
    const pieces = this.#findPieces(node, kinds);
    if (pieces === undefined) return false;
    const [output = ''] = node.outputs;
    this.#values.set(output, { kind: 'mixed', dims, pieces });
    this.#deferred.set(output, node);
    this.#nodes.set(node.position, []);
    return true;
  }

  /** Elements in a row of a tensor. */
  #countRow(tensor: string): number {
    const value = this.#getValue(tensor);
    return value.kind === 'constant' ? 0 : countElements(value.dims ?? []);
  }

  #setOutputs({ outputs }: GraphNode, value: Value): void {
    for (const output of outputs) if (output !== '') this.#values.set(output, value);
  }

  #getValue(name: string): Value {
    return this.#values.get(name) ?? { kind: 'item', dims: undefined };
  }

  #toOperand(name: string): Operand {
    const value = this.#getValue(name);
    if (value.kind === 'constant') return { constant: this.#graph.constants.get(name) };
    return { row: value.dims };
  }

  /** @returns the pieces of the output of a node that only arranges elements */
  #findPieces(node: GraphNode, kinds: ReadonlySet<string>): Piece[] | undefined {
    const { opType, inputs, numbers } = node;
    if (VIEWS.has(opType)) {
      const value = this.#getValue(inputs[0] ?? '');
      return value.kind === 'mixed' ? [...value.pieces] : undefined;
    }
    const hasBoth = kinds.has('mixed') || (kinds.has('user') && kinds.has('item'));
    if (opType !== 'Concat' || !hasBoth) return undefined;
    const values = inputs.map((name) => this.#getValue(name));
    const [first] = values;
    const rank = 1 + (first !== undefined && 'dims' in first ? (first.dims?.length ?? 0) : 0);
    const axis = numbers.get('axis') ?? 1;
    // Along the first axis of a row, the elements of the inputs follow each other.
    if (axis !== 1 && axis + rank !== 1) return undefined;
    return values.flatMap((value, i): readonly Piece[] => {
      if (value.kind === 'mixed') return value.pieces;
      const tensor = inputs[i]!;
      const length = this.#countRow(tensor);
      return [{ tensor, isUser: value.kind === 'user', start: 0, length }];
    });
  }

  /** Splits the matrix of a product. @returns false when the node is no such product */
  #splitProduct(node: GraphNode): boolean {
    const { opType, numbers, inputs, outputs } = node;
    if (opType !== 'MatMul' && opType !== 'Gemm') return false;
    const value = this.#getValue(inputs[0] ?? '');
    const weight = this.#graph.weights.get(inputs[1] ?? '');
    if (value.kind !== 'mixed' || value.dims.length !== 1 || weight?.dims.length !== 2)
      return false;
    const isPlain = (numbers.get('alpha') ?? 1) === 1 && (numbers.get('beta') ?? 1) === 1;
    if (!isPlain || (inputs[2] !== undefined && this.#getValue(inputs[2]).kind !== 'constant')) {
      return false;
    }
    const isTransposed = numbers.get('transB') === 1;
    const [output = ''] = outputs;
    const multiply = (side: boolean): string => {
      const pieces = value.pieces.flatMap((piece, i) => {
        const at = value.pieces.slice(0, i).reduce((sum, { length }) => sum + length, 0);
        return piece.isUser === side ? [{ ...piece, at }] : [];
      });
      const operand = this.#joinTensors(pieces);
      const matrix = this.#addMatrix(weight, isTransposed, pieces, operand.starts);
      const product = this.#newName(`${output}@${side ? 'user' : 'item'}`);
      const bias = !side && inputs[2] ? [inputs[2]] : [];
      this.#pending.push(
        bias.length > 0
          ? makeNode('Gemm', [operand.name, matrix, ...bias], product)
          : makeNode('MatMul', [operand.name, matrix], product),
      );
      return product;
    };
    const [users, items] = [multiply(true), multiply(false)];
    this.#pending.push(makeNode('Add', [this.#repeat(users), items], output));
    this.#nodes.set(node.position, this.#takePending());
    this.#replaced.add(node);
    return true;
  }

  /**
   * Joins the tensors of some pieces to one of rank 2, each once and as a whole.
   * @returns the position of each tensor in its rows
   */
  #joinTensors(pieces: readonly Piece[]): { name: string; starts: Map<string, number> } {
    const tensors = [...new Set(pieces.map(({ tensor }) => tensor))];
    const starts = this.#joinStarts(tensors);
    const flat = tensors.map((tensor) => {
      const value = this.#getValue(tensor);
      const isFlat = value.kind !== 'constant' && value.dims?.length === 1;
      return isFlat ? tensor : this.#flatten(tensor);
    });
    if (flat.length === 1) return { name: flat[0]!, starts };
    const name = this.#newName(`${flat[0]}@joined`);
    this.#pending.push(makeNode('Concat', flat, name, { axis: 1 }));
    return { name, starts };
  }

  #flatten(tensor: string): string {
    const name = this.#newName(`${tensor}@flat`);
    this.#pending.push(makeNode('Flatten', [tensor], name, { axis: 1 }));
    return name;
  }

  /** Adds the rows of a matrix that belong to some pieces. @returns its name */
  #addMatrix(
    { name, dims, values }: FloatWeight,
    isTransposed: boolean,
    pieces: readonly (Piece & { at: number })[],
    starts: ReadonlyMap<string, number>,
  ): string {
    const [rows, columns] = isTransposed ? [dims[1]!, dims[0]!] : [dims[0]!, dims[1]!];
    let height = 0;
    for (const tensor of starts.keys()) height += this.#countRow(tensor);
    const part = new Float32Array(height * columns);
    for (const { tensor, start, length, at } of pieces) {
      for (let i = 0; i < length; i++) {
        const to = (requireDefined(starts.get(tensor), tensor) + start + i) * columns;
        for (let c = 0; c < columns; c++) {
          part[to + c]! += values[isTransposed ? c * rows + at + i : (at + i) * columns + c]!;
        }
      }
    }
    const own = this.#newName(`${name}@part`);
    const bytes = new Uint8Array(part.buffer);
    this.#initializers.push(encodeTensor(own, ELEM_FLOAT, [height, columns], bytes));
    return own;
  }

  /** @returns a node that takes a row for each row of the batch */
  #writeForRows(node: GraphNode): Uint8Array {
    const names = new Map(node.inputs.map((name) => [name, this.#getFull(name)]));
    return this.#graph.renameValues(node, (name) => names.get(name) ?? name);
  }

  /** @returns the name of the value with a row for each row; computed before the next node */
  #getFull(name: string): string {
    const value = this.#getValue(name);
    if (value.kind === 'constant' || value.kind === 'item') return name;
    const known = this.#full.get(name);
    if (known !== undefined) return known;
    const node = this.#deferred.get(name);
    let full: string;
    if (value.kind === 'user') full = this.#repeat(name);
    else if (node === undefined) full = this.#joinColumns(name, value);
    else {
      const written = this.#writeForRows(node);
      this.#pending.push(written);
      full = name;
    }
    this.#full.set(name, full);
    return full;
  }

  /** Puts the columns of an input together again. */
  #joinColumns(name: string, { dims, pieces }: MixedValue): string {
    const tensors = [...new Set(pieces.map(({ tensor }) => tensor))];
    const operands = tensors.map((tensor) => this.#getFull(tensor));
    const starts = this.#joinStarts(tensors);
    const joined = this.#newName(`${name}@joined`);
    this.#pending.push(makeNode('Concat', operands, joined, { axis: 1 }));
    const order = pieces.flatMap(({ tensor, start, length }) =>
      Array.from({ length }, (_, i) => requireDefined(starts.get(tensor), tensor) + start + i),
    );
    const ordered = this.#newName(`${name}@ordered`);
    const indices = this.#addIntegers(`${name}@order`, order);
    this.#pending.push(makeNode('Gather', [joined, indices], ordered, { axis: 1 }));
    const full = this.#newName(`${name}@full`);
    const shape = this.#addIntegers(`${name}@shape`, [-1, ...dims]);
    this.#pending.push(makeNode('Reshape', [ordered, shape], full));
    return full;
  }

  #joinStarts(tensors: readonly string[]): Map<string, number> {
    let width = 0;
    return new Map(
      tensors.map((tensor) => {
        const start = width;
        width += this.#countRow(tensor);
        return [tensor, start];
      }),
    );
  }

  /** Repeats the row of each user for its rows. */
  #repeat(tensor: string): string {
    const name = this.#newName(`${tensor}@rows`);
    this.#pending.push(makeNode('Gather', [tensor, this.#rowUsers], name, { axis: 0 }));
    return name;
  }

  /** @returns the positions of weights that only split products used */
  #unusedWeights(): number[] {
    const used = new Set<string>(this.#graph.outputs);
    for (const node of this.#graph.nodes) {
      if (!this.#replaced.has(node)) for (const name of node.inputs) used.add(name);
    }
    const matrices = [...this.#replaced].map(({ inputs }) => inputs[1] ?? '');
    return [...new Set(matrices)]
      .filter((name) => !used.has(name))
      .flatMap((name) => this.#graph.weights.get(name)?.position ?? []);
  }

  #addIntegers(name: string, values: readonly number[]): string {
    const own = this.#newName(name);
    const data = BigInt64Array.from(values, BigInt);
    const bytes = new Uint8Array(data.buffer);
    this.#initializers.push(encodeTensor(own, ELEM_INT64, [values.length], bytes));
    return own;
  }

  #takePending(): Uint8Array[] {
    const nodes = this.#pending;
    this.#pending = [];
    return nodes;
  }

  #newName(wanted: string): string {
    let name = wanted;
    for (let i = 2; this.#names.has(name); i++) name = `${wanted}_${i}`;
    this.#names.add(name);
    return name;
  }
}

function makeNode(
  opType: string,
  inputs: readonly string[],
  output: string,
  attributes: Readonly<Record<string, number>> = {},
): Uint8Array {
  return encodeOnnxNode({ opType, inputs, outputs: [output], attributes });
}
