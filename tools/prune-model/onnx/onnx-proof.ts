/**
 * Proves a pruned model: what was written is read back, and for sampled inputs the full model and the pruned model fed
 * with rows of the tables must agree. Only the ids' way to their columns is taken from memory; graph, spec and rows come
 * from the files.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { type EmbeddingInput, readSlotSpec, type SlotSpec } from '../../../lib/core/slots.ts';
import { readFile, readText } from '../../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../../lib/platform/onnx.ts';
import { MODEL_FILE, SLOTS_FILE } from '../output-folder.ts';
import {
  Comparison,
  openTables,
  PROOF_SEED,
  type ProofRequest,
  type ProofResult,
  type TableRows,
} from '../proof.ts';
import type { CutLookup } from './graph-cutter.ts';
import type { OnnxValue } from './onnx-model.ts';
import { InputSampler } from './sample-inputs.ts';

export interface OnnxProof {
  /** The full model. */
  readonly model: Uint8Array;
  readonly source: string;
  readonly inputs: readonly OnnxValue[];
  readonly lookups: readonly CutLookup[];
}

/**
 * @throws CubeError INVALID_ARGUMENT when the models disagree, INTERNAL when the pruned model does not run, CORRUPT when
 * the full one does not, UNSUPPORTED when there are no samples for its inputs
 */
export async function provePruned(full: OnnxProof, request: ProofRequest): Promise<ProofResult> {
  const { source, lookups } = full;
  const { folder } = request;
  const sampler = new InputSampler(full.inputs, lookups, PROOF_SEED);
  const batches = planBatches(request.samples, sampler.fixedBatch);
  const slotsPath = join(folder, SLOTS_FILE);
  const spec = readSlotSpec(JsonReader.parse(readText(slotsPath), SLOTS_FILE));
  const tables = openTables(folder, spec);
  const outputShapes = new Map<string, readonly number[]>();
  const comparison = new Comparison();
  let whole: OnnxModel | undefined;
  let pruned: OnnxModel | undefined;
  try {
    whole = await blame('CORRUPT', () => OnnxModel.load(full.model, { source }));
    const prunedBytes = readFile(join(folder, MODEL_FILE));
    pruned = await blame('INTERNAL', () =>
      OnnxModel.load(prunedBytes, { source: 'the pruned model' }),
    );
    for (const batch of batches) {
      const inputs = sampler.draw(batch);
      const expected = await blame('CORRUPT', () => whole!.run(Object.fromEntries(inputs)));
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
    await whole?.release();
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
