/**
 * The keys of a model whose requests are tensors of the unpruned graph: each embedding's keys,
 * computed from the ids inputs, in the order of the tensor of rows. Axes may have any size, as long
 * as inputs that share an axis agree.
 */
import { CubeError, requireDefined } from '../core/errors.ts';
import type { TensorDim, TensorSpec, TensorType } from '../core/graph-signature.ts';
import type { KeyExpression } from '../core/key-expression.ts';
import { type IdsData, KeyTransform } from '../core/key-transform.ts';
import { setKey } from '../core/keys.ts';
import type { EmbeddingInput, IdsSpec, SlotSpec } from '../core/slots.ts';
import { countElements, type NamedTensor, viewElements } from '../core/tensor.ts';

const BATCH_AXIS = -1;
const IDS_TYPES: Readonly<Record<IdsSpec['dtype'], Exclude<TensorType, 'BYTES'>>> = {
  int64: 'INT64',
  int32: 'INT32',
  float32: 'FP32',
  float64: 'FP64',
};

/** The keys of one embedding in one request. */
export interface EmbeddingKeys {
  /** Words (low, high). */
  readonly keys: Uint32Array;
  /** The axes of the keys. */
  readonly sizes: readonly number[];
}

/** An ids input with its axes; negative numbers are open ones. */
interface AxedIds extends IdsSpec {
  readonly axes: readonly number[];
}

interface AxedEmbedding extends EmbeddingInput {
  readonly axes: readonly number[];
}

export class TensorKeys {
  readonly embeddings: readonly AxedEmbedding[];
  /** The ids inputs as inputs of requests. */
  readonly inputs: readonly TensorSpec[];
  readonly #ids: readonly AxedIds[];
  readonly #transforms = new Map<EmbeddingInput, KeyTransform>();

