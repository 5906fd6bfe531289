/** Opens the store that a configuration chooses. Only this file knows all stores. */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { getMemoryLimitBytes } from '../../lib/platform/machine.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { type EmbeddingStore, makeAbsentError } from './embedding-store.ts';
import { HotRowsStore } from './hot-rows-store.ts';
import type { LocalStore } from './local-store.ts';
import { MemoryOrDiskStore } from './memory-or-disk-store.ts';
import { MemoryStore } from './memory-store.ts';
import { RemoteStore } from './remote-store.ts';
import type { HotRowsChoice, MemoryChoice, RedisChoice, StoreChoice } from './store-choice.ts';

/** Folders of the stores in their data folder. */
export const MEMORY_FOLDER = 'memory-store';
export const LOCAL_FOLDER = 'local-store';

export interface StoreEnvironment {
  readonly repository: Repository;
  readonly logger: Logger;
  /**
   * Model workers that may look up at the same time: those of all loaded versions, of one that
   * loads and one that drains.
   */
  readonly workers: number;
  /** Memory stores of this process, which share the machine's memory. */
  readonly memoryStores: number;
}

/** @throws CubeError when what the choice names cannot be read, opened or reached */
export async function openStore(
  choice: StoreChoice,
  environment: StoreEnvironment,
): Promise<EmbeddingStore> {
  const { logger } = environment;
  switch (choice.kind) {
    case 'none':
      return new NoneStore();
    case 'local':
      return openLocal(choice.dataDir, environment);
    case 'remote':
      return addHotRows(await RemoteStore.open(choice, logger), choice.hotRows);
    case 'memory':
      return openMemory(choice, environment);
    case 'redis':
      return addHotRows(await openRedis(choice, environment), choice.hotRows);
  }
}

/**
 * Imports the Redis client only when it is used: it is half of what a serving process would load.
 */
async function openRedis(
  choice: RedisChoice,
  { repository, logger }: StoreEnvironment,
): Promise<EmbeddingStore> {
  const { RedisStore } = await import('./redis-store.ts');
  return new RedisStore(choice, { repository, logger });
}

/**
 * The share of the machine's memory for all loaded versions: the active one, the previous one, and
 * one that loads.
 */
const MEMORY_SHARE = 0.6;

function openMemory(
  { memoryBytes, dataDir, fallBackToDisk }: MemoryChoice,
  environment: StoreEnvironment,
): EmbeddingStore {
  const { repository, logger, workers, memoryStores } = environment;
  const budgetBytes =
    memoryBytes ?? Math.floor((MEMORY_SHARE * getMemoryLimitBytes()) / memoryStores);
  const folder = dataDir === undefined ? undefined : join(dataDir, MEMORY_FOLDER);
  const store = new MemoryStore({ repository, folder, budgetBytes, workers, logger });
  if (!fallBackToDisk || dataDir === undefined) {
    logger.info({ budgetBytes }, 'tables are kept in memory');
    return store;
  }
  logger.info({ budgetBytes, dataDir }, 'tables are kept in memory if they fit, else on disk');
  return new MemoryOrDiskStore(store, () => openLocal(dataDir, environment), logger);
}

/** Imports the database only when it is used. */
async function openLocal(
  dataDir: string,
  { repository, logger }: StoreEnvironment,
): Promise<LocalStore> {
  const { LocalStore } = await import('./local-store.ts');
  return LocalStore.open({ repository, folder: join(dataDir, LOCAL_FOLDER), logger });
}

function addHotRows(store: EmbeddingStore, choice: HotRowsChoice | undefined): EmbeddingStore {
  return choice === undefined ? store : new HotRowsStore(store, choice.bytes);
}

/** The store of models whose embeddings are in the graph: there is nothing to look up. */
class NoneStore implements EmbeddingStore {
  readonly kind = 'none';
  readonly #prepared = new Set<string>();
  #isClosed = false;

  /** @throws CubeError INVALID_ARGUMENT for a version that has tables */
  async prepare(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    const { tables } = manifest;
    if (tables.length > 0) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${manifest.bundle} ${manifest.version} has tables ` +
          `(${tables.map(({ name }) => name).join(', ')}), ` +
          'but the store "none" has no rows; choose memory, local, remote or redis',
      );
    }
    this.#prepared.add(versionKey(manifest));
  }

  async lookup(manifest: Manifest, groups: readonly LookupGroup[]): Promise<LookupSummary> {
    this.#requireOpen();
    if (!this.#prepared.has(versionKey(manifest))) throw makeAbsentError(manifest, this.#prepared);
    const [group] = groups;
    if (group === undefined) return { version: manifest.version, unseen: 0, unavailable: 0 };
    throw new CubeError(
      'NOT_FOUND',
      `${manifest.bundle} ${manifest.version} has no table ${JSON.stringify(group.table)}: ` +
        'it has no tables',
    );
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#prepared.delete(versionKey(manifest));
  }

  async close(): Promise<void> {
    this.#isClosed = true;
  }

  #requireOpen(): void {
    if (this.#isClosed) throw new CubeError('STOPPING', 'the store "none" is closed');
  }
}
