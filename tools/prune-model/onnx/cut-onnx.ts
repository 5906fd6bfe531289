/** An ONNX model through the steps of this folder: read, index, find the lookups, cut them out. */
import { CubeError } from '../../../lib/core/errors.ts';
import type { KeyMap } from '../../../lib/core/key-expression.ts';
import { readFile } from '../../../lib/platform/files.ts';
import type { CutLookup as Cut, CutModel, Port } from '../cut-model.ts';
import { MODEL_FILE, type StagedOutput } from '../output-folder.ts';
import { type Table, TableNames } from '../table.ts';
import { inlineFunctions } from './function-inliner.ts';
import { cutLookups, type Cut as GraphCut } from './graph-cutter.ts';
import { collectNames, GraphIndex } from './graph-index.ts';
import {
  type CutLookup,
  type FoundLookups,
  findLookups,
  gatheringFunctions,
} from './lookup-finder.ts';
import { describeNode, elemName, type OnnxModel, type OnnxValue } from './onnx-model.ts';
import { readOnnxModel } from './onnx-reader.ts';
import { type GraphEdit, keptExternal, type NewPlace, writeOnnxModel } from './onnx-writer.ts';
import { proveApart } from './proof-client.ts';
import { countOf } from './table-source.ts';
import { ExternalData, elemBytes, elementCount } from './tensor-data.ts';

/** What the output calls the data of kept tensors that were in another file. */
const DATA_FILE = 'model.onnx.data';

/** @param fetch the outputs to keep; all when there are none. @returns undefined when the model has no lookups */
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
  const read = readOnnxModel(bytes, path, external);
  const gathering = gatheringFunctions(read.functions);
  const model = inlineFunctions(read, gathering, collectNames(read.graph));
  const outputs = fetchedOutputs(model, fetch);
  const index = new GraphIndex(model, outputs);
  const found = findLookups(model, index, external);
  if (found.lookups.length === 0) {
    external.close();
    return undefined;
  }
  const cut = cutLookups(index, found.lookups, model.opset);
  const places = placesOf(model, cut.edit, external);
  const pruned = writeOnnxModel(model, cut.edit, places.places);
  const inputs = [...index.runtimeInputs.values()];
  const tables = tablesOf(cut);
  return {
    lookups: cut.lookups.map(toNeutral),
    tables,
    maps: mapsOf(found),
    inputs: inputs.map(toPort),
    outputs: outputs.map(toPort),
    keptInputs: keptInputs(index, cut),
    nodes: { before: model.graph.nodes.length, after: cut.nodeCount },
    bytes: { before: bytes.length + external.bytes, after: pruned.length + places.bytes },
    warnings: warningsOf(tables),
    writeGraph: (output) => {
      places.write(output);
      output.writeFile(MODEL_FILE, pruned);
    },
    prove: async (request) => {
      if (request.isolated) return await proveApart({ model: path, fetch }, request);
      const { provePruned } = await import('./onnx-proof.ts');
      const full = fetchedModel(path, model, index, external);
      return await provePruned(
        { model: full, source: path, inputs, lookups: cut.lookups },
        request,
      );
    },
    close: () => external.close(),
  };
}

/** @throws CubeError INVALID_ARGUMENT naming what nothing makes */
function fetchedOutputs({ graph }: OnnxModel, fetch: readonly string[]): readonly OnnxValue[] {
  if (fetch.length === 0) return graph.outputs;
  const known = [...graph.outputs, ...graph.values];
  return [...new Set(fetch)].map((name) => {
    const value = known.find((candidate) => candidate.name === name);
    if (value !== undefined) return value;
    if (!graph.nodes.some((node) => node.outputs.includes(name))) {
      const outputs = graph.outputs.map((output) => JSON.stringify(output.name)).join(', ');
      throw new CubeError(
        'INVALID_ARGUMENT',
        `--fetch ${name}: the model makes no such value (its outputs are ${outputs})`,
      );
    }
    return { raw: { field: 0, bytes: new Uint8Array(0) }, name, elemType: 0, shape: undefined };
  });
}

