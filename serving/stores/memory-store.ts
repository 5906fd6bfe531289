/**
 * LOCAL in memory: all shards of a version resident in this process, read from the repository's own files where it lies on this
 * machine's disk, else from files fetched into a folder and kept between starts. Model workers look up in the same memories by
 * themselves (`share`), each under a thread number of its own.
 *
 * Invariants: a version is answerable when every shard is resident, all or none; memory is accounted for the whole version
 * before the first byte is read; equal layers are shared between versions; loads and retirements happen one after another.
 */
import { join } from 'node:path';
import {
  checkColumn,
  defaultRowOf,
  type LookupGroup,
  type LookupSummary,
  OUTCOME_UNAVAILABLE,
  requireLength,
} from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { type LayerRef, type Manifest, shardNumOf, tableOf } from '../../lib/core/manifest.ts';
import { listFolder, makeFolder, removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { type LoadRequest, ResidentStore } from '../../lib/store/resident-store.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import { ShardedLookup } from './sharded-lookup.ts';
import { ThreadNumbers } from './thread-numbers.ts';

export interface MemoryStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer' | 'localLayer' | 'location'>;
  /** For layers of a repository that is not on this machine's disk; the store's own. Undefined: such a one is refused. */
  readonly folder?: string | undefined;
  /** Tables never take more. */
  readonly budgetBytes: number;
  /** Threads that may look up at the same time beside this one: model workers of all versions held together. */
  readonly workers?: number;
  readonly logger?: Logger;
}

/** A version that this process wants; `lookup` is set once all its shards are resident. */
interface WantedVersion {
  readonly manifest: Manifest;
  lookup: ShardedLookup | undefined;
  ready: Promise<void>;
}

/** Each takes some 64 KiB of every memory. */
const DEFAULT_WORKERS = 16;

export class MemoryStore implements EmbeddingStore {
  readonly kind = 'memory';
  /** Which areas of the memories the model workers use. */
  readonly threads: ThreadNumbers;
  readonly #options: MemoryStoreOptions;
  /** One a shard number; they share budget and load thread. */
  readonly #shards: ResidentStore[] = [];
  readonly #wanted = new Map<string, WantedVersion>();
  #work: Promise<unknown> = Promise.resolve();
  #closed = false;

  constructor(options: MemoryStoreOptions) {
    this.#options = options;
    this.threads = new ThreadNumbers(options.workers ?? DEFAULT_WORKERS);
    this.#shardStore(0);
  }

