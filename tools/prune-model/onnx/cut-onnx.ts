/** The steps for an ONNX model: read, inline functions, index, find the lookups, cut them out. */

import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import type { KeyMap } from '../../../lib/core/key-expression.ts';
import { readFile } from '../../../lib/platform/files.ts';
import {
  type CutLookup,
  type CutModel,
  type TensorInfo,
  walkExpressions,
} from '../cut/cut-model.ts';
import { DATA_FILE, type FilePart, MODEL_FILE, type StagedOutput } from '../cut/output-folder.ts';
import type { RawField } from '../cut/protobuf-fields.ts';
import { notVerifiedError } from '../cut/refusals.ts';
import { countElements, type Table, TableNames } from '../cut/table.ts';
import { inlineFunctions } from './function-inliner.ts';
import { cutLookups, type GraphCut } from './graph-cutter.ts';
import { collectNames, GraphIndex } from './graph-index.ts';
import { getInputAxes } from './ids-tensor.ts';
import {
  type FoundLookups,
  findGatheringFunctions,
  findOnnxLookups,
  type OnnxCutLookup,
} from './lookup-finder.ts';
import { describeNode, getElementTypeName, type ModelProto, type ValueInfo } from './onnx-model.ts';
import { readOnnxModel } from './onnx-reader.ts';
import {
  type ExternalLocation,
  findKeptExternalTensors,
  type GraphEdit,
  writeOnnxModel,
} from './onnx-writer.ts';
import { countTensorElements, ExternalData, getElementBytes } from './tensor-data.ts';
import { verifyInChildProcess } from './verification-client.ts';

/**
 * @param fetch outputs to keep; empty keeps all. @returns undefined when the model has no lookups
 */
export function cutOnnxModel(path: string, fetch: readonly string[] = []): CutModel | undefined {
  const bytes = readFile(path);
  const external = new ExternalData(path);
  try {
    return cutModel(path, bytes, fetch, external);
  } catch (error) {
    external.close();
    throw error;
  }
}

function cutModel(
  path: string,
  bytes: Uint8Array,
  fetch: readonly string[],
  external: ExternalData,
): CutModel | undefined {
  const parsed = readOnnxModel(bytes, path, external);
  const gathering = findGatheringFunctions(parsed.functions);
  const model = inlineFunctions(parsed, gathering, collectNames(parsed.graph));
  const outputs = resolveFetchedOutputs(model, fetch);
  const index = new GraphIndex(model, outputs);
  const found = findOnnxLookups(model, index, external);
  if (found.lookups.length === 0) {
    external.close();
    return undefined;
  }
  const cut = cutLookups(index, found.lookups, model.opset);
  const moved = planMovedData(model, cut.edit, external);
  const pruned = writeOnnxModel(model, cut.edit, moved.locations);
  const inputs = [...index.runtimeInputs.values()];
  const tables = buildTables(cut);
  return {
    lookups: cut.lookups.map(toCutLookup),
    tables,
    maps: collectKeyMaps(found),
    inputs: inputs.map(toTensorInfo),
    outputs: outputs.map(toTensorInfo),
    keptInputs: describeKeptInputs(index, cut),
    nodes: { before: model.graph.nodes.length, after: cut.nodeCount },
    bytes: { before: bytes.length + external.bytes, after: pruned.length + moved.bytes },
    warnings: buildWarnings(tables),
    writeGraph: (output) => {
      moved.write(output);
      output.writeFile(MODEL_FILE, pruned);
    },
    verify: async (request) => {
      if (request.isolated) return await verifyInChildProcess({ model: path, fetch }, request);
      const { verifyOnnxModel } = await import('./onnx-verification.ts');
      const full = buildFullModel(path, model, index, external);
      return await verifyOnnxModel(
        { model: full, source: path, inputs, lookups: cut.lookups },
        request,
      );
    },
    close: () => external.close(),
  };
}

