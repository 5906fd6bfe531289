/**
 * The walk of a model through prune-model, top to bottom: cut (each format in its own folder), describe the new inputs, write
 * beside the output, prove what was written, put it in place.
 */
import { JsonReader } from '../../lib/core/json.ts';
import { readTrainedFeatures, slotSpecToJson, type TrainedFeatures } from '../../lib/core/slots.ts';
import { readText } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import type { CutModel } from './cut-model.ts';
import { type FormatOption, findModel, refusePaddleOnly, refuseParams } from './model-format.ts';
import { cutOnnxModel } from './onnx/cut-onnx.ts';
import { checkOutput, REPORT_FILE, SLOTS_FILE, StagedOutput } from './output-folder.ts';
import { cutPaddleModel } from './paddle/cut-paddle.ts';
import { SequenceLengths } from './paddle/sequence-lengths.ts';
import type { Proof, ProofResult } from './proof.ts';
import { buildReport, type Report } from './report.ts';
import { buildSlotSpec, checkClickColumn } from './slot-spec.ts';

export interface PruneRequest {
  readonly model: string;
  readonly output: string;
  readonly features: string | undefined;
  readonly format?: FormatOption;
  /** Parameters in a file of their own. */
  readonly params?: string;
  /** What a Paddle program is converted to. */
  readonly to?: 'onnx';
  /** `N`, or `INPUT=N`: ids of a row in sequences that are converted. */
  readonly sequenceLengths?: readonly string[];
  /** Outputs to keep; all when there are none. */
  readonly fetch?: readonly string[];
  /** 0: no proof. */
  readonly samples: number;
  readonly force: boolean;
  readonly dryRun: boolean;
  /** Proves in this process; tests of thousands of models do. */
  readonly inProcess?: boolean;
}

/** @returns the report, or undefined when the model has no lookups. @throws CubeError with nothing written */
export async function pruneModel(request: PruneRequest): Promise<Report | undefined> {
  const { path, format } = findModel(request.model, request.format ?? 'auto');
  checkOutput(request.output, { force: request.force, model: path });
  const features = request.features === undefined ? undefined : readFeatures(request.features);
  const cut = format === 'paddle' ? cutPaddle(path, request) : cutOnnx(path, request);
  if (cut === undefined) return undefined;
  try {
    return await writeCut(cut, request, features);
  } finally {
    cut.close();
  }
}

function cutPaddle(path: string, request: PruneRequest): CutModel | undefined {
  const lengths = SequenceLengths.parse(request.sequenceLengths ?? []);
  const { params, fetch = [], to } = request;
  return cutPaddleModel(path, { params, fetch, to, lengths });
}

function cutOnnx(path: string, request: PruneRequest): CutModel | undefined {
  if (request.params !== undefined) refuseParams(path);
  if (request.to !== undefined) refusePaddleOnly(path, '--to');
  if (request.sequenceLengths !== undefined) refusePaddleOnly(path, '--sequence-length');
  return cutOnnxModel(path, request.fetch);
}

async function writeCut(
  cut: CutModel,
  request: PruneRequest,
  features: TrainedFeatures | undefined,
): Promise<Report> {
  const spec = buildSlotSpec(cut, features);
  const report = buildReport(cut, spec);
  if (request.dryRun) return report;
  const staged = new StagedOutput(request.output);
  try {
    cut.writeGraph(staged);
    staged.writeJson(SLOTS_FILE, slotSpecToJson(spec));
    writeTables(cut, staged);
    const done = await prove(cut, staged, request, features);
    const proved = done === undefined ? report : { ...report, verify: done };
    staged.writeJson(REPORT_FILE, proved);
    staged.commit();
    return proved;
  } catch (error) {
    staged.abort();
    throw error;
  }
}

async function prove(
  cut: CutModel,
  { folder }: StagedOutput,
  { samples, inProcess = false }: PruneRequest,
  features: TrainedFeatures | undefined,
): Promise<Proof | undefined> {
  if (samples === 0) return undefined;
  const result = await cut.prove({ folder, samples, isolated: !inProcess });
  if (features !== undefined) checkClickShape(features, result);
  return result.proof;
}

function readFeatures(path: string): TrainedFeatures {
  return readTrainedFeatures(JsonReader.parse(readText(path), path));
}

function writeTables({ tables }: CutModel, staged: StagedOutput): void {
  const total = tables.reduce((sum, { rows, dim }) => sum + rows * dim * 4, 0);
  const progress = startProgress('writing tables', Math.ceil(total / 1e6), 'MB');
  let done = 0;
  try {
    for (const table of tables) {
      if (table.isExternal === true) continue;
      staged.writeTable(table, (bytes) => {
        done += bytes;
        progress.update(Math.ceil(done / 1e6));
      });
    }
  } finally {
    progress.stop();
  }
}

/** The declared shape may have left the width of the click output open; a run does not. */
function checkClickShape(features: TrainedFeatures, { outputShapes }: ProofResult): void {
  checkClickColumn(features, outputShapes.get(features.click.output));
}
