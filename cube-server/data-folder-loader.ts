/**
 * Cube's commands over the data folder of cube-agent: `version_path` "/7" loads version 7 of one
 * bundle.
 */
import { CubeError } from '../lib/core/errors.ts';
import { isFolder, listFolder } from '../lib/platform/files.ts';
import { versionsFolder } from '../lib/repository/layout.ts';
import type { CubeVersionLoader } from './cube-command-service.ts';
import type { VersionControl } from './version-control.ts';

export class DataFolderLoader implements CubeVersionLoader {
  readonly #versions: VersionControl;
  readonly #dataFolder: string;
  readonly #bundle: string | undefined;

  /** @param bundle undefined: the only loaded one, or else the only one on disk */
  constructor(versions: VersionControl, dataFolder: string, bundle: string | undefined) {
    this.#versions = versions;
    this.#dataFolder = dataFolder;
    this.#bundle = bundle;
  }

  get isLoading(): boolean {
    return this.#versions.getLoadingVersions().length > 0;
  }

  getBundle(): string {
    if (this.#bundle !== undefined) return this.#bundle;
    const loaded = new Set(this.#versions.loaded.all().map(({ resident }) => resident.bundle));
    const bundles = loaded.size > 0 ? [...loaded] : this.#bundlesOnDisk();
    const [only] = bundles;
    if (only !== undefined && bundles.length === 1) return only;
    throw new CubeError(
      'CONFLICT',
      `commands need one bundle, but this server has ${bundles.length} ` +
        `(${bundles.slice(0, 20).join(', ')}); start it with --cube-table bundle/table`,
    );
  }

  /** A version is complete whatever its layers build on, so a patch is loaded like a base. */
  async load(path: string): Promise<string> {
    const version = path.slice(1);
    if (version === '') {
      throw new CubeError('INVALID_ARGUMENT', 'version_path: expected "/" and a version name');
    }
    await this.#versions.load({ bundle: this.getBundle(), version });
    return version;
  }

  #bundlesOnDisk(): string[] {
    return listFolder(this.#dataFolder).filter(
      (name) => !name.startsWith('.') && isFolder(`${this.#dataFolder}/${versionsFolder(name)}`),
    );
  }
}
