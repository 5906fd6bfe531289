/**
 * Changes what is held: load, activate, unload, drain. Loads run one at a time, beside lookups; a failed one leaves
 * everything as it was. A load without room gives up versions that nobody uses and nobody asks to keep, or is refused
 * before it starts.
 */
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { type Manifest, parseManifest, shardNumOf } from '../lib/core/manifest.ts';
import type { Clock } from '../lib/platform/clock.ts';
import { faultPoint } from '../lib/platform/fault-point.ts';
import { readText } from '../lib/platform/files.ts';
import { layerPath, manifestPath } from '../lib/repository/layout.ts';
import type {
  LoadReport,
  ResidentStore,
  LoadRequest as StoreLoad,
} from '../lib/store/resident-store.ts';
import type { ResidentVersion } from '../lib/store/resident-version.ts';
import type {
  FailedLoad,
  LoadAnswer,
  LoadRequest,
  UnloadRequest,
  VersionRequest,
} from '../proto/control.ts';
import type { HeldVersions } from './held-versions.ts';

/** Failed loads that status remembers. */
const FAILED_MAX = 32;
/** Loads that may wait for one another. */
const LOADING_MAX = 64;
const NOTHING_LOADED: LoadAnswer = { layersLoaded: 0, layersShared: 0, bytes: 0, durationMs: 0 };

/** The other threads that answer lookups; each call resolves when all of them have done so. */
export interface ServingThreads {
  hold(request: VersionRequest): Promise<void>;
  activate(request: VersionRequest): Promise<void>;
  drop(request: VersionRequest): Promise<void>;
  drain(draining: boolean): Promise<void>;
  /** Adds their lookups since the last call to those of the held versions. */
  observeUse(): Promise<void>;
}

export interface VersionControlOptions {
  readonly held: HeldVersions;
  readonly store: ResidentStore;
  readonly dataFolder: string;
  readonly clock: Clock;
  /** A version that was looked up within this time is in use. */
  readonly retireGraceMs: number;
  /** While lookups are answered, loads read no faster than this; may be infinite. */
  readonly loadBytesPerSecond: number;
}

/** Why a version was unloaded: someone asked, or a load needed its memory. */
export type UnloadReason = 'asked' | 'room';

export class VersionControl {
  readonly held: HeldVersions;
  readonly #options: VersionControlOptions;
  readonly #store: ResidentStore;
  readonly #clock: Clock;
  readonly #loading = new Map<string, { request: VersionRequest; done: Promise<LoadAnswer> }>();
  readonly #unloading = new Map<string, Promise<void>>();
  readonly #failed = new Map<string, FailedLoad>();
  #lastLoad: Promise<unknown> = Promise.resolve();
  /** Set by the assembly when there are any. */
  threads: ServingThreads | undefined;
  readonly unloads: Record<UnloadReason, number> = { asked: 0, room: 0 };
  readonly failures: Map<ErrorCode, number> = new Map<ErrorCode, number>();
  /** Called after each load that read something, or found all of it resident. */
  onLoaded: (answer: LoadAnswer) => void = () => undefined;

  constructor(options: VersionControlOptions) {
    this.held = options.held;
    this.#options = options;
    this.#store = options.store;
    this.#clock = options.clock;
  }

  get memory(): { budgetBytes: number; usedBytes: number; pooledBytes: number } {
    return this.#store.memory();
  }