  /** @throws CubeError UNSUPPORTED when the axes are not known */
  constructor(spec: SlotSpec, source: string) {
    const reject = (why: string): never => {
      throw new CubeError('UNSUPPORTED', `${source}: ${why}`);
    };
    this.#ids = (spec.ids ?? []).map((ids) => {
      const { axes = reject(`slots.json has no axes for ${ids.input}; prune the model again`) } =
        ids;
      return { ...ids, axes };
    });
    this.embeddings = spec.embeddings.map((embedding) => {
      const { input, shape } = embedding;
      const { axes = reject(`slots.json has no axes for ${input}; prune the model again`) } =
        embedding;
      if (shape[0]! > 0) {
        reject(`input ${input} takes a fixed batch of ${shape[0]}; export it with a dynamic batch`);
      }
      return { ...embedding, axes };
    });
    this.inputs = this.#ids.map(({ input, dtype, axes }) => ({
      name: input,
      dataType: IDS_TYPES[dtype],
      dims: axes.map(nameAxis),
    }));
    const inputs = this.#ids.map(({ input, dtype, columns }) => ({ name: input, dtype, columns }));
    for (const embedding of this.embeddings) {
      const rows = countRows(embedding, spec);
      if (rows === undefined) continue;
      const formulas = getExpressions(embedding).map((expression) => ({ expression, rows }));
      this.#transforms.set(embedding, new KeyTransform(inputs, spec.maps ?? [], formulas));
    }
  }

  /** Whether the first axis of every input of ids and of every embedding is the batch. */
  get isBatched(): boolean {
    return [...this.#ids, ...this.embeddings].every(({ axes }) => axes[0] === BATCH_AXIS);
  }

  /**
   * @param tensors every ids input by name, checked against `inputs`
   * @returns the keys of each embedding
   * @throws CubeError INVALID_ARGUMENT naming the input when sizes do not fit, TOO_LARGE
   */
  compute(tensors: ReadonlyMap<string, NamedTensor>, keysMax: number): EmbeddingKeys[] {
    const sizes = this.#readSizes(tensors);
    const data = new Map(
      this.#ids.map((ids) => [ids.input, readIds(getTensor(tensors, ids.input))]),
    );
    let total = 0;
    return this.embeddings.map((embedding) => {
      const own = embedding.axes.map((axis) => resolve(axis, sizes));
      total += countElements(own);
      if (total > keysMax) {
        const text = `over ${keysMax} ids to look up in one request: send fewer rows`;
        throw new CubeError('TOO_LARGE', text);
      }
      return { keys: this.#computeKeys(embedding, sizes, data), sizes: own };
    });
  }

  #readSizes(tensors: ReadonlyMap<string, NamedTensor>): Map<number, number> {
    const sizes = new Map<number, number>();
    for (const { input, axes } of this.#ids) {
      const { shape } = getTensor(tensors, input);
      axes.forEach((axis, i) => {
        const size = shape[i]!;
        const known = axis > 0 ? axis : (sizes.get(axis) ?? size);
        if (known !== size) {
          throw new CubeError(
            'INVALID_ARGUMENT',
            `input ${JSON.stringify(input)}: shape[${i}]: expected ${known}, as the other inputs ` +
              `have, got ${size}`,
          );
        }
        if (axis < 0) sizes.set(axis, size);
      });
    }
    return sizes;
  }

  #computeKeys(
    embedding: AxedEmbedding,
    sizes: ReadonlyMap<number, number>,
    data: ReadonlyMap<string, IdsData>,
  ): Uint32Array {
    const open = embedding.axes.filter((axis) => axis < 0);
    const openSizes = open.map((axis) => resolve(axis, sizes));
    const rowCount = countElements(openSizes);
    const expressions = getExpressions(embedding);
    const used = new Set<string>();
    for (const expression of expressions) collectInputs(expression, used);
    const rows = this.#ids.map((ids) =>
      used.has(ids.input)
        ? selectRows(ids, requireDefined(data.get(ids.input), 'the ids'), {
            sizes,
            open,
            openSizes,
          })
        : new Float64Array(0),
    );
    const transform = this.#transforms.get(embedding);
    const keys = new Uint32Array(2 * rowCount * expressions.length);
    if (transform !== undefined) transform.run(rows, rowCount, keys);
    else this.#copyColumns(expressions, rows, rowCount, keys);
    return reorder(keys, embedding.axes, openSizes);
  }

  /** Keys that are ids as they are: those of tables with keys of their own. */
  #copyColumns(
    expressions: readonly KeyExpression[],
    rows: readonly IdsData[],
    rowCount: number,
    keys: Uint32Array,
  ): void {
    const columns = expressions.map((expression) => {
      if (expression.op !== 'column') throw new CubeError('INTERNAL', 'the key is not a column');
      const i = this.#ids.findIndex(({ input }) => input === expression.input);
      const ids = requireDefined(this.#ids[i], 'the ids of a key');
      return { ids: rows[i]!, width: ids.columns, column: expression.column, dtype: ids.dtype };
    });
    let to = 0;
    for (let row = 0; row < rowCount; row++) {
      for (const { ids, width, column, dtype } of columns) {
        const at = row * width + column;
        if (dtype === 'int64') {
          keys[2 * to] = ids[2 * at]!;
          keys[2 * to + 1] = ids[2 * at + 1]!;
        } else setKey(keys, to, BigInt.asUintN(64, BigInt(Math.trunc(ids[at]!))));
        to++;
      }
    }
  }
}

/** The name of an open axis in error messages and metadata. */
function nameAxis(axis: number): TensorDim {
  if (axis > 0) return axis;
  return axis === BATCH_AXIS ? 'batch' : `n${-1 - axis}`;
}

/** Rows of the table if keys are row numbers; undefined if the ids are keys as they are. */
function countRows({ table, keys }: EmbeddingInput, { tables }: SlotSpec): number | undefined {
  const found = tables.find(({ name }) => name === table);
  if (found === undefined) return undefined;
  const hasOwnKeys = found.keyed === true || found.external === true;
  return hasOwnKeys && keys === undefined ? undefined : found.rows;
}

function getExpressions({ keys, columns, ids }: EmbeddingInput): readonly KeyExpression[] {
  return keys ?? (columns ?? []).map((column) => ({ op: 'column', input: ids, column }));
}

function collectInputs(expression: KeyExpression, into: Set<string>): void {
  if (expression.op === 'column') into.add(expression.input);
  else if (expression.op !== 'int') for (const part of expression.of) collectInputs(part, into);
}

function getTensor(tensors: ReadonlyMap<string, NamedTensor>, name: string): NamedTensor {
  return requireDefined(tensors.get(name), `the input ${name}`);
}

