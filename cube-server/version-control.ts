/**
 * Loads, activates, unloads and drains. Loads run one at a time, concurrently with lookups; a
 * failed load changes nothing. A load without enough memory first unloads unused versions that the
 * caller does not want to keep, or is refused before it starts.
 */

import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { getShardNum, type Manifest, parseManifest } from '../lib/core/manifest.ts';
import { versionKey } from '../lib/core/names.ts';
import type { Clock } from '../lib/platform/clock.ts';
import { processKeys } from '../lib/platform/encryption-keys.ts';
import { faultPoint } from '../lib/platform/fault-point.ts';
import { readText } from '../lib/platform/files.ts';
import { layerPath, manifestPath } from '../lib/repository/layout.ts';
import { openBackend } from '../lib/repository/open-backend.ts';
import { loadVersionKeys } from '../lib/repository/version-keys.ts';
import { LoadProgress } from '../lib/store/load-progress.ts';
import type {
  LoadReport,
  ResidentStore,
  LoadRequest as StoreLoad,
} from '../lib/store/resident-store.ts';
import type { ResidentVersion } from '../lib/store/resident-version.ts';
import type {
  FailedLoad,
  LoadAnswer,
  LoadingVersion,
  LoadRequest,
  UnloadRequest,
  VersionRequest,
} from '../proto/control.ts';
import { FailedLoads } from './failed-loads.ts';
import type { LoadedVersions } from './loaded-versions.ts';

/** Maximum number of waiting loads. */
const LOADING_MAX = 64;
const EMPTY_LOAD_RESULT: LoadAnswer = { layersLoaded: 0, layersShared: 0, bytes: 0, durationMs: 0 };

/** The other serving threads; each call resolves when all of them are done. */
export interface ServingThreads {
  addVersion(request: VersionRequest): Promise<void>;
  activate(request: VersionRequest): Promise<void>;
  removeVersion(request: VersionRequest): Promise<void>;
  drain(draining: boolean): Promise<void>;
  /** Adds their lookups since the last call to the loaded versions. */
  updateLastUsed(): Promise<void>;
}

export interface VersionControlOptions {
  readonly loaded: LoadedVersions;
  readonly store: ResidentStore;
  readonly dataFolder: string;
  readonly clock: Clock;
  /** A version that was looked up within this time counts as in use. */
  readonly retireGraceMs: number;
  /** Maximum read rate of loads while lookups are answered; may be infinite. */
  readonly loadBytesPerSecond: number;
}

interface LoadInProgress {
  readonly request: VersionRequest;
  readonly progress: LoadProgress;
  readonly done: Promise<LoadAnswer>;
}

/** Why a version was unloaded: on request, or to make room for a load. */
export type UnloadReason = 'asked' | 'room';

export class VersionControl {
  readonly loaded: LoadedVersions;
  readonly #options: VersionControlOptions;
  readonly #store: ResidentStore;
  readonly #clock: Clock;
  readonly #loading = new Map<string, LoadInProgress>();
  readonly #unloading = new Map<string, Promise<void>>();
  readonly #failed: FailedLoads;
  #lastLoad: Promise<unknown> = Promise.resolve();
  /** Set by the server when there are several threads. */
  threads: ServingThreads | undefined;
  readonly unloads: Record<UnloadReason, number> = { asked: 0, room: 0 };
  readonly failures: Map<ErrorCode, number> = new Map<ErrorCode, number>();
  /** Called after each successful load, also when everything was already in memory. */
  onLoaded: (answer: LoadAnswer) => void = () => undefined;

  constructor(options: VersionControlOptions) {
    this.loaded = options.loaded;
    this.#options = options;
    this.#store = options.store;
    this.#clock = options.clock;
    this.#failed = new FailedLoads(options.clock);
  }

  get memory(): { budgetBytes: number; usedBytes: number; pooledBytes: number } {
    return this.#store.getMemoryUsage();
  }

