/**
 * The walk of a model through prune-model, top to bottom: read, index, find the lookups, cut them out, describe the new
 * inputs, write beside the output, prove what was written, put it in place.
 */
import { JsonReader } from '../../lib/core/json.ts';
import { readTrainedFeatures, slotSpecToJson, type TrainedFeatures } from '../../lib/core/slots.ts';
import { readFile, readText } from '../../lib/platform/files.ts';
import { type CutLookup, cutLookups } from './graph-cutter.ts';
import { GraphIndex } from './graph-index.ts';
import { findLookups } from './lookup-finder.ts';
import { readOnnxModel } from './onnx-reader.ts';
import { writeOnnxModel } from './onnx-writer.ts';
import { checkOutput, REPORT_FILE, SLOTS_FILE, StagedOutput } from './output-folder.ts';
import { type ProofResult, provePruned } from './proof.ts';
import { buildReport, type Report } from './report.ts';
import { buildSlotSpec, checkClickColumn } from './slot-spec.ts';
import { readRows, type Table, TableNames } from './table.ts';

export interface PruneRequest {
  readonly model: string;
  readonly output: string;
  readonly features: string | undefined;
  readonly samples: number;
  readonly force: boolean;
  readonly dryRun: boolean;
}

/** @returns the report, or undefined when the model has no lookups. @throws CubeError with nothing written */
export async function pruneModel(request: PruneRequest): Promise<Report | undefined> {
  const bytes = readFile(request.model);
  checkOutput(request.output, { force: request.force, model: request.model });
  const features = request.features === undefined ? undefined : readFeatures(request.features);
  const model = readOnnxModel(bytes, request.model);
  const index = new GraphIndex(model);
  const lookups = findLookups(model, index);
  if (lookups.length === 0) return undefined;

  const cut = cutLookups(index, lookups);
  const tables = readTables(cut.lookups);
  const pruned = writeOnnxModel(model, cut.edit);
  const spec = buildSlotSpec({ cut, tables, index, features });
  const report = buildReport({
    cut,
    spec,
    tables,
    nodesBefore: model.graph.nodes.length,
    bytesBefore: bytes.length,
    bytesAfter: pruned.length,
  });
  if (request.dryRun) return report;

  const staged = new StagedOutput(request.output);
  try {
    staged.writeModel(pruned);
    staged.writeJson(SLOTS_FILE, slotSpecToJson(spec));
    for (const table of tables.values()) staged.writeTable(table);
    const result = await provePruned({
      model: bytes,
      source: request.model,
      inputs: [...index.runtimeInputs.values()],
      lookups: cut.lookups,
      folder: staged.folder,
      samples: request.samples,
    });
    if (features !== undefined) checkClickShape(features, result);
    const proved: Report = { ...report, verify: result.proof };
    staged.writeJson(REPORT_FILE, proved);
    staged.commit();
    return proved;
  } catch (error) {
    staged.abort();
    throw error;
  }
}

function readFeatures(path: string): TrainedFeatures {
  return readTrainedFeatures(JsonReader.parse(readText(path), path));
}

/** Each table once, however many lookups share it. */
function readTables(lookups: readonly CutLookup[]): Map<string, Table> {
  const names = new TableNames();
  const tables = new Map<string, Table>();
  for (const { tableName, table } of lookups) {
    if (tables.has(tableName)) continue;
    tables.set(tableName, { name: names.claim(tableName), source: tableName, ...readRows(table) });
  }
  return tables;
}

/** The declared shape may have left the width of the click output open; a run does not. */
function checkClickShape(features: TrainedFeatures, { outputShapes }: ProofResult): void {
  checkClickColumn(features, outputShapes.get(features.click.output));
}