  /** Reads a version from the data folder; one held or loading already costs nothing. */
  load(request: LoadRequest): Promise<LoadAnswer> {
    return this.loadFrom(request, () => this.#readManifest(request), this.#options.dataFolder);
  }

  /** The same with files from elsewhere. @param manifest called when it is this load's turn */
  loadFrom(
    request: LoadRequest,
    manifest: () => Manifest | Promise<Manifest>,
    folder: string,
  ): Promise<LoadAnswer> {
    if (this.held.find(request) !== undefined) return Promise.resolve(NOTHING_LOADED);
    const name = nameOf(request);
    const loading = this.#loading.get(name);
    if (loading !== undefined) return loading.done;
    if (this.#loading.size >= LOADING_MAX) {
      throw new CubeError(
        'OVERLOADED',
        `${LOADING_MAX} loads are waiting already; try again later`,
      );
    }
    const done = this.#lastLoad.then(() => this.#load(request, manifest, folder));
    this.#lastLoad = done.catch(() => undefined);
    this.#loading.set(name, { request, done });
    return done;
  }

  /** @throws CubeError VERSION_ABSENT when it is not held */
  async activate(request: VersionRequest): Promise<string> {
    this.held.activate(request);
    await this.threads?.activate(request);
    faultPoint('server.activated');
    return request.version;
  }

  /**
   * @returns false when it was not held
   * @throws CubeError CONFLICT for the active version, and for one in use unless forced
   */
  async unload(request: UnloadRequest): Promise<boolean> {
    const { bundle, version, force = false, ifIdleMs = this.#options.retireGraceMs } = request;
    await this.observeUse();
    const held = this.held.find(request);
    if (held === undefined) return false;
    if (this.held.activeName(bundle) === version) {
      throw new CubeError(
        'CONFLICT',
        `${bundle} ${version} is active; activate another version before unloading it`,
      );
    }
    const idleMs = Math.round(this.#clock.nowMs() - held.lastUsedMs);
    if (!force && held.lookups > 0 && idleMs < ifIdleMs) {
      throw new CubeError(
        'CONFLICT',
        `${bundle} ${version} was looked up ${idleMs} ms ago, within the ${ifIdleMs} ms asked for; wait, or send "force": true`,
      );
    }
    await this.#drop(request, 'asked');
    faultPoint('server.unloaded');
    return true;
  }

  /** Not ready, and every lookup refused with STOPPING, until told otherwise. */
  async drain(draining: boolean): Promise<void> {
    this.held.draining = draining;
    await this.threads?.drain(draining);
  }

  /** Notes which versions were used since the last call, by any thread. */
  async observeUse(): Promise<void> {
    await this.threads?.observeUse();
    this.held.observeUse();
  }

  loadingStatus(): VersionRequest[] {
    return [...this.#loading.values()].map(({ request }) => request);
  }

  failedStatus(): FailedLoad[] {
    return [...this.#failed.values()];
  }

  async #load(
    request: LoadRequest,
    manifestOf: () => Manifest | Promise<Manifest>,
    folder: string,
  ): Promise<LoadAnswer> {
    const name = nameOf(request);
    const startMs = this.#clock.nowMs();
    this.#failed.delete(name);
    try {
      await this.#unloading.get(name);
      const manifest = await manifestOf();
      const gaveUp: string[] = [];
      const report = await this.#loadFiles(manifest, folder, request.keep, gaveUp);
      await this.#hold(request);
      const durationMs = Math.round(this.#clock.nowMs() - startMs);
      const { layersLoaded, layersShared, bytes, inMemory } = report;
      const answer = {
        ...{ layersLoaded, layersShared, bytes, durationMs },
        ...(gaveUp.length > 0 ? { gaveUp } : {}),
        ...(inMemory.length > 0 ? { inMemory } : {}),
      };
      this.onLoaded(answer);
      faultPoint('server.loaded');
      return answer;
    } catch (error) {
      this.#noteFailure(request, CubeError.from(error));
      throw error;
    } finally {
      this.#loading.delete(name);
    }
  }

  async #loadFiles(
    manifest: Manifest,
    folder: string,
    keep: readonly string[] | undefined,
    gaveUp: string[],
  ): Promise<LoadReport> {
    const { bundle } = manifest;
    const request = {
      manifest,
      shardIndex: this.held.shardIndex,
      layerPath: (table: string, contentId: string) =>
        `${folder}/${layerPath(bundle, table, contentId)}`,
      // Before anything is active no lookup is disturbed, and being ready soon is what counts.
      bytesPerSecond: this.held.ready ? this.#options.loadBytesPerSecond : Number.POSITIVE_INFINITY,
    };
    await this.#makeRoom(request, new Set(keep), gaveUp);
    return this.#store.load(request);
  }

  /** Gives up what nobody uses, longest unused first, if that makes room at all; else the load says what is missing. */
  async #makeRoom(request: StoreLoad, keep: ReadonlySet<string>, gaveUp: string[]): Promise<void> {
    for (;;) {
      const plan = await this.#store.planLoad(request);
      if (plan.fits) return;
      await this.observeUse();
      const spare = this.#spareVersions().filter((version) => !keep.has(nameOf(version)));
      const [first] = spare;
      if (first === undefined) return;
      if (plan.unusedBytes + plan.freedBy(spare) < plan.neededBytes) return;
      await this.#drop(first, 'room');
      gaveUp.push(nameOf(first));
    }
  }

  #spareVersions(): ResidentVersion[] {
    const nowMs = this.#clock.nowMs();
    return this.held
      .all()
      .filter(({ resident: { bundle, version } }) => this.held.activeName(bundle) !== version)
      .filter(({ lastUsedMs }) => nowMs - lastUsedMs >= this.#options.retireGraceMs)
      .sort((a, b) => a.lastUsedMs - b.lastUsedMs)
      .map(({ resident }) => resident);
  }

  async #hold(request: VersionRequest): Promise<void> {
    const { bundle, version } = request;
    const resident = this.#store.version(bundle, version);
    if (resident === undefined) throw new Error(`${bundle} ${version} vanished while loading`);
    try {
      await this.threads?.hold(request);
    } catch (error) {
      this.#store.unload(bundle, version);
      throw error;
    }
    this.held.hold(resident);
  }

  /** Its memory is given back once no thread can be reading it. */
  #drop(request: VersionRequest, reason: UnloadReason): Promise<void> {
    const { bundle, version } = request;
    const name = nameOf(request);
    this.held.drop(request);
    this.unloads[reason]++;
    const dropped = (this.threads?.drop(request) ?? Promise.resolve()).then(() => {
      this.#store.unload(bundle, version);
      this.#unloading.delete(name);
    });
    this.#unloading.set(name, dropped);
    return dropped;
  }

  #noteFailure(request: VersionRequest, { code, message }: CubeError): void {
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
    for (const oldest of this.#failed.keys()) {
      if (this.#failed.size < FAILED_MAX) break;
      this.#failed.delete(oldest);
    }
    const { bundle, version } = request;
    this.#failed.set(nameOf(request), { bundle, version, code, message });
  }

  #readManifest({ bundle, version }: VersionRequest): Manifest {
    const path = `${this.#options.dataFolder}/${manifestPath(bundle, version)}`;
    const manifest = parseStoredManifest(readText(path), path);
    if (manifest.bundle !== bundle || manifest.version !== version) {
      throw new CubeError(
        'CORRUPT',
        `${path}: is the manifest of ${manifest.bundle} ${manifest.version}; fetch it again`,
      );
    }
    const shardNum = shardNumOf(manifest);
    if (manifest.tables.length > 0 && shardNum !== this.held.shardNum) {
      throw new CubeError(
        'WRONG_SHARD',
        `${bundle} ${version} has ${shardNum} shards; this server serves shard ${this.held.shardIndex} of ${this.held.shardNum}`,
      );
    }
    return manifest;
  }
}

function nameOf({ bundle, version }: VersionRequest): string {
  return `${bundle}/${version}`;
}

/** A manifest in the data folder was written by us: one that does not parse is damaged, not an argument. */
function parseStoredManifest(text: string, path: string): Manifest {
  try {
    return parseManifest(text, path);
  } catch (error) {
    throw new CubeError('CORRUPT', `${(error as Error).message}; fetch it again`, { cause: error });
  }
}
