/** An ONNX model through the steps of this folder: read, index, find the lookups, cut them out. */
import { readFile } from '../../../lib/platform/files.ts';
import type { CutModel, Port } from '../cut-model.ts';
import { MODEL_FILE } from '../output-folder.ts';
import { type Table, TableNames } from '../table.ts';
import { type Cut, cutLookups } from './graph-cutter.ts';
import { GraphIndex } from './graph-index.ts';
import { findLookups } from './lookup-finder.ts';
import { describeNode, elemName, type OnnxValue } from './onnx-model.ts';
import { provePruned } from './onnx-proof.ts';
import { readOnnxModel } from './onnx-reader.ts';
import { writeOnnxModel } from './onnx-writer.ts';
import { readTable } from './table-source.ts';

/** @returns undefined when the model has no lookups. @throws CubeError CORRUPT or UNSUPPORTED */
export function cutOnnxModel(path: string): CutModel | undefined {
  const bytes = readFile(path);
  const model = readOnnxModel(bytes, path);
  const index = new GraphIndex(model);
  const found = findLookups(model, index);
  if (found.length === 0) return undefined;
  const cut = cutLookups(index, found);
  const pruned = writeOnnxModel(model, cut.edit);
  return {
    lookups: cut.lookups.map(({ node, input, shape, tableName, ids }) => ({
      node: describeNode(node),
      input,
      shape,
      table: tableName,
      ids: toPort(ids.input),
      columns: ids.columns,
    })),
    tables: tablesOf(cut),
    inputs: [...index.runtimeInputs.values()].map(toPort),
    outputs: index.graph.outputs.map(toPort),
    keptInputs: cut.keptInputs.map((value) => ({
      ...toPort(value),
      readers: index
        .readers(value.name)
        .filter((node) => cut.keptNodes.has(node))
        .map(({ opType }) => opType),
    })),
    nodes: { before: model.graph.nodes.length, after: cut.nodeCount },
    bytes: { before: bytes.length, after: pruned.length },
    writeGraph: (output) => output.writeFile(MODEL_FILE, pruned),
    prove: (request) => {
      const inputs = [...index.runtimeInputs.values()];
      return provePruned({ model: bytes, source: path, inputs, lookups: cut.lookups }, request);
    },
  };
}

function toPort({ name, elemType, shape }: OnnxValue): Port {
  return { name, dtype: elemName(elemType), shape };
}

/** Each table once, however many lookups share it. */
function tablesOf(cut: Cut): Table[] {
  const names = new TableNames();
  const tables = new Map<string, Table>();
  for (const { tableName, table } of cut.lookups) {
    if (tables.has(tableName)) continue;
    const keptFor = cut.keptTables.get(tableName) ?? [];
    const name = names.claim(tableName);
    tables.set(tableName, { name, source: tableName, keptFor, ...readTable(table) });
  }
  return [...tables.values()];
}
