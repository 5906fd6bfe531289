/**
 * `cube-builder graph`: publishes a whole graph as a version without tables. Integer inputs of the
 * graph are ids, float inputs dense features; with `--plain` the version has no slots.json, and
 * requests give the inputs of the graph as tensors.
 */
import { dirname, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { GOLDEN_FILE } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { NAME_PATTERN } from '../../lib/core/names.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import {
  type GraphPort,
  type IdsSpec,
  readTrainedFeatures,
  type SlotSpec,
  slotSpecToJson,
  type TrainedFeatures,
} from '../../lib/core/slots.ts';
import { ComputedKeys } from '../../lib/features/computed-keys.ts';
import { findBagOfIds } from '../../lib/features/feature-checks.ts';
import { findFeatureWarnings } from '../../lib/features/feature-warnings.ts';
import { planGraph } from '../../lib/features/graph-plan.ts';
import { GraphRunner } from '../../lib/features/graph-runner.ts';
import { addImpliedFeatures } from '../../lib/features/implied-features.ts';
import { fileExists, readFile, readText } from '../../lib/platform/files.ts';
import { OnnxModel, type OnnxValueInfo } from '../../lib/platform/onnx.ts';
import { VERSION_FILE_BYTES_MAX } from '../../lib/repository/layout.ts';
import { listExternalFiles } from '../../proto/onnx-external.ts';
import { readGraphSignature } from '../../proto/onnx-signature.ts';
import { getEncryption, storeFiles } from './encryption.ts';
import { checkClickColumn } from './graph-check.ts';
import { checkLargestKeys } from './largest-keys.ts';
import { readGolden } from './pruned-model.ts';

const MODEL_FILE = 'model.onnx';
const SLOTS_FILE = 'slots.json';
/** Names of other files of a version. */
const RESERVED_NAMES = /^(model\.onnx|slots\.json|golden\.jsonl|policy\.json|(manifest|keys)\..*)$/;
/** A version has at most 1,000 files. */
const DATA_FILES_MAX = 900;
/** Rows of the larger of two batches that the graph is run with. */
const CHECKED_ROWS = 2;

export interface WholeGraphOptions {
  readonly model: string;
  readonly bundle: string;
  readonly curVersion: string;
  /** features.json of the training script; without it requests use the graph's input names. */
  readonly features?: string;
  readonly golden?: string;
  /** Publishes although features.json looks wrong. */
  readonly accept?: boolean;
  readonly plain?: boolean;
}

export interface WholeGraph {
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<string, Uint8Array>;
}

/**
 * Makes the version, ready to publish.
 * @throws CubeError for a graph input that cannot be served, or a wrong field of features.json
 */
export async function createWholeGraph(options: WholeGraphOptions): Promise<WholeGraph> {
  const { model } = options;
  const graph = readFile(model, VERSION_FILE_BYTES_MAX);
  const data = readExternalData(model, graph);
  const created = await createFromGraph(options, graph, data);
  // One session at a time: a graph may take much of the memory.
  if (created.spec !== undefined) await checkServable(model, created, { model: graph, data });
  return created.version;
}

interface CreatedVersion {
  readonly version: WholeGraph;
  /** Undefined for a plain model. */
  readonly spec?: SlotSpec;
}

async function createFromGraph(
  options: WholeGraphOptions,
  graph: Uint8Array,
  data: ReadonlyMap<string, Uint8Array>,
): Promise<CreatedVersion> {
  const loaded = await OnnxModel.load(graph, { source: options.model, externalData: data });
  try {
    if (options.plain) return { version: createPlainModel(options, graph, data) };
    return await createIdsModel(options, graph, loaded, data);
  } finally {
    await loaded.release();
  }
}

/** @throws CubeError INVALID_ARGUMENT for inputs, widths or outputs that differ from the graph's */
async function checkServable(
  model: string,
  { version: { manifest }, spec }: CreatedVersion,
  graph: { readonly model: Uint8Array; readonly data: ReadonlyMap<string, Uint8Array> },
): Promise<void> {
  if (spec === undefined) return;
  const complete = addImpliedFeatures(spec, model);
  const plan = planGraph(complete, manifest, new ComputedKeys(complete));
  const source = `features.json does not match ${model}`;
  try {
    const runner = await GraphRunner.load(graph, { ...plan, source }, CHECKED_ROWS);
    await runner.release();
  } catch (error) {
    const { code, message } = CubeError.from(error);
    // Users wrote features.json, from which slots.json is made.
    throw new CubeError(code, message.replaceAll('slots.json', 'it'), { cause: error });
  }
}

/** @throws CubeError for a graph input that cannot be served, or a wrong field of features.json */
async function createIdsModel(
  options: WholeGraphOptions,
  graph: Uint8Array,
  loaded: OnnxModel,
  data: ReadonlyMap<string, Uint8Array>,
): Promise<CreatedVersion> {
  const { model, bundle, curVersion: version, golden } = options;
  const { inputs, outputs } = loaded;
  const features =
    options.features === undefined
      ? undefined
      : readTrainedFeatures(JsonReader.parseFile(readText(options.features), options.features));
  if (features !== undefined) {
    checkClickColumn(features.click, outputs, model);
    if (options.accept !== true) rejectDoubts(features);
  }
  const spec = createSlotSpec(model, inputs, outputs, features);
  if (features !== undefined) {
    const problem = findBagOfIds(features, spec.ids);
    if (problem !== undefined) failInvalid(`features.json does not match ${model}: ${problem}`);
    await checkLargestKeys(loaded, model, spec, features);
  }
  const files = new Map([
    [MODEL_FILE, graph],
    ...data,
    [SLOTS_FILE, new TextEncoder().encode(JSON.stringify(slotSpecToJson(spec)))],
    ...(golden === undefined ? [] : [[GOLDEN_FILE, readGolden(golden, features)] as const]),
  ]);
  const hash = features?.hash ?? { scheme: 'raw', seed: 0n, modulo: 0n };
  const slots = features?.slots ?? [];
  return { version: createVersion({ bundle, version, hash, slots }, files), spec };
}

