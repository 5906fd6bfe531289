/** From a choice to a store that is open: the one place that knows all of them. */
import { join } from 'node:path';
import type { Logger } from '../../lib/platform/logs.ts';
import { memoryBytes } from '../../lib/platform/machine.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import { HotRowsStore } from './hot-rows-store.ts';
import { LocalStore } from './local-store.ts';
import { MemoryOrDiskStore } from './memory-or-disk-store.ts';
import { MemoryStore } from './memory-store.ts';
import { NoneStore } from './none-store.ts';
import { RemoteStore } from './remote-store.ts';
import type { HotRowsChoice, MemoryChoice, RedisChoice, StoreChoice } from './store-choice.ts';

/** In a store's data folder. */
export const MEMORY_FOLDER = 'memory-store';
export const LOCAL_FOLDER = 'local-store';

export interface StoreSurroundings {
  readonly repository: Repository;
  readonly logger: Logger;
  /** Model workers that may look up at a time: those of all versions held, one that loads and one that drains. */
  readonly workers: number;
  /** Stores in memory of this process: they share what the machine has. */
  readonly memoryStores: number;
}

/** @throws CubeError when what the choice names cannot be read, opened or reached */
export async function openStore(
  choice: StoreChoice,
  around: StoreSurroundings,
): Promise<EmbeddingStore> {
  const { logger } = around;
  switch (choice.kind) {
    case 'none':
      return new NoneStore();
    case 'local':
      return openLocal(choice.dataDir, around);
    case 'remote':
      return withHotRows(await RemoteStore.open(choice, logger), choice.hotRows);
    case 'memory':
      return openMemory(choice, around);
    case 'redis':
      return withHotRows(await openRedis(choice, around), choice.hotRows);
  }
}

/** The client of Redis is half of what a serving process would load: only for those that ask one. */
async function openRedis(
  choice: RedisChoice,
  { repository, logger }: StoreSurroundings,
): Promise<EmbeddingStore> {
  const { RedisStore } = await import('./redis-store.ts');
  return new RedisStore(choice, { repository, logger });
}

/** Of the machine's memory, for the tables of all versions held: the one that answers, the one before it, one that loads. */
const MEMORY_SHARE = 0.6;

function openMemory(
  { memoryBytes: given, dataDir, elseDisk }: MemoryChoice,
  around: StoreSurroundings,
): EmbeddingStore {
  const { repository, logger, workers, memoryStores } = around;
  const budgetBytes = given ?? Math.floor((MEMORY_SHARE * memoryBytes()) / memoryStores);
  const folder = dataDir === undefined ? undefined : join(dataDir, MEMORY_FOLDER);
  const store = new MemoryStore({ repository, folder, budgetBytes, workers, logger });
  if (!elseDisk || dataDir === undefined) {
    logger.info({ budgetBytes }, 'tables are held in memory');
    return store;
  }
  logger.info({ budgetBytes, dataDir }, 'tables are held in memory while they fit, else on disk');
  return new MemoryOrDiskStore(store, () => openLocal(dataDir, around), logger);
}

function openLocal(
  dataDir: string,
  { repository, logger }: StoreSurroundings,
): Promise<LocalStore> {
  return LocalStore.open({ repository, folder: join(dataDir, LOCAL_FOLDER), logger });
}

function withHotRows(store: EmbeddingStore, choice: HotRowsChoice | undefined): EmbeddingStore {
  return choice === undefined ? store : new HotRowsStore(store, choice.bytes);
}
