/**
 * Cube's commands over Cube's own files: the folder that its agent deploys to, with VERSION and a directory for each
 * version. A directory is converted to a layer file beside the data folder, loaded as any layer is, and the file
 * removed: what is checked, accounted and shared is the same for all.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import type { LayerRef, Manifest } from '../lib/core/manifest.ts';
import { checkName, NAME_PATTERN } from '../lib/core/names.ts';
import { fileExists, readText, removePath, removePathLater } from '../lib/platform/files.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { layerPath } from '../lib/repository/layout.ts';
import type { CubeIndexFile } from '../lib/store/cube-dict.ts';
import type { CubeVersions } from './cmd-service.ts';
import type { ConversionAnswer, ConversionJob, ConvertedDict } from './cube-conversion.ts';
import type { CubeTable } from './dict-service.ts';
import type { VersionControl } from './version-control.ts';

const VERSION_BYTES_MAX = 4096;

export interface CubeDirectoriesOptions {
  readonly versions: VersionControl;
  /** Cube's ./data: VERSION, and a directory for each version or the files themselves. */
  readonly folder: string;
  /** For layer files on their way into memory; nobody else writes there. */
  readonly workFolder: string;
  readonly table: CubeTable;
  readonly rowsOnDisk: boolean;
  readonly logger: Logger;
}

export class CubeDirectories implements CubeVersions {
  readonly #options: CubeDirectoriesOptions;
  /** Of the versions loaded from here: what their index consists of. */
  readonly #indexFiles = new Map<string, readonly CubeIndexFile[]>();

  #loads = 0;

  constructor(options: CubeDirectoriesOptions) {
    this.#options = options;
    removePath(options.workFolder);
  }

  get loading(): boolean {
    return this.#loads > 0;
  }

  bundle(): string {
    return this.#options.table.bundle;
  }

  /** As Cube at its start: what VERSION names, or else the folder itself. With nothing there, nothing is loaded. */
  async loadFirst(): Promise<void> {
    const { folder, versions, logger } = this.#options;
    try {
      const name = this.#currentName();
      if (name === '' && !fileExists(`${folder}/index.n`)) {
        logger.info({ folder }, 'no dictionary yet; a command loads one');
        return;
      }
      const version = await this.load(name === '' ? '' : `/${name}`, undefined);
      await versions.activate({ bundle: this.bundle(), version });
      logger.info({ folder, version }, 'dictionary loaded');
    } catch (error) {
      const { code, message } = CubeError.from(error);
      logger.error({ folder, code, reason: message }, 'no dictionary loaded: not ready');
    }
  }

  async load(path: string, parent: string | undefined): Promise<string> {
    this.#loads++;
    try {
      return await this.#load(path, parent);
    } finally {
      this.#loads--;
    }
  }

  async #load(path: string, parent: string | undefined): Promise<string> {
    const { folder, workFolder, table, versions } = this.#options;
    const { shardIndex, shardNum } = versions.held;
    const source = `${folder}${path}`;
    const converted = await convert({
      ...{ source, target: workFolder, bundle: table.bundle, table: table.table },
      ...{ shardIndex, shardNum, indexed: this.#options.rowsOnDisk },
    });
    try {
      if (parent !== undefined) this.#requireExtends(parent, converted.indexFiles, source);
      // The folder itself has no name of its own, and its content changes: it is named by it.
      const version = path === '' ? `root-${converted.contentId.slice(0, 8)}` : path.slice(1);
      await this.#hold(version, converted);
      this.#indexFiles.set(version, converted.indexFiles);
      return version;
    } finally {
      const { contentId } = converted;
      await removePathLater(`${workFolder}/${layerPath(table.bundle, table.table, contentId)}`);
    }
  }

  /** A version never changes: what has the name already must have the content too, or make way. */
  async #hold(version: string, converted: ConvertedDict): Promise<void> {
    const { workFolder, versions } = this.#options;
    const request = { bundle: this.bundle(), version };
    const held = versions.held.find(request);
    const [layer] = held?.resident.manifest.tables[0]?.shards[versions.held.shardIndex] ?? [];
    if (held !== undefined && layer?.contentId !== converted.contentId) {
      if (versions.held.activeName(request.bundle) === version) {
        throw new CubeError(
          'CONFLICT',
          `version ${version} is being served with other rows; deploy it under a name of its own`,
        );
      }
      await versions.unload({ ...request, force: true });
    }
    await versions.loadFrom(request, () => this.#manifest(version, converted), workFolder);
  }

  #manifest(version: string, converted: ConvertedDict): Manifest {
    const { table, versions } = this.#options;
    const { shardIndex, shardNum } = versions.held;
    const { contentId, bytes, sha256, rows, dim, dtype } = converted;
    const layer: LayerRef = { contentId, kind: 'base', bytes, sha256, rows };
    const shards = Array.from({ length: shardNum }, (_, i) => (i === shardIndex ? [layer] : []));
    return {
      bundle: table.bundle,
      version,
      files: [],
      hash: { scheme: 'raw', seed: 0n, modulo: 0n },
      slots: [],
      tables: [{ name: table.table, dim, dtype, rows, defaultRow: [], shardNum, shards }],
    };
  }

  /** A patch's directory is whole: the files of its base, then its own. */
  #requireExtends(parent: string, files: readonly CubeIndexFile[], source: string): void {
    const base = this.#indexFiles.get(parent);
    const isExtension =
      base !== undefined &&
      base.length < files.length &&
      base.every(({ sha256 }, i) => sha256 === files[i]!.sha256);
    if (isExtension) return;
    throw new CubeError(
      'CONFLICT',
      `${source}: is no patch of the current version ${parent}: its index does not begin with the same files and go on; load it as a base if it is whole`,
    );
  }

  #currentName(): string {
    const path = `${this.#options.folder}/VERSION`;
    if (!fileExists(path)) return '';
    const name = (readText(path, VERSION_BYTES_MAX).split('\n', 1)[0] ?? '').trim();
    return name === '' || NAME_PATTERN.test(name) ? name : checkName(name, path);
  }
}

/** In a thread of its own. @throws CubeError what the thread says, or INTERNAL when it died */
function convert(job: ConversionJob): Promise<ConvertedDict> {
  const worker = new Worker(new URL('./cube-conversion-worker.js', import.meta.url), {
    name: 'cube-conversion',
    workerData: job,
  });
  return new Promise((resolve, reject) => {
    worker.on('message', (answer: ConversionAnswer) => {
      if (answer.ok) resolve(answer.converted);
      else reject(new CubeError(answer.code, answer.message));
    });
    worker.on('error', (error) => reject(CubeError.from(error)));
    worker.on('exit', () => reject(new CubeError('INTERNAL', 'the conversion thread ended')));
  });
}
