/** Sampled inputs of a model, the same for the same seed: ids over a table's whole range, normal dense values. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { OnnxTensor } from '../../../lib/platform/onnx.ts';
import { RandomNumbers } from '../proof.ts';
import type { CutLookup } from './graph-cutter.ts';
import { elemName, type OnnxValue } from './onnx-model.ts';

/** Elements of one tensor; a model that needs more for a handful of rows cannot be proved here. */
const ELEMENT_COUNT_MAX = 2 ** 27;

export class InputSampler {
  readonly #inputs: readonly OnnxValue[];
  /** For each ids input and column, the rows of the smallest table that it looks up. */
  readonly #rows = new Map<string, number[]>();
  readonly #batchSymbols = new Set<string>();
  readonly #random: RandomNumbers;
  #rowsDrawn = 0;
  /** The batch that the model is fixed to, if it is. */
  readonly fixedBatch: number | undefined;

  constructor(inputs: readonly OnnxValue[], lookups: readonly CutLookup[], seed: number) {
    this.#inputs = inputs;
    this.#random = new RandomNumbers(seed);
    for (const { ids, table } of lookups) {
      const [batch] = ids.input.shape ?? [];
      if (typeof batch === 'string') this.#batchSymbols.add(batch);
      const rows = this.#rows.get(ids.input.name) ?? [];
      for (const column of ids.columns) {
        rows[column] = Math.min(rows[column] ?? Number.POSITIVE_INFINITY, table.dims[0] ?? 1);
      }
      this.#rows.set(ids.input.name, rows);
    }
    const fixed = lookups.map(({ ids }) => ids.input.shape?.[0]);
    this.fixedBatch = fixed.find((dim) => typeof dim === 'number');
  }

  /** A tensor for each input; the very first row has the first id everywhere, the second the last. */
  draw(batch: number): Map<string, OnnxTensor> {
    const tensors = new Map<string, OnnxTensor>();
    for (const input of this.#inputs) tensors.set(input.name, this.#tensor(input, batch));
    this.#rowsDrawn += batch;
    return tensors;
  }

  #tensor(input: OnnxValue, batch: number): OnnxTensor {
    const dims = this.#dims(input, batch);
    const count = dims.reduce((product, dim) => product * dim, 1);
    if (count > ELEMENT_COUNT_MAX) throw unprovable(input, `it takes ${count} elements`);
    const rows = this.#rows.get(input.name);
    const values = rows === undefined ? undefined : this.#ids(rows, count, batch);
    const type = elemName(input.elemType);
    if (type === 'int64') {
      const data =
        values === undefined ? new BigInt64Array(count) : BigInt64Array.from(values, BigInt);
      return { dtype: type, data, dims };
    }
    if (type === 'int32') {
      return { dtype: type, data: Int32Array.from(values ?? new Array(count).fill(0)), dims };
    }
    if (type === 'float32' || type === 'float64') {
      const normal = Float64Array.from({ length: count }, () => this.#random.normal());
      return { dtype: type, data: type === 'float64' ? normal : Float32Array.from(normal), dims };
    }
    if (type === 'bool') {
      const coins = Uint8Array.from({ length: count }, () => Number(this.#random.next() < 0.5));
      return { dtype: type, data: coins, dims };
    }
    throw unprovable(input, `its type is ${type}`);
  }

  #ids(rows: readonly number[], count: number, batch: number): Float64Array {
    const ids = new Float64Array(count);
    const columns = count / batch;
    for (let i = 0; i < count; i++) {
      const limit = rows[i % columns] ?? 1;
      const row = this.#rowsDrawn + Math.floor(i / columns);
      if (row === 0) ids[i] = 0;
      else if (row === 1) ids[i] = limit - 1;
      else ids[i] = Math.floor(this.#random.next() * limit);
    }
    return ids;
  }

  #dims(input: OnnxValue, batch: number): number[] {
    if (input.shape === undefined) throw unprovable(input, 'its shape is unknown');
    return input.shape.map((dim, i) => {
      if (typeof dim === 'number') return dim;
      return i === 0 || this.#batchSymbols.has(dim ?? '') ? batch : 1;
    });
  }
}

function unprovable({ name }: OnnxValue, why: string): CubeError {
  return new CubeError(
    'UNSUPPORTED',
    `cannot prove the pruned model: no samples for input ${JSON.stringify(name)}: ${why}`,
  );
}