  /** Loads a version from the data folder; one that is loaded or loading costs nothing. */
  load(request: LoadRequest): Promise<LoadAnswer> {
    return this.loadFrom(request, () => this.#readManifest(request), this.#options.dataFolder);
  }

  /** Loads a version whose files are elsewhere. @param manifest called when the load starts */
  loadFrom(
    request: LoadRequest,
    manifest: () => Manifest | Promise<Manifest>,
    folder: string,
  ): Promise<LoadAnswer> {
    if (this.loaded.find(request) !== undefined) return Promise.resolve(EMPTY_LOAD_RESULT);
    const name = versionKey(request);
    const loading = this.#loading.get(name);
    if (loading !== undefined) return loading.done;
    if (this.#loading.size >= LOADING_MAX) {
      throw new CubeError('OVERLOADED', `${LOADING_MAX} loads are already waiting; retry later`);
    }
    const progress = new LoadProgress();
    const done = this.#lastLoad.then(() => this.#load(request, manifest, folder, progress));
    this.#lastLoad = done.catch(() => undefined);
    this.#loading.set(name, { request, progress, done });
    return done;
  }

  /** @throws CubeError VERSION_ABSENT when the version is not loaded */
  async activate(request: VersionRequest): Promise<string> {
    this.loaded.activate(request);
    await this.threads?.activate(request);
    faultPoint('server.activated');
    return request.version;
  }

  /**
   * Also ends the failure of a load of this version.
   * @returns false when the version was not loaded
   * @throws CubeError CONFLICT for the active version, and for one in use unless forced
   */
  async unload(request: UnloadRequest): Promise<boolean> {
    const { bundle, version, force = false, ifIdleMs = this.#options.retireGraceMs } = request;
    this.#failed.clear(request);
    await this.updateLastUsed();
    const loadedVersion = this.loaded.find(request);
    if (loadedVersion === undefined) return false;
    if (this.loaded.getActiveVersionName(bundle) === version) {
      throw new CubeError(
        'CONFLICT',
        `${bundle} ${version} is active; activate another version before unloading it`,
      );
    }
    const idleMs = Math.round(this.#clock.nowMs() - loadedVersion.lastUsedMs);
    if (!force && loadedVersion.lookups > 0 && idleMs < ifIdleMs) {
      throw new CubeError(
        'CONFLICT',
        `${bundle} ${version} was looked up ${idleMs} ms ago, within the idle time of ` +
          `${ifIdleMs} ms; wait, or send "force": true`,
      );
    }
    await this.#remove(request, 'asked');
    faultPoint('server.unloaded');
    return true;
  }

  /** While draining the server is not ready and refuses every lookup with STOPPING. */
  async drain(draining: boolean): Promise<void> {
    this.loaded.draining = draining;
    await this.threads?.drain(draining);
  }

  /** Records which versions were used since the last call, by any thread. */
  async updateLastUsed(): Promise<void> {
    await this.threads?.updateLastUsed();
    this.loaded.updateLastUsed();
  }

  getLoadingVersions(): LoadingVersion[] {
    return [...this.#loading.values()].map(({ request: { bundle, version }, progress }) => {
      return { bundle, version, bytes: progress.totalBytes, loadedBytes: progress.loadedBytes };
    });
  }

  getFailedLoads(): FailedLoad[] {
    return this.#failed.list();
  }

  async #load(
    request: LoadRequest,
    getManifest: () => Manifest | Promise<Manifest>,
    folder: string,
    progress: LoadProgress,
  ): Promise<LoadAnswer> {
    const name = versionKey(request);
    const startMs = this.#clock.nowMs();
    this.#failed.clear(request);
    try {
      // The caller that asked for the removal gets its error.
      await this.#unloading.get(name)?.catch(() => undefined);
      const manifest = await getManifest();
      const unloaded: string[] = [];
      const keep = new Set(request.keep);
      const report = await this.#loadFiles(manifest, folder, { keep, unloaded, progress });
      await this.#addVersion(request);
      const durationMs = Math.round(this.#clock.nowMs() - startMs);
      const { layersLoaded, layersShared, bytes, inMemory } = report;
      const answer = {
        layersLoaded,
        layersShared,
        bytes,
        durationMs,
        ...(unloaded.length > 0 ? { gaveUp: unloaded } : {}),
        ...(inMemory.length > 0 ? { inMemory } : {}),
      };
      this.onLoaded(answer);
      faultPoint('server.loaded');
      return answer;
    } catch (error) {
      this.#recordFailure(request, CubeError.from(error));
      throw error;
    } finally {
      this.#loading.delete(name);
    }
  }

  async #loadFiles(
    manifest: Manifest,
    folder: string,
    {
      keep,
      unloaded,
      progress,
    }: { keep: ReadonlySet<string>; unloaded: string[]; progress: LoadProgress },
  ): Promise<LoadReport> {
    const { bundle } = manifest;
    const request = {
      manifest,
      shardIndex: this.loaded.shardIndex,
      layerPath: (table: string, contentId: string) =>
        `${folder}/${layerPath(bundle, table, contentId)}`,
      // While nothing is active, no lookup is disturbed and being ready soon matters most.
      bytesPerSecond: this.loaded.ready
        ? this.#options.loadBytesPerSecond
        : Number.POSITIVE_INFINITY,
      progress,
    };
    await this.#makeRoom(request, keep, unloaded);
    return this.#store.load(request);
  }

  /**
   * Unloads unused versions, longest idle first, if that makes enough room; otherwise the load
   * reports what it lacks.
   */
  async #makeRoom(
    request: StoreLoad,
    keep: ReadonlySet<string>,
    unloaded: string[],
  ): Promise<void> {
    for (;;) {
      const plan = await this.#store.planLoad(request);
      if (plan.fits) return;
      await this.updateLastUsed();
      const spare = this.#listUnusedVersions().filter((version) => !keep.has(versionKey(version)));
      const [first] = spare;
      if (first === undefined) return;
      if (plan.unusedBytes + plan.computeFreedBytes(spare) < plan.neededBytes) return;
      await this.#remove(first, 'room');
      unloaded.push(versionKey(first));
    }
  }

