/**
 * Cube's commands over Cube's own files: the folder that its agent deploys to, with VERSION and a
 * directory per version. A directory is converted to a layer file in a work folder, loaded like any
 * layer, and the layer file is removed. Checks, accounting and sharing are therefore the same for
 * all versions.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import type { LayerRef, Manifest } from '../lib/core/manifest.ts';
import { checkName, NAME_PATTERN } from '../lib/core/names.ts';
import { fileExists, readText, removePath, removePathAsync } from '../lib/platform/files.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { layerPath } from '../lib/repository/layout.ts';
import type { CubeIndexFile } from '../lib/store/cube-dict.ts';
import type { CubeVersionLoader } from './cube-command-service.ts';
import type { ConversionJob, ConversionResult, ConvertedDict } from './cube-conversion-worker.ts';
import type { CubeTable } from './dict-service.ts';
import type { VersionControl } from './version-control.ts';

const VERSION_BYTES_MAX = 4096;

export interface CubeDirectoryLoaderOptions {
  readonly versions: VersionControl;
  /** Cube's ./data folder: VERSION, and one directory per version or the files themselves. */
  readonly folder: string;
  /** Holds layer files during a load; must not be used by anything else. */
  readonly workFolder: string;
  readonly table: CubeTable;
  readonly rowsOnDisk: boolean;
  readonly logger: Logger;
}

export class CubeDirectoryLoader implements CubeVersionLoader {
  readonly #options: CubeDirectoryLoaderOptions;
  /** Index files of the versions loaded from here. */
  readonly #indexFiles = new Map<string, readonly CubeIndexFile[]>();
  readonly #conversions = new Set<Worker>();
  #loads = 0;

  constructor(options: CubeDirectoryLoaderOptions) {
    this.#options = options;
    removePath(options.workFolder);
  }

  get folder(): string {
    return this.#options.folder;
  }

  get isLoading(): boolean {
    return this.#loads > 0;
  }

  getBundle(): string {
    return this.#options.table.bundle;
  }

  /**
   * Loads the version that VERSION names, or else the folder itself, as Cube does at its start.
   * Loads nothing when there is none.
   * @returns why it failed, which is also logged; empty when it did not
   */
  async loadFirst(): Promise<string> {
    const { folder, versions, logger } = this.#options;
    try {
      const name = this.#readCurrentName();
      if (name === '' && !fileExists(`${folder}/index.n`)) {
        logger.info({ folder }, 'no dictionary yet; load one with a command');
        return '';
      }
      logger.info({ folder, version: name }, 'loading the dictionary; then listening');
      const version = await this.load(name === '' ? '' : `/${name}`, undefined);
      await versions.activate({ bundle: this.getBundle(), version });
      logger.info({ folder, version }, 'dictionary loaded');
      return '';
    } catch (error) {
      const { code, message } = CubeError.from(error);
      logger.error(
        { folder, code, reason: message },
        'dictionary not loaded; the server is not ready',
      );
      return message;
    }
  }

  /** Ends the loads in progress, which fail. */
  close(): void {
    for (const worker of this.#conversions) void worker.terminate();
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
    const { shardIndex, shardNum } = versions.loaded;
    const source = `${folder}${path}`;
    const converted = await this.#convert({
      source,
      target: workFolder,
      bundle: table.bundle,
      table: table.table,
      shardIndex,
      shardNum,
      indexed: this.#options.rowsOnDisk,
    });
    try {
      if (parent !== undefined) this.#requireExtends(parent, converted.indexFiles, source);
      // The folder itself has no version name and its content changes, so it is named after its
      // content.
      const version = path === '' ? `root-${converted.contentId.slice(0, 8)}` : path.slice(1);
      await this.#loadVersion(version, converted);
      this.#indexFiles.set(version, converted.indexFiles);
      return version;
    } finally {
      const { contentId } = converted;
      await removePathAsync(`${workFolder}/${layerPath(table.bundle, table.table, contentId)}`);
    }
  }

  /**
   * A version never changes: a loaded version of this name with other content is unloaded first.
   */
  async #loadVersion(version: string, converted: ConvertedDict): Promise<void> {
    const { workFolder, versions } = this.#options;
    const request = { bundle: this.getBundle(), version };
    const loaded = versions.loaded.find(request);
    const [layer] = loaded?.resident.manifest.tables[0]?.shards[versions.loaded.shardIndex] ?? [];
    if (loaded !== undefined && layer?.contentId !== converted.contentId) {
      if (versions.loaded.getActiveVersionName(request.bundle) === version) {
        throw new CubeError(
          'CONFLICT',
          `version ${version} is active with other rows; deploy this one under a new name`,
        );
      }
      await versions.unload({ ...request, force: true });
    }
    await versions.loadFrom(request, () => this.#manifest(version, converted), workFolder);
  }

  #manifest(version: string, converted: ConvertedDict): Manifest {
    const { table, versions } = this.#options;
    const { shardIndex, shardNum } = versions.loaded;
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

  /** A patch's directory is complete: the files of its base, then its own. */
  #requireExtends(parent: string, files: readonly CubeIndexFile[], source: string): void {
    const base = this.#indexFiles.get(parent);
    const isExtension =
      base !== undefined &&
      base.length < files.length &&
      base.every(({ sha256 }, i) => sha256 === files[i]?.sha256);
    if (isExtension) return;
    throw new CubeError(
      'CONFLICT',
      `${source}: not a patch of the current version ${parent}: its index does not start with ` +
        'the same files; load it as a base if it is complete',
    );
  }

  #readCurrentName(): string {
    const path = `${this.#options.folder}/VERSION`;
    if (!fileExists(path)) return '';
    const name = (readText(path, VERSION_BYTES_MAX).split('\n', 1)[0] ?? '').trim();
    return name === '' || NAME_PATTERN.test(name) ? name : checkName(name, path);
  }

  /** Runs a conversion thread. @throws CubeError the thread's error, or INTERNAL when it died */
  #convert(job: ConversionJob): Promise<ConvertedDict> {
    const worker = new Worker(new URL('./cube-conversion-worker.js', import.meta.url), {
      name: 'cube-conversion',
      workerData: job,
    });
    this.#conversions.add(worker);
    return new Promise((resolve, reject) => {
      worker.on('message', (answer: ConversionResult) => {
        if (answer.ok) resolve(answer.converted);
        else reject(new CubeError(answer.code, answer.message));
      });
      worker.on('error', (error) => reject(CubeError.from(error)));
      worker.on('exit', () => {
        this.#conversions.delete(worker);
        reject(new CubeError('INTERNAL', 'the conversion thread ended without a result'));
      });
    });
  }
}
