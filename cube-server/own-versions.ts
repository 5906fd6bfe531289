/** Cube's commands over the data folder of cube-agent: `version_path` "/7" is version 7 of one bundle. */
import { CubeError } from '../lib/core/errors.ts';
import { isFolder, listFolder } from '../lib/platform/files.ts';
import { versionsFolder } from '../lib/repository/layout.ts';
import type { CubeVersions } from './cmd-service.ts';
import type { VersionControl } from './version-control.ts';

export class OwnVersions implements CubeVersions {
  readonly #versions: VersionControl;
  readonly #dataFolder: string;
  readonly #bundle: string | undefined;

  /** @param bundle undefined: the only one held, or else the only one on disk */
  constructor(versions: VersionControl, dataFolder: string, bundle: string | undefined) {
    this.#versions = versions;
    this.#dataFolder = dataFolder;
    this.#bundle = bundle;
  }

  get loading(): boolean {
    return this.#versions.loadingStatus().length > 0;
  }

  bundle(): string {
    if (this.#bundle !== undefined) return this.#bundle;
    const held = new Set(this.#versions.held.all().map(({ resident }) => resident.bundle));
    const bundles = held.size > 0 ? [...held] : this.#bundlesOnDisk();
    const [only] = bundles;
    if (only !== undefined && bundles.length === 1) return only;
    throw new CubeError(
      'CONFLICT',
      `a command is about one bundle and here are ${bundles.length} (${bundles.slice(0, 20).join(', ')}); start the server with --cube-table bundle/table`,
    );
  }

  /** A version is whole, whatever its layers build on: a patch is loaded as a base is. */
  async load(path: string): Promise<string> {
    const version = path.slice(1);
    if (version === '') {
      throw new CubeError('INVALID_ARGUMENT', 'version_path: expected "/" and a version');
    }
    await this.#versions.load({ bundle: this.bundle(), version });
    return version;
  }

  #bundlesOnDisk(): string[] {
    return listFolder(this.#dataFolder).filter(
      (name) => !name.startsWith('.') && isFolder(`${this.#dataFolder}/${versionsFolder(name)}`),
    );
  }
}
