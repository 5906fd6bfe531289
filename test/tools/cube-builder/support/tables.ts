/** Writes tables as .npy files, runs the builder, and reads tables back from a repository. */
import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { keyToBigint } from '../../../../lib/core/keys.ts';
import { encodeNpyHeader } from '../../../../lib/core/npy.ts';
import { decodeRows, type RowDtype } from '../../../../lib/core/row-codec.ts';
import { openRepository } from '../../../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../../../lib/store/layer-file.ts';
import { runBuild } from '../../../../tools/cube-builder/build.ts';
import { createBuildJob } from '../../../../tools/cube-builder/build-job.ts';
import { type BuildOptions, toBuildRequest } from '../../../../tools/cube-builder/build-options.ts';
import { openTarget } from '../../../../tools/cube-builder/build-target.ts';
import type { BuildReport } from '../../../../tools/cube-builder/report.ts';
import { sha256 } from '../../../repository/support/fixtures.ts';
import { runCommand } from '../../../support/commands.ts';
import type { CommandResult } from '../../../support/processes.ts';

/** Key → first element of its row; the other elements are derived from it. */
export type Rows = ReadonlyMap<bigint, number>;

export const DIM = 4;

function npy(type: 'f4' | 'i8', shape: readonly number[], bytes: Uint8Array): Uint8Array {
  return Buffer.concat([encodeNpyHeader(type, shape), bytes]);
}

/** Writes `<name>.npy` and `<name>.keys.npy` to a new folder. @returns the folder */
export function writeTable(folder: string, name: string, rows: Rows, dim: number = DIM): string {
  mkdirSync(folder, { recursive: true });
  const floats = new Float32Array(rows.size * dim);
  const keys = new BigUint64Array(rows.size);
  let i = 0;
  for (const [key, value] of rows) {
    keys[i] = key;
    for (let j = 0; j < dim; j++) floats[i * dim + j] = value + j / 8;
    i += 1;
  }
  writeFileSync(
    join(folder, `${name}.npy`),
    npy('f4', [rows.size, dim], new Uint8Array(floats.buffer)),
  );
  writeFileSync(
    join(folder, `${name}.keys.npy`),
    npy('i8', [rows.size], new Uint8Array(keys.buffer)),
  );
  return folder;
}

/** Creates rows with keys spread over 64 bits, one for each of 0 … count − 1. */
export function createRows(
  count: number,
  value: (i: number) => number = (i) => i,
): Map<bigint, number> {
  const rows = new Map<bigint, number>();
  for (let i = 0; i < count; i++) {
    rows.set(BigInt.asUintN(64, BigInt(i + 1) * 0x9e37_79b9_7f4a_7c15n), value(i));
  }
  return rows;
}

export function runBuilder(...args: string[]): Promise<CommandResult> {
  return runCommand('tools/cube-builder/main.js', ...args);
}

/** Builds in this process. @throws the error that the command would print */
export async function buildInProcess(options: BuildOptions): Promise<BuildReport> {
  const usage = (text: string): never => {
    throw new Error(text);
  };
  const folder = options.outputPath ?? usage('outputPath');
  const job = await createBuildJob(folder, toBuildRequest(options, usage));
  return runBuild(await openTarget(folder), job);
}

/** Reads the rows of a table that a lookup finds: key → row as f32. */
export async function readTableRows(
  folder: string,
  version: string,
  name: string,
): Promise<Map<bigint, number[]>> {
  const repository = openRepository(folder);
  const { tables } = await repository.readManifest('b', version);
  const table = tables.find((candidate) => candidate.name === name);
  const found = new Map<bigint, number[]>();
  if (table === undefined) return found;
  const { dim } = table;
  for (const layer of table.shards.flat()) {
    const path = repository.layerWritePath('b', name, layer.contentId);
    for (const { keys, rows, count } of readLayerRows(path)) {
      const floats = decodeRows(table.dtype as RowDtype, rows, dim, count);
      for (let i = 0; i < count; i++) {
        found.set(keyToBigint(keys, i), [...floats.subarray(i * dim, (i + 1) * dim)]);
      }
    }
    if (layer.kind === 'base') continue;
    for (const keys of readDeletedKeys(path)) {
      for (let i = 0; i < keys.length / 2; i++) found.delete(keyToBigint(keys, i));
    }
  }
  return found;
}

/** Computes the SHA-256 of every file: path → digest. */
export function hashFiles(folder: string): Record<string, string> {
  const names = readdirSync(folder, { recursive: true }) as string[];
  const files = names.filter((name) => statSync(join(folder, name)).isFile()).sort();
  return Object.fromEntries(files.map((name) => [name, sha256(readFileSync(join(folder, name)))]));
}
