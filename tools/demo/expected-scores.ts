/**
 * Computes the expected scores of the demo rows: with the unpruned model, or with the pruned graph
 * and rows read directly from the tables. The demo compares its predictions with them.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { LabelledFeatureRows } from '../../lib/core/feature-rows.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { decodeNpy } from '../../lib/core/npy.ts';
import {
  type EmbeddingInput,
  type FeatureSpec,
  readSlotSpec,
  readTrainedFeatures,
} from '../../lib/core/slots.ts';
import { parseTsvRows } from '../../lib/core/tsv-rows.ts';
import { readFile, readText } from '../../lib/platform/files.ts';
import { OnnxModel, type OnnxTensor } from '../../lib/platform/onnx.ts';

/** One click probability per row. */
export type ExpectedScores = Float64Array;

const ROWS_MAX = 1_000_000;

interface KeyedRows extends LabelledFeatureRows {
  /** rowCount × slots; the demo's keys are row numbers of its table, far below 2^53. */
  readonly ids: BigInt64Array;
}

function readRows(path: string, spec: FeatureSpec): KeyedRows {
  const columns = parseTsvRows(readText(path), spec, ROWS_MAX);
  const ids = new BigInt64Array(columns.rowCount * spec.slots.length);
  const keys = new Uint32Array(ids.buffer);
  new RowHasher(spec.hash, spec.slots).hashRows(columns.features, columns.rowCount, keys);
  return { ...columns, ids };
}

function slotColumns(spec: FeatureSpec, names: readonly string[]): number[] {
  return names.map((name) => spec.slots.findIndex((slot) => slot.name === name));
}

async function score(
  model: OnnxModel,
  spec: FeatureSpec,
  rows: KeyedRows,
  feeds: Record<string, OnnxTensor>,
): Promise<ExpectedScores> {
  if (spec.dense !== undefined) {
    const dims = [rows.rowCount, spec.dense.features.length];
    feeds[spec.dense.input] = { dtype: 'float32', data: rows.dense, dims };
  }
  const outputs = await model.run(feeds);
  await model.release();
  const output = outputs[spec.click.output] as OnnxTensor;
  const width = output.data.length / rows.rowCount;
  return Float64Array.from({ length: rows.rowCount }, (_, row) =>
    Number(output.data[row * width + spec.click.column]),
  );
}

/** Scores of the trained model, with its lookups inside. */
export async function scoreFull(
  modelPath: string,
  featuresPath: string,
  rowsPath: string,
): Promise<ExpectedScores> {
  const spec = readTrainedFeatures(JsonReader.parse(readText(featuresPath), featuresPath));
  const rows = readRows(rowsPath, spec);
  const feeds: Record<string, OnnxTensor> = {};
  for (const { input, slots } of spec.ids) {
    const columns = slotColumns(spec, slots);
    const data = new BigInt64Array(rows.rowCount * slots.length);
    for (let row = 0, at = 0; row < rows.rowCount; row++) {
      for (const column of columns)
        data[at++] = rows.ids[row * spec.slots.length + column] as bigint;
    }
    feeds[input] = { dtype: 'int64', data, dims: [rows.rowCount, slots.length] };
  }
  return score(await OnnxModel.load(readFile(modelPath)), spec, rows, feeds);
}

/** Scores of a pruned model: its graph, with rows read from its `.npy` tables. */
export async function scorePruned(folder: string, rowsPath: string): Promise<ExpectedScores> {
  const path = join(folder, 'slots.json');
  const { features: spec, embeddings } = readSlotSpec(JsonReader.parse(readText(path), path));
  if (spec === undefined) {
    throw new CubeError('INVALID_ARGUMENT', `${path}: no "features": prune with --features`);
  }
  const rows = readRows(rowsPath, spec);
  const feeds: Record<string, OnnxTensor> = {};
  for (const embedding of embeddings) {
    feeds[embedding.input] = gather(folder, embedding, spec, rows);
  }
  return score(await OnnxModel.load(readFile(join(folder, 'model.onnx'))), spec, rows, feeds);
}

function gather(
  folder: string,
  embedding: EmbeddingInput,
  spec: FeatureSpec,
  rows: KeyedRows,
): OnnxTensor {
  const { dim, slots, table } = embedding;
  const path = join(folder, 'tables', `${table}.npy`);
  const weights = decodeNpy(readFile(path), path).data as Float32Array;
  const columns = slotColumns(spec, slots);
  const data = new Float32Array(rows.rowCount * slots.length * dim);
  for (let row = 0, at = 0; row < rows.rowCount; row++) {
    for (const column of columns) {
      const id = Number(rows.ids[row * spec.slots.length + column]);
      data.set(weights.subarray(id * dim, (id + 1) * dim), at);
      at += dim;
    }
  }
  const dims = embedding.shape.map((size) => (size === -1 ? rows.rowCount : size));
  return { dtype: 'float32', data, dims };
}

/** Reads the probabilities from a predictions file of ctr-client; its header names the columns. */
export function readPredictions(text: string, source: string): ExpectedScores {
  const [header = '', ...lines] = text.trimEnd().split('\n');
  const column = header.split('\t').indexOf('probability');
  if (column < 0) throw new CubeError('INVALID_ARGUMENT', `${source}: no column "probability"`);
  return Float64Array.from(lines, (line) => Number(line.split('\t')[column]));
}
