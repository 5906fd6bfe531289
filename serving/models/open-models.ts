/**
 * Creates the models of a configuration: for each model its version source, store, recorder and
 * version manager.
 */
import { hostname } from 'node:os';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { takesTensors } from '../../lib/core/slots.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { openRepository, Repository } from '../../lib/repository/repository.ts';
import { TrustedKeys } from '../../lib/repository/signatures.ts';
import type { RepositoryKeys } from '../../lib/repository/signed-entry.ts';
import type { RepositoryConfig } from '../config/repository-config.ts';
import { countInstances, type ModelConfig } from '../config/serving-config.ts';
import { applyPrecision } from '../engine/apply-precision.ts';
import { type BundleLoadOptions, LoadedBundle } from '../engine/loaded-bundle.ts';
import { type GraphLoadOptions, LoadedGraph } from '../engine/loaded-graph.ts';
import { LookupGraph } from '../engine/lookup-graph.ts';
import { Predictor } from '../engine/predictor.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { readVersionGraph, readVersionSlots } from '../engine/version-files.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { assignRecorder } from './assign-recorder.ts';
import type { FollowedLog } from './experiment-logs.ts';
import { FileSource } from './file-source.ts';
import { FolderSource, VersionFolderBackend } from './folder-source.ts';
import { ModelRegistry } from './model-registry.ts';
import { type ModelOrigin, ModelStores } from './model-stores.ts';
import { openModelRepository } from './open-model-repository.ts';
import { readPlainModel } from './plain-model.ts';
import { Recorders } from './recorder.ts';
import { VersionManager, type VersionManagerOptions } from './version-manager.ts';
import { ChannelSource, PinnedVersionSource, type VersionSource } from './version-source.ts';
import { warmUp } from './warm-up.ts';
import { warmUpGraph } from './warm-up-graph.ts';

/** Callbacks for changes of versions. */
export interface ModelEvents {
  onSwitch(model: string, to: string): void;
  observeStore(model: string, store: EmbeddingStore): void;
  onLoadFailed(model: string, code: CubeError['code']): void;
}

export interface OpenModelsOptions {
  readonly models: readonly ModelConfig[];
  readonly modelRepository?: RepositoryConfig | undefined;
  /** A file or folder of public keys: only versions signed by one of them are served. */
  readonly trustedKeysPath?: string | undefined;
  readonly events: ModelEvents;
  readonly logger: Logger;
}

export interface OpenModels {
  /** Not started yet. */
  readonly registry: ModelRegistry;
  readonly predictor: Predictor;
  readonly recorders: Recorders;
  /** The experiment log of each bundle whose channels are served. */
  readonly experimentLogs: readonly FollowedLog[];
  /** Stops all models and closes the stores. */
  stop(): Promise<void>;
}

/** @throws CubeError when a repository or a store cannot be opened; everything is closed again */
export async function openModels(options: OpenModelsOptions): Promise<OpenModels> {
  const predictor = new Predictor();
  const recorders = new Recorders();
  const { trustedKeysPath } = options;
  const trusted = trustedKeysPath === undefined ? undefined : TrustedKeys.read(trustedKeysPath);
  const { logger, modelRepository } = options;
  const repository =
    modelRepository && (await openModelRepository(modelRepository, { ...options, recorders }));
  const origins = options.models.map((model) =>
    model.source.kind === 'file'
      ? { model, file: new FileSource(model.source.file) }
      : openSource(model, model.source, { trusted }, logger),
  );
  const stores = new ModelStores(
    origins.filter((origin) => 'repository' in origin),
    logger,
  );
  const managers = new Map<string, VersionManager>();
  try {
    for (const origin of origins) {
      const parts = { stores, predictor, recorders, ...options };
      const manager =
        'file' in origin ? openFileModel(origin, parts) : await openModel(origin, parts);
      managers.set(origin.model.name, manager);
    }
  } catch (error) {
    await stores.close();
    throw error;
  }
  const registry = new ModelRegistry(managers, repository);
  const stop = async (): Promise<void> => {
    await Promise.all([registry.stop(), stores.close(), recorders.close()]);
    const { spareThreads } = await import('../engine/spare-threads.ts');
    await spareThreads.end();
  };
  return { registry, predictor, recorders, experimentLogs: listExperimentLogs(origins), stop };
}

function listExperimentLogs(
  origins: readonly (OpenModelSource | { readonly model: ModelConfig })[],
): FollowedLog[] {
  return origins.flatMap((origin) => {
    const { name, source, pollMs } = origin.model;
    if (source.kind !== 'channel' || !('repository' in origin)) return [];
    return [{ model: name, log: origin.repository.experimentLog(source.bundle), pollMs }];
  });
}

/** Objects shared by all models of a process. */
interface SharedParts extends Pick<OpenModelsOptions, 'events' | 'logger'> {
  readonly stores: ModelStores;
  readonly predictor: Predictor;
  readonly recorders: Recorders;
}

