/**
 * Rewrites a ranking graph so that the part that depends only on the user runs once for each user
 * of a batch, not once for each candidate. Inputs with user-side columns get a batch of users, and
 * a new input says which user each row has. Where a value of the users meets one of the rows, a
 * Gather repeats it for the rows; where a matrix product takes both, its matrix is split by rows:
 *
 *     [user, item] · W  =  repeat(user · W_user) + item · W_item
 *
 * Dot products of all pairs of vectors are divided: those of two vectors of the user, and others.
 * The outputs stay the same up to the order of additions.
 */
import { requireDefined } from '../lib/core/errors.ts';
import {
  encodeOnnxNode,
  encodeTensor,
  encodeValueInfo,
  type OnnxAttributeValue,
} from './onnx-encoding.ts';
import { type FloatWeight, type GraphNode, OnnxGraph } from './onnx-graph.ts';
import {
  ELEMENTS_MAX,
  gcd,
  inferElementOrder,
  mergePieces,
  type Piece,
  pairVectors,
  pickPieces,
  takeMatrixRows,
} from './onnx-row-pieces.ts';
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
  /** Tensors of pieces that are computed when one of their elements is needed. */
  readonly #later = new Map<string, () => void>();
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

  /**
   * Leaves a node out unless its output is needed as a whole. A node that takes elements of one
   * side only is replaced: its output belongs to this side.
   *
   * @returns false if the node must run
   */
  #defer(node: GraphNode, dims: readonly number[], kinds: ReadonlySet<string>): boolean {
    const pieces = this.#findPieces(node, kinds);
    const [first] = pieces ?? [];
    if (pieces === undefined || first === undefined) return false;
    const [output = ''] = node.outputs;
    if (pieces.every(({ isUser }) => isUser === first.isUser)) {
      this.#arrange(pieces, dims, output);
      this.#values.set(output, { kind: first.isUser ? 'user' : 'item', dims });
      this.#nodes.set(node.position, this.#takePending());
      return true;
    }
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
    if (opType === 'MatMul') return this.#pairVectors(node);
    if (opType === 'Transpose' || opType === 'Gather' || opType === 'Slice') {
      const value = this.#getValue(inputs[0] ?? '');
      if (value.kind !== 'mixed') return undefined;
      const constants = inputs.slice(1).map((name) => this.#graph.constants.get(name));
      const order = inferElementOrder(node, value.dims, constants);
      return order && pickPieces(value.pieces, order);
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

  /**
   * The dot products of all pairs of vectors in a row, as factorization machines and DLRM have
   * them: those of two vectors of the user are computed once for each user.
   *
   * @returns undefined when the node is no product of a matrix and its own transpose
   */
  #pairVectors({ inputs: [matrix = '', other = ''], outputs }: GraphNode): Piece[] | undefined {
    const value = this.#getValue(matrix);
    const transpose = this.#deferred.get(other);
    if (value.kind !== 'mixed' || value.dims.length !== 2) return undefined;
    if (transpose?.opType !== 'Transpose' || transpose.inputs[0] !== matrix) return undefined;
    const [vectorNum = 0, width = 0] = value.dims;
    const isWhole = (count: number): boolean => count % width === 0;
    const isAligned = value.pieces.every(
      ({ tensor, start, length }) =>
        isWhole(start) && isWhole(length) && isWhole(this.#countRow(tensor)),
    );
    const isTransposed = transpose.lists.get('perm')?.[1] === 2;
    if (!isAligned || !isTransposed || vectorNum ** 2 > ELEMENTS_MAX) return undefined;
    const [output = ''] = outputs;
    const users = this.#collectVectors(value, true, output);
    const items = this.#collectVectors(value, false, output);
    const columns = items.count + users.count;
    const ofUsers = this.#addLater(`${output}@users`, 'user', [users.count, users.count], (name) =>
      this.#pending.push(...this.#multiplyVectors(users.name, users.name, name)),
    );
    const ofItems = this.#addLater(`${output}@items`, 'item', [items.count, columns], (name) => {
      const all = this.#newName(`${items.name}@all`);
      const repeated = this.#repeat(this.#compute(users.name));
      this.#compute(items.name);
      this.#pending.push(makeNode('Concat', [items.name, repeated], all, { axis: 1 }));
      this.#pending.push(...this.#multiplyVectors(items.name, all, name));
    });
    const vectors = value.pieces.flatMap((piece) => {
      const first = (piece.isUser ? users : items).find(piece);
      return Array.from({ length: piece.length / width }, (_, i) => {
        return { isUser: piece.isUser, at: first + i };
      });
    });
    return pairVectors(vectors, { ofUsers, ofItems, users: users.count, items: items.count });
  }

  /** The vectors of one side in the rows of a matrix. */
  #collectVectors({ dims, pieces }: MixedValue, isUser: boolean, output: string) {
    const own = pieces.filter((piece) => piece.isUser === isUser);
    const width = dims[1]!;
    const tensors = [...new Set(own.map(({ tensor }) => tensor))];
    const starts = this.#joinStarts(tensors);
    const count = tensors.reduce((sum, tensor) => sum + this.#countRow(tensor), 0) / width;
    const side = isUser ? 'user' : 'item';
    const name = this.#addLater(`${output}@${side}_vectors`, side, [count, width], (vectors) => {
      const shape = this.#addIntegers(`${vectors}@shape`, [0, count, width]);
      this.#pending.push(makeNode('Reshape', [this.#joinTensors(own).name, shape], vectors));
    });
    const find = ({ tensor, start }: Piece): number =>
      (requireDefined(starts.get(tensor), tensor) + start) / width;
    return { name, count, find };
  }

  /** Declares a value that `#compute` adds nodes for. @returns its name */
  #addLater(
    wanted: string,
    kind: 'user' | 'item',
    dims: readonly number[],
    compute: (name: string) => void,
  ): string {
    const name = this.#newName(wanted);
    this.#values.set(name, { kind, dims });
    this.#later.set(name, () => compute(name));
    return name;
  }

  /** Adds the nodes of a value if it has none yet. @returns its name */
  #compute(name: string): string {
    const compute = this.#later.get(name);
    this.#later.delete(name);
    compute?.();
    return name;
  }

  /** The products of the vectors in two values. */
  #multiplyVectors(left: string, right: string, output: string): Uint8Array[] {
    const transposed = this.#newName(`${output}@transposed`);
    return [
      makeNode('Transpose', [right], transposed, { perm: [0, 2, 1] }),
      makeNode('MatMul', [left, transposed], output),
    ];
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
    let next = 0;
    const placed = value.pieces.map((piece) => {
      const at = next;
      next += piece.length;
      return { ...piece, at };
    });
    const itemTensors = new Set(placed.flatMap((piece) => (piece.isUser ? [] : [piece.tensor])));
    const itemWidth = [...itemTensors].reduce((sum, tensor) => sum + this.#countRow(tensor), 0);
    // Each tensor is multiplied as a whole: with few of its elements in use, that is more work.
    if (itemWidth > next) return false;
    const multiply = (side: boolean): string => {
      const pieces = placed.filter(({ isUser }) => isUser === side);
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
   *
   * @param forRows repeats tensors of users for their rows
   * @returns the position of each tensor in its rows
   */
  #joinTensors(
    pieces: readonly Piece[],
    forRows = false,
  ): { name: string; starts: Map<string, number>; width: number } {
    const tensors = [...new Set(pieces.map(({ tensor }) => tensor))];
    const starts = this.#joinStarts(tensors);
    const width = tensors.reduce((sum, tensor) => sum + this.#countRow(tensor), 0);
    const flat = tensors.map((tensor) => {
      const value = this.#getValue(this.#compute(tensor));
      const isFlat = value.kind !== 'constant' && value.dims?.length === 1;
      const full = forRows ? this.#getFull(tensor) : tensor;
      return isFlat ? full : this.#flatten(full);
    });
    if (flat.length === 1) return { name: flat[0]!, starts, width };
    const name = this.#newName(`${flat[0]}@joined`);
    this.#pending.push(makeNode('Concat', flat, name, { axis: 1 }));
    return { name, starts, width };
  }

  /** Computes a value from its pieces, under the name `output`. */
  #arrange(
    pieces: readonly Piece[],
    dims: readonly number[],
    output: string,
    forRows = false,
  ): void {
    const { name, starts, width } = this.#joinTensors(pieces, forRows);
    const parts = mergePieces(
      pieces.map(({ tensor, start, ...piece }) => {
        return {
          ...piece,
          tensor: name,
          start: requireDefined(starts.get(tensor), tensor) + start,
        };
      }),
    );
    const shape = this.#addIntegers(`${output}@shape`, [0, ...dims]);
    let source = name;
    if (parts.length > 1 || parts[0]?.length !== width) {
      // Elements that stay together are moved as one.
      const unit = parts.flatMap(({ start, length }) => [start, length]).reduce(gcd, width);
      const units = this.#newName(`${output}@units`);
      const unitShape = this.#addIntegers(`${units}@shape`, [0, width / unit, unit]);
      this.#pending.push(makeNode('Reshape', [name, unitShape], units));
      const order = parts.flatMap(({ start, length }) =>
        Array.from({ length: length / unit }, (_, i) => start / unit + i),
      );
      source = this.#newName(`${output}@ordered`);
      const indices = this.#addIntegers(`${output}@order`, order);
      this.#pending.push(makeNode('Gather', [units, indices], source, { axis: 1 }));
    }
    this.#pending.push(makeNode('Reshape', [source, shape], output));
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
    const columns = isTransposed ? dims[0]! : dims[1]!;
    let height = 0;
    for (const tensor of starts.keys()) height += this.#countRow(tensor);
    const placed = pieces.map(({ tensor, start, ...piece }) => {
      return { ...piece, start: requireDefined(starts.get(tensor), tensor) + start };
    });
    const part = takeMatrixRows({ values, columns, isTransposed }, placed, height);
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
    else if (node === undefined) {
      full = this.#newName(`${name}@full`);
      this.#arrange(value.pieces, value.dims, full, true);
    } else {
      const written = this.#writeForRows(node);
      this.#pending.push(written);
      full = name;
    }
    this.#full.set(name, full);
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
  attributes: Readonly<Record<string, OnnxAttributeValue>> = {},
): Uint8Array {
  return encodeOnnxNode({ opType, inputs, outputs: [output], attributes });
}
