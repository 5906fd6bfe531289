/**
 * Proves a pruned ONNX model: reads what was written back, runs the full model on sampled inputs
 * and the pruned model on rows of the tables, and compares the outputs. Graph, slot spec and rows
 * come from the files; only the columns of the ids come from memory.
 */

import { join } from 'node:path';
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { readSlotSpec, type SlotSpec } from '../../../lib/core/slots.ts';
import { readText } from '../../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../../lib/platform/onnx.ts';
import { MODEL_FILE, SLOTS_FILE } from '../cut/output-folder.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import {
  OutputComparison,
  openTables,
  RandomNumbers,
  type TableRowReader,
  VERIFICATION_SEED,
  type VerificationRequest,
  type VerificationResult,
} from '../cut/verification.ts';
import { buildRowsTensor, type SampledInputs } from './embedding-rows.ts';
import { OnnxInputSampler } from './input-sampler.ts';
import type { OnnxCutLookup } from './lookup-finder.ts';
import type { ValueInfo } from './onnx-model.ts';

export interface OnnxVerificationSource {
  /** Path of the full model, or its bytes when --fetch changed its outputs. */
  readonly model: string | Uint8Array;
  readonly source: string;
  readonly inputs: readonly ValueInfo[];
  readonly lookups: readonly OnnxCutLookup[];
}

/**
 * @throws CubeError INVALID_ARGUMENT when the models disagree; INTERNAL when the pruned model does
 *   not run; CORRUPT when the full model does not; UNSUPPORTED when onnxruntime lacks an operator
 *   or no samples exist
 */
export async function verifyOnnxModel(
  full: OnnxVerificationSource,
  request: VerificationRequest,
): Promise<VerificationResult> {
  const { source, lookups } = full;
  const { folder } = request;
  const slotsPath = join(folder, SLOTS_FILE);
  const spec = readSlotSpec(JsonReader.parse(readText(slotsPath), SLOTS_FILE));
  const random = new RandomNumbers(VERIFICATION_SEED);
  const sampler = new OnnxInputSampler(full.inputs, lookups, spec, random);
  const batches = planBatches(request.samples, sampler.fixedBatch);
  const tables = openTables(folder, spec);
  const outputShapes = new Map<string, readonly number[]>();
  const comparison = new OutputComparison();
  let fullModel: OnnxModel | undefined;
  let pruned: OnnxModel | undefined;
  try {
    const loaded = await withFailureCode('CORRUPT', () => OnnxModel.load(full.model, { source }));
    fullModel = loaded;
    const options = { source: 'the pruned model' };
    pruned = await withFailureCode('INTERNAL', () =>
      OnnxModel.load(join(folder, MODEL_FILE), options),
    );
    for (const batch of batches) {
      const samples = sampler.draw(batch);
      const feeds = Object.fromEntries(samples.tensors);
      const expected = await withFailureCode('CORRUPT', () => loaded.run(feeds));
      const actual = await pruned.run(buildPrunedFeeds({ samples, pruned, lookups, spec, tables }));
      for (const { name } of pruned.outputs) {
        const tensor = expected[name];
        if (tensor === undefined) continue;
        comparison.compare(name, tensor, actual[name]);
        outputShapes.set(name, tensor.dims);
      }
    }
  } finally {
    for (const table of tables.values()) table.close();
    await fullModel?.release();
    await pruned?.release();
  }
  const maxAbsDifference = comparison.finish(source);
  return {
    verification: { samples: request.samples, seed: VERIFICATION_SEED, batches, maxAbsDifference },
    outputShapes,
  };
}

/** All samples and then a single row; or runs of the model's fixed batch size. */
function planBatches(samples: number, fixedBatch: number | undefined): number[] {
  if (fixedBatch === undefined) return [samples, 1];
  return new Array<number>(Math.max(2, Math.ceil(samples / fixedBatch))).fill(fixedBatch);
}

/** Messages of onnxruntime about operators and types that it was not built with. */
const UNSUPPORTED_BY_RUNTIME = new RegExp(
  [
    'NOT_IMPLEMENTED',
    'Could not find an implementation',
    'not a registered function',
    'No Op registered',
    'No opset import',
    'is under development',
    'not supported',
    'unsupported',
  ].join('|'),
  'i',
);

/**
 * Gives a failure the code for its cause: the full model is not valid (CORRUPT), this build of
 * onnxruntime cannot run it (UNSUPPORTED), or pruning broke the model (INTERNAL).
 */
async function withFailureCode<T>(
  code: 'CORRUPT' | 'INTERNAL',
  action: () => Promise<T>,
): Promise<T> {
  try {
    return await action();
  } catch (error) {
    const { code: kind, message } = CubeError.from(error);
    if (code === 'CORRUPT' && (kind === 'UNSUPPORTED' || UNSUPPORTED_BY_RUNTIME.test(message))) {
      throw notVerifiedError(message, error);
    }
    throw new CubeError(code, message, { cause: error });
  }
}

interface PrunedFeedSources {
  readonly samples: SampledInputs;
  readonly pruned: OnnxModel;
  readonly lookups: readonly OnnxCutLookup[];
  readonly spec: SlotSpec;
  readonly tables: ReadonlyMap<string, TableRowReader>;
}

/** Samples for the inputs that the pruned model keeps, and rows for its new inputs. */
function buildPrunedFeeds({
  samples,
  pruned,
  lookups,
  spec,
  tables,
}: PrunedFeedSources): Record<string, OnnxTensor> {
  const feeds: [string, OnnxTensor][] = [];
  for (const { name } of pruned.inputs) {
    const tensor = samples.tensors.get(name);
    if (tensor !== undefined) feeds.push([name, tensor]);
  }
  spec.embeddings.forEach((embedding, i) => {
    const table = requireDefined(tables.get(embedding.table), 'the rows of a table');
    const lookup = requireDefined(lookups[i], 'the lookup of an input');
    feeds.push([embedding.input, buildRowsTensor(embedding, lookup, { spec, samples, table })]);
  });
  return Object.fromEntries(feeds);
}
