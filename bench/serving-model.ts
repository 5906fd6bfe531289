/** The demo's model, pruned and published by the tools themselves, and rows for it: what the serving benchmarks run on. */
import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import type { KeyedRows } from '../lib/core/features.ts';
import { JsonReader } from '../lib/core/json.ts';
import { type FeatureSpec, readSlotSpec } from '../lib/core/slots.ts';
import { parseTsvKeys } from '../lib/core/tsv-keys.ts';
import { readFile } from '../lib/platform/files.ts';
import { openRepository } from '../lib/repository/repository.ts';

type Rows = ReturnType<typeof parseTsvKeys>;

export const BUNDLE = 'ctr-dnn';
const ROOT = join(import.meta.dirname, '..', '..');
const ROWS = 60_000;

/** Two versions of the demo's model in `<folder>/repo`, of so many shards, and rows in `<folder>/rows.tsv`. */
export async function publishModel(folder: string, shardNum: number): Promise<void> {
  const demo = join(ROOT, 'data', 'demo');
  const pruned = join(folder, 'pruned');
  const repository = join(folder, 'repo');
  const input = ['--model', join(demo, 'model.onnx'), '--features', join(demo, 'features.json')];
  run('prune-model', [...input, '--output', pruned]);
  for (const version of ['1', '2']) {
    const target = ['--output-path', repository, '--bundle', BUNDLE, '--cur-version', version];
    run('cube-builder', ['--input', pruned, '--shard-num', String(shardNum), ...target]);
  }
  const output = ['--output', join(folder, 'rows.tsv')];
  run('generate-rows', ['--seed', '1', '--rows', String(ROWS), '--skip', '3000000', ...output]);
  const wish = { version: '1', by: 'bench', reason: 'bench' };
  await openRepository(repository).activate(BUNDLE, 'stable', wish);
}

function run(tool: string, args: readonly string[]): void {
  const script = join(import.meta.dirname, '..', 'tools', tool, 'main.js');
  const { status, stderr } = spawnSync(process.execPath, [script, ...args], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${tool}: ${stderr}`);
}

/** The rows as bodies of `rowCount` lines each. */
export function bodies(folder: string, rowCount: number): Uint8Array[] {
  const bytes = readFile(join(folder, 'rows.tsv'));
  const found: Uint8Array[] = [];
  let start = 0;
  let lines = 0;
  for (let at = 0; at < bytes.length; at++) {
    if (bytes[at] !== 10 || ++lines % rowCount !== 0) continue;
    found.push(bytes.subarray(start, at + 1));
    start = at + 1;
  }
  return found;
}

/** Some rows: as lines, and as keys. */
export interface DoorRows {
  readonly lines: Uint8Array;
  /** Two words each. */
  readonly keys: Uint32Array;
  /** Dense values as the graph takes them. */
  readonly scaled: Float32Array;
}

/** Requests of so many rows each, and what a door may say of them. */
export function doorRows(folder: string, rowCount: number, requestsMax: number): DoorRows[] {
  const slots = JsonReader.parse(
    Buffer.from(readFile(join(folder, 'pruned', 'slots.json'))).toString(),
    'slots.json',
  );
  const { features } = readSlotSpec(slots);
  return bodies(folder, rowCount)
    .slice(0, requestsMax)
    .map((lines) => {
      const { keys, dense: scaled } = parseTsvKeys(lines, features!, rowCount) as KeyedRows;
      return { lines, keys, scaled };
    });
}

/** The same as keys and dense values. */
export function keyedBodies(folder: string, rowCount: number, features: FeatureSpec): Rows[] {
  return bodies(folder, rowCount).map((body) => parseTsvKeys(body, features, rowCount));
}
