/**
 * What prune-model wrote beside the tables: the pruned graph and slots.json. Everything is checked before the first byte is
 * built, so that a wrong input costs seconds, not a build.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readSlotSpec, type SlotSpec } from '../../lib/core/slots.ts';
import { fileExists, isFolder, readFile } from '../../lib/platform/files.ts';
import { VERSION_FILE_BYTES_MAX } from '../../lib/repository/repository.ts';

/** Tensors of the graph that are not in its own bytes. */
export const DATA_FILE = 'model.onnx.data';
const GOLDEN_BYTES_MAX = 256 << 20;
const SLOTS_BYTES_MAX = 64 << 20;

export interface PrunedModel {
  readonly spec: SlotSpec;
  readonly graph: Uint8Array;
  readonly graphPath: string;
  /** The version's files, as they are published. */
  readonly files: ReadonlyMap<string, Uint8Array>;
}

/** Whether a folder is meant to be one that prune-model wrote: a damaged one is refused by name, not read as something else. */
export function isPrunedFolder(path: string): boolean {
  return (
    isFolder(path) && ['slots.json', 'model.onnx'].some((name) => fileExists(join(path, name)))
  );
}

/** @throws CubeError saying which file of the folder is missing or wrong */
export function readPrunedModel(folder: string): PrunedModel {
  const slots = readPart(folder, 'slots.json', SLOTS_BYTES_MAX);
  const graphPath = join(folder, 'model.onnx');
  const graph = readPart(folder, 'model.onnx');
  if (graph.length === 0) {
    throw new CubeError('CORRUPT', `${graphPath} is empty; prune the model again`);
  }
  const slotsPath = join(folder, 'slots.json');
  const spec = readSlotSpec(JsonReader.parse(new TextDecoder().decode(slots), slotsPath));
  const files = new Map([
    ['model.onnx', graph],
    ['slots.json', slots],
  ]);
  const dataPath = join(folder, DATA_FILE);
  if (fileExists(dataPath)) files.set(DATA_FILE, readFile(dataPath, VERSION_FILE_BYTES_MAX));
  return { spec, graph, graphPath, files };
}

function readPart(folder: string, name: string, maxBytes?: number): Uint8Array {
  const path = join(folder, name);
  if (fileExists(path)) return readFile(path, maxBytes);
  throw new CubeError(
    'NOT_FOUND',
    `${folder} has no ${name}; --input is a folder that prune-model wrote (prune-model --output)`,
  );
}

/** Each line a JSON value: what it must hold is the gate's business. */
export function readGolden(path: string): Uint8Array {
  const bytes = readFile(path, GOLDEN_BYTES_MAX);
  const lines = new TextDecoder().decode(bytes).split('\n');
  lines.forEach((line, i) => {
    if (line.trim() !== '') JsonReader.parse(line, `${path}: line ${i + 1}`);
  });
  return bytes;
}
