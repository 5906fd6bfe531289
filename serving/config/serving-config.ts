/** What a serving process shall be, complete and checked: plain data, made from settings of any origin. */
import { CubeError } from '../../lib/core/errors.ts';
import {
  type BatchingOptions,
  DEFAULT_BATCHING,
  type DegradationPolicy,
} from '../engine/batching.ts';
import type { FolderSourceOptions } from '../models/folder-source.ts';
import type { RemoteChoice, StoreChoice } from '../stores/store-choice.ts';
import type { Instances } from './setting-kinds.ts';
import { kebabOf, type ModelSettings, type ProcessSettings, type WarmUpKind } from './settings.ts';

/** Settings as written, not complete. */
export interface ServingSettings extends ProcessSettings {
  readonly models: readonly ModelSettings[];
  readonly services?: readonly ServiceConfig[];
}

/** A service by which Paddle's callers ask for a model. */
export interface ServiceConfig {
  readonly name: string;
  readonly model: string;
  /** What callers call tensors, to the names of the model. */
  readonly aliases?: ReadonlyMap<string, string>;
}

export type ModelSource =
  | {
      readonly kind: 'channel';
      readonly repository: string;
      readonly bundle: string;
      readonly channels: readonly [string, ...string[]];
    }
  | {
      readonly kind: 'version';
      readonly repository: string;
      readonly bundle: string;
      readonly version: string;
    }
  | ({ readonly kind: 'folder' } & FolderSourceOptions);

export interface WarmUpConfig {
  readonly kind: WarmUpKind;
  readonly file?: string;
  readonly timeoutMs: number;
}

export interface RecordConfig {
  readonly file: string;
  /** Of requests: 0..1. */
  readonly share: number;
  readonly bytesMax: number;
  readonly filesMax: number;
  /** Features that are recorded as missing. */
  readonly redact: readonly string[];
}

export interface ModelConfig {
  readonly name: string;
  readonly source: ModelSource;
  readonly pollMs: number;
  readonly store: StoreChoice;
  readonly instances: Instances;
  readonly batching: BatchingOptions;
  readonly policy: DegradationPolicy;
  readonly warmUp: WarmUpConfig;
  readonly record?: RecordConfig;
  readonly requestCacheBytes: number;
}

export interface ServingConfig {
  readonly host: string;
  readonly port: number;
  readonly timeoutMs: number;
  readonly inFlightMax: number;
  readonly controlTokenFile?: string;
  /** A file or a folder of public keys: only versions and channels that they signed are followed. */
  readonly trustedKeysPath?: string;
  readonly logLevel: NonNullable<ProcessSettings['logLevel']>;
  readonly models: readonly ModelConfig[];
  readonly services: readonly ServiceConfig[];
}

/** What settings of one store say: with another store they are a mistake. */
const STORE_SETTINGS: Readonly<Record<StoreChoice['kind'], readonly (keyof ModelSettings)[]>> = {
  none: [],
  memory: ['dataDir', 'memory'],
  local: ['dataDir'],
  remote: ['fleet', 'checksum', 'loadBalancer', 'retryMax', 'backupRequest', 'hotRows'],
  redis: ['redisUrl', 'redisUser', 'redisPasswordFile', 'redisCluster', 'redisFill', 'hotRows'],
};

