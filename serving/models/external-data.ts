/** The files with the external data of a model that is not in a repository of bundles. */
import { basename, dirname, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import { fileExists, readFile } from '../../lib/platform/files.ts';

/** Limit of a model file, and of each file with its data. */
export const MODEL_BYTES_MAX: number = 2 ** 31 - 1;

export { listExternalFiles } from '../../proto/onnx-external.ts';

/** Whether a location is a file in the model's folder. */
function isBesideModel(location: string): boolean {
  return (
    basename(location) === location &&
    !['', '.', '..'].includes(location) &&
    !location.includes('\0')
  );
}

/** @returns paths of the files in the model's folder, whether or not they exist */
export function listDataPaths(path: string, locations: readonly string[]): string[] {
  return locations.filter(isBesideModel).map((location) => join(dirname(path), location));
}

/**
 * @param path of the model
 * @param locations as `listExternalFiles` finds them
 * @returns the files by location
 * @throws CubeError NOT_FOUND for a missing file, UNSUPPORTED for one in another folder
 */
export function readExternalData(
  path: string,
  locations: readonly string[],
): ReadonlyMap<string, Uint8Array> {
  const read = (location: string): [string, Uint8Array] => {
    const where = `${path} has tensors in the file ${quoteInput(location)}`;
    if (!isBesideModel(location)) {
      throw new CubeError('UNSUPPORTED', `${where}; it must be a name of a file beside the model`);
    }
    const file = join(dirname(path), location);
    if (fileExists(file)) return [location, readFile(file, MODEL_BYTES_MAX)];
    throw new CubeError('NOT_FOUND', `${where}, which does not exist; copy it beside the model`);
  };
  return new Map(locations.map(read));
}
