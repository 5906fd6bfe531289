/** The rows that the new inputs of a pruned graph take for sampled ids: keys as slots.json has them, rows from the table files. */
import { CubeError } from '../../../lib/core/errors.ts';
import { type IdsInput, type KeyFormula, KeyTransform } from '../../../lib/core/key-transform.ts';
import type { EmbeddingInput, SlotSpec } from '../../../lib/core/slots.ts';
import type { OnnxTensor } from '../../../lib/platform/onnx.ts';
import { toIds } from '../key-samples.ts';
import type { TableRows } from '../proof.ts';
import { type Axis, inputAxes } from './ids-tensor.ts';
import type { CutLookup } from './lookup-finder.ts';
import type { OnnxValue } from './onnx-model.ts';

const ELEMENT_COUNT_MAX = 2 ** 28;

export interface SampledInputs {
  readonly tensors: ReadonlyMap<string, OnnxTensor>;
  /** Of an axis of unknown size. */
  sizeOf(axis: string): number;
}

/** The keys of every embedding, one after another. */
export function formulasOf(spec: SlotSpec): { formulas: KeyFormula[]; inputs: IdsInput[] } {
  const rowsOf = new Map(spec.tables.map(({ name, rows }) => [name, rows]));
  const formulas = spec.embeddings.flatMap((embedding) =>
    keysOf(embedding).map((expression) => ({ expression, rows: rowsOf.get(embedding.table)! })),
  );
  const inputs = (spec.ids ?? []).map(({ input, dtype, columns }) => ({
    name: input,
    dtype,
    columns,
  }));
  return { formulas, inputs };
}

function keysOf({ keys, columns, ids }: EmbeddingInput): NonNullable<EmbeddingInput['keys']> {
  return keys ?? (columns ?? []).map((column) => ({ op: 'column', input: ids, column }));
}

/** The tensor that one new input takes. */
export function rowsOfInput(
  embedding: EmbeddingInput,
  lookup: CutLookup,
  sources: { spec: SlotSpec; samples: SampledInputs; table: TableRows },
): OnnxTensor {
  const { samples, table } = sources;
  const { ids: path, bags } = lookup;
  const sizes = path.axes.map((axis) => (typeof axis === 'string' ? samples.sizeOf(axis) : axis));
  const keys = keysOfIndices(embedding, lookup, sources);
  const inner = lookup.table.dims.slice(1);
  const values = gatherRows(table, keys);
  if (bags === undefined) return { dtype: 'float32', data: values, dims: [...sizes, ...inner] };
  const offsets = samples.tensors.get(embedding.bags!.offsets)!;
  const count = offsets.dims.at(-1)!;
  const start = count * (embedding.bags!.offsetsRow ?? 0);
  const begins = Array.from(offsets.data.slice(start, start + count), Number);
  const pooled = pool(values, keys, begins, embedding);
  return { dtype: 'float32', data: pooled, dims: [pooled.length / table.dim, ...inner] };
}

/** A key for each index, in the order of the index tensor. */
function keysOfIndices(
  embedding: EmbeddingInput,
  { ids: path }: CutLookup,
  { spec, samples, table }: { spec: SlotSpec; samples: SampledInputs; table: TableRows },
): Float64Array {
  const unknown = path.axes.filter((axis) => typeof axis === 'string');
  const unknownSizes = unknown.map((axis) => samples.sizeOf(axis));
  const rowCount = unknownSizes.reduce((product, size) => product * size, 1);
  const inputs = formulasOf(spec).inputs.filter(({ name }) =>
    path.inputs.some((p) => p.name === name),
  );
  const formulas = keysOf(embedding).map((expression) => ({ expression, rows: table.rows }));
  const transform = new KeyTransform(inputs, spec.maps ?? [], formulas);
  const data = inputs.map(({ name, dtype, columns }) => {
    const value = path.inputs.find((input) => input.name === name)!;
    const tensor = samples.tensors.get(name)!;
    const values = pickRows(value, tensor, unknown, unknownSizes, columns);
    return toIds(values, dtype);
  });
  const words = new Uint32Array(2 * rowCount * formulas.length);
  transform.run(data, rowCount, words);
  return scatterKeys(words, path.axes, unknown, unknownSizes);
}