/** Creates the version manager of a model, not started yet. */
async function openModel(
  opened: OpenModelSource,
  { stores, predictor, recorders, events, logger }: SharedParts,
): Promise<VersionManager> {
  const { model, repository, source, bundle } = opened;
  const shared = await stores.open(opened);
  events.observeStore(model.name, shared.store);
  const store = shared.openForModel();
  const { policy, batching, precision, splitsUsers, placements, requestCacheBytes } = model;
  const instances = countInstances(model.instances);
  const recorder = model.record && recorders.open(model.record, logger);
  const load: VersionManagerOptions['load'] = async (version, onStep, signal) => {
    const options = {
      repository,
      bundle: bundle(),
      store,
      instances,
      policy,
      batching,
      precision,
      splitsUsers,
      placements,
      requestCacheBytes,
      logger,
      onStep,
      signal,
    };
    const manifest = await repository.readManifest(options.bundle, version);
    const plain = await readPlainModel(repository, manifest);
    const tensors =
      plain === undefined
        ? await loadTensorModel(model, manifest, options)
        : await loadGraph(model, { ...plain, name: manifest.bundle, version }, options);
    if (tensors !== undefined) return assignRecorder(tensors, recorders, recorder);
    if (model.maxBatch === 0) {
      const text = 'max-batch 0 is only for plain models, and this version has slots';
      throw new CubeError('INVALID_ARGUMENT', `${manifest.bundle} ${version}: ${text}`);
    }
    const loaded = await LoadedBundle.load(options, version);
    await warmUp(loaded, predictor, { ...model.warmUp, onStep, signal });
    loaded.stats.reset();
    return assignRecorder(loaded, recorders, recorder);
  };
  return new VersionManager({
    model: model.name,
    source,
    pollMs: model.pollMs,
    logger,
    load,
    requiresAllShards: policy.onUnavailable === 'fail' && policy.maxUnavailableShare === 0,
    events: {
      onSwitch: (_from, to) => events.onSwitch(model.name, to),
      onLoadFailed: (_version, error) => events.onLoadFailed(model.name, error.code),
    },
  });
}

/** Creates the version manager of one ONNX file, not started yet. */
function openFileModel(
  { model, file }: { readonly model: ModelConfig; readonly file: FileSource },
  { recorders, events, logger }: SharedParts,
): VersionManager {
  const recorder = model.record && recorders.open(model.record, logger);
  return new VersionManager({
    model: model.name,
    source: file,
    pollMs: model.pollMs,
    logger,
    load: async (version, onStep, signal) => {
      const files = { ...(await file.readModel()), name: model.name, version };
      const graph = await loadGraph(model, files, { logger, onStep, signal });
      return assignRecorder(graph, recorders, recorder);
    },
    events: {
      onSwitch: (_from, to) => events.onSwitch(model.name, to),
      onLoadFailed: (_version, error) => events.onLoadFailed(model.name, error.code),
    },
  });
}

/**
 * Loads a version with tables whose requests are tensors, and warms it up.
 * @returns undefined for a version whose requests are rows
 */
async function loadTensorModel(
  config: ModelConfig,
  manifest: Manifest,
  options: Pick<BundleLoadOptions, 'repository' | 'store' | 'logger'> & LoadProgress,
): Promise<TensorModel | undefined> {
  const { repository, logger } = options;
  const spec = await readVersionSlots(repository, manifest);
  if (!takesTensors(spec)) return undefined;
  const { instances, batching, maxBatch, precision, requestCacheBytes, policy } = config;
  const graph = await readVersionGraph(repository, manifest);
  const model = await LookupGraph.load({
    ...options,
    manifest,
    spec,
    policy,
    data: graph.data,
    model: await applyPrecision(graph, { precision, logger }),
    instances: countInstances(instances),
    batching: { ...batching, maxBatch },
    requestCacheBytes,
  });
  await warmUpGraph(model, { ...config.warmUp, ...options });
  model.stats.reset();
  return model;
}

interface LoadProgress {
  readonly onStep: (step: string) => void;
  readonly signal: AbortSignal;
}

/** Loads a plain model and warms it up. */
async function loadGraph(
  config: ModelConfig,
  files: Pick<GraphLoadOptions, 'name' | 'version' | 'model' | 'data'>,
  parts: Required<Pick<GraphLoadOptions, 'logger' | 'onStep'>> & { readonly signal: AbortSignal },
): Promise<LoadedGraph> {
  const { instances, batching, maxBatch, precision, placements, requestCacheBytes } = config;
  const { model, data = new Map(), name, version } = files;
  const original = { model, data, source: `${name} ${version}: model.onnx` };
  const graph = await LoadedGraph.load({
    ...files,
    model: await applyPrecision(original, { precision, logger: parts.logger }),
    ...parts,
    instances: countInstances(instances),
    placements,
    batching: { ...batching, maxBatch },
    requestCacheBytes,
  });
  await warmUpGraph(graph, { ...config.warmUp, ...parts });
  graph.stats.reset();
  return graph;
}

interface OpenModelSource extends ModelOrigin {
  readonly source: VersionSource;
  /** The bundle's name. For a folder it is known after the first read. */
  bundle(): string;
}

function openSource(
  model: ModelConfig,
  choice: Exclude<ModelConfig['source'], { kind: 'file' }>,
  keys: RepositoryKeys,
  logger: Logger,
): OpenModelSource {
  if (choice.kind === 'folder') {
    const repository = new Repository(new VersionFolderBackend(choice.folder), systemClock, keys);
    const source = new FolderSource(choice);
    return { model, repository, source, bundle: () => source.bundle };
  }
  const { bundle } = choice;
  const repository = openRepository(choice.repository, { keys });
  const source =
    choice.kind === 'version'
      ? new PinnedVersionSource(choice.version)
      : new ChannelSource({
          repository,
          bundle,
          channels: choice.channels,
          author: `serving@${hostname()}`,
          logger,
        });
  return { model, repository, source, bundle: () => bundle };
}
