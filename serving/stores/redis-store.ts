/**
 * The REDIS store: the layers of versions in Redis or Valkey, shared by all serving processes that
 * use it.
 *
 * Invariants
 * - A version is prepared when every partition of all its layers has its marker, and as many rows
 *   as the marker says.
 * - A lookup is answered from those partitions only. A partition whose marker is missing, or whose
 *   node is down, makes its keys unavailable, never unseen.
 * - `retire` removes nothing from Redis, because other processes may use the version (`serving
 *   load-redis --remove` does).
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import {
  type LookupGroup,
  type LookupSummary,
  resolveTables,
} from '../../lib/core/lookup-group.ts';
import { type Manifest, requireClear } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import { computeRowBytes } from '../../lib/core/row-codec.ts';
import { removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { requireLayerForm } from '../../lib/store/layer-open.ts';
import { type EmbeddingStore, makeAbsentError, type ServerStats } from './embedding-store.ts';
import { FillProgress } from './fill-progress.ts';
import { type ChannelReader, findLayersInUse } from './layers-in-use.ts';
import { RedisConnection } from './redis-connection.ts';
import { parseRedisAddress } from './redis-endpoint.ts';
import { type RedisLayer, RedisLayers } from './redis-layers.ts';
import { RedisLookup, RedisVersion } from './redis-lookup.ts';
import { RedisNodes } from './redis-nodes.ts';
import { answerExpired } from './row-output.ts';
import type { RedisChoice } from './store-choice.ts';

/**
 * Memory of Redis 6 and 7 for a field of a hash besides the row: key, headers, hash table. Measured
 * with 20,000 to 100,000 rows of 16 to 128 bytes: 67 to 90.
 */
const ROW_OVERHEAD_BYTES = 90;

