/** Computes rows for the new inputs: keys from slots.json, rows from the table files. */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import {
  type IdsTensorInput,
  type KeyComputation,
  KeyTransform,
} from '../../../lib/core/key-transform.ts';
import type { EmbeddingInput, SlotSpec } from '../../../lib/core/slots.ts';
import type { OnnxTensor } from '../../../lib/platform/onnx.ts';
import { toIdsData } from '../cut/ids-sampler.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import { countElements } from '../cut/table.ts';
import type { TableRowReader } from '../cut/verification.ts';
import { type Axis, getInputAxes } from './ids-tensor.ts';
import type { OnnxCutLookup } from './lookup-finder.ts';
import type { ValueInfo } from './onnx-model.ts';

const ELEMENT_COUNT_MAX = 2 ** 28;

export interface SampledInputs {
  readonly tensors: ReadonlyMap<string, OnnxTensor>;
  /** The size of an axis of unknown size in these samples. */
  getAxisSize(axis: string): number;
}

/** The key formulas of all embeddings, in order. */
export function buildKeyFormulas(spec: SlotSpec): {
  formulas: KeyComputation[];
  inputs: IdsTensorInput[];
} {
  const rowsOf = new Map(spec.tables.map(({ name, rows }) => [name, rows]));
  const formulas = spec.embeddings.flatMap((embedding) =>
    getKeyExpressions(embedding).map((expression) => ({
      expression,
      rows: requireDefined(rowsOf.get(embedding.table), 'the rows of a table'),
    })),
  );
  const inputs = (spec.ids ?? []).map(({ input, dtype, columns }) => ({
    name: input,
    dtype,
    columns,
  }));
  return { formulas, inputs };
}

function getKeyExpressions({
  keys,
  columns,
  ids,
}: EmbeddingInput): NonNullable<EmbeddingInput['keys']> {
  return keys ?? (columns ?? []).map((column) => ({ op: 'column', input: ids, column }));
}

/** The tensor for one new input. */
export function buildRowsTensor(
  embedding: EmbeddingInput,
  lookup: OnnxCutLookup,
  sources: { spec: SlotSpec; samples: SampledInputs; table: TableRowReader },
): OnnxTensor {
  const { samples, table } = sources;
  const { ids: path } = lookup;
  const { bags } = embedding;
  const sizes = path.axes.map((axis) =>
    typeof axis === 'string' ? samples.getAxisSize(axis) : axis,
  );
  const keys = computeIndexKeys(embedding, lookup, sources);
  const inner = lookup.table.dims.slice(1);
  const values = gatherRows(table, keys);
  if (bags === undefined) return { dtype: 'float32', data: values, dims: [...sizes, ...inner] };
  const offsets = requireDefined(samples.tensors.get(bags.offsets), 'the offsets of bags');
  const count = requireDefined(offsets.dims.at(-1), 'the number of offsets');
  const start = count * (bags.offsetsRow ?? 0);
  const begins = Array.from(offsets.data.slice(start, start + count), Number);
  const pooled = poolRows(values, keys, begins, { ...embedding, bags });
  return { dtype: 'float32', data: pooled, dims: [pooled.length / table.dim, ...inner] };
}

/** A key for each index, in the order of the index tensor. */
function computeIndexKeys(
  embedding: EmbeddingInput,
  { ids: path }: OnnxCutLookup,
  { spec, samples, table }: { spec: SlotSpec; samples: SampledInputs; table: TableRowReader },
): Float64Array {
  const unknown = path.axes.filter((axis) => typeof axis === 'string');
  const unknownSizes = unknown.map((axis) => samples.getAxisSize(axis));
  const rowCount = countElements(unknownSizes);
  const inputs = buildKeyFormulas(spec).inputs.filter(({ name }) =>
    path.inputs.some((p) => p.name === name),
  );
  const formulas = getKeyExpressions(embedding).map((expression) => ({
    expression,
    rows: table.rows,
  }));
  const transform = new KeyTransform(inputs, spec.maps ?? [], formulas);
  const data = inputs.map(({ name, dtype, columns }) => {
    const value = requireDefined(
      path.inputs.find((input) => input.name === name),
      'the input of ids',
    );
    const tensor = requireDefined(samples.tensors.get(name), 'the values of ids');
    const values = selectIdsRows(value, tensor, unknown, unknownSizes, columns);
    return toIdsData(values, dtype);
  });
  const words = new Uint32Array(2 * rowCount * formulas.length);
  transform.run(data, rowCount, words);
  return reorderKeys(words, path.axes, unknown, unknownSizes);
}

/** The elements of an input, grouped by position along the unknown axes. */
function selectIdsRows(
  { name, shape }: ValueInfo,
  { data, dims }: OnnxTensor,
  unknown: readonly Axis[],
  sizes: readonly number[],
  columns: number,
): Float64Array {
  const rowCount = countElements(sizes);
  const picked = new Float64Array(rowCount * columns);
  const positions = new Array<number>(unknown.length).fill(0);
  const axes = getInputAxes(name, requireDefined(shape, 'the shape of ids'));
  const unknownPositions = axes.map((axis) => unknown.indexOf(axis));
  for (let row = 0; row < rowCount; row++) {
    toCoordinates(row, sizes, positions);
    for (let column = 0; column < columns; column++) {
      let rest = column;
      let at = 0;
      let stride = 1;
      for (let axis = dims.length - 1; axis >= 0; axis--) {
        const position = unknownPositions[axis]!;
        let coordinate = position < 0 ? 0 : positions[position]!;
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

function toCoordinates(index: number, sizes: readonly number[], into: number[]): void {
  for (let axis = sizes.length - 1; axis >= 0; axis--) {
    into[axis] = index % sizes[axis]!;
    index = Math.floor(index / sizes[axis]!);
  }
}

/** Reorders rows of keys to the order of the index tensor, whose axes may be permuted. */
function reorderKeys(
  words: Uint32Array,
  axes: readonly Axis[],
  unknown: readonly Axis[],
  unknownSizes: readonly number[],
): Float64Array {
  const sizes = axes.map((axis) =>
    typeof axis === 'string' ? unknownSizes[unknown.indexOf(axis)]! : axis,
  );
  const keyNum = axes.reduce<number>((n, axis) => n * (typeof axis === 'number' ? axis : 1), 1);
  const keys = new Float64Array(countElements(sizes));
  const positions = new Array<number>(axes.length).fill(0);
  for (let i = 0; i < keys.length; i++) {
    toCoordinates(i, sizes, positions);
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

function gatherRows(table: TableRowReader, keys: Float64Array): Float32Array {
  const count = keys.length * table.dim;
  if (count > ELEMENT_COUNT_MAX) {
    throw notVerifiedError(`${count} elements in one embedding; a smaller --verify may help`);
  }
  const rows = new Float32Array(count);
  keys.forEach((key, i) => {
    if (key >= table.rows) throw new CubeError('INTERNAL', `key ${key} is not in its table`);
    table.copyRow(key, rows, i * table.dim);
  });
  return rows;
}

type PooledEmbedding = EmbeddingInput & Required<Pick<EmbeddingInput, 'bags'>>;

/** Pools the rows of each bag. */
function poolRows(
  rows: Float32Array,
  keys: Float64Array,
  offsets: readonly number[],
  { dim, bags, paddingId }: PooledEmbedding,
): Float32Array {
  const bagCount = offsets.length - Number(bags.includesLast);
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
    const divisor = bags.pooling === 'mean' ? Math.max(count, 1) : 1;
    for (let d = 0; d < dim; d++) pooled[bag * dim + d] = sum[d]! / divisor;
  }
  return pooled;
}