  #listUnusedVersions(): ResidentVersion[] {
    const nowMs = this.#clock.nowMs();
    return this.loaded
      .all()
      .filter(
        ({ resident: { bundle, version } }) => this.loaded.getActiveVersionName(bundle) !== version,
      )
      .filter(({ lastUsedMs }) => nowMs - lastUsedMs >= this.#options.retireGraceMs)
      .sort((a, b) => a.lastUsedMs - b.lastUsedMs)
      .map(({ resident }) => resident);
  }

  async #addVersion(request: VersionRequest): Promise<void> {
    const { bundle, version } = request;
    const resident = this.#store.version(bundle, version);
    if (resident === undefined) throw new Error(`${bundle} ${version} was unloaded while loading`);
    try {
      await this.threads?.addVersion(request);
    } catch (error) {
      this.#store.unload(bundle, version);
      throw error;
    }
    this.loaded.add(resident);
  }

  /** The memory is released when no thread can read it any more. */
  #remove(request: VersionRequest, reason: UnloadReason): Promise<void> {
    const { bundle, version } = request;
    const name = versionKey(request);
    this.loaded.remove(request);
    this.unloads[reason]++;
    const dropped = (this.threads?.removeVersion(request) ?? Promise.resolve())
      .then(() => {
        this.#store.unload(bundle, version);
      })
      .finally(() => this.#unloading.delete(name));
    this.#unloading.set(name, dropped);
    return dropped;
  }

  #recordFailure(request: VersionRequest, error: CubeError): void {
    const { code } = error;
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
    this.#failed.record(request, error);
  }

  async #readManifest({ bundle, version }: VersionRequest): Promise<Manifest> {
    const path = `${this.#options.dataFolder}/${manifestPath(bundle, version)}`;
    const manifest = parseStoredManifest(readText(path), path);
    if (manifest.bundle !== bundle || manifest.version !== version) {
      throw new CubeError(
        'CORRUPT',
        `${path}: contains the manifest of ${manifest.bundle} ${manifest.version}; fetch it again`,
      );
    }
    if (manifest.encryption !== undefined) {
      const backend = openBackend(this.#options.dataFolder, false);
      await loadVersionKeys(backend, manifest, processKeys);
    }
    const shardNum = getShardNum(manifest);
    if (manifest.tables.length > 0 && shardNum !== this.loaded.shardNum) {
      throw new CubeError(
        'WRONG_SHARD',
        `${bundle} ${version} has ${shardNum} shards; ` +
          `this server serves shard ${this.loaded.shardIndex} of ${this.loaded.shardNum}`,
      );
    }
    return manifest;
  }
}

/**
 * Manifests in the data folder were written by this project: an invalid one is damaged, not a wrong
 * argument.
 */
function parseStoredManifest(text: string, path: string): Manifest {
  try {
    return parseManifest(text, path);
  } catch (error) {
    throw new CubeError('CORRUPT', `${(error as Error).message}; fetch it again`, { cause: error });
  }
}