/** @throws CubeError INVALID_ARGUMENT naming the model and what is missing or too much */
export function completeConfig(settings: ServingSettings): ServingConfig {
  if (settings.models.length === 0) {
    refuse('no model: give --repository and --bundle, or --bundle-dir, or --config with models');
  }
  const models = settings.models.map(completeModel);
  const names = models.map((model) => model.name);
  const twice = firstTwice(names);
  if (twice !== undefined) refuse(`two models are called ${twice}: give one another name`);
  const recorded = firstTwice(models.flatMap(({ record }) => (record ? [record.file] : [])));
  if (recorded !== undefined) {
    refuse(
      `two models record to ${recorded}: their rows would be mixed; give each its own --record`,
    );
  }
  const services = settings.services ?? [];
  const service = firstTwice(services.map(({ name }) => name));
  if (service !== undefined)
    refuse(`two services are called ${service}: callers could mean either`);
  for (const { name, model } of services) {
    if (!names.includes(model)) {
      refuse(`service ${name}: there is no model ${model} (models: ${names.join(', ')})`);
    }
  }
  const { controlTokenFile, trustedKeys: trustedKeysPath } = settings;
  return {
    host: settings.host ?? '127.0.0.1',
    port: settings.port ?? 8080,
    timeoutMs: settings.timeoutMs ?? 1_000,
    inFlightMax: settings.maxInFlight ?? 256,
    ...(controlTokenFile !== undefined && { controlTokenFile }),
    ...(trustedKeysPath !== undefined && { trustedKeysPath }),
    logLevel: settings.logLevel ?? 'info',
    models,
    services,
  };
}

/** The first that was there before. */
function firstTwice(names: readonly string[]): string | undefined {
  return names.find((name, i) => names.indexOf(name) !== i);
}

function completeModel(settings: ModelSettings, at: number): ModelConfig {
  const name = settings.name ?? settings.bundle;
  if (name === undefined) refuse(`model ${at + 1}: give it a --name, or a --bundle`);
  try {
    const record = recordOf(settings);
    return {
      name,
      source: sourceOf(settings),
      pollMs: settings.pollMs ?? 1_000,
      store: storeOf(settings),
      instances: settings.instances ?? { perCore: 1 },
      batching: batchingOf(settings),
      policy: {
        onUnavailable: settings.onUnavailable ?? 'fail',
        maxUnavailableShare: settings.maxUnavailableShare ?? 0,
      },
      warmUp: warmUpOf(settings),
      ...(record !== undefined && { record }),
      requestCacheBytes: settings.requestCache ?? 0,
    };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `model ${name}: ${message}`, { cause: error });
  }
}

function sourceOf(settings: ModelSettings): ModelSource {
  const { repository, bundle, channel, pinnedVersion: version } = settings;
  const { bundleDir, reload, reloadFile } = settings;
  if (bundleDir === undefined) {
    if (repository === undefined) refuse('give --repository with --bundle, or --bundle-dir');
    if (bundle === undefined) refuse('--repository needs --bundle: which one to serve');
    refuseSettings(settings, ['reload', 'reloadFile'], 'are of --bundle-dir');
    if (version !== undefined) {
      refuseSettings(settings, ['channel'], 'and --pinned-version exclude each other');
      return { kind: 'version', repository, bundle, version };
    }
    const [first = 'stable', ...others] = channel ?? [];
    return { kind: 'channel', repository, bundle, channels: [first, ...others] };
  }
  refuseSettings(
    settings,
    ['repository', 'channel', 'pinnedVersion'],
    'and --bundle-dir exclude each other',
  );
  return {
    kind: 'folder',
    folder: bundleDir,
    reload: reload ?? 'timestamp_ne',
    ...(reloadFile !== undefined && { reloadFile }),
  };
}

