/**
 * Proves a pruned model: what was written is read back, and for sampled inputs the full model and the pruned model fed
 * with rows of the tables must agree. Only the ids' way to their columns is taken from memory; graph, spec and rows come
 * from the files.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { readSlotSpec, type SlotSpec } from '../../../lib/core/slots.ts';
import { readText } from '../../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../../lib/platform/onnx.ts';
import { MODEL_FILE, SLOTS_FILE } from '../output-folder.ts';
import {
  Comparison,
  openTables,
  PROOF_SEED,
  type ProofRequest,
  type ProofResult,
  RandomNumbers,
  type TableRows,
} from '../proof.ts';
import type { CutLookup } from './lookup-finder.ts';
import type { OnnxValue } from './onnx-model.ts';
import { InputSampler } from './sample-inputs.ts';
import { rowsOfInput, type SampledInputs } from './sampled-rows.ts';

export interface OnnxProof {
  /** Path of the full model, or its bytes when its outputs are not those of the file. */
  readonly model: string | Uint8Array;
  readonly source: string;
  readonly inputs: readonly OnnxValue[];
  readonly lookups: readonly CutLookup[];
}

/**
 * @throws CubeError INVALID_ARGUMENT when the models disagree, INTERNAL when the pruned model does not run, CORRUPT when
 * the full one does not, UNSUPPORTED when it needs what onnxruntime does not have, or there are no samples for its inputs
 */
export async function provePruned(full: OnnxProof, request: ProofRequest): Promise<ProofResult> {
  const { source, lookups } = full;
  const { folder } = request;
  const slotsPath = join(folder, SLOTS_FILE);
  const spec = readSlotSpec(JsonReader.parse(readText(slotsPath), SLOTS_FILE));
  const random = new RandomNumbers(PROOF_SEED);
  const sampler = new InputSampler(full.inputs, lookups, spec, random);
  const batches = planBatches(request.samples, sampler.fixedBatch);
  const tables = openTables(folder, spec);
  const outputShapes = new Map<string, readonly number[]>();
  const comparison = new Comparison();
  let whole: OnnxModel | undefined;
  let pruned: OnnxModel | undefined;
  try {
    whole = await blame('CORRUPT', () => OnnxModel.load(full.model, { source }));
    const options = { source: 'the pruned model' };
    pruned = await blame('INTERNAL', () => OnnxModel.load(join(folder, MODEL_FILE), options));
    for (const batch of batches) {
      const samples = sampler.draw(batch);
      const feeds = Object.fromEntries(samples.tensors);
      const expected = await blame('CORRUPT', () => whole!.run(feeds));
      const actual = await pruned.run(prunedFeeds({ samples, pruned, lookups, spec, tables }));
      for (const { name } of pruned.outputs) {
        const tensor = expected[name];
        if (tensor === undefined) continue;
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

/** What onnxruntime says of operators and types that it was not built with. */
const NO_KERNEL =
  /NOT_IMPLEMENTED|Could not find an implementation|not a registered function|No Op registered|No opset import|is under development|not supported|unsupported/i;

/**
 * Failures of the full model mean that it is not a valid one (CORRUPT), or that this build cannot run it (UNSUPPORTED); those of
 * the pruned one that we broke it (INTERNAL).
 */
async function blame<T>(code: 'CORRUPT' | 'INTERNAL', action: () => Promise<T>): Promise<T> {
  try {
    return await action();
  } catch (error) {
    const { code: kind, message } = CubeError.from(error);
    if (code === 'CORRUPT' && (kind === 'UNSUPPORTED' || NO_KERNEL.test(message))) {
      const hint = '--verify 0 accepts the model without proof';
      throw new CubeError('UNSUPPORTED', `not proved: ${message}; ${hint}`, { cause: error });
    }
    throw new CubeError(code, message, { cause: error });
  }
}

interface Feeding {
  readonly samples: SampledInputs;
  readonly pruned: OnnxModel;
  readonly lookups: readonly CutLookup[];
  readonly spec: SlotSpec;
  readonly tables: ReadonlyMap<string, TableRows>;
}

/** The inputs that the pruned model still has, and rows where it has embeddings. */
function prunedFeeds({
  samples,
  pruned,
  lookups,
  spec,
  tables,
}: Feeding): Record<string, OnnxTensor> {
  const feeds: [string, OnnxTensor][] = [];
  for (const { name } of pruned.inputs) {
    const tensor = samples.tensors.get(name);
    if (tensor !== undefined) feeds.push([name, tensor]);
  }
  spec.embeddings.forEach((embedding, i) => {
    const table = tables.get(embedding.table)!;
    feeds.push([embedding.input, rowsOfInput(embedding, lookups[i]!, { spec, samples, table })]);
  });
  return Object.fromEntries(feeds);
}