/** @throws CubeError INVALID_ARGUMENT for floats that are no ids */
function readIds({ name, dataType, data }: NamedTensor): IdsData {
  if (!(data instanceof Uint8Array)) throw new CubeError('INTERNAL', `input ${name} has texts`);
  if (dataType === 'INT64') return viewElements('UINT32', data) as Uint32Array;
  const values = viewElements(dataType as 'INT32' | 'FP32' | 'FP64', data) as IdsData;
  if (dataType === 'INT32') return values;
  const wrong = values.findIndex((value) => !(Math.abs(value) < 2 ** 63));
  if (wrong < 0) return values;
  const text = `value ${wrong}: expected an id, got ${values[wrong]}`;
  throw new CubeError('INVALID_ARGUMENT', `input ${JSON.stringify(name)}: ${text}`);
}

function resolve(axis: number, sizes: ReadonlyMap<number, number>): number {
  return axis > 0 ? axis : requireDefined(sizes.get(axis), 'the size of an axis');
}

interface OpenAxes {
  readonly sizes: ReadonlyMap<number, number>;
  /** The open axes of the embedding. */
  readonly open: readonly number[];
  readonly openSizes: readonly number[];
}

/** The elements of an input, grouped by position along the open axes of an embedding. */
function selectRows(
  { axes, columns, dtype }: AxedIds,
  data: IdsData,
  { sizes, open, openSizes }: OpenAxes,
): IdsData {
  const width = dtype === 'int64' ? 2 : 1;
  const rowStrides = open.map(() => 0);
  const offsets = new Array<number>(columns).fill(0);
  let stride = 1;
  let repeat = 1;
  for (let i = axes.length - 1; i >= 0; i--) {
    const axis = axes[i]!;
    const size = resolve(axis, sizes);
    if (axis < 0) {
      const position = open.indexOf(axis);
      if (position >= 0) rowStrides[position] = stride;
    } else {
      for (let column = 0; column < columns; column++) {
        offsets[column]! += (Math.floor(column / repeat) % size) * stride;
      }
      repeat *= size;
    }
    stride *= size;
  }
  const rowCount = countElements(openSizes);
  const isSame = rowCount * columns * width === data.length && isRowMajor(axes, open);
  if (isSame) return data;
  const type = data.constructor as new (length: number) => Float64Array;
  const rows = new type(rowCount * columns * width);
  const at = open.map(() => 0);
  for (let row = 0, to = 0; row < rowCount; row++) {
    const start = at.reduce((sum, position, i) => sum + position * rowStrides[i]!, 0);
    for (let column = 0; column < columns; column++) {
      const from = width * (start + offsets[column]!);
      rows[to++] = data[from]!;
      if (width === 2) rows[to++] = data[from + 1]!;
    }
    advance(at, openSizes);
  }
  return rows;
}

/** Whether the open axes of the input are those of the embedding, before all others. */
function isRowMajor(axes: readonly number[], open: readonly number[]): boolean {
  return open.every((axis, i) => axes[i] === axis) && axes.slice(open.length).every((a) => a > 0);
}

/** Moves to the next position, the last axis first. */
function advance(at: number[], sizes: readonly number[]): void {
  for (let i = sizes.length - 1; i >= 0; i--) {
    at[i]!++;
    if (at[i]! < sizes[i]!) return;
    at[i] = 0;
  }
}

/** Reorders rows of keys to the order of the axes, of which open ones may follow others. */
function reorder(
  keys: Uint32Array,
  axes: readonly number[],
  openSizes: readonly number[],
): Uint32Array {
  const fixed = axes.filter((axis) => axis > 0);
  if (axes.slice(0, openSizes.length).every((axis) => axis < 0)) return keys;
  const open = [...openSizes];
  const sizes = axes.map((axis) => (axis > 0 ? axis : (open.shift() ?? 1)));
  const columns = countElements(fixed);
  const reordered = new Uint32Array(keys.length);
  const at = axes.map(() => 0);
  for (let to = 0; to < keys.length; to += 2) {
    let row = 0;
    let column = 0;
    axes.forEach((axis, i) => {
      if (axis < 0) row = row * sizes[i]! + at[i]!;
      else column = column * axis + at[i]!;
    });
    const from = 2 * (row * columns + column);
    reordered[to] = keys[from]!;
    reordered[to + 1] = keys[from + 1]!;
    advance(at, sizes);
  }
  return reordered;
}
