/**
 * A version without tables and without slots.json is a plain model: its graph takes the tensors of
 * requests.
 */
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readVersionGraph } from '../engine/version-files.ts';

const MODEL_FILE = 'model.onnx';
const SLOTS_FILE = 'slots.json';

export interface PlainModel {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
}

/** @returns undefined for a version with slots */
export async function readPlainModel(
  repository: Repository,
  manifest: Manifest,
): Promise<PlainModel | undefined> {
  const { files, tables } = manifest;
  const has = (name: string): boolean => files.some(({ path }) => path === name);
  if (tables.length > 0 || has(SLOTS_FILE) || !has(MODEL_FILE)) return undefined;
  return readVersionGraph(repository, manifest);
}
