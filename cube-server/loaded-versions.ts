/**
 * The loaded versions of one thread and the active version of each bundle. Lookups of every
 * protocol resolve their version here, and a draining replica refuses them here.
 */
import { CubeError, type ErrorDetails } from '../lib/core/errors.ts';
import type { Clock } from '../lib/platform/clock.ts';
import type { ResidentVersion } from '../lib/store/resident-version.ts';
import type { BundleStatus, VersionRequest } from '../proto/control.ts';
import { LoadedVersion, type TableCounters } from './loaded-version.ts';

export interface LoadedVersionsOptions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly clock: Clock;
}

export class LoadedVersions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly #clock: Clock;
  /** bundle → version → loaded version. */
  readonly #bundles = new Map<string, Map<string, LoadedVersion>>();
  readonly #active = new Map<string, LoadedVersion>();
  readonly #counters = new Map<string, TableCounters>();
  #draining = false;
  /** Why the load that was due at start failed; empty when it has not. */
  startFailure = '';
  /** Called when draining ends. */
  onDrainEnd: () => void = () => undefined;
  /** Incremented when the result of `resolve` may change, so that derived values can be cached. */
  revision = 0;

  constructor({ shardIndex, shardNum, clock }: LoadedVersionsOptions) {
    this.shardIndex = shardIndex;
    this.shardNum = shardNum;
    this.#clock = clock;
  }

  /** At least one version is active. */
  get ready(): boolean {
    return this.#active.size > 0;
  }

  /** While draining, every lookup fails with STOPPING, so that callers use another replica. */
  get draining(): boolean {
    return this.#draining;
  }

  set draining(draining: boolean) {
    const isEnding = this.#draining && !draining;
    this.#draining = draining;
    this.revision++;
    if (isEnding) this.onDrainEnd();
  }

  /** Why no version is active, and what to do. */
  explainNotReady(): string {
    if (this.startFailure === '') return 'no version is active; load and activate one';
    return `the load at start failed (${this.startFailure}); load and activate a version`;
  }

  /** Counters per bundle and table, over all versions this process ever loaded. */
  get tableCounters(): Iterable<TableCounters> {
    return this.#counters.values();
  }

  /** @throws CubeError STOPPING while draining */
  activeVersions(): Iterable<LoadedVersion> {
    this.#refuseDraining();
    return this.#active.values();
  }

  /** Name of the active version of a bundle; '' for none. */
  getActiveVersionName(bundle: string): string {
    return this.#active.get(bundle)?.resident.version ?? '';
  }

  all(): LoadedVersion[] {
    return [...this.#bundles.values()].flatMap((versions) => [...versions.values()]);
  }

  find({ bundle, version }: VersionRequest): LoadedVersion | undefined {
    return this.#bundles.get(bundle)?.get(version);
  }

  /**
   * Finds the version for a lookup.
   * @param version '' selects the active one
   * @throws CubeError NOT_READY when none is active, VERSION_ABSENT with the loaded versions,
   *   STOPPING while draining
   */
  resolve(bundle: string, version: string): LoadedVersion {
    this.#refuseDraining();
    const loaded =
      version === '' ? this.#active.get(bundle) : this.#bundles.get(bundle)?.get(version);
    if (loaded !== undefined) return loaded;
    if (version === '') {
      throw new CubeError(
        'NOT_READY',
        `bundle ${JSON.stringify(bundle)} has no active version on this server ` +
          `(loaded: ${this.#formatLoaded(bundle)}): ${this.explainNotReady()}`,
        { details: this.#createDetails(bundle) },
      );
    }
    throw this.#createAbsentError(bundle, version);
  }

  /** Adds a version, which then answers pinned lookups. */
  add(resident: ResidentVersion): void {
    const { bundle, version } = resident;
    const versions = this.#bundles.get(bundle) ?? new Map<string, LoadedVersion>();
    const counters = (table: string): TableCounters => this.#getCounters(bundle, table);
    versions.set(version, new LoadedVersion(resident, counters, this.#clock.nowMs()));
    this.#bundles.set(bundle, versions);
    this.revision++;
  }

  /** @throws CubeError VERSION_ABSENT when the version is not loaded */
  activate(request: VersionRequest): void {
    const loaded = this.find(request);
    if (loaded === undefined) throw this.#createAbsentError(request.bundle, request.version);
    this.#active.set(request.bundle, loaded);
    this.revision++;
  }

  /** Removes a version; the active one must not be removed. */
  remove({ bundle, version }: VersionRequest): void {
    if (this.getActiveVersionName(bundle) === version)
      throw new Error(`${bundle} ${version} is active`);
    const versions = this.#bundles.get(bundle);
    if (!versions?.delete(version)) return;
    if (versions.size === 0) this.#bundles.delete(bundle);
    this.revision++;
  }

  /**
   * Records which versions were used since the last call, so idle times are exact to the interval
   * between calls.
   */
  updateLastUsed(): void {
    const nowMs = this.#clock.nowMs();
    for (const loaded of this.all()) loaded.updateLastUsed(nowMs);
  }

  getBundleStatus(): BundleStatus[] {
    this.updateLastUsed();
    const nowMs = this.#clock.nowMs();
    return [...this.#bundles].map(([bundle, versions]) => ({
      bundle,
      active: this.getActiveVersionName(bundle),
      versions: [...versions.values()].map((loaded) => ({
        version: loaded.resident.version,
        rows: loaded.resident.rows,
        bytes: loaded.resident.bytes,
        idleMs: Math.round(nowMs - loaded.lastUsedMs),
        tablesDigest: loaded.tablesDigest,
        layers: loaded.chainLength,
      })),
    }));
  }

  #refuseDraining(): void {
    if (!this.#draining) return;
    throw new CubeError('STOPPING', 'this replica is draining; call another one');
  }

  #getCounters(bundle: string, table: string): TableCounters {
    const name = `${bundle}/${table}`;
    let counters = this.#counters.get(name);
    if (counters === undefined) {
      counters = { bundle, table, keys: 0, hits: 0, bytes: 0 };
      this.#counters.set(name, counters);
    }
    return counters;
  }

  #createAbsentError(bundle: string, version: string): CubeError {
    return new CubeError(
      'VERSION_ABSENT',
      `${bundle} ${version} is not loaded by shard ${this.shardIndex} of ${this.shardNum} ` +
        `(loaded: ${this.#formatLoaded(bundle)})`,
      { details: { ...this.#createDetails(bundle), version } },
    );
  }

  #createDetails(bundle: string): ErrorDetails {
    return { bundle, shard: this.shardIndex, loadedVersions: this.#listLoaded(bundle) };
  }

  #formatLoaded(bundle: string): string {
    const versions = this.#listLoaded(bundle);
    return versions.length === 0 ? 'none' : versions.join(', ');
  }

  #listLoaded(bundle: string): string[] {
    return [...(this.#bundles.get(bundle)?.keys() ?? [])];
  }
}

/**
 * The error for a missing key of another shard: reporting a missing key instead would turn a
 * routing error into wrong predictions.
 * @param index of the key among the u64 keys at keys[keysAt..]
 */
export function createWrongShardError(
  versions: LoadedVersions,
  keys: Uint8Array,
  keysAt: number,
  index: number,
  table: string,
): CubeError {
  const view = new DataView(keys.buffer, keys.byteOffset);
  const key = view.getBigUint64(keysAt + index * 8, true);
  return new CubeError(
    'WRONG_SHARD',
    `key ${key} (number ${index} for table ${table}) belongs to shard ` +
      `${key % BigInt(versions.shardNum)}; ` +
      `this replica serves shard ${versions.shardIndex} of ${versions.shardNum}`,
    { details: { table, shard: versions.shardIndex } },
  );
}
