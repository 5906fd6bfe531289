/**
 * The steps of prune-model from top to bottom: cut the model (each format in its own folder),
 * describe the new inputs, write to a sibling folder of the output, verify what was written, move
 * it into place.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readTrainedFeatures, slotSpecToJson, type TrainedFeatures } from '../../lib/core/slots.ts';
import { findFeatureWarnings } from '../../lib/features/feature-warnings.ts';
import { readText } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import type { CutModel } from './cut/cut-model.ts';
import { checkOutput, REPORT_FILE, SLOTS_FILE, StagedOutput } from './cut/output-folder.ts';
import type { Verification, VerificationResult } from './cut/verification.ts';
import {
  type FormatOption,
  findModel,
  rejectPaddleOption,
  rejectParamsOption,
} from './model-format.ts';
import { cutOnnxModel } from './onnx/cut-onnx.ts';
import { cutPaddleModel } from './paddle/cut-paddle.ts';
import { SequenceLengths } from './paddle/sequence-lengths.ts';
import { buildReport, type Report } from './report.ts';
import { buildSlotSpec, checkClickColumn } from './slot-spec.ts';
import { rejectExpectedScores, verifyExpectedScores } from './verify-scores.ts';

export interface PruneRequest {
  readonly model: string;
  readonly output: string;
  readonly features: string | undefined;
  readonly format?: FormatOption;
  /** File or folder with the parameters of a Paddle program. */
  readonly params?: string;
  /** Format that a pruned Paddle program is converted to. */
  readonly to?: 'onnx';
  /** `N` or `INPUT=N`: ids per row in sequence inputs of a converted program. */
  readonly sequenceLengths?: readonly string[];
  /** Outputs to keep; empty keeps all. */
  readonly fetch?: readonly string[];
  /** Rows to compare the models on; 0 skips the verification. */
  readonly samples: number;
  /** Raw rows with expected scores (--expect), and the largest difference that is accepted. */
  readonly expect?: { readonly scores: string; readonly tolerance: number };
  /** Prunes although features.json looks wrong. */
  readonly accept?: boolean;
  readonly force: boolean;
  readonly dryRun: boolean;
  /** Runs the verification in this process; tests of thousands of models need that. */
  readonly inProcess?: boolean;
}

/** @returns undefined when the model has no lookups. @throws CubeError with nothing written */
export async function pruneModel(request: PruneRequest): Promise<Report | undefined> {
  const { path, format } = findModel(request.model, request.format ?? 'auto');
  checkOutput(request.output, { force: request.force, model: path });
  const features = request.features === undefined ? undefined : readFeatures(request.features);
  const cut = format === 'paddle' ? cutPaddle(path, request) : cutOnnx(path, request);
  if (cut === undefined) return undefined;
  try {
    return await writePrunedModel(cut, request, features);
  } finally {
    cut.close();
  }
}

function cutPaddle(path: string, request: PruneRequest): CutModel | undefined {
  if (request.expect !== undefined && request.to === undefined) rejectExpectedScores(path);
  const lengths = SequenceLengths.parse(request.sequenceLengths ?? []);
  const { params, fetch = [], to } = request;
  return cutPaddleModel(path, { params, fetch, to, lengths });
}

function cutOnnx(path: string, request: PruneRequest): CutModel | undefined {
  if (request.params !== undefined) rejectParamsOption(path);
  if (request.to !== undefined) rejectPaddleOption(path, '--to');
  if (request.sequenceLengths !== undefined) rejectPaddleOption(path, '--sequence-length');
  return cutOnnxModel(path, request.fetch);
}

async function writePrunedModel(
  cut: CutModel,
  request: PruneRequest,
  features: TrainedFeatures | undefined,
): Promise<Report> {
  const spec = buildSlotSpec(cut, features);
  const doubts =
    features === undefined ? [] : findFeatureWarnings({ ...spec, features, ids: features.ids });
  if (doubts.length > 0 && !request.accept) {
    const text = doubts.join('; ');
    throw new CubeError(
      'INVALID_ARGUMENT',
      `features.json looks wrong: ${text}. Correct it, or prune with --accept`,
    );
  }
  const known = buildReport(cut, spec);
  const report = { ...known, warnings: [...known.warnings, ...doubts] };
  if (request.dryRun) return report;
  const staged = new StagedOutput(request.output);
  try {
    cut.writeGraph(staged);
    staged.writeJson(SLOTS_FILE, slotSpecToJson(spec));
    writeTables(cut, staged);
    const verification = await verify(cut, staged, request, features);
    const expected =
      request.expect && (await verifyExpectedScores(staged.folder, spec, request.expect));
    const verified = {
      ...report,
      ...(verification === undefined ? {} : { verify: verification }),
      ...(expected === undefined ? {} : { expected }),
    };
    staged.writeJson(REPORT_FILE, verified);
    staged.commit();
    return verified;
  } catch (error) {
    staged.abort();
    throw error;
  }
}

async function verify(
  cut: CutModel,
  { folder }: StagedOutput,
  { samples, inProcess = false }: PruneRequest,
  features: TrainedFeatures | undefined,
): Promise<Verification | undefined> {
  if (samples === 0) return undefined;
  const result = await cut.verify({ folder, samples, isolated: !inProcess });
  if (features !== undefined) checkClickShape(features, result);
  return result.verification;
}

function readFeatures(path: string): TrainedFeatures {
  return readTrainedFeatures(JsonReader.parseFile(readText(path), path));
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

/** Checks the click column against a run, where the width of the output is known. */
function checkClickShape(features: TrainedFeatures, { outputShapes }: VerificationResult): void {
  checkClickColumn(features, outputShapes.get(features.click.output));
}