function storeOf(settings: ModelSettings): StoreChoice {
  const kind = settings.store ?? 'memory';
  const own = STORE_SETTINGS[kind];
  const foreign = Object.values(STORE_SETTINGS)
    .flat()
    .filter((key) => !own.includes(key));
  refuseSettings(settings, foreign, `not of store ${kind}`);
  const { fleet, dataDir, memory, checksum, redisUrl, hotRows } = settings;
  const cache = hotRows !== undefined && { hotRows: { bytes: hotRows } };
  switch (kind) {
    case 'none':
      return { kind };
    case 'memory':
      return {
        kind,
        ...(dataDir !== undefined && { dataDir }),
        ...(memory !== undefined && { memoryBytes: memory }),
        ...(settings.store === undefined && dataDir !== undefined && { elseDisk: true }),
      };
    case 'local':
      return { kind, dataDir: dataDir ?? refuse('--store local needs --data-dir <folder>') };
    case 'remote':
      return {
        kind,
        fleetPath: fleet ?? refuse('--store remote needs --fleet <fleet.json>'),
        ...(checksum !== undefined && { checksum }),
        ...policyOf(settings),
        ...cache,
      };
    case 'redis':
      return {
        kind,
        urls: redisUrl ?? refuse('--store redis needs --redis-url <redis://host:port>'),
        ...(settings.redisUser !== undefined && { user: settings.redisUser }),
        ...(settings.redisPasswordFile !== undefined && {
          passwordFile: settings.redisPasswordFile,
        }),
        ...(settings.redisCluster !== undefined && { cluster: settings.redisCluster }),
        ...(settings.redisFill !== undefined && { fill: settings.redisFill }),
        ...cache,
      };
  }
}

/** How shards are asked, as far as it was said: the rest is cube.conf's, or the client's. */
function policyOf(settings: ModelSettings): Pick<RemoteChoice, 'policy'> {
  const { loadBalancer, retryMax, backupRequest } = settings;
  const policy = {
    ...(loadBalancer !== undefined && { loadBalancer }),
    ...(retryMax !== undefined && { retryMax }),
    ...(backupRequest !== undefined && { backupRequest }),
  };
  return Object.keys(policy).length === 0 ? {} : { policy };
}

function batchingOf(settings: ModelSettings): BatchingOptions {
  const maxBatch = settings.maxBatch ?? DEFAULT_BATCHING.maxBatch;
  const large = settings.preferredBatches?.find((rows) => rows > maxBatch);
  if (large !== undefined) {
    refuse(`--preferred-batches: ${large} is more than --max-batch ${maxBatch}`);
  }
  const sizes = settings.preferredBatches ?? DEFAULT_BATCHING.preferredSizes;
  return {
    maxBatch,
    preferredSizes: sizes.filter((rows) => rows <= maxBatch),
    maxQueueDelayMicros: settings.maxQueueDelayUs ?? DEFAULT_BATCHING.maxQueueDelayMicros,
    queueRowsMax: settings.queueRowsMax ?? DEFAULT_BATCHING.queueRowsMax,
    queueTimeoutMs: settings.queueTimeoutMs ?? DEFAULT_BATCHING.queueTimeoutMs,
    priorityLevels: settings.priorityLevels ?? DEFAULT_BATCHING.priorityLevels,
  };
}

function warmUpOf(settings: ModelSettings): WarmUpConfig {
  const { warmUpFile: file, warmUpTimeoutMs: timeoutMs = 30_000 } = settings;
  const kind = settings.warmUp ?? (file === undefined ? 'golden' : 'file');
  if (kind === 'file' && file === undefined) refuse('--warm-up file needs --warm-up-file <file>');
  if (kind !== 'file') refuseSettings(settings, ['warmUpFile'], `not of --warm-up ${kind}`);
  return { kind, timeoutMs, ...(file !== undefined && { file }) };
}

function recordOf(settings: ModelSettings): RecordConfig | undefined {
  const { record: file } = settings;
  if (file === undefined) {
    const keys = ['recordShare', 'recordBytes', 'recordFiles', 'recordRedact'] as const;
    refuseSettings(settings, keys, 'without --record');
    return undefined;
  }
  return {
    file,
    share: settings.recordShare ?? 0.01,
    bytesMax: settings.recordBytes ?? 64 << 20,
    filesMax: settings.recordFiles ?? 4,
    redact: settings.recordRedact ?? [],
  };
}

function refuseSettings(
  settings: ModelSettings,
  keys: readonly (keyof ModelSettings)[],
  why: string,
): void {
  const given = keys.filter((key) => settings[key] !== undefined).map((key) => `--${kebabOf(key)}`);
  if (given.length > 0) refuse(`${given.join(', ')}: ${why}`);
}

function refuse(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
