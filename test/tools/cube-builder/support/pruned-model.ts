/** Writes a folder like prune-model, with tables of known numbers and a slot for each. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { encodeNpyHeader } from '../../../../lib/core/npy.ts';
import { slotSpecToJson } from '../../../../lib/core/slots.ts';
import { WireWriter } from '../../../../proto/wire.ts';
import { FLOAT, model, node, value } from '../../prune-model/support/onnx-builder.ts';

export interface TableSpec {
  readonly name: string;
  readonly rows: number;
  readonly dim: number;
}

/** Element j of row i. */
export function computeElement(table: string, i: number, j: number): number {
  return Math.fround(table.length + i + j / 100);
}

function encodeTable({ name, rows, dim }: TableSpec): Uint8Array {
  const data = new Float32Array(rows * dim);
  for (let i = 0; i < rows; i++) {
    for (let j = 0; j < dim; j++) data[i * dim + j] = computeElement(name, i, j);
  }
  const header = encodeNpyHeader('f4', [rows, dim]);
  const bytes = new Uint8Array(header.length + data.byteLength);
  bytes.set(header);
  bytes.set(new Uint8Array(data.buffer), header.length);
  return bytes;
}

/** A graph with one row of each table as input; a different `name` makes a different graph. */
export function createGraph(tables: readonly TableSpec[], name: string): Uint8Array {
  const attributes = { axes: [1, 2], keepdims: 0 };
  const means = tables.map((table) => `mean of ${table.name}`);
  return model({
    inputs: tables.map((table) => value(`input of ${table.name}`, FLOAT, ['batch', 1, table.dim])),
    outputs: [value('prob', FLOAT, ['batch'])],
    nodes: [
      ...tables.map((table, i) =>
        node('ReduceMean', [`input of ${table.name}`], [means[i] as string], { attributes }),
      ),
      node('Sum', means, ['prob']),
    ],
    extra: new WireWriter().string(6, name).finish(),
  });
}

/** @returns folder */
export function writePrunedModel(
  folder: string,
  tables: readonly TableSpec[],
  graph = 'graph',
): string {
  mkdirSync(join(folder, 'tables'), { recursive: true });
  writeFileSync(join(folder, 'model.onnx'), createGraph(tables, graph));
  const spec = {
    tables: tables.map((table) => ({
      ...table,
      dtype: 'f32' as const,
      ...(table.rows === 0 ? { external: true } : {}),
    })),
    embeddings: tables.map(({ name, dim }, i) => ({
      input: `input of ${name}`,
      table: name,
      dim,
      dtype: 'f32' as const,
      shape: [-1, 1, dim],
      slots: [`C${i + 1}`],
      ids: 'ids',
    })),
    features: {
      hash: { scheme: 'xxh64-concat' as const, seed: 7n, modulo: 100_000n },
      slots: tables.map(({ rows }, i) => ({
        name: `C${i + 1}`,
        index: 14 + i,
        modulo: BigInt(rows),
      })),
      dense: undefined,
      click: { output: 'prob', column: 0 },
    },
  };
  writeFileSync(join(folder, 'slots.json'), JSON.stringify(slotSpecToJson(spec)));
  for (const table of tables) {
    writeFileSync(join(folder, 'tables', `${table.name}.npy`), encodeTable(table));
  }
  return folder;
}
