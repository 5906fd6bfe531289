/**
 * The MEMORY store: all shards of a version resident in this process. Layers are read from the
 * repository's own files when it is a folder of this machine, and from files fetched into a data
 * folder otherwise. Model workers look rows up in the same memories by themselves (`share`), each
 * under its own thread number.
 *
 * Invariants
 * - A version can be looked up in when all of its shards are resident.
 * - The memory for the whole version is reserved before the first byte is read.
 * - Equal layers are shared between versions.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import {
  type LookupGroup,
  type LookupSummary,
  resolveTables,
} from '../../lib/core/lookup-group.ts';
import { getShardNum, type LayerRef, type Manifest } from '../../lib/core/manifest.ts';
import { listFolder, makeFolder, removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { type LoadRequest, ResidentStore } from '../../lib/store/resident-store.ts';
import type { ResidentVersion } from '../../lib/store/resident-version.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import { type EmbeddingStore, requireNotCancelled, ThreadNumbers } from './embedding-store.ts';
import { answerExpired } from './row-output.ts';
import { ShardedLookup } from './sharded-lookup.ts';
import { VersionLifecycle } from './version-lifecycle.ts';

export interface MemoryStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer' | 'localLayerPath' | 'location'>;
  /**
   * Where layers of a remote repository are fetched to, used by this store alone. Without it, such
   * a repository is refused.
   */
  readonly folder?: string | undefined;
  /** The most that the tables of all versions together may take. */
  readonly budgetBytes: number;
  /**
   * Model workers of all loaded versions together that may look up at the same time as this thread.
   * Default 16.
   */
  readonly workers?: number;
  readonly logger?: Logger;
}

export interface MemoryUsage {
  /** Used by loaded versions. */
  readonly usedBytes: number;
  /** Kept for the next load. */
  readonly pooledBytes: number;
  /** The most that both together may take. */
  readonly budgetBytes: number;
}

/** Each takes some 64 KiB of every memory. */
const DEFAULT_WORKERS = 16;

export class MemoryStore implements EmbeddingStore {
  readonly kind = 'memory';
  /** The areas of the memories that the model workers use. */
  readonly threads: ThreadNumbers;
  readonly #options: MemoryStoreOptions;
  readonly #versions: VersionLifecycle<ShardedLookup> = new VersionLifecycle('the memory store');
  readonly #firstShard: ResidentStore;
  /** One for each shard number, the first included; they share the budget and the load thread. */
  readonly #shards: ResidentStore[];

  constructor(options: MemoryStoreOptions) {
    const { budgetBytes, workers = DEFAULT_WORKERS } = options;
    this.#options = options;
    this.threads = new ThreadNumbers(workers);
    this.#firstShard = new ResidentStore({ budgetBytes, threads: 1 + workers });
    this.#shards = [this.#firstShard];
  }

  prepare(manifest: Manifest, signal?: AbortSignal): Promise<void> {
    return this.#versions.prepare(manifest, () => this.#load(manifest, signal));
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    const lookup = this.#versions.get(manifest);
    const tables = resolveTables(manifest, groups);
    if (timeoutMs <= 0) return answerExpired(manifest, groups, tables);
    let unseen = 0;
    for (const group of groups) unseen += lookup.lookup(group);
    return { version: manifest.version, unseen, unavailable: 0 };
  }

  /**
   * Every shard of a prepared version, for a model worker, which must detach from them before the
   * version is retired.
   */
  share(manifest: Manifest): readonly SharedVersion[] {
    this.#versions.get(manifest);
    const { bundle, version } = manifest;
    return this.#getShards(manifest).map((shard) => shard.share(bundle, version));
  }

