/**
 * From configuration to models: for each its versions' source, the store of its rows, its predictor and its watcher. Models that
 * take rows from the same place share one store.
 */

import type { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Keys } from '../../lib/repository/entries.ts';
import { openRepository, Repository } from '../../lib/repository/repository.ts';
import { TrustedKeys } from '../../lib/repository/signatures.ts';
import { instanceCount } from '../config/config-report.ts';
import type { ModelConfig } from '../config/serving-config.ts';
import { Predictor } from '../engine/predictor.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { LoadedBundle } from './bundle.ts';
import { BundleWatcher, type BundleWatcherOptions } from './bundle-watcher.ts';
import { ChannelSource } from './channel-source.ts';
import { ExportedFolder } from './exported-folder.ts';
import { FolderSource } from './folder-source.ts';
import { type ModelPlace, ModelStores } from './model-stores.ts';
import { ModelRegistry } from './models.ts';
import { PinnedSource } from './pinned-source.ts';
import { Recorders } from './recorder.ts';
import { warmUp } from './warm-up.ts';
import type { WishSource } from './wish-source.ts';

/** Told what happens to versions. */
export interface ModelEvents {
  onSwitch(model: string, to: string): void;
  observeStore(model: string, store: EmbeddingStore): void;
  onLoadFailed(model: string, code: CubeError['code']): void;
}

export interface OpenModelsOptions {
  readonly models: readonly ModelConfig[];
  /** Of public keys: nothing is served that none of them has signed. */
  readonly trustedKeysPath?: string | undefined;
  readonly events: ModelEvents;
  readonly logger: Logger;
}

export interface OpenModels {
  /** Not started yet. */
  readonly registry: ModelRegistry;
  readonly predictor: Predictor;
  readonly recorders: Recorders;
  /** Stops what is followed, and closes the stores. */
  stop(): Promise<void>;
}

/** @throws CubeError when a repository or a store cannot be opened; nothing stays open */
export async function openModels(options: OpenModelsOptions): Promise<OpenModels> {
  const predictor = new Predictor();
  const recorders = new Recorders();
  const { trustedKeysPath } = options;
  const trusted = trustedKeysPath === undefined ? undefined : TrustedKeys.read(trustedKeysPath);
  const sources = options.models.map((model) => openSource(model, { trusted }));
  const stores = new ModelStores(sources, options.logger);
  const watchers = new Map<string, BundleWatcher>();
  try {
    for (const source of sources) {
      const parts = { stores, predictor, recorders, ...options };
      watchers.set(source.model.name, await openModel(source, parts));
    }
  } catch (error) {
    await stores.close();
    throw error;
  }
  const registry = new ModelRegistry(watchers);
  const stop = async (): Promise<void> => {
    await Promise.all([registry.stop(), stores.close(), recorders.close()]);
  };
  return { registry, predictor, recorders, stop };
}

/** What all models of a process share. */
interface Parts extends Pick<OpenModelsOptions, 'events' | 'logger'> {
  readonly stores: ModelStores;
  readonly predictor: Predictor;
  readonly recorders: Recorders;
}

/** The model's watcher, not started yet. */
async function openModel(
  opened: OpenSource,
  { stores, predictor, recorders, events, logger }: Parts,
): Promise<BundleWatcher> {
  const { model, repository, source, bundle } = opened;
  const store = await stores.open(opened);
  events.observeStore(model.name, store);
  const { policy, batching, requestCacheBytes } = model;
  const instances = instanceCount(model.instances);
  const recorder = model.record && recorders.open(model.record, logger);
  const load: BundleWatcherOptions['load'] = async (version, onStep) => {
    const from = {
      ...{ repository, bundle: bundle(), store, instances, policy, batching },
      ...{ requestCacheBytes, logger, onStep },
    };
    const loaded = await LoadedBundle.load(from, version);
    await warmUp(loaded, predictor, { ...model.warmUp, onStep });
    loaded.stats.reset();
    if (recorder !== undefined) recorders.assign(loaded, recorder);
    return loaded;
  };
  return new BundleWatcher({
    ...{ model: model.name, source, pollMs: model.pollMs, logger, load },
    events: {
      onSwitch: (_from, to) => events.onSwitch(model.name, to),
      onLoadFailed: (_version, error) => events.onLoadFailed(model.name, error.code),
    },
  });
}

interface OpenSource extends ModelPlace {
  readonly source: WishSource;
  /** The bundle's name; a folder's is known once it was read. */
  bundle(): string;
}

function openSource(model: ModelConfig, keys: Keys): OpenSource {
  const { source: choice } = model;
  if (choice.kind === 'folder') {
    const repository = new Repository(new ExportedFolder(choice.folder), systemClock, keys);
    const source = new FolderSource(choice);
    return { model, repository, source, bundle: () => source.bundle };
  }
  const { bundle } = choice;
  const repository = openRepository(choice.repository, { keys });
  const source =
    choice.kind === 'version'
      ? new PinnedSource(choice.version)
      : new ChannelSource(repository, bundle, choice.channels);
  return { model, repository, source, bundle: () => bundle };
}
