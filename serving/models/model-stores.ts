/**
 * Opens the stores of a process. Models with the same store settings and repository share one
 * store.
 */
import { join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { countInstances, type ModelConfig } from '../config/serving-config.ts';
import { LOCAL_FOLDER, MEMORY_FOLDER, openStore } from '../stores/open-store.ts';
import { SharedStore } from '../stores/shared-store.ts';
import type { StoreChoice } from '../stores/store-choice.ts';

/** A model and the repository of its versions. */
export interface ModelOrigin {
  readonly model: ModelConfig;
  readonly repository: Repository;
}

/** Every worker uses 64 KiB of each memory of a memory store. */
const WORKERS_MAX = 1_024;

export class ModelStores {
  readonly #logger: Logger;
  /** Model workers by store key. */
  readonly #workers = new Map<string, number>();
  readonly #inMemory = new Set<string>();
  readonly #open = new Map<string, SharedStore>();
  /** Store keys by the folder that the store writes to. */
  readonly #folders = new Map<string, string>();

  /**
   * @throws CubeError INVALID_ARGUMENT when models have more workers than a memory store supports
   */
  constructor(origins: readonly ModelOrigin[], logger: Logger) {
    this.#logger = logger;
    for (const { model, repository } of origins) {
      const key = computeStoreKey(model.store, repository);
      if (model.store.kind === 'memory') this.#inMemory.add(key);
      const workers = (this.#workers.get(key) ?? 0) + countWorkers(model);
      this.#workers.set(key, workers);
      if (model.store.kind !== 'memory' || workers <= WORKERS_MAX) continue;
      throw new CubeError(
        'INVALID_ARGUMENT',
        `model ${model.name}: ${countInstances(model.instances)} instances per version need ` +
          'up to ' +
          `${workers} model workers while versions change, but a memory store supports ` +
          `${WORKERS_MAX}: reduce --instances or the number of channels`,
      );
    }
  }

  /** @throws CubeError CONFLICT when two stores would write to one folder */
  async open({ model: { store: choice }, repository }: ModelOrigin): Promise<SharedStore> {
    const key = computeStoreKey(choice, repository);
    const existing = this.#open.get(key);
    if (existing !== undefined) return existing;
    for (const folder of listFolders(choice)) this.#claimFolder(folder, key);
    const environment = {
      repository,
      logger: this.#logger,
      workers: this.#workers.get(key) ?? 0,
      memoryStores: this.#inMemory.size,
    };
    const store = new SharedStore(await openStore(choice, environment));
    this.#open.set(key, store);
    return store;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((store) => store.close()));
  }

  #claimFolder(folder: string, key: string): void {
    const other = this.#folders.get(folder);
    if (other !== undefined) {
      const text =
        `${folder} is used by the store ${other}, so the store ${key} cannot use it: ` +
        'give each store its own data-dir';
      throw new CubeError('CONFLICT', text);
    }
    this.#folders.set(folder, key);
  }
}

/** Folders on this machine's disk that only this store may use. */
function listFolders(choice: StoreChoice): string[] {
  if ((choice.kind !== 'local' && choice.kind !== 'memory') || choice.dataDir === undefined) {
    return [];
  }
  const folder = resolve(choice.dataDir);
  return [
    ...(choice.kind === 'memory' ? [join(folder, MEMORY_FOLDER)] : []),
    ...(choice.kind === 'local' || choice.fallBackToDisk ? [join(folder, LOCAL_FOLDER)] : []),
  ];
}

function computeStoreKey(choice: StoreChoice, { location }: Repository): string {
  return JSON.stringify([choice, location]);
}

/** Each channel keeps two versions loaded; one more may be loading, and one draining. */
function countWorkers({ source, instances }: ModelConfig): number {
  const loaded = source.kind === 'channel' ? 2 * source.channels.length : 1;
  return countInstances(instances) * (loaded + 2);
}
