/**
 * Proves a pruned model: what was written is read back, and for sampled inputs the full model and the pruned model fed
 * with rows of the tables must agree. Only the ids' way to their columns is taken from memory; graph, spec and rows come
 * from the files.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { decodeNpyHeader, NPY_HEADER_BYTES_MAX } from '../../lib/core/npy.ts';
import { type EmbeddingInput, readSlotSpec, type SlotSpec } from '../../lib/core/slots.ts';
import { RandomReader, readFile, readText } from '../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';
import type { CutLookup } from './graph-cutter.ts';
import type { OnnxValue } from './onnx-model.ts';
import { MODEL_FILE, SLOTS_FILE, tablePath } from './output-folder.ts';
import { InputSampler } from './sample-inputs.ts';

/** Largest difference that passes, absolute; relative for outputs above one. */
const DIFFERENCE_MAX = 1e-6;
const PROOF_SEED = 1;

export interface ProofRequest {
  /** The full model. */
  readonly model: Uint8Array;
  readonly source: string;
  readonly inputs: readonly OnnxValue[];
  readonly lookups: readonly CutLookup[];
  /** Where the pruned model was written. */
  readonly folder: string;
  readonly samples: number;
}

export interface Proof {
  readonly samples: number;
  readonly seed: number;
  readonly batches: readonly number[];
  readonly maxAbsDifference: number;
}

export interface ProofResult {
  readonly proof: Proof;
  /** Of each output, as the model gave it. */
  readonly outputShapes: ReadonlyMap<string, readonly number[]>;
}

/**
 * @throws CubeError INVALID_ARGUMENT when the models disagree, INTERNAL when the pruned model does not run, CORRUPT when
 * the full one does not, UNSUPPORTED when there are no samples for its inputs
 */
export async function provePruned(request: ProofRequest): Promise<ProofResult> {
  const { folder, source, lookups } = request;
  const sampler = new InputSampler(request.inputs, lookups, PROOF_SEED);
  const batches = planBatches(request.samples, sampler.fixedBatch);
  const slotsPath = join(folder, SLOTS_FILE);
  const spec = readSlotSpec(JsonReader.parse(readText(slotsPath), SLOTS_FILE));
  const tables = openTables(folder, spec);
  const outputShapes = new Map<string, readonly number[]>();
  const comparison = new Comparison();
  let full: OnnxModel | undefined;
  let pruned: OnnxModel | undefined;
  try {
    full = await blame('CORRUPT', () => OnnxModel.load(request.model, { source }));
    const prunedBytes = readFile(join(folder, MODEL_FILE));
    pruned = await blame('INTERNAL', () =>
      OnnxModel.load(prunedBytes, { source: 'the pruned model' }),
    );
    for (const batch of batches) {
      const inputs = sampler.draw(batch);
      const expected = await blame('CORRUPT', () => full!.run(Object.fromEntries(inputs)));
      const actual = await pruned.run(
        prunedFeeds({ inputs, pruned, lookups, spec, tables, batch }),
      );
      for (const [name, tensor] of Object.entries(expected)) {
        comparison.add(name, tensor, actual[name]);
        outputShapes.set(name, tensor.dims);
      }
    }
  } finally {
    for (const table of tables.values()) table.close();
    await full?.release();
    await pruned?.release();
  }
  const maxAbsDifference = comparison.finish(source);
  return {
    proof: { samples: request.samples, seed: PROOF_SEED, batches, maxAbsDifference },
    outputShapes,
  };
}

/** All samples in one run and one row alone; or runs of the one batch that the model is made for. */
function planBatches(samples: number, fixedBatch: number | undefined): number[] {
  if (fixedBatch === undefined) return [samples, 1];
  return new Array<number>(Math.max(2, Math.ceil(samples / fixedBatch))).fill(fixedBatch);
}

/**
 * Failures of the full model mean that it is not a valid one (CORRUPT), those of the pruned one that we broke it
 * (INTERNAL). Values of a kind that is not supported stay what they are.
 */
async function blame<T>(code: 'CORRUPT' | 'INTERNAL', action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    const failure = CubeError.from(error);
    if (failure.code === 'UNSUPPORTED') throw failure;
    throw new CubeError(code, failure.message, { cause: error });
  }
}

/** Rows of a table file, read one at a time. */
class TableRows {
  readonly dim: number;
  readonly #reader: RandomReader;
  readonly #dataOffset: number;

