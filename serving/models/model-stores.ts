/** The stores of a process: one for each place that rows come from, shared by the models that take rows from it. */
import { join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { instanceCount } from '../config/config-report.ts';
import type { ModelConfig } from '../config/serving-config.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { LOCAL_FOLDER, MEMORY_FOLDER, openStore } from '../stores/open-store.ts';
import type { StoreChoice } from '../stores/store-choice.ts';

/** A model, and where its versions come from. */
export interface ModelPlace {
  readonly model: ModelConfig;
  readonly repository: Repository;
}

/** Each takes 64 KiB of every memory of the store in memory. */
const WORKERS_MAX = 1_024;

export class ModelStores {
  readonly #logger: Logger;
  /** Of all models, by the place of their rows. */
  readonly #workers = new Map<string, number>();
  readonly #inMemory = new Set<string>();
  readonly #open = new Map<string, EmbeddingStore>();
  /** Folders that stores write to, each with the place of its store. */
  readonly #folders = new Map<string, string>();

  /** @throws CubeError INVALID_ARGUMENT when models have more workers than a store in memory lets look up */
  constructor(places: readonly ModelPlace[], logger: Logger) {
    this.#logger = logger;
    for (const { model, repository } of places) {
      const place = placeOf(model.store, repository);
      if (model.store.kind === 'memory') this.#inMemory.add(place);
      const workers = (this.#workers.get(place) ?? 0) + workersOf(model);
      this.#workers.set(place, workers);
      if (model.store.kind !== 'memory' || workers <= WORKERS_MAX) continue;
      throw new CubeError(
        'INVALID_ARGUMENT',
        `model ${model.name}: ${instanceCount(model.instances)} instances of each version are up to ${workers} model workers ` +
          `while versions change, a store in memory takes ${WORKERS_MAX}: give --instances fewer, or follow fewer channels`,
      );
    }
  }

  /** @throws CubeError CONFLICT when two stores would write to one folder */
  async open({ model: { store: choice }, repository }: ModelPlace): Promise<EmbeddingStore> {
    const place = placeOf(choice, repository);
    const known = this.#open.get(place);
    if (known !== undefined) return known;
    for (const folder of foldersOf(choice)) this.#claim(folder, place);
    const around = {
      ...{ repository, logger: this.#logger },
      workers: this.#workers.get(place)!,
      memoryStores: this.#inMemory.size,
    };
    const store = await openStore(choice, around);
    this.#open.set(place, store);
    return store;
  }

  async close(): Promise<void> {
    await Promise.all([...this.#open.values()].map((store) => store.close()));
  }

  #claim(folder: string, place: string): void {
    const other = this.#folders.get(folder);
    if (other !== undefined) {
      const text = `${folder} is written by the store of ${other} already, not by that of ${place}: give each its own data-dir`;
      throw new CubeError('CONFLICT', text);
    }
    this.#folders.set(folder, place);
  }
}

/** What the store keeps on this machine's disk, and nobody else may. */
function foldersOf(choice: StoreChoice): string[] {
  if ((choice.kind !== 'local' && choice.kind !== 'memory') || choice.dataDir === undefined) {
    return [];
  }
  const folder = resolve(choice.dataDir);
  return [
    ...(choice.kind === 'memory' ? [join(folder, MEMORY_FOLDER)] : []),
    ...(choice.kind === 'local' || choice.elseDisk ? [join(folder, LOCAL_FOLDER)] : []),
  ];
}

function placeOf(choice: StoreChoice, { location }: Repository): string {
  return JSON.stringify([choice, location]);
}

/** Of each channel two versions answer or wait to; one more loads, and one drains. */
function workersOf({ source, instances }: ModelConfig): number {
  const held = source.kind === 'channel' ? 2 * source.channels.length : 1;
  return instanceCount(instances) * (held + 2);
}