/** The elements of an input for each position along the unknown axes, one after another. */
function pickRows(
  { name, shape }: OnnxValue,
  { data, dims }: OnnxTensor,
  unknown: readonly Axis[],
  sizes: readonly number[],
  columns: number,
): Float64Array {
  const rowCount = sizes.reduce((product, size) => product * size, 1);
  const picked = new Float64Array(rowCount * columns);
  const positions = new Array<number>(unknown.length).fill(0);
  const axes = inputAxes(name, shape!);
  const places = axes.map((axis) => unknown.indexOf(axis));
  for (let row = 0; row < rowCount; row++) {
    decompose(row, sizes, positions);
    for (let column = 0; column < columns; column++) {
      let rest = column;
      let at = 0;
      let stride = 1;
      for (let axis = dims.length - 1; axis >= 0; axis--) {
        const place = places[axis]!;
        let coordinate = place < 0 ? 0 : positions[place]!;
        if (typeof axes[axis] === 'number') {
          coordinate = rest % dims[axis]!;
          rest = Math.floor(rest / dims[axis]!);
        }
        at += coordinate * stride;
        stride *= dims[axis]!;
      }
      picked[row * columns + column] = Number(data[at]);
    }
  }
  return picked;
}

function decompose(index: number, sizes: readonly number[], into: number[]): void {
  for (let axis = sizes.length - 1; axis >= 0; axis--) {
    into[axis] = index % sizes[axis]!;
    index = Math.floor(index / sizes[axis]!);
  }
}

/** From rows of keys to the order of the index tensor, whose axes may stand in another order. */
function scatterKeys(
  words: Uint32Array,
  axes: readonly Axis[],
  unknown: readonly Axis[],
  unknownSizes: readonly number[],
): Float64Array {
  const sizes = axes.map((axis) =>
    typeof axis === 'string' ? unknownSizes[unknown.indexOf(axis)]! : axis,
  );
  const keyNum = axes.reduce<number>((n, axis) => n * (typeof axis === 'number' ? axis : 1), 1);
  const keys = new Float64Array(sizes.reduce((product, size) => product * size, 1));
  const positions = new Array<number>(axes.length).fill(0);
  for (let i = 0; i < keys.length; i++) {
    decompose(i, sizes, positions);
    let row = 0;
    let column = 0;
    axes.forEach((axis, a) => {
      if (typeof axis === 'string') row = row * sizes[a]! + positions[a]!;
      else column = column * axis + positions[a]!;
    });
    const word = 2 * (row * keyNum + column);
    keys[i] = words[word]! + words[word + 1]! * 2 ** 32;
  }
  return keys;
}

function gatherRows(table: TableRows, keys: Float64Array): Float32Array {
  const count = keys.length * table.dim;
  if (count > ELEMENT_COUNT_MAX) {
    throw new CubeError(
      'UNSUPPORTED',
      `not proved: ${count} elements in one embedding; use a smaller --verify, or --verify 0`,
    );
  }
  const rows = new Float32Array(count);
  keys.forEach((key, i) => {
    if (key >= table.rows) throw new CubeError('INTERNAL', `key ${key} is not in its table`);
    table.copyRow(key, rows, i * table.dim);
  });
  return rows;
}

/** One row for each bag. */
function pool(
  rows: Float32Array,
  keys: Float64Array,
  offsets: readonly number[],
  { dim, bags, paddingId }: EmbeddingInput,
): Float32Array {
  const bagCount = offsets.length - Number(bags!.includesLast);
  const pooled = new Float32Array(bagCount * dim);
  for (let bag = 0; bag < bagCount; bag++) {
    const end = offsets[bag + 1] ?? keys.length;
    const sum = new Float64Array(dim);
    let count = 0;
    for (let i = offsets[bag]!; i < end; i++) {
      if (keys[i] === paddingId) continue;
      count++;
      for (let d = 0; d < dim; d++) sum[d]! += rows[i * dim + d]!;
    }
    const divisor = bags!.pooling === 'mean' ? Math.max(count, 1) : 1;
    for (let d = 0; d < dim; d++) pooled[bag * dim + d] = sum[d]! / divisor;
  }
  return pooled;
}