  async prepare(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    requireRows(manifest);
    const name = versionName(manifest);
    const known = this.#wanted.get(name);
    if (known !== undefined) return known.ready;
    const version: WantedVersion = { manifest, lookup: undefined, ready: Promise.resolve() };
    this.#wanted.set(name, version);
    version.ready = this.#enqueue(() => this.#load(version)).catch((error: unknown) => {
      if (this.#wanted.get(name) === version) this.#wanted.delete(name);
      throw error;
    });
    return version.ready;
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    this.#requireOpen();
    const lookup = this.#wanted.get(versionName(manifest))?.lookup;
    if (lookup === undefined) throw this.#absent(manifest);
    for (const group of groups) {
      const { dim } = tableOf(manifest, group.table);
      checkColumn(group);
      requireLength(group.table, 'rows', group.rows.length, dim * group.count);
    }
    const { version } = manifest;
    if (timeoutMs <= 0) return expired(manifest, groups);
    let unseen = 0;
    for (const group of groups) unseen += lookup.lookup(group);
    return { version, unseen, unavailable: 0 };
  }

  /** Every shard of a prepared version, for a model worker; it must end, or forget them, before the version is retired. */
  share(manifest: Manifest): readonly SharedVersion[] {
    if (this.#wanted.get(versionName(manifest))?.lookup === undefined) throw this.#absent(manifest);
    return this.#shardsOf(manifest).map((shard) => shard.share(manifest.bundle, manifest.version));
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    const name = versionName(manifest);
    this.#wanted.delete(name);
    await this.#enqueue(async () => {
      if (!this.#wanted.has(name)) this.#unload(manifest);
      this.#removeUnwantedFiles();
    });
  }

  /** Used by versions, kept for the next load, and the most that both may be. */
  memory(): { usedBytes: number; pooledBytes: number; budgetBytes: number } {
    const { usedBytes, pooledBytes, budgetBytes } = this.#shards[0]!.memory();
    return { usedBytes, pooledBytes, budgetBytes };
  }

  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#shards[0]!.close();
    await this.#work;
    for (const { manifest } of this.#wanted.values()) this.#unload(manifest);
    this.#wanted.clear();
  }

  #requireOpen(): void {
    if (this.#closed) throw new CubeError('STOPPING', 'the store in memory is closed');
  }

  #absent({ bundle, version }: Manifest): CubeError {
    const held = [...this.#wanted].filter(([, { lookup }]) => lookup !== undefined);
    const names = held.map(([name]) => name).join(', ') || 'none';
    return new CubeError(
      'VERSION_ABSENT',
      `${bundle} ${version} was not prepared in this store (it holds: ${names})`,
    );
  }

  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#work.then(work);
    this.#work = result.catch(() => undefined);
    return result;
  }

  #shardStore(shard: number): ResidentStore {
    const first = this.#shards[0];
    const { budgetBytes } = this.#options;
    this.#shards[shard] ??= new ResidentStore({
      ...{ budgetBytes, threads: 1 + this.threads.capacity },
      ...(first !== undefined && { beside: first }),
    });
    return this.#shards[shard];
  }

  #shardsOf(manifest: Manifest): ResidentStore[] {
    return Array.from({ length: shardNumOf(manifest) }, (_, shard) => this.#shardStore(shard));
  }

  async #load(wanted: WantedVersion): Promise<void> {
    const { manifest } = wanted;
    const { bundle, version } = manifest;
    this.#requireFits(manifest);
    const paths = await this.#localFiles(manifest);
    const shards = this.#shardsOf(manifest);
    // Lookups beside a load keep their share of the machine; without any, nothing has to wait.
    const idle = [...this.#wanted.values()].every(({ lookup }) => lookup === undefined);
    const requests = shards.map(
      (_, shardIndex): LoadRequest => ({
        ...{ manifest, shardIndex, layerPath: (_table, contentId) => paths.get(contentId)! },
        ...(idle && { bytesPerSecond: Number.POSITIVE_INFINITY }),
      }),
    );
    await this.#requireRoom(manifest, requests);
    try {
      let bytes = 0;
      for (const [i, shard] of shards.entries()) {
        this.#requireOpen();
        bytes += (await shard.load(requests[i]!)).bytes;
      }
      this.#options.logger?.info({ bundle, version, bytes, ...this.memory() }, 'tables in memory');
    } catch (error) {
      this.#unload(manifest);
      throw error;
    }
    wanted.lookup = new ShardedLookup(shards.map((shard) => shard.version(bundle, version)!));
  }

  #unload(manifest: Manifest): void {
    for (const shard of this.#shardsOf(manifest)) shard.unload(manifest.bundle, manifest.version);
  }

  /** Before anything is fetched: what can never fit costs no download. @throws CubeError TOO_LARGE */
  #requireFits(manifest: Manifest): void {
    const layers = manifest.tables.flatMap(({ shards }) => shards.flat());
    const byContent = new Map(layers.map(({ contentId, bytes }) => [contentId, bytes]));
    const needed = [...byContent.values()].reduce((sum, bytes) => sum + bytes, 0);
    if (needed > this.#options.budgetBytes) throw this.#noRoom(manifest, needed);
  }

  /** For the whole version, before anything is read. @throws CubeError TOO_LARGE, or OVERLOADED when others would have to go first */
  async #requireRoom(manifest: Manifest, requests: readonly LoadRequest[]): Promise<void> {
    let needed = 0;
    for (const [i, request] of requests.entries()) {
      needed += (await this.#shards[i]!.planLoad(request)).neededBytes;
    }
    const { usedBytes, budgetBytes } = this.memory();
    if (usedBytes + needed > budgetBytes) throw this.#noRoom(manifest, needed);
  }

  #noRoom({ bundle, version }: Manifest, needed: number): CubeError {
    const { usedBytes, budgetBytes } = this.memory();
    return new CubeError(
      needed > budgetBytes ? 'TOO_LARGE' : 'OVERLOADED',
      `${bundle} ${version}: its tables need ${needed} bytes of memory; ${usedBytes} of the ${budgetBytes} that the store may take ` +
        'are used. Give it more (--memory), or keep rows on disk: --store local, or a --data-dir without --store',
    );
  }

  /** Where each layer lies on this machine: contentId → path. Those of a remote repository are fetched, each once. */
  async #localFiles(manifest: Manifest): Promise<Map<string, string>> {
    const { repository } = this.#options;
    const { bundle } = manifest;
    const paths = new Map<string, string>();
    for (const { name, shards } of manifest.tables) {
      for (const layer of shards.flat()) {
        const local = repository.localLayer(bundle, name, layer);
        paths.set(layer.contentId, local ?? (await this.#fetch(bundle, name, layer)));
      }
    }
    return paths;
  }

  async #fetch(bundle: string, table: string, layer: LayerRef): Promise<string> {
    this.#requireOpen();
    const { folder, repository } = this.#options;
    if (folder === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${repository.location} is not on this machine's disk: give the store a data folder to fetch layers into`,
      );
    }
    makeFolder(folder);
    const path = join(folder, `${layer.contentId}.cube`);
    await repository.fetchLayer(bundle, table, layer, path);
    return path;
  }

  /** Fetched files that no wanted version names. Resident tables need no file. */
  #removeUnwantedFiles(): void {
    const { folder } = this.#options;
    if (folder === undefined) return;
    const needed = new Set<string>();
    for (const { manifest } of this.#wanted.values()) {
      for (const { shards } of manifest.tables) {
        for (const { contentId } of shards.flat()) needed.add(`${contentId}.cube`);
      }
    }
    for (const name of listFolder(folder)) {
      if (name.endsWith('.cube') && !needed.has(name)) removePath(join(folder, name));
    }
  }
}

function versionName({ bundle, version }: Manifest): string {
  return `${bundle}/${version}`;
}

/** @throws CubeError UNSUPPORTED for tables whose values are no rows */
function requireRows(manifest: Manifest): void {
  const values = manifest.tables.find(({ dtype }) => dtype === 'bytes');
  if (values === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${versionName(manifest)}: table ${values.name} has values of any length, which no graph takes`,
  );
}

function expired(manifest: Manifest, groups: readonly LookupGroup[]): LookupSummary {
  let unavailable = 0;
  for (const { table, rows, outcomes, count } of groups) {
    const row = defaultRowOf(tableOf(manifest, table));
    for (let i = 0; i < count; i++) rows.set(row, i * row.length);
    outcomes.fill(OUTCOME_UNAVAILABLE, 0, count);
    unavailable += count;
  }
  const reason = 'no time was left to ask';
  return { version: manifest.version, unseen: 0, unavailable, ...(unavailable > 0 && { reason }) };
}
