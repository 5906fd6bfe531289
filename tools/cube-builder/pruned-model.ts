/**
 * Reads the output folder of prune-model, except the tables: the pruned graph and slots.json. The
 * files are checked before the build starts, so that a wrong input fails within seconds.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { hasScoreFeature, splitGoldenRow } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { parseJsonRows } from '../../lib/core/json-rows.ts';
import { type FeatureSpec, readSlotSpec, type SlotSpec } from '../../lib/core/slots.ts';
import { findBagOfIds, findLargeModulo } from '../../lib/features/feature-checks.ts';
import { findFeatureWarnings } from '../../lib/features/feature-warnings.ts';
import { fileExists, isFolder, readFile, readText } from '../../lib/platform/files.ts';
import { VERSION_FILE_BYTES_MAX } from '../../lib/repository/layout.ts';

/** External data of the ONNX graph. */
export const DATA_FILE = 'model.onnx.data';
const GOLDEN_BYTES_MAX = 256 << 20;
const SLOTS_BYTES_MAX = 64 << 20;
const REPORT_BYTES_MAX = 64 << 20;

export interface PrunedModel {
  readonly spec: SlotSpec;
  readonly graph: Uint8Array;
  readonly graphPath: string;
  /** The files of the version, by name. */
  readonly files: ReadonlyMap<string, Uint8Array>;
}

/** Whether a folder looks like output of prune-model, even if a file is missing or damaged. */
export function isPrunedFolder(path: string): boolean {
  return (
    isFolder(path) && ['slots.json', 'model.onnx'].some((name) => fileExists(join(path, name)))
  );
}

/**
 * @param isDelta its tables may have only some rows
 * @throws CubeError for a missing or wrong file
 */
export function readPrunedModel(folder: string, isDelta: boolean): PrunedModel {
  const slots = readModelFile(folder, 'slots.json', SLOTS_BYTES_MAX);
  const graphPath = join(folder, 'model.onnx');
  const graph = readModelFile(folder, 'model.onnx');
  if (graph.length === 0) {
    throw new CubeError('CORRUPT', `${graphPath} is empty; prune the model again`);
  }
  const slotsPath = join(folder, 'slots.json');
  const spec = readSlotSpec(JsonReader.parseFile(new TextDecoder().decode(slots), slotsPath));
  rejectWrongFeatures(folder, spec, { slotsPath, isDelta });
  rejectDoubtfulFeatures(folder, spec, slotsPath);
  const files = new Map([
    ['model.onnx', graph],
    ['slots.json', slots],
  ]);
  const dataPath = join(folder, DATA_FILE);
  if (fileExists(dataPath)) files.set(DATA_FILE, readFile(dataPath, VERSION_FILE_BYTES_MAX));
  return { spec, graph, graphPath, files };
}

function readModelFile(folder: string, name: string, maxBytes?: number): Uint8Array {
  const path = join(folder, name);
  if (fileExists(path)) return readFile(path, maxBytes);
  throw new CubeError(
    'NOT_FOUND',
    `${folder} has no ${name}; --input must be an output folder of prune-model (its --output)`,
  );
}

/** Keys beyond a table would be unseen, and their scores wrong; bags of ids cannot be served. */
function rejectWrongFeatures(
  folder: string,
  spec: SlotSpec,
  { slotsPath, isDelta }: { slotsPath: string; isDelta: boolean },
): void {
  if (spec.features === undefined) return;
  const tables = spec.tables.filter(
    ({ name }) => !fileExists(join(folder, 'tables', `${name}.keys.npy`)),
  );
  const embeddings = isDelta ? [] : spec.embeddings;
  const problem =
    findLargeModulo(spec.features, { embeddings, tables }) ?? findBagOfIds(spec.features, spec.ids);
  if (problem === undefined) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${slotsPath} does not match the model: ${problem}. Correct features.json and prune the ` +
      'model again',
  );
}

/**
 * Refuses slots.json that looks wrong, unless prune-model was told to accept it: then its report
 * has the same warning.
 */
function rejectDoubtfulFeatures(folder: string, spec: SlotSpec, slotsPath: string): void {
  const { features, ids = [] } = spec;
  if (features === undefined) return;
  const accepted = readWarnings(join(folder, 'report.json'));
  const warnings = findFeatureWarnings({ ...spec, features, ids });
  const doubts = warnings.filter((warning) => !accepted.includes(warning));
  if (doubts.length === 0) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${slotsPath} looks wrong: ${doubts.join('; ')}. Correct features.json and prune the model ` +
      'again, or prune it with --accept',
  );
}

/** The warnings that prune-model reported; none without a report. */
function readWarnings(path: string): string[] {
  if (!fileExists(path)) return [];
  const json = JsonReader.parse(readText(path, REPORT_BYTES_MAX), path);
  return json.optional('warnings', (f) => f.items().map((item) => item.string())) ?? [];
}

/**
 * Reads golden rows and checks each against the features of the model.
 * @param features undefined: requests name inputs of the graph, and rows need only be JSON
 * @throws CubeError INVALID_ARGUMENT naming the line and the field
 */
export function readGolden(path: string, features: FeatureSpec | undefined): Uint8Array {
  const bytes = readFile(path, GOLDEN_BYTES_MAX);
  const lines = new TextDecoder().decode(bytes).split('\n');
  const isFeature = features !== undefined && hasScoreFeature(features);
  if (lines.every((line) => line.trim() === '')) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--golden ${path} has no rows; give a file with one JSON row in each line`,
    );
  }
  for (const [i, line] of lines.entries()) {
    if (line.trim() === '') continue;
    const place = `${path}: line ${i + 1}`;
    if (!line.trimStart().startsWith('{')) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--golden ${place}: not a JSON object; golden rows are JSON lines, also for models with ` +
          'tab-separated rows',
      );
    }
    const { value } = JsonReader.parseFile(line, place);
    const row = isFeature ? value : splitGoldenRow(value, place).row;
    if (features !== undefined) parseJsonRows(JsonReader.of([row], place), features, 1);
  }
  return bytes;
}
