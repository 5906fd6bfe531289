/** The files with the external data of a model that is not in a repository of bundles. */
import { basename, join } from 'node:path';
import { fileExists, readFile } from '../../lib/platform/files.ts';
import { listExternalFiles } from '../../proto/onnx-external.ts';

/** Limit of a model file, and of each file with its data. */
export const MODEL_BYTES_MAX: number = 2 ** 31 - 1;

/**
 * @param path of the model, for errors
 * @returns names of files in the model's folder. Paths to other folders are left out: onnxruntime
 *   then names the file when it loads the model
 * @throws CubeError CORRUPT when the bytes are not an ONNX model
 */
export function listExternalNames(model: Uint8Array, path: string): string[] {
  const isName = (name: string): boolean =>
    basename(name) === name && !['', '.', '..'].includes(name) && !name.includes('\0');
  return listExternalFiles(model, path).filter(isName);
}

/** @returns the files by name, without those that are missing */
export function readExternalData(
  folder: string,
  names: readonly string[],
): ReadonlyMap<string, Uint8Array> {
  const found = names.filter((name) => fileExists(join(folder, name)));
  return new Map(found.map((name) => [name, readFile(join(folder, name), MODEL_BYTES_MAX)]));
}