  retire(manifest: Manifest): Promise<void> {
    return this.#versions.retire(manifest, async () => {
      if (!this.#versions.has(manifest)) this.#unload(manifest);
      this.#removeUnusedFiles();
    });
  }

  getMemoryUsage(): MemoryUsage {
    const { usedBytes, pooledBytes, budgetBytes } = this.#firstShard.getMemoryUsage();
    return { usedBytes, pooledBytes, budgetBytes };
  }

  async close(): Promise<void> {
    if (!this.#versions.close()) return;
    await this.#firstShard.close();
    await this.#versions.waitIdle();
    for (const manifest of this.#versions.manifests()) this.#unload(manifest);
  }

  #getShards(manifest: Manifest): ResidentStore[] {
    const { budgetBytes } = this.#options;
    while (this.#shards.length < getShardNum(manifest)) {
      const threads = 1 + this.threads.capacity;
      this.#shards.push(new ResidentStore({ budgetBytes, threads, sharedWith: this.#firstShard }));
    }
    return this.#shards.slice(0, getShardNum(manifest));
  }

  async #load(manifest: Manifest, signal: AbortSignal | undefined): Promise<ShardedLookup> {
    const { bundle, version } = manifest;
    this.#requireFits(manifest);
    const paths = await this.#findFiles(manifest, signal);
    // While a version is being looked up in, loads leave it a share of the machine.
    const isIdle = !this.#versions.hasLoaded;
    const loads = this.#getShards(manifest).map((shard, shardIndex) => {
      const request: LoadRequest = {
        manifest,
        shardIndex,
        layerPath: (_table, contentId) => paths.get(contentId) ?? '',
        ...(isIdle && { bytesPerSecond: Number.POSITIVE_INFINITY }),
      };
      return { shard, request };
    });
    await this.#requireRoom(manifest, loads);
    try {
      let bytes = 0;
      for (const { shard, request } of loads) {
        this.#versions.requireOpen();
        requireNotCancelled(manifest, signal);
        bytes += (await shard.load(request)).bytes;
      }
      const usage = this.getMemoryUsage();
      this.#options.logger?.info({ bundle, version, bytes, ...usage }, 'tables in memory');
      return new ShardedLookup(loads.map(({ shard }) => requireVersion(shard, manifest)));
    } catch (error) {
      this.#unload(manifest);
      throw error;
    }
  }

  #unload(manifest: Manifest): void {
    for (const shard of this.#getShards(manifest)) shard.unload(manifest.bundle, manifest.version);
  }

  /**
   * Called before anything is fetched, so that a version that can never fit costs no download.
   * @throws CubeError TOO_LARGE
   */
  #requireFits(manifest: Manifest): void {
    const layers = manifest.tables.flatMap(({ shards }) => shards.flat());
    const byContent = new Map(layers.map(({ contentId, bytes }) => [contentId, bytes]));
    const neededBytes = [...byContent.values()].reduce((sum, bytes) => sum + bytes, 0);
    if (neededBytes > this.#options.budgetBytes) throw this.#makeRoomError(manifest, neededBytes);
  }

  /**
   * Called for the whole version before anything is read.
   * @throws CubeError TOO_LARGE, or OVERLOADED when it fits once other versions are retired
   */
  async #requireRoom(
    manifest: Manifest,
    loads: readonly { readonly shard: ResidentStore; readonly request: LoadRequest }[],
  ): Promise<void> {
    let neededBytes = 0;
    for (const { shard, request } of loads) {
      neededBytes += (await shard.planLoad(request)).neededBytes;
    }
    const { usedBytes, budgetBytes } = this.getMemoryUsage();
    if (usedBytes + neededBytes > budgetBytes) throw this.#makeRoomError(manifest, neededBytes);
  }

  #makeRoomError({ bundle, version }: Manifest, neededBytes: number): CubeError {
    const { usedBytes, budgetBytes } = this.getMemoryUsage();
    return new CubeError(
      neededBytes > budgetBytes ? 'TOO_LARGE' : 'OVERLOADED',
      `${bundle} ${version}: its tables need ${neededBytes} bytes of memory; ${usedBytes} of the ` +
        `store's ${budgetBytes} are used. Give the store more (--memory), or keep rows on disk: ` +
        '--store local, or --data-dir without --store',
    );
  }

  /**
   * The path of each layer on this machine, by contentId. Layers of a remote repository are
   * fetched, each once.
   */
  async #findFiles(
    manifest: Manifest,
    signal: AbortSignal | undefined,
  ): Promise<Map<string, string>> {
    const { repository } = this.#options;
    const { bundle } = manifest;
    const paths = new Map<string, string>();
    for (const { name, shards } of manifest.tables) {
      for (const layer of shards.flat()) {
        const local = repository.localLayerPath(bundle, name, layer);
        requireNotCancelled(manifest, signal);
        paths.set(layer.contentId, local ?? (await this.#fetch(bundle, name, layer, signal)));
      }
    }
    return paths;
  }

  async #fetch(
    bundle: string,
    table: string,
    layer: LayerRef,
    signal: AbortSignal | undefined,
  ): Promise<string> {
    this.#versions.requireOpen();
    const { folder, repository } = this.#options;
    if (folder === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `the repository ${repository.location} is not a folder of this machine: give the store a ` +
          'data folder to fetch layers into (--data-dir)',
      );
    }
    makeFolder(folder);
    const path = join(folder, `${layer.contentId}.cube`);
    await repository.fetchLayer(bundle, table, layer, path, signal && { signal });
    return path;
  }

  /** Removes fetched files that no version of this store names. Resident tables need no file. */
  #removeUnusedFiles(): void {
    const { folder } = this.#options;
    if (folder === undefined) return;
    const needed = new Set<string>();
    for (const { tables } of this.#versions.manifests()) {
      for (const { shards } of tables) {
        for (const { contentId } of shards.flat()) needed.add(`${contentId}.cube`);
      }
    }
    for (const name of listFolder(folder)) {
      if (name.endsWith('.cube') && !needed.has(name)) removePath(join(folder, name));
    }
  }
}

function requireVersion(shard: ResidentStore, { bundle, version }: Manifest): ResidentVersion {
  const resident = shard.version(bundle, version);
  if (resident !== undefined) return resident;
  throw new CubeError('INTERNAL', `${bundle} ${version}: a shard was unloaded during its load`);
}
