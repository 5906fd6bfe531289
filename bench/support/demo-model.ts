/**
 * The demo's model, pruned and published by the tools, and rows for it: the data of the serving
 * benchmarks.
 */

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { requireDefined } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { type FeatureSpec, readSlotSpec } from '../../lib/core/slots.ts';
import { parseTsvKeys } from '../../lib/core/tsv-keys.ts';
import { readFile } from '../../lib/platform/files.ts';
import { openRepository } from '../../lib/repository/repository.ts';

type Rows = ReturnType<typeof parseTsvKeys>;

export const BUNDLE = 'ctr-dnn';
const ROOT = join(import.meta.dirname, '..', '..', '..');
/** Folder of the demo's model and its features.json. */
export const DEMO: string = join(ROOT, 'data', 'demo');
const ROWS = 60_000;

/**
 * Publishes two versions of the demo's model to `<folder>/repo`, and writes rows to
 * `<folder>/rows.tsv`.
 * @param features path of another features.json than the demo's
 * @param model path of another model than the demo's
 */
export async function publishModel(
  folder: string,
  shardNum: number,
  features: string = join(DEMO, 'features.json'),
  model: string = join(DEMO, 'model.onnx'),
): Promise<void> {
  const pruned = join(folder, 'pruned');
  const repository = join(folder, 'repo');
  const input = ['--model', model, '--features', features];
  runTool('prune-model', [...input, '--output', pruned]);
  for (const version of ['1', '2']) {
    const target = ['--output-path', repository, '--bundle', BUNDLE, '--cur-version', version];
    runTool('cube-builder', ['--input', pruned, '--shard-num', String(shardNum), ...target]);
  }
  const output = ['--output', join(folder, 'rows.tsv')];
  runTool('generate-rows', ['--seed', '1', '--rows', String(ROWS), '--skip', '3000000', ...output]);
  const request = { version: '1', by: 'bench', reason: 'bench' };
  await openRepository(repository).activate(BUNDLE, 'stable', request);
}

function runTool(tool: string, args: readonly string[]): void {
  const script = join(import.meta.dirname, '..', '..', 'tools', tool, 'main.js');
  const { status, stderr } = spawnSync(process.execPath, [script, ...args], { encoding: 'utf8' });
  if (status !== 0) throw new Error(`${tool}: ${stderr}`);
}

/** Splits the rows into bodies of `rowCount` lines each. */
export function readBodies(folder: string, rowCount: number): Uint8Array[] {
  const bytes = readFile(join(folder, 'rows.tsv'));
  const bodies: Uint8Array[] = [];
  let start = 0;
  let lines = 0;
  for (let at = 0; at < bytes.length; at++) {
    if (bytes[at] !== 10 || ++lines % rowCount !== 0) continue;
    bodies.push(bytes.subarray(start, at + 1));
    start = at + 1;
  }
  return bodies;
}

/** The same rows as lines and as keys. */
export interface RequestRows {
  readonly lines: Uint8Array;
  /** Two words for each key. */
  readonly keys: Uint32Array;
  /** Dense values as the graph takes them. */
  readonly scaled: Float32Array;
}

/** Makes at most `requestsMax` requests of `rowCount` rows each. */
export function createRequestRows(
  folder: string,
  rowCount: number,
  requestsMax: number,
): RequestRows[] {
  const slots = JsonReader.parse(
    Buffer.from(readFile(join(folder, 'pruned', 'slots.json'))).toString(),
    'slots.json',
  );
  const features = requireDefined(readSlotSpec(slots).features, 'features of slots.json');
  return readBodies(folder, rowCount)
    .slice(0, requestsMax)
    .map((lines) => {
      const { keys, dense: scaled } = parseTsvKeys(lines, features, rowCount) as KeyedRows;
      return { lines, keys, scaled };
    });
}

/** Reads the rows as keys and dense values, `rowCount` in each element. */
export function readKeyedRows(folder: string, rowCount: number, features: FeatureSpec): Rows[] {
  return readBodies(folder, rowCount).map((body) => parseTsvKeys(body, features, rowCount));
}