export interface RedisStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer'> & ChannelReader;
  readonly logger?: Logger;
  /** The most bytes of keys and rows that a load writes per second. Default: no limit. */
  readonly bytesPerSecond?: number;
  /** Called during a load with the rows written so far and the rows that the version lacked. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

export class RedisStore implements EmbeddingStore {
  readonly kind = 'redis';
  readonly #options: RedisStoreOptions;
  readonly #connection: RedisConnection;
  readonly #nodes: RedisNodes;
  readonly #layers: RedisLayers;
  readonly #fill: boolean;
  readonly #prepared = new Map<string, RedisVersion>();
  readonly #preparing = new Map<string, Promise<void>>();
  #isClosed = false;

  /**
   * Starts to connect; `prepare` waits for the connection.
   * @throws CubeError INVALID_ARGUMENT for invalid addresses
   */
  constructor(choice: RedisChoice, options: RedisStoreOptions) {
    this.#options = options;
    this.#connection = new RedisConnection(parseRedisAddress(choice), options.logger);
    this.#nodes = new RedisNodes(this.#connection);
    this.#layers = new RedisLayers(this.#connection, options.bytesPerSecond);
    this.#fill = choice.fill ?? false;
  }

  get servers(): ServerStats {
    return { circuitsOpen: this.#nodes.openCircuits, retries: 0, backups: 0, refusals: 0 };
  }

  async prepare(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    requireClear(manifest, 'the Redis store');
    const key = versionKey(manifest);
    const running = this.#preparing.get(key);
    if (running !== undefined) return running;
    const preparing = this.#prepare(manifest).finally(() => this.#preparing.delete(key));
    this.#preparing.set(key, preparing);
    return preparing;
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    this.#requireOpen();
    const prepared = this.#prepared.get(versionKey(manifest));
    if (prepared === undefined) throw makeAbsentError(manifest, this.#prepared.keys());
    const tables = resolveTables(prepared.manifest, groups);
    if (timeoutMs <= 0) return answerExpired(manifest, groups, tables);
    const lookup = new RedisLookup(prepared, groups, tables);
    const deadlineExceeded = await waitAtMost(lookup.send(this.#nodes), timeoutMs);
    if (deadlineExceeded) lookup.expire();
    const { unseen, unavailable } = lookup.writeResults();
    const { version } = manifest;
    if (unavailable === 0) return { version, unseen, unavailable };
    const { name } = this.#connection;
    const { reason = `redis ${name} did not answer within ${Math.round(timeoutMs)} ms` } = lookup;
    return { version, unseen, unavailable, reason, deadlineExceeded };
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#prepared.delete(versionKey(manifest));
  }

  /**
   * Removes from Redis every layer of the bundle that neither the versions prepared here nor the
   * bundle's channels need.
   * @returns contentIds
   */
  async removeUnused(bundle: string): Promise<string[]> {
    const unused = await this.findUnused(bundle);
    await this.#layers.remove(bundle, unused);
    return unused;
  }

  /** The layers that `removeUnused` removes. @param more versions that are needed as well */
  async findUnused(bundle: string, more: readonly Manifest[] = []): Promise<string[]> {
    this.#requireOpen();
    await this.#connection.ready();
    const prepared = [...this.#prepared.values()].map(({ manifest }) => manifest);
    const inUse = await findLayersInUse(this.#options.repository, [bundle], [...prepared, ...more]);
    return this.#layers.findUnused(bundle, inUse);
  }

  /** Rows of the layers that `prepare` would load, and the memory that Redis needs for them. */
  async measureMissing(manifest: Manifest): Promise<{ rows: number; memoryBytes: number }> {
    this.#requireOpen();
    await this.#connection.ready();
    let rows = 0;
    let memoryBytes = 0;
    for (const { table, layer } of await this.#layers.findMissing(manifest)) {
      rows += layer.rows;
      const rowBytes = computeRowBytes(table.dtype, table.dim);
      memoryBytes += layer.rows * (rowBytes + ROW_OVERHEAD_BYTES);
    }
    return { rows, memoryBytes };
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    this.#nodes.close();
    this.#connection.close();
    await Promise.allSettled(this.#preparing.values());
  }

  #requireOpen(): void {
    if (this.#isClosed) throw new CubeError('STOPPING', 'the Redis store is closed');
  }

  async #prepare(manifest: Manifest): Promise<void> {
    resolveTables(manifest, manifest.tables.map(makeEmptyGroup));
    await this.#connection.ready();
    const missing = await this.#layers.findMissing(manifest);
    if (missing.length > 0 && !this.#fill) {
      const layers = manifest.tables.flatMap(({ shards }) => shards.flat());
      const total = new Set(layers.map(({ contentId }) => contentId)).size;
      throw new CubeError(
        'NOT_READY',
        `${missing.length} of ${total} layers of ${manifest.bundle} ${manifest.version} ` +
          `are missing or incomplete in redis ${this.#connection.name}: run serving load-redis, ` +
          'or let this process load them (fill)',
      );
    }
    if (missing.length > 0) await this.#loadAll(manifest, missing);
    this.#prepared.set(versionKey(manifest), new RedisVersion(manifest));
  }

  async #loadAll(manifest: Manifest, missing: readonly RedisLayer[]): Promise<void> {
    const { bundle, version } = manifest;
    const { repository, logger, onProgress } = this.#options;
    const progress = new FillProgress({
      subject: { bundle, version, redis: this.#connection.name },
      rowsTotal: missing.reduce((sum, { layer }) => sum + layer.rows, 0),
      ...(logger && { logger }),
      ...(onProgress && { onProgress }),
    });
    const observer = {
      onRows: (rows: number) => progress.addRows(rows),
      onSkipped: (rows: number) => progress.addSkipped(rows),
    };
    const folder = new TemporaryFolder('redis');
    try {
      for (const entry of missing) {
        this.#requireOpen();
        const { table, layer } = entry;
        const path = join(folder.path, `${layer.contentId}.cube`);
        await repository.fetchLayer(bundle, table.name, layer, path);
        requireLayerForm(manifest, path);
        await this.#layers.load(entry, path, observer);
        removePath(path);
      }
      progress.finish();
    } catch (error) {
      progress.stop();
      throw error;
    } finally {
      folder.remove();
    }
  }
}

/** Waits until the promise resolves or the time has passed. @returns whether the time has passed */
async function waitAtMost(promise: Promise<void>, timeoutMs: number): Promise<boolean> {
  let timer: NodeJS.Timeout | undefined;
  const timeout = new Promise<boolean>((resolve) => {
    // After the sockets have been read: replies may have arrived while this process was suspended.
    timer = setTimeout(setImmediate, timeoutMs, () => resolve(true));
  });
  try {
    return await Promise.race([promise.then(() => false), timeout]);
  } finally {
    clearTimeout(timer);
  }
}

function makeEmptyGroup({ name }: { name: string }): LookupGroup {
  return {
    table: name,
    keys: new Uint32Array(0),
    count: 0,
    rows: new Float32Array(0),
    outcomes: new Uint8Array(0),
  };
}
