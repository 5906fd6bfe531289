/** Parses the path of a version's folder, which a shell can complete. */
import { basename, dirname, resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { checkName } from '../core/names.ts';

export interface VersionLocation {
  /** The repository's folder. */
  readonly root: string;
  readonly bundle: string;
  readonly version: string;
}

/**
 * @param folder `<repository>/<bundle>/versions/<version>`
 * @throws CubeError INVALID_ARGUMENT for any other path: a version's layers are in <bundle>/layers
 */
export function parseVersionFolder(folder: string): VersionLocation {
  const path = resolve(folder);
  const versions = dirname(path);
  if (basename(versions) !== 'versions') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path} is not <repository>/<bundle>/versions/<version>, ` +
        'so the layers of the version cannot be found',
    );
  }
  return {
    root: dirname(dirname(versions)),
    bundle: checkName(basename(dirname(versions)), 'bundle'),
    version: checkName(basename(path), 'version'),
  };
}