  constructor(path: string, table: { name: string; rows: number; dim: number }) {
    this.#reader = new RandomReader(path);
    const head = new Uint8Array(Math.min(this.#reader.bytes, NPY_HEADER_BYTES_MAX));
    this.#reader.readInto(head, 0);
    const { dtype, shape, dataOffset } = decodeNpyHeader(head, this.#reader.bytes, path);
    if (dtype !== 'f4' || shape.length !== 2 || shape[0] !== table.rows || shape[1] !== table.dim) {
      throw new CubeError('INTERNAL', `${path} does not hold table ${table.name} of ${SLOTS_FILE}`);
    }
    this.dim = table.dim;
    this.#dataOffset = dataOffset;
  }

  /** Copies row `id` to the elements of `target` that begin at `at`. */
  copyRow(id: number, target: Float32Array, at: number): void {
    const row = new Uint8Array(target.buffer, target.byteOffset + at * 4, this.dim * 4);
    this.#reader.readInto(row, this.#dataOffset + id * this.dim * 4);
  }

  close(): void {
    this.#reader.close();
  }
}

function openTables(folder: string, spec: SlotSpec): Map<string, TableRows> {
  return new Map(
    spec.tables.map((table) => [table.name, new TableRows(tablePath(folder, table.name), table)]),
  );
}

interface Feeding {
  readonly inputs: ReadonlyMap<string, OnnxTensor>;
  readonly pruned: OnnxModel;
  readonly lookups: readonly CutLookup[];
  readonly spec: SlotSpec;
  readonly tables: ReadonlyMap<string, TableRows>;
  readonly batch: number;
}

/** The inputs that the pruned model still has, and rows where it has embeddings. */
function prunedFeeds(feeding: Feeding): Record<string, OnnxTensor> {
  const { inputs, pruned, lookups, spec, tables, batch } = feeding;
  const feeds: [string, OnnxTensor][] = [];
  for (const { name } of pruned.inputs) {
    const tensor = inputs.get(name);
    if (tensor !== undefined) feeds.push([name, tensor]);
  }
  spec.embeddings.forEach((embedding, i) => {
    const { ids } = lookups[i]!;
    const source = inputs.get(ids.input.name)!;
    const rows = gatherRows(tables.get(embedding.table)!, source, ids.columns);
    feeds.push([embedding.input, { dtype: 'float32', data: rows, dims: dimsOf(embedding, batch) }]);
  });
  return Object.fromEntries(feeds);
}

function dimsOf({ shape }: EmbeddingInput, batch: number): number[] {
  return shape.map((dim) => (dim === -1 ? batch : dim));
}

function gatherRows(table: TableRows, ids: OnnxTensor, columns: readonly number[]): Float32Array {
  const [batch = 0, width = 1] = ids.dims;
  const count = batch * columns.length * table.dim;
  if (count > 2 ** 28) {
    throw new CubeError(
      'UNSUPPORTED',
      `cannot prove the pruned model: ${count} elements in one embedding; use a smaller --verify`,
    );
  }
  const rows = new Float32Array(count);
  let at = 0;
  for (let row = 0; row < batch; row++) {
    for (const column of columns) {
      table.copyRow(Number(ids.data[row * width + column]), rows, at);
      at += table.dim;
    }
  }
  return rows;
}

/** The largest difference over all outputs of all runs. Equal infinities and NaN beside NaN are no difference. */
class Comparison {
  #worst = 0;
  #maxAbsDifference = 0;
  #where = '';
  #finite = 0;
  #count = 0;

  add(name: string, expected: OnnxTensor, actual: OnnxTensor | undefined): void {
    const shapes = [expected.dims, actual?.dims ?? []].map((dims) => `[${dims.join(', ')}]`);
    if (actual === undefined || shapes[0] !== shapes[1] || actual.dtype !== expected.dtype) {
      throw disagreement(`output ${JSON.stringify(name)} is ${shapes[1]} instead of ${shapes[0]}`);
    }
    for (let i = 0; i < expected.data.length; i++) {
      const want = Number(expected.data[i]);
      const got = Number(actual.data[i]);
      this.#count++;
      if (Number.isFinite(want)) this.#finite++;
      if (Object.is(want, got) || want === got) continue;
      const difference = Math.abs(want - got);
      const scaled = difference / Math.max(1, Math.abs(want));
      this.#maxAbsDifference = Math.max(this.#maxAbsDifference, difference);
      // A NaN on one side only is worse than any number.
      if (!(scaled <= this.#worst)) {
        this.#worst = Number.isNaN(scaled) ? Number.POSITIVE_INFINITY : scaled;
        this.#where = `output ${JSON.stringify(name)}: ${got} instead of ${want}`;
      }
    }
  }

  /** @returns the largest absolute difference. @throws CubeError when it is too large, or nothing was compared */
  finish(source: string): number {
    if (this.#worst > DIFFERENCE_MAX) throw disagreement(this.#where);
    if (this.#count > 0 && this.#finite === 0) {
      throw new CubeError(
        'CORRUPT',
        `${source}: every output of the model is infinite or not a number`,
      );
    }
    return this.#maxAbsDifference;
  }
}

function disagreement(where: string): CubeError {
  return new CubeError(
    'INVALID_ARGUMENT',
    `the proof failed: the pruned model does not agree with the full one (${where}); unless the model draws random numbers, please report it`,
  );
}