/** The tables are inside the graph, so a modulo that is too small is not found. */
function rejectDoubts(features: TrainedFeatures): void {
  const doubts = findFeatureWarnings({ features, ids: features.ids, embeddings: [], tables: [] });
  if (doubts.length === 0) return;
  failInvalid(
    `features.json looks wrong: ${doubts.join('; ')}. Correct it, or publish with --accept`,
  );
}

/** @throws CubeError for a graph that the engine cannot exchange tensors with */
function createPlainModel(
  { model, bundle, curVersion: version }: WholeGraphOptions,
  graph: Uint8Array,
  data: ReadonlyMap<string, Uint8Array>,
): WholeGraph {
  readGraphSignature(graph, model);
  const files = new Map([[MODEL_FILE, graph], ...data]);
  const hash = { scheme: 'raw', seed: 0n, modulo: 0n } as const;
  return createVersion({ bundle, version, hash, slots: [] }, files);
}

/**
 * The files beside a model with the tensors that are not in it; they keep their names, which the
 * graph has.
 * @throws CubeError NOT_FOUND; INVALID_ARGUMENT for a name that a version cannot have
 */
function readExternalData(model: string, graph: Uint8Array): ReadonlyMap<string, Uint8Array> {
  const read = (name: string): [string, Uint8Array] => {
    const where = `${model} has tensors in the file ${quoteInput(name)}`;
    if (!NAME_PATTERN.test(name) || RESERVED_NAMES.test(name)) {
      failInvalid(
        `${where}; a version can have it under another name only: save the model as one file, or ` +
          'with a name of letters, digits, "_", "-", ".", such as weights.bin',
      );
    }
    const path = join(dirname(model), name);
    if (fileExists(path)) return [name, readFile(path, VERSION_FILE_BYTES_MAX)];
    throw new CubeError('NOT_FOUND', `${where}, which is not beside it: ${path} does not exist`);
  };
  const names = listExternalFiles(graph, model);
  if (names.length > DATA_FILES_MAX) {
    failInvalid(
      `${model} has tensors in ${names.length} files, and at most ${DATA_FILES_MAX} can be ` +
        'published; save the model with one file for all tensors',
    );
  }
  return new Map(names.map(read));
}

function createVersion(
  fields: Pick<Manifest, 'bundle' | 'version' | 'hash' | 'slots'>,
  clear: ReadonlyMap<string, Uint8Array>,
): WholeGraph {
  const { files, listed } = storeFiles(clear);
  const manifest = { ...fields, files: listed, tables: [], encryption: getEncryption() };
  return { manifest, files };
}

function createSlotSpec(
  model: string,
  inputs: readonly OnnxValueInfo[],
  outputs: readonly OnnxValueInfo[],
  features: TrainedFeatures | undefined,
): SlotSpec {
  const ids: IdsSpec[] = [];
  const dense: GraphPort[] = [];
  for (const port of inputs) {
    const columns = countColumns(model, port);
    const { name: input, dtype } = port;
    if (dtype === 'int64' || dtype === 'int32') {
      ids.push({ input, dtype, columns, slots: findSlots(input, columns, features), kept: true });
    } else {
      dense.push({ name: input, dtype, shape: [-1, columns] });
    }
  }
  if (ids.length === 0)
    failInvalid(
      `${model} has no integer inputs, so requests could not contain ids; --plain publishes it ` +
        'for requests of tensors',
    );
  for (const { input } of features?.ids ?? []) {
    if (ids.some((candidate) => candidate.input === input)) continue;
    failInvalid(`features.json: ids: ${model} has no integer input ${JSON.stringify(input)}`);
  }
  return {
    embeddings: [],
    tables: [],
    ids,
    features,
    graph: { inputs: dense, outputs: outputs.map(({ name, dtype }) => ({ name, dtype })) },
  };
}

/** Returns the number of elements per row of an input. */
function countColumns(model: string, { name, dtype, shape }: OnnxValueInfo): number {
  const [batch, columns = 1, ...others] = shape;
  const isSupported = /^(int(32|64)|float(16|32))$/.test(dtype) && others.length === 0;
  if (!isSupported || typeof batch === 'number' || typeof columns !== 'number' || columns < 1) {
    const text = `input ${JSON.stringify(name)} is ${dtype} [${shape.join(', ')}]`;
    failInvalid(
      `${model}: ${text}; expected [batch, columns] with a dynamic batch size, or --plain`,
    );
  }
  return columns;
}

function findSlots(
  input: string,
  columns: number,
  features: TrainedFeatures | undefined,
): readonly string[] {
  if (features === undefined) return [];
  const { slots } = features.ids.find((ids) => ids.input === input) ?? { slots: [] };
  if (slots.length === columns) return slots;
  return failInvalid(
    `features.json: ids: ${slots.length} slots for the input ${JSON.stringify(input)}, which has ` +
      `${columns} columns`,
  );
}

function failInvalid(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
