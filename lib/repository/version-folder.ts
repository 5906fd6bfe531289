/** A version given by its folder, as people and shells complete it. */
import { basename, dirname, resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { checkName } from '../core/names.ts';

export interface VersionPlace {
  /** The repository's folder. */
  readonly root: string;
  readonly bundle: string;
  readonly version: string;
}

/**
 * @param folder `<repository>/<bundle>/versions/<version>`
 * @throws CubeError INVALID_ARGUMENT for another one: a version's layers lie beside its folder
 */
export function versionOfFolder(folder: string): VersionPlace {
  const path = resolve(folder);
  const versions = dirname(path);
  if (basename(versions) !== 'versions') {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path} is not <repository>/<bundle>/versions/<version>: the layers of a version lie beside its folder`,
    );
  }
  return {
    root: dirname(dirname(versions)),
    bundle: checkName(basename(dirname(versions)), 'bundle'),
    version: checkName(basename(path), 'version'),
  };
}
