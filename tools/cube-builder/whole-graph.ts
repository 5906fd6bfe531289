/**
 * `cube-builder graph`: publishes a graph as it is, with its embeddings inside, as a version without tables (`serving --store
 * none`). Its integer inputs are ids that it takes itself, its inputs of floats are dense features.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import {
  type GraphPort,
  type IdsSpec,
  readTrainedFeatures,
  type SlotSpec,
  slotSpecToJson,
  type TrainedFeatures,
} from '../../lib/core/slots.ts';
import { readFile, readText } from '../../lib/platform/files.ts';
import { OnnxModel, type OnnxPort } from '../../lib/platform/onnx.ts';
import { VERSION_FILE_BYTES_MAX } from '../../lib/repository/repository.ts';
import { bytesSha256 } from '../../lib/repository/verified-copy.ts';
import { readGolden } from './pruned-model.ts';

export interface WholeGraphOptions {
  readonly model: string;
  readonly bundle: string;
  readonly curVersion: string;
  /** features.json of the training script; without it requests name the graph's inputs. */
  readonly features?: string;
  readonly golden?: string;
}

export interface WholeGraph {
  readonly manifest: Manifest;
  readonly files: ReadonlyMap<string, Uint8Array>;
}

/** The version, ready to publish. @throws CubeError naming the input that cannot be served, or what features.json says wrong */
export async function wholeGraph(options: WholeGraphOptions): Promise<WholeGraph> {
  const { model, bundle, curVersion: version, golden } = options;
  const graph = readFile(model, VERSION_FILE_BYTES_MAX);
  const loaded = await OnnxModel.load(graph, { source: model });
  const { inputs, outputs } = loaded;
  await loaded.release();
  const features =
    options.features === undefined
      ? undefined
      : readTrainedFeatures(JsonReader.parse(readText(options.features), options.features));
  const spec = specOf(model, inputs, outputs, features);
  const files = new Map([
    ['model.onnx', graph],
    ['slots.json', new TextEncoder().encode(JSON.stringify(slotSpecToJson(spec)))],
    ...(golden === undefined ? [] : [['golden.jsonl', readGolden(golden)] as const]),
  ]);
  const listed = Array.from(files, ([path, bytes]) => {
    return { path, bytes: bytes.length, sha256: bytesSha256(bytes) };
  });
  const hash = features?.hash ?? { scheme: 'raw', seed: 0n, modulo: 0n };
  const slots = features?.slots ?? [];
  return { manifest: { bundle, version, files: listed, hash, slots, tables: [] }, files };
}

function specOf(
  model: string,
  inputs: readonly OnnxPort[],
  outputs: readonly OnnxPort[],
  features: TrainedFeatures | undefined,
): SlotSpec {
  const ids: IdsSpec[] = [];
  const dense: GraphPort[] = [];
  for (const port of inputs) {
    const columns = columnsOf(model, port);
    const { name: input, dtype } = port;
    if (dtype === 'int64' || dtype === 'int32') {
      ids.push({ input, dtype, columns, slots: slotsOf(input, columns, features), kept: true });
    } else {
      dense.push({ name: input, dtype, shape: [-1, columns] });
    }
  }
  if (ids.length === 0) refuse(`${model} has no integer inputs: nothing in it looks like ids`);
  for (const { input } of features?.ids ?? []) {
    if (ids.some((known) => known.input === input)) continue;
    refuse(`features.json: ids: ${model} has no integer input ${JSON.stringify(input)}`);
  }
  return {
    ...{ embeddings: [], tables: [], ids, features },
    graph: { inputs: dense, outputs: outputs.map(({ name, dtype }) => ({ name, dtype })) },
  };
}

/** Elements in a row. */
function columnsOf(model: string, { name, dtype, shape }: OnnxPort): number {
  const [batch, columns = 1, ...others] = shape;
  const isFit = /^(int(32|64)|float(16|32))$/.test(dtype) && others.length === 0;
  if (!isFit || typeof batch === 'number' || typeof columns !== 'number' || columns < 1) {
    const text = `input ${JSON.stringify(name)} is ${dtype} [${shape.join(', ')}]`;
    refuse(`${model}: ${text}; a graph is served whole with inputs [batch, columns], batch open`);
  }
  return columns;
}

function slotsOf(
  input: string,
  columns: number,
  features: TrainedFeatures | undefined,
): readonly string[] {
  if (features === undefined) return [];
  const { slots } = features.ids.find((ids) => ids.input === input) ?? { slots: [] };
  if (slots.length === columns) return slots;
  return refuse(
    `features.json: ids: ${slots.length} slots for the input ${JSON.stringify(input)}, which has ${columns} columns`,
  );
}

function refuse(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