/** @throws CubeError INVALID_ARGUMENT naming a value that the model does not compute */
function resolveFetchedOutputs(
  { graph }: ModelProto,
  fetch: readonly string[],
): readonly ValueInfo[] {
  if (fetch.length === 0) return graph.outputs;
  const known = [...graph.outputs, ...graph.values];
  return [...new Set(fetch)].map((name) => {
    const value = known.find((candidate) => candidate.name === name);
    if (value !== undefined) return value;
    if (!graph.nodes.some((node) => node.outputs.includes(name))) {
      const outputs = graph.outputs.map((output) => JSON.stringify(output.name)).join(', ');
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--fetch ${name}: the model computes no such value; its outputs are ${outputs}`,
      );
    }
    return { raw: { field: 0, bytes: new Uint8Array(0) }, name, elemType: 0, shape: undefined };
  });
}

/**
 * The full model for the verification: the file, unless --fetch names a value that is not an output
 * of it.
 */
function buildFullModel(
  path: string,
  model: ModelProto,
  index: GraphIndex,
  external: ExternalData,
): string | Uint8Array {
  const declared = new Set(model.graph.outputs.map(({ name }) => name));
  if (index.outputs.every(({ name }) => declared.has(name))) return path;
  const edit: GraphEdit = {
    removed: new Set(),
    replacements: new Map(),
    changedNodes: new Set(),
    newInputs: [],
    newOutputs: index.outputs.filter(({ name }) => !declared.has(name)),
  };
  if (findKeptExternalTensors(model, edit).length > 0 && external.bytes > 0) {
    throw notVerifiedError(
      '--fetch names a value that is not an output, and the model has data in other files',
    );
  }
  return writeOnnxModel(model, edit, new Map());
}

function toTensorInfo({ name, elemType, shape }: ValueInfo): TensorInfo {
  return { name, dtype: getElementTypeName(elemType), shape };
}

function toCutLookup({ node, input, shape, tableName, ids, bags }: OnnxCutLookup): CutLookup {
  return {
    node: describeNode(node),
    input,
    shape,
    table: tableName,
    ids: ids.inputs.map(toTensorInfo),
    keys: ids.keys,
    axes: ids.axes,
    idsAxes: ids.inputs.map(({ name, shape: own }) => getInputAxes(name, own ?? [])),
    ...(bags === undefined
      ? {}
      : {
          bags: {
            pooling: bags.pooling,
            offsets: bags.offsets,
            ...(bags.offsetsRow === undefined ? {} : { offsetsRow: bags.offsetsRow }),
            includesLast: bags.includesLast,
          },
        }),
    ...(bags?.paddingId === undefined ? {} : { paddingId: bags.paddingId }),
  };
}

function describeKeptInputs(index: GraphIndex, cut: GraphCut): CutModel['keptInputs'] {
  return cut.keptInputs.map((value) => ({
    ...toTensorInfo(value),
    readers: index
      .findReaders(value.name)
      .filter((node) => cut.keptNodes.has(node))
      .map(({ opType }) => opType),
  }));
}

/** The integer constants that the keys are mapped through. */
function collectKeyMaps({ lookups, tracer }: FoundLookups): KeyMap[] {
  const named = new Set<string>();
  const keys = lookups.flatMap(({ ids }) => [...ids.keys]);
  for (const key of walkExpressions(keys)) if (key.op === 'map') named.add(key.map);
  return [...named].map((name) => {
    const { values } = requireDefined(tracer.maps.get(name), 'the values of a key map');
    return { name, values: BigInt64Array.from(values) };
  });
}

function buildTables(cut: GraphCut): Table[] {
  const names = new TableNames();
  const tables = new Map<string, Table>();
  for (const { tableName, table } of cut.lookups) {
    if (tables.has(tableName)) continue;
    const [rows = 0, ...inner] = table.dims;
    const dim = countElements(inner);
    const keptFor = [...new Set(table.sources.flatMap((leaf) => cut.describeReaders(leaf)))];
    const name = names.claim(tableName);
    const readRows = (first: number, target: Float32Array): void => table.read(first * dim, target);
    tables.set(tableName, {
      name,
      source: tableName,
      remainingReaders: keptFor,
      rows,
      dim,
      readRows,
    });
  }
  return [...tables.values()];
}

function buildWarnings(tables: readonly Table[]): string[] {
  return tables
    .filter(({ remainingReaders }) => remainingReaders.length > 0)
    .map(
      ({ name, remainingReaders }) =>
        `table ${name} also stays in the graph, where it is read by ${remainingReaders.join(', ')}`,
    );
}

/** Data of kept tensors that moves from other files to DATA_FILE. */
interface MovedData {
  readonly locations: ReadonlyMap<RawField, ExternalLocation>;
  readonly bytes: number;
  write(output: StagedOutput): void;
}

/** Alignment of offsets, so that a reader can map the data into memory. */
const DATA_ALIGNMENT = 4096;

function planMovedData(model: ModelProto, edit: GraphEdit, external: ExternalData): MovedData {
  const locations = new Map<RawField, ExternalLocation>();
  const sources = findKeptExternalTensors(model, edit).map((tensor) => {
    const length = countTensorElements(tensor) * (getElementBytes(tensor.elemType) ?? 1);
    return { tensor, length, data: external.open(tensor) };
  });
  let end = 0;
  const parts: FilePart[] = [];
  for (const { tensor, data, length } of sources) {
    const offset = Math.ceil(end / DATA_ALIGNMENT) * DATA_ALIGNMENT;
    locations.set(tensor.raw, { location: DATA_FILE, offset, length });
    parts.push({ ...data, position: offset });
    end = offset + length;
  }
  const write = (output: StagedOutput): void => {
    if (parts.length > 0) output.writeParts(DATA_FILE, parts);
  };
  return { locations, bytes: end, write };
}
