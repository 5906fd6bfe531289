/**
 * The REDIS store: the layers of versions in Redis or Valkey, shared by all serving processes that ask it.
 *
 * Invariants: a version is prepared when every partition of all its layers has its marker and as many rows as that says; a
 * lookup is answered by those partitions alone, and a partition whose marker is gone, or whose node is, makes its keys
 * unavailable, never unseen. Retiring a version here removes nothing there: others may use it (`serving load-redis --remove`).
 */
import { join } from 'node:path';
import { type LookupGroup, type LookupSummary, tablesOf } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import { FillProgress } from './fill-progress.ts';
import { redisAddress } from './redis-endpoint.ts';
import { type LayerName, RedisLayers } from './redis-layers.ts';
import { RedisLink } from './redis-link.ts';
import { RedisLookup } from './redis-lookup.ts';
import { RedisVersion } from './redis-version.ts';
import { setAllUnavailable } from './row-output.ts';
import type { RedisChoice } from './store-choice.ts';
import { type WantedVersions, wantedLayers } from './wanted-layers.ts';

export interface RedisStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer'> & WantedVersions;
  readonly logger?: Logger;
  /** Of a load: bytes of keys and rows written, at most. Default: no limit. */
  readonly bytesPerSecond?: number;
  /** Of a load: rows written so far, of all that the version is short of. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

export class RedisStore implements EmbeddingStore {
  readonly kind = 'redis';
  readonly #options: RedisStoreOptions;
  readonly #link: RedisLink;
  readonly #layers: RedisLayers;
  readonly #fill: boolean;
  readonly #prepared = new Map<string, RedisVersion>();
  readonly #preparing = new Map<string, Promise<void>>();
  #closed = false;

  /**
   * Begins to connect; `prepare` waits for it.
   * @throws CubeError INVALID_ARGUMENT for addresses that are none
   */
  constructor(choice: RedisChoice, options: RedisStoreOptions) {
    this.#options = options;
    this.#link = new RedisLink(redisAddress(choice), options.logger);
    this.#layers = new RedisLayers(this.#link, options.bytesPerSecond);
    this.#fill = choice.fill ?? false;
  }

  async prepare(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    const name = versionName(manifest);
    const running = this.#preparing.get(name);
    if (running !== undefined) return running;
    const work = this.#prepare(manifest).finally(() => this.#preparing.delete(name));
    this.#preparing.set(name, work);
    return work;
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    this.#requireOpen();
    const version = this.#prepared.get(versionName(manifest));
    if (version === undefined) {
      const held = [...this.#prepared.keys()].join(', ') || 'none';
      throw new CubeError(
        'VERSION_ABSENT',
        `${manifest.bundle} ${manifest.version} was not prepared in this store (it holds: ${held})`,
      );
    }
    const tables = tablesOf(version.manifest, groups);
    if (timeoutMs <= 0) {
      const unavailable = setAllUnavailable(groups, tables);
      return summaryOf(manifest, 0, unavailable, 'no time was left to ask');
    }
    const lookup = new RedisLookup(version, groups, tables);
    await within(lookup.ask(this.#link), timeoutMs);
    const { unseen, unavailable } = lookup.finish();
    const late = `redis ${this.#link.name} did not answer within ${Math.round(timeoutMs)} ms`;
    return summaryOf(manifest, unseen, unavailable, lookup.reason ?? late);
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#prepared.delete(versionName(manifest));
  }

  /**
   * Removes from Redis every layer of the bundle that neither the versions prepared here nor the bundle's channels name.
   * @returns contentIds
   */
  async removeUnwanted(bundle: string): Promise<string[]> {
    this.#requireOpen();
    await this.#link.ready();
    const inUse = [...this.#prepared.values()].map(({ manifest }) => manifest);
    const wanted = await wantedLayers(this.#options.repository, [bundle], inUse);
    return this.#layers.removeOthers(bundle, wanted);
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#link.close();
    await Promise.allSettled(this.#preparing.values());
  }

  #requireOpen(): void {
    if (this.#closed) throw new CubeError('STOPPING', 'this store is closed');
  }

  async #prepare(manifest: Manifest): Promise<void> {
    tablesOf(manifest, manifest.tables.map(emptyGroup));
    await this.#link.ready();
    const missing = await this.#layers.missing(manifest);
    if (missing.length > 0 && !this.#fill) {
      const all = new Set(manifest.tables.flatMap(({ shards }) => shards.flat()).map(idOf)).size;
      throw new CubeError(
        'NOT_READY',
        `${missing.length} of ${all} layers of ${manifest.bundle} ${manifest.version} are not whole in redis ${this.#link.name}: ` +
          'run serving load-redis, or let this process load them (fill)',
      );
    }
    if (missing.length > 0) await this.#loadAll(manifest, missing);
    this.#prepared.set(versionName(manifest), new RedisVersion(manifest));
  }

  async #loadAll({ bundle, version }: Manifest, missing: readonly LayerName[]): Promise<void> {
    const { repository, logger, onProgress } = this.#options;
    const progress = new FillProgress({
      subject: { bundle, version, redis: this.#link.name },
      rowsTotal: missing.reduce((sum, { layer }) => sum + layer.rows, 0),
      ...(logger && { logger }),
      ...(onProgress && { onProgress }),
    });
    const watcher = {
      onRows: (rows: number) => progress.add(rows),
      onSkipped: (rows: number) => progress.skip(rows),
    };
    const folder = new TemporaryFolder('redis');
    try {
      for (const name of missing) {
        this.#requireOpen();
        const path = join(folder.path, `${name.layer.contentId}.cube`);
        await repository.fetchLayer(bundle, name.table.name, name.layer, path);
        await this.#layers.load(name, path, watcher);
        removePath(path);
      }
      progress.finish();
    } catch (error) {
      progress.abandon();
      throw error;
    } finally {
      folder.remove();
    }
  }
}

/** Waits for the work, but not longer. */
async function within(work: Promise<void>, timeoutMs: number): Promise<void> {
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise<void>((resolve) => {
    timer = setTimeout(resolve, timeoutMs);
  });
  try {
    await Promise.race([work, late]);
  } finally {
    clearTimeout(timer);
  }
}

function summaryOf(
  { version }: Manifest,
  unseen: number,
  unavailable: number,
  reason: string,
): LookupSummary {
  return { version, unseen, unavailable, ...(unavailable > 0 && { reason }) };
}

function emptyGroup({ name }: { name: string }): LookupGroup {
  const [keys, rows, outcomes] = [new Uint32Array(0), new Float32Array(0), new Uint8Array(0)];
  return { table: name, keys, count: 0, rows, outcomes };
}

function idOf({ contentId }: { contentId: string }): string {
  return contentId;
}

function versionName({ bundle, version }: Manifest): string {
  return `${bundle}/${version}`;
}