/** The full model as the proof runs it: the file, unless --fetch names a value that is not an output of it. */
function fetchedModel(
  path: string,
  model: OnnxModel,
  index: GraphIndex,
  external: ExternalData,
): string | Uint8Array {
  const declared = new Set(model.graph.outputs.map(({ name }) => name));
  if (index.outputs.every(({ name }) => declared.has(name))) return path;
  const edit: GraphEdit = {
    removed: new Set(),
    replacements: new Map(),
    changed: new Set(),
    newInputs: [],
    newOutputs: index.outputs.filter(({ name }) => !declared.has(name)),
  };
  if (keptExternal(model, edit).length > 0 && external.bytes > 0) {
    throw new CubeError(
      'UNSUPPORTED',
      'not proved: --fetch names a value that is not an output, and the model has data in other files; --verify 0 accepts it without proof',
    );
  }
  return writeOnnxModel(model, edit, new Map());
}

function toPort({ name, elemType, shape }: OnnxValue): Port {
  return { name, dtype: elemName(elemType), shape };
}

function toNeutral({ node, input, shape, tableName, ids, bags }: CutLookup): Cut {
  return {
    node: describeNode(node),
    input,
    shape,
    table: tableName,
    ids: ids.inputs.map(toPort),
    keys: ids.keys,
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

function keptInputs(index: GraphIndex, cut: GraphCut): CutModel['keptInputs'] {
  return cut.keptInputs.map((value) => ({
    ...toPort(value),
    readers: index
      .readers(value.name)
      .filter((node) => cut.keptNodes.has(node))
      .map(({ opType }) => opType),
  }));
}

/** The integer constants that the keys go through. */
function mapsOf({ lookups, tracer }: FoundLookups): KeyMap[] {
  const named = new Set<string>();
  const seen = new Set<object>();
  const queue = lookups.flatMap(({ ids }) => [...ids.keys]);
  for (let key = queue.pop(); key !== undefined; key = queue.pop()) {
    if (seen.has(key)) continue;
    seen.add(key);
    if (key.op === 'map') named.add(key.map);
    if (key.op !== 'column' && key.op !== 'int') queue.push(...key.of);
  }
  return [...named].map((name) => {
    const { values } = tracer.maps.get(name)!;
    return { name, values: BigInt64Array.from(values) };
  });
}

/** Each table once, however many lookups share it. */
function tablesOf(cut: GraphCut): Table[] {
  const names = new TableNames();
  const tables = new Map<string, Table>();
  for (const { tableName, table } of cut.lookups) {
    if (tables.has(tableName)) continue;
    const [rows = 0, ...inner] = table.dims;
    const dim = countOf(inner);
    const keptFor = [...new Set(table.leaves.flatMap((leaf) => cut.readersOf(leaf)))];
    const name = names.claim(tableName);
    const readRows = (first: number, target: Float32Array): void => table.read(first * dim, target);
    tables.set(tableName, { name, source: tableName, keptFor, rows, dim, readRows });
  }
  return [...tables.values()];
}

function warningsOf(tables: readonly Table[]): string[] {
  return tables
    .filter(({ keptFor }) => keptFor.length > 0)
    .map(
      ({ name, keptFor }) =>
        `table ${name} also stays in the graph: ${keptFor.join(', ')} reads it`,
    );
}

/** Data of kept tensors moves to a file of the output's own. */
interface Places {
  readonly places: ReadonlyMap<OnnxValue['raw'], NewPlace>;
  readonly bytes: number;
  write(output: StagedOutput): void;
}

/** Offsets are multiples of it, so that a reader may map them. */
const PLACE_ALIGNMENT = 4096;

function placesOf(model: OnnxModel, edit: GraphEdit, external: ExternalData): Places {
  const places = new Map<OnnxValue['raw'], NewPlace>();
  const sources = keptExternal(model, edit).map((tensor) => {
    const length = elementCount(tensor) * (elemBytes(tensor.elemType) ?? 1);
    return { tensor, length, data: external.open(tensor) };
  });
  let end = 0;
  for (const { tensor, length } of sources) {
    const offset = Math.ceil(end / PLACE_ALIGNMENT) * PLACE_ALIGNMENT;
    places.set(tensor.raw, { location: DATA_FILE, offset, length });
    end = offset + length;
  }
  const write = (output: StagedOutput): void => {
    if (sources.length === 0) return;
    output.writePieces(
      DATA_FILE,
      sources.map(({ tensor, data }) => ({ ...data, position: places.get(tensor.raw)!.offset })),
    );
  };
  return { places, bytes: end, write };
}
