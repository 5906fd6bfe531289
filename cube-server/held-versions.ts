/**
 * What a thread answers lookups from: resident versions, and which one is active per bundle. Every lookup, of any
 * protocol, resolves its version here; so here is also where a draining replica refuses.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { Clock } from '../lib/platform/clock.ts';
import type { ResidentVersion } from '../lib/store/resident-version.ts';
import type { BundleStatus, VersionRequest } from '../proto/control.ts';
import { HeldVersion, type TableTraffic } from './held-version.ts';

export interface HeldVersionsOptions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly clock: Clock;
}

export class HeldVersions {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly #clock: Clock;
  /** bundle → version → held. */
  readonly #bundles = new Map<string, Map<string, HeldVersion>>();
  readonly #active = new Map<string, HeldVersion>();
  readonly #traffic = new Map<string, TableTraffic>();
  #draining = false;
  /** Counts what changes the answer to `resolve`: what is derived from it is stale then. */
  revision = 0;

  constructor({ shardIndex, shardNum, clock }: HeldVersionsOptions) {
    this.shardIndex = shardIndex;
    this.shardNum = shardNum;
    this.#clock = clock;
  }

  /** Some version is active. */
  get ready(): boolean {
    return this.#active.size > 0;
  }

  /** Refuses every lookup with STOPPING, so that callers turn to another replica. */
  get draining(): boolean {
    return this.#draining;
  }

  set draining(draining: boolean) {
    this.#draining = draining;
    this.revision++;
  }

  /** Traffic per bundle and table, over all versions this process ever held. */
  get traffic(): Iterable<TableTraffic> {
    return this.#traffic.values();
  }

  /** @throws CubeError STOPPING while draining */
  activeVersions(): Iterable<HeldVersion> {
    this.#refuseDraining();
    return this.#active.values();
  }

  /** Name of the active version of a bundle; empty: none. */
  activeName(bundle: string): string {
    return this.#active.get(bundle)?.resident.version ?? '';
  }

  all(): HeldVersion[] {
    return [...this.#bundles.values()].flatMap((versions) => [...versions.values()]);
  }

  find({ bundle, version }: VersionRequest): HeldVersion | undefined {
    return this.#bundles.get(bundle)?.get(version);
  }

  /**
   * The version that answers a lookup. @param version empty: the active one
   * @throws CubeError NOT_READY when none is active, VERSION_ABSENT naming those held, STOPPING while draining
   */
  resolve(bundle: string, version: string): HeldVersion {
    this.#refuseDraining();
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

  /** From now on the version answers pinned lookups. */
  hold(resident: ResidentVersion): void {
    const { bundle, version } = resident;
    const versions = this.#bundles.get(bundle) ?? new Map<string, HeldVersion>();
    const traffic = (table: string): TableTraffic => this.#trafficOf(bundle, table);
    versions.set(version, new HeldVersion(resident, traffic, this.#clock.nowMs()));
    this.#bundles.set(bundle, versions);
    this.revision++;
  }

  /** @throws CubeError VERSION_ABSENT when it is not held: an activation cannot bring up nothing */
  activate(request: VersionRequest): void {
    const held = this.find(request);
    if (held === undefined) throw this.#absent(request.bundle, request.version);
    this.#active.set(request.bundle, held);
    this.revision++;
  }

  /** From now on the version answers nothing; the active one is never dropped. */
  drop({ bundle, version }: VersionRequest): void {
    if (this.activeName(bundle) === version) throw new Error(`${bundle} ${version} is active`);
    const versions = this.#bundles.get(bundle);
    if (!versions?.delete(version)) return;
    if (versions.size === 0) this.#bundles.delete(bundle);
    this.revision++;
  }

  /** Notes which versions were used since the last call: idle times are exact to the interval between calls. */
  observeUse(): void {
    const nowMs = this.#clock.nowMs();
    for (const held of this.all()) held.observeUse(nowMs);
  }

  bundleStatus(): BundleStatus[] {
    this.observeUse();
    const nowMs = this.#clock.nowMs();
    return [...this.#bundles].map(([bundle, versions]) => ({
      bundle,
      active: this.activeName(bundle),
      versions: [...versions.values()].map((held) => ({
        version: held.resident.version,
        rows: held.resident.rows,
        bytes: held.resident.bytes,
        idleMs: Math.round(nowMs - held.lastUsedMs),
        tablesDigest: held.tablesDigest,
      })),
    }));
  }

  #refuseDraining(): void {
    if (!this.#draining) return;
    throw new CubeError('STOPPING', 'this replica is draining; call another one');
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
