/**
 * A simulated cube-server: it loads from the host's disk, checks what it reads, and loses
 * everything on a restart.
 */
import { ControlClient } from '../../cube-agent/fleet/control-client.ts';
import { toLayerName } from '../../cube-agent/host/plan.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { getShardNum, getTablesDigest } from '../../lib/core/manifest.ts';
import type {
  ActivateAnswer,
  ControlStatus,
  LoadAnswer,
  UnloadAnswer,
  UnloadRequest,
  VersionRequest,
  WithStatus,
} from '../../proto/control.ts';
import { BUNDLE, computeSha256, type HostFiles, readLayer } from './host-disk.ts';
import type { SimProcess, World } from './world.ts';

export interface LoadedVersion {
  /** The tag in its rows. */
  readonly tag: string;
  readonly digest: string;
  usedMs: number;
}

export interface Load {
  readonly durationMs: number;
  error: CubeError | undefined;
}

const LOAD_MS = 200;

export class SimServer {
  readonly address: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly loaded: Map<string, LoadedVersion> = new Map();
  /** Versions that this or an earlier process has loaded. */
  readonly everLoaded: Set<string> = new Set();
  active = '';
  readonly loading: Map<string, Load> = new Map();
  pid = 1;
  isUp = true;
  readonly #world: World;
  readonly #files: HostFiles;

  constructor(world: World, files: HostFiles, host: number, shardNum: number) {
    this.#world = world;
    this.#files = files;
    this.address = `host-${host}:${8000 + shardNum}`;
    this.shardIndex = host % shardNum;
    this.shardNum = shardNum;
  }

  restart(): void {
    this.pid += 1;
    this.loaded.clear();
    this.loading.clear();
    this.active = '';
  }

  status(): ControlStatus {
    const { nowMs } = this.#world;
    const { shardIndex, shardNum, pid, active } = this;
    const versions = [...this.loaded].map(([version, { usedMs, digest }]) => {
      return { version, rows: 1, bytes: 1, idleMs: nowMs - usedMs, tablesDigest: digest };
    });
    const loading = [...this.loading.keys()].map((version) => ({ bundle: BUNDLE, version }));
    const bundles = versions.length === 0 ? [] : [{ bundle: BUNDLE, active, versions }];
    const memory = { budgetBytes: 1, usedBytes: 0, pooledBytes: 0 };
    return { shardIndex, shardNum, pid, bundles, loading, failed: [], memory, ready: true };
  }

  beginLoad(version: string): Load {
    const known = this.loading.get(version);
    if (known !== undefined) return known;
    const load: Load = { durationMs: LOAD_MS, error: undefined };
    if (this.loaded.has(version)) return load;
    this.loading.set(version, load);
    const { pid } = this;
    this.#world.schedule(this.#world.nowMs + LOAD_MS, () => {
      if (this.pid !== pid) return;
      this.loading.delete(version);
      try {
        this.loaded.set(version, this.#read(version));
        this.everLoaded.add(version);
      } catch (error) {
        load.error = CubeError.from(error);
      }
    });
    return load;
  }

  activate(version: string): void {
    const { loaded, everLoaded } = this;
    this.#world.require(everLoaded.has(version), 'active is staged', () => {
      return `${this.address} is told to activate ${version}, which it never held`;
    });
    if (!loaded.has(version)) throw new CubeError('VERSION_ABSENT', `${version} is not held`);
    this.active = version;
  }

  unload(version: string, ifIdleMs: number): boolean {
    const held = this.loaded.get(version);
    if (held === undefined || version === this.active) return false;
    if (this.#world.nowMs - held.usedMs < ifIdleMs) return false;
    return this.loaded.delete(version);
  }

  /**
   * A lookup that names its version.
   * @returns whose rows it is answered with
   */
  lookup(version: string): string {
    const held = this.loaded.get(version);
    if (held === undefined) throw new CubeError('VERSION_ABSENT', `${version} is not held`);
    held.usedMs = this.#world.nowMs;
    return held.tag;
  }

  #read(version: string): LoadedVersion {
    const manifest = this.#files.manifests.get(version);
    if (manifest === undefined || getShardNum(manifest) !== this.shardNum) {
      throw new CubeError('NOT_FOUND', `no manifest of ${version} of ${this.shardNum} shards`);
    }
    let tag = '';
    for (const table of manifest.tables) {
      let parent: string | undefined;
      for (const { contentId, sha256 } of table.shards[this.shardIndex] ?? []) {
        const bytes = this.#files.layers.get(toLayerName(table.name, contentId));
        if (bytes === undefined) throw new CubeError('NOT_FOUND', `${contentId} is not here`);
        if (computeSha256(bytes) !== sha256)
          throw new CubeError('CORRUPT', `${contentId} is damaged`);
        const content = readLayer(bytes);
        if (content.parent !== parent) throw new CubeError('CORRUPT', `${contentId}: wrong parent`);
        parent = contentId;
        tag = content.tag;
      }
    }
    return { tag, digest: getTablesDigest(manifest), usedMs: this.#world.nowMs };
  }
}

/** The control client of an agent. */
export class SimControl extends ControlClient {
  readonly #server: SimServer;
  readonly #process: SimProcess;

  constructor(server: SimServer, process: SimProcess) {
    super(server.address);
    this.#server = server;
    this.#process = process;
  }

  override status(): Promise<ControlStatus> {
    return this.#call(() => this.#server.status());
  }

  override async load({ version }: VersionRequest): Promise<WithStatus<LoadAnswer>> {
    const { pid } = this.#server;
    const load = await this.#call(() => this.#server.beginLoad(version));
    await this.#process.clock.sleep(load.durationMs + 1);
    return this.#call(() => {
      if (this.#server.pid !== pid) throw new CubeError('UNAVAILABLE', 'connection reset');
      if (load.error !== undefined) throw load.error;
      const { durationMs } = load;
      return this.#addStatus({ layersLoaded: 1, layersShared: 0, bytes: 1, durationMs });
    });
  }

  override async activate({ version }: VersionRequest): Promise<WithStatus<ActivateAnswer>> {
    const answer = await this.#call(() => {
      this.#server.activate(version);
      return this.#addStatus({ active: version });
    });
    this.#process.world.record(this.#process.name, `activated ${version} on ${this.address}`);
    return answer;
  }

  override unload({ version, ifIdleMs = 0 }: UnloadRequest): Promise<WithStatus<UnloadAnswer>> {
    return this.#call(() => this.#addStatus({ unloaded: this.#server.unload(version, ifIdleMs) }));
  }

  #addStatus<Answer>(answer: Answer): WithStatus<Answer> {
    return { answer, status: this.#server.status() };
  }

  #call<T>(effect: () => T): Promise<T> {
    return this.#process.callRemote(() => {
      if (!this.#server.isUp) throw new CubeError('UNAVAILABLE', `${this.address}: refused`);
      return effect();
    }, true);
  }
}
