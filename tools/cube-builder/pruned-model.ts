/**
 * What prune-model wrote: the pruned graph, slots.json and one .npy file a table. Everything is checked before the
 * first byte is built, so that a wrong input costs seconds, not a build.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { decodeNpyHeader, NPY_HEADER_BYTES_MAX } from '../../lib/core/npy.ts';
import { type PrunedTable, readSlotSpec, type SlotSpec } from '../../lib/core/slots.ts';
import { fileExists, isFolder, RandomReader, readFile } from '../../lib/platform/files.ts';

const GOLDEN_BYTES_MAX = 256 << 20;
const SLOTS_BYTES_MAX = 64 << 20;

export interface TableFile extends PrunedTable {
  readonly path: string;
  /** Where row 0 begins. */
  readonly dataOffset: number;
}

export interface PrunedModel {
  readonly spec: SlotSpec;
  readonly tables: readonly TableFile[];
  readonly graph: Uint8Array;
  readonly graphPath: string;
  /** The version's files, as they are published. */
  readonly files: ReadonlyMap<string, Uint8Array>;
}

/** @throws CubeError saying which file of the folder is missing or wrong */
export function readPrunedModel(folder: string, golden: string | undefined): PrunedModel {
  if (!isFolder(folder)) {
    throw new CubeError('NOT_FOUND', `--input ${folder}: no such folder`);
  }
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
  if (golden !== undefined) files.set('golden.jsonl', readGolden(golden));
  const tables = spec.tables.map((table) => openTable(folder, table));
  return { spec, tables, graph, graphPath, files };
}

function readPart(folder: string, name: string, maxBytes?: number): Uint8Array {
  const path = join(folder, name);
  if (fileExists(path)) return readFile(path, maxBytes);
  throw new CubeError(
    'NOT_FOUND',
    `${folder} has no ${name}; --input is a folder that prune-model wrote (prune-model --output)`,
  );
}

/** Checks that the array is what slots.json says. */
function openTable(folder: string, table: PrunedTable): TableFile {
  const path = join(folder, 'tables', `${table.name}.npy`);
  if (!fileExists(path)) {
    throw new CubeError(
      'NOT_FOUND',
      `${path} is missing: slots.json lists table ${table.name}; prune the model again`,
    );
  }
  const reader = new RandomReader(path);
  try {
    const head = new Uint8Array(Math.min(reader.bytes, NPY_HEADER_BYTES_MAX));
    reader.readInto(head, 0);
    const { dtype, shape, dataOffset } = decodeNpyHeader(head, reader.bytes, path);
    if (dtype !== 'f4') {
      throw new CubeError(
        'UNSUPPORTED',
        `${path}: elements of type ${dtype}, expected f4 (float32)`,
      );
    }
    const [rows, dim] = shape;
    if (shape.length !== 2 || rows !== table.rows || dim !== table.dim) {
      throw new CubeError(
        'CORRUPT',
        `${path}: shape (${shape.join(', ')}), slots.json says ` +
          `(${table.rows}, ${table.dim}); prune the model again`,
      );
    }
    return { ...table, path, dataOffset };
  } finally {
    reader.close();
  }
}

/** Each line a JSON value: what it must hold is the gate's business. */
function readGolden(path: string): Uint8Array {
  const bytes = readFile(path, GOLDEN_BYTES_MAX);
  const lines = new TextDecoder().decode(bytes).split('\n');
  lines.forEach((line, i) => {
    if (line.trim() !== '') JsonReader.parse(line, `${path}: line ${i + 1}`);
  });
  return bytes;
}
