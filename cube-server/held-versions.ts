/**
 * What this replica holds: resident versions, which one is active per bundle, what is loading and what failed to.
 * Lookups resolve their version here. A failed load leaves everything as it was.
 */
import { CubeError } from '../lib/core/errors.ts';
import { type Manifest, parseManifest, shardNumOf } from '../lib/core/manifest.ts';
import type { Clock } from '../lib/platform/clock.ts';
import { readText } from '../lib/platform/files.ts';
import { layerPath, manifestPath } from '../lib/repository/layout.ts';
import type { ResidentStore } from '../lib/store/resident-store.ts';
import type { BundleStatus, FailedLoad, LoadAnswer, VersionRequest } from '../proto/control.ts';
import { HeldVersion, type TableTraffic } from './held-version.ts';

/** Failed loads that status remembers. */
const FAILED_MAX = 32;
/** Loads that may wait for one another. */
const LOADING_MAX = 64;

export interface HeldVersionsOptions {
  readonly store: ResidentStore;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly dataFolder: string;
  readonly clock: Clock;
}

export class HeldVersions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly #store: ResidentStore;
  readonly #dataFolder: string;
  readonly #clock: Clock;
  /** bundle → version → held. */
  readonly #bundles = new Map<string, Map<string, HeldVersion>>();
  readonly #active = new Map<string, HeldVersion>();
  readonly #traffic = new Map<string, TableTraffic>();
  readonly #loading = new Map<string, { request: VersionRequest; done: Promise<LoadAnswer> }>();
  readonly #failed = new Map<string, FailedLoad>();
  #lastLoad: Promise<unknown> = Promise.resolve();
  /** Counts what changes the set of versions or the active ones: what is derived from them is stale then. */
  revision = 0;

  constructor(options: HeldVersionsOptions) {
    this.shardIndex = options.shardIndex;
    this.shardNum = options.shardNum;
    this.#store = options.store;
    this.#dataFolder = options.dataFolder;
    this.#clock = options.clock;
  }

  get ready(): boolean {
    return this.#active.size > 0;
  }

  /** Traffic per bundle and table, over all versions this process ever held. */
  get traffic(): Iterable<TableTraffic> {
    return this.#traffic.values();
  }

  get memory(): { budgetBytes: number; usedBytes: number; pooledBytes: number } {
    return this.#store.memory();
  }

  activeVersions(): Iterable<HeldVersion> {
    return this.#active.values();
  }

  /**
   * The version that answers a lookup. @param version empty: the active one
   * @throws CubeError NOT_READY when none is active, VERSION_ABSENT naming those held
   */
  resolve(bundle: string, version: string): HeldVersion {
    const held =
      version === '' ? this.#active.get(bundle) : this.#bundles.get(bundle)?.get(version);
    if (held !== undefined) return held;
    if (version === '') {
      throw new CubeError(
        'NOT_READY',
        `bundle ${JSON.stringify(bundle)} has no active version here (held: ${this.#heldText(bundle)}); activate one`,
      );
    }
    throw this.#absent(bundle, version);
  }

  /** Reads a version from the data folder; one held or loading already costs nothing. */
  load(request: VersionRequest): Promise<LoadAnswer> {
    const { bundle, version } = request;
    if (this.#bundles.get(bundle)?.has(version)) {
      return Promise.resolve({ layersLoaded: 0, layersShared: 0, bytes: 0, durationMs: 0 });
    }
    const name = `${bundle}/${version}`;
    const loading = this.#loading.get(name);
    if (loading !== undefined) return loading.done;
    if (this.#loading.size >= LOADING_MAX) {
      throw new CubeError(
        'OVERLOADED',
        `${LOADING_MAX} loads are waiting already; try again later`,
      );
    }
    const done = this.#lastLoad.then(() => this.#load(request));
    this.#lastLoad = done.catch(() => undefined);
    this.#loading.set(name, { request, done });
    return done;
  }

  /** @throws CubeError VERSION_ABSENT when it is not held: an activation cannot bring up nothing */
  activate({ bundle, version }: VersionRequest): string {
    const held = this.#bundles.get(bundle)?.get(version);
    if (held === undefined) throw this.#absent(bundle, version);
    this.#active.set(bundle, held);
    this.revision++;
    return version;
  }

  /** @returns false when it was not held. @throws CubeError CONFLICT for the active version */
  unload({ bundle, version }: VersionRequest): boolean {
    const versions = this.#bundles.get(bundle);
    if (this.#active.get(bundle)?.resident.version === version) {
      throw new CubeError(
        'CONFLICT',
        `${bundle} ${version} is active; activate another version before unloading it`,
      );
    }
    if (versions === undefined || !versions.delete(version)) return false;
    if (versions.size === 0) this.#bundles.delete(bundle);
    this.#store.unload(bundle, version);
    this.revision++;
    return true;
  }

  /** Notes which versions were used since the last call: idle times are exact to the interval between calls. */
  observeUse(): void {
    const nowMs = this.#clock.nowMs();
    for (const versions of this.#bundles.values()) {
      for (const held of versions.values()) held.observeUse(nowMs);
    }
  }

  bundleStatus(): BundleStatus[] {
    this.observeUse();
    const nowMs = this.#clock.nowMs();
    return [...this.#bundles].map(([bundle, versions]) => ({
      bundle,
      active: this.#active.get(bundle)?.resident.version ?? '',
      versions: [...versions.values()].map((held) => ({
        version: held.resident.version,
        rows: held.resident.rows,
        bytes: held.resident.bytes,
        idleMs: Math.round(nowMs - held.lastUsedMs),
        tablesDigest: held.tablesDigest,
      })),
    }));
  }

  loadingStatus(): VersionRequest[] {
    return [...this.#loading.values()].map(({ request }) => request);
  }

  failedStatus(): FailedLoad[] {
    return [...this.#failed.values()];
  }

  async #load(request: VersionRequest): Promise<LoadAnswer> {
    const name = `${request.bundle}/${request.version}`;
    const startMs = this.#clock.nowMs();
    this.#failed.delete(name);
    try {
      const manifest = this.#readManifest(request);
      const answer = await this.#store.load({
        manifest,
        shardIndex: this.shardIndex,
        layerPath: (table, contentId) =>
          `${this.#dataFolder}/${layerPath(request.bundle, table, contentId)}`,
      });
      this.#hold(manifest);
      const durationMs = Math.round(this.#clock.nowMs() - startMs);
      const { layersLoaded, layersShared, bytes } = answer;
      return { layersLoaded, layersShared, bytes, durationMs };
    } catch (error) {
      const { code, message } = CubeError.from(error);
      for (const oldest of this.#failed.keys()) {
        if (this.#failed.size < FAILED_MAX) break;
        this.#failed.delete(oldest);
      }
      this.#failed.set(name, { ...request, code, message });
      throw error;
    } finally {
      this.#loading.delete(name);
    }
  }

  #readManifest({ bundle, version }: VersionRequest): Manifest {
    const path = `${this.#dataFolder}/${manifestPath(bundle, version)}`;
    const manifest = parseStoredManifest(readText(path), path);
    if (manifest.bundle !== bundle || manifest.version !== version) {
      throw new CubeError(
        'CORRUPT',
        `${path}: is the manifest of ${manifest.bundle} ${manifest.version}; fetch it again`,
      );
    }
    const shardNum = shardNumOf(manifest);
    if (manifest.tables.length > 0 && shardNum !== this.shardNum) {
      throw new CubeError(
        'WRONG_SHARD',
        `${bundle} ${version} has ${shardNum} shards; this server serves shard ${this.shardIndex} of ${this.shardNum}`,
      );
    }
    return manifest;
  }

  #hold(manifest: Manifest): void {
    const { bundle, version } = manifest;
    const resident = this.#store.version(bundle, version);
    if (resident === undefined) throw new Error(`${bundle} ${version} vanished while loading`);
    const versions = this.#bundles.get(bundle) ?? new Map<string, HeldVersion>();
    const traffic = (table: string): TableTraffic => this.#trafficOf(bundle, table);
    versions.set(version, new HeldVersion(resident, traffic, this.#clock.nowMs()));
    this.#bundles.set(bundle, versions);
    this.revision++;
  }

  #trafficOf(bundle: string, table: string): TableTraffic {
    const name = `${bundle}/${table}`;
    let traffic = this.#traffic.get(name);
    if (traffic === undefined) {
      traffic = { bundle, table, keys: 0, hits: 0, bytes: 0 };
      this.#traffic.set(name, traffic);
    }
    return traffic;
  }

  #absent(bundle: string, version: string): CubeError {
    return new CubeError(
      'VERSION_ABSENT',
      `${bundle} ${version} is not held by shard ${this.shardIndex} of ${this.shardNum} (held: ${this.#heldText(bundle)})`,
    );
  }

  #heldText(bundle: string): string {
    const versions = [...(this.#bundles.get(bundle)?.keys() ?? [])];
    return versions.length === 0 ? 'none' : versions.join(', ');
  }
}

/** A manifest in the data folder was written by us: one that does not parse is damaged, not an argument. */
function parseStoredManifest(text: string, path: string): Manifest {
  try {
    return parseManifest(text, path);
  } catch (error) {
    throw new CubeError('CORRUPT', `${(error as Error).message}; fetch it again`, { cause: error });
  }
}
