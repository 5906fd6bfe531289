/**
 * The complete, checked configuration of a serving process: plain data, made from settings of any
 * origin.
 */
import { basename } from 'node:path';
import type { AccessConfig } from '../../lib/access/process-access.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Precision } from '../../lib/core/precisions.ts';
import { getProcessorCount } from '../../lib/platform/machine.ts';
import { listProviderOrders, type ProviderOrder } from '../../lib/platform/onnx-providers.ts';
import type { RotatingFileOptions } from '../../lib/platform/rotating-file.ts';
import type { TlsFiles } from '../../lib/rpc/tls-identity.ts';
import {
  type BatchingOptions,
  DEFAULT_BATCHING,
  type DegradationPolicy,
} from '../engine/engine-options.ts';
import type { RemoteChoice, StoreChoice } from '../stores/store-choice.ts';
import { rejectConfig, rejectSettings } from './reject-settings.ts';
import { hasSource, type RepositoryConfig, readModelRepository } from './repository-config.ts';
import type { Instances } from './setting-kinds.ts';
import {
  MESSAGE_BYTES_MAX,
  MESSAGE_BYTES_MIN,
  type ModelSettings,
  PROTOCOLS,
  type ProcessSettings,
  type Reload,
} from './settings.ts';
import type { TrafficSettings } from './traffic-file.ts';
import { type RecordConfig, readRecord, readWarmUp, type WarmUpConfig } from './warm-up-config.ts';

/** Settings as they were given; defaults are not filled in. */
export interface ServingSettings extends ProcessSettings {
  readonly models: readonly ModelSettings[];
  /** The process serves something else, so that it needs no model. */
  readonly hasPipeline?: boolean;
  /** A further port with the same services. */
  readonly secondPort?: number;
  readonly services?: readonly ServiceConfig[];
  /** Experiments and shadows of serving.yaml. */
  readonly traffic?: TrafficSettings;
}

/** A service name that Paddle clients use for a model. */
export interface ServiceConfig {
  readonly name: string;
  readonly model: string;
  /** Several models that answer each request with one output each, named after the nodes. */
  readonly engines?: readonly { readonly name: string; readonly model: string }[];
  /** Tensor names used by clients, to the names in the model. */
  readonly aliases?: ReadonlyMap<string, string>;
}

/** A folder with one version, reloaded when a file in it changes. */
export interface FolderSourceConfig {
  readonly folder: string;
  readonly reload: Reload;
  /** The watched file, relative to the folder. Default: the manifest, which is written last. */
  readonly reloadFile?: string;
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
  | ({ readonly kind: 'folder' } & FolderSourceConfig)
  /** One ONNX file, reloaded when it changes. */
  | { readonly kind: 'file'; readonly file: string };

export interface ModelConfig {
  readonly name: string;
  readonly source: ModelSource;
  readonly pollMs: number;
  readonly store: StoreChoice;
  readonly instances: Instances;
  readonly batching: BatchingOptions;
  /** As given; 0: the graph has no batch dimension. Only plain models may have 0. */
  readonly maxBatch?: number;
  readonly policy: DegradationPolicy;
  readonly warmUp: WarmUpConfig;
  readonly record?: RecordConfig;
  readonly requestCacheBytes: number;
  readonly precision: Precision;
  /** Whether the user side of a graph runs once for each user of a batch. */
  readonly splitsUsers: boolean;
  /** The execution providers of instances, which are spread evenly over these. */
  readonly placements: readonly ProviderOrder[];
}

export interface ServingConfig {
  readonly host: string;
  readonly port: number;
  /** A further port with the same services. */
  readonly secondPort?: number;
  readonly timeoutMs: number;
  readonly inFlightMax: number;
  /** Maximum bytes of a request. */
  readonly messageBytes: number;
  readonly controlTokenFile?: string;
  readonly access: AccessConfig;
  readonly tls?: TlsFiles;
  /** Close connections without TLS. */
  readonly tlsOnly: boolean;
  /** Origins of web pages that may call; `*`: all. */
  readonly corsOrigins: readonly string[];
  /**
   * A file or folder of public keys: only versions and channel entries signed by one of them are
   * used.
   */
  readonly trustedKeysPath?: string;
  readonly decryptKeyFile?: string | undefined;
  readonly decryptKeyCommand?: string | undefined;
  readonly logLevel: NonNullable<ProcessSettings['logLevel']>;
  readonly logFormat?: NonNullable<ProcessSettings['logFormat']>;
  readonly logFile?: RotatingFileOptions;
  /** Which predictions are logged: all that take `slowMs`, and this share (0..1) of all. */
  readonly requestLog: { readonly slowMs: number; readonly share: number };
  readonly trafficFile?: string;
  /** Experiments and shadows that do not change while the process runs. */
  readonly traffic?: TrafficSettings;
  readonly exposures?: { readonly file: RotatingFileOptions; readonly share: number };
  /** Servers under whose names metrics are added. */
  readonly metricNames: NonNullable<ProcessSettings['metricNames']>;
  /** HTTP is accepted even if it is not listed. */
  readonly protocols: NonNullable<ProcessSettings['protocols']>;
  readonly modelRepository?: RepositoryConfig;
  readonly models: readonly ModelConfig[];
  readonly services: readonly ServiceConfig[];
}

/** Settings that only one kind of store accepts; with another kind they are an error. */
const STORE_SETTINGS: Readonly<Record<StoreChoice['kind'], readonly (keyof ModelSettings)[]>> = {
  none: [],
  memory: ['dataDir', 'memory'],
  local: ['dataDir'],
  remote: [
    'fleet',
    'checksum',
    'loadBalancer',
    'retryMax',
    'backupRequest',
    'hotRows',
    'shardKeyFile',
    'shardTls',
    'shardTlsCa',
    'shardTlsCert',
    'shardTlsKey',
    'shardTlsServerName',
  ],
  redis: ['redisUrl', 'redisUser', 'redisPasswordFile', 'redisCluster', 'redisFill', 'hotRows'],
};

/**
 * Fills in defaults. @throws CubeError INVALID_ARGUMENT naming the model and the missing or
 * conflicting setting
 */
export function completeConfig(settings: ServingSettings): ServingConfig {
  const modelRepository = readModelRepository(settings);
  const { hasPipeline = false, secondPort } = settings;
  if (settings.models.length === 0 && modelRepository === undefined && !hasPipeline) {
    rejectConfig(
      'no model to serve: give --repository and --bundle, or --bundle-dir, or --model, or ' +
        '--model-repository, or --config with models',
    );
  }
  const models = settings.models
    .filter((model) => modelRepository === undefined || hasSource(model))
    .map(completeModel);
  const names = models.map((model) => model.name);
  const inRepository = modelRepository?.models ?? [];
  const duplicate = findDuplicate([...names, ...inRepository.map(({ name }) => name)]);
  if (duplicate !== undefined) {
    rejectConfig(`two models are named ${duplicate}: rename one of them`);
  }
  const recorded = findDuplicate(
    [...models, ...inRepository].flatMap(({ record }) => (record ? [record.file] : [])),
  );
  if (recorded !== undefined) {
    rejectConfig(`two models record to ${recorded}: give each model its own --record file`);
  }
  const services = settings.services ?? [];
  const service = findDuplicate(services.map(({ name }) => name));
  if (service !== undefined) rejectConfig(`two services are named ${service}: rename one of them`);
  for (const { name, model } of services) {
    if (!names.includes(model)) {
      rejectConfig(`service ${name}: there is no model ${model} (models: ${names.join(', ')})`);
    }
  }
  const { controlTokenFile, trustedKeys: trustedKeysPath } = settings;
  const logFile = readLogFile(settings);
  return {
    host: settings.host ?? '127.0.0.1',
    port: settings.port ?? 8080,
    ...(secondPort !== undefined && { secondPort }),
    timeoutMs: settings.timeoutMs ?? 1_000,
    inFlightMax: settings.maxInFlight ?? 4096,
    messageBytes: completeMessageBytes(settings.messageBytes),
    ...(controlTokenFile !== undefined && { controlTokenFile }),
    access: readAccess(settings),
    ...readTls(settings),
    corsOrigins: settings.corsOrigins ?? [],
    ...(trustedKeysPath !== undefined && { trustedKeysPath }),
    decryptKeyFile: settings.decryptKeyFile,
    decryptKeyCommand: settings.decryptKeyCommand,
    logLevel: settings.logLevel ?? 'info',
    ...(settings.logFormat !== undefined && { logFormat: settings.logFormat }),
    ...(logFile !== undefined && { logFile }),
    ...(settings.trafficFile !== undefined && { trafficFile: settings.trafficFile }),
    ...(settings.traffic !== undefined && { traffic: settings.traffic }),
    ...readExposures(settings),
    requestLog: {
      slowMs: settings.slowRequestMs ?? Number.POSITIVE_INFINITY,
      share: settings.requestLogShare ?? 0,
    },
    metricNames: settings.metricNames ?? [],
    protocols: settings.protocols ?? PROTOCOLS,
    ...(modelRepository !== undefined && { modelRepository }),
    models,
    services,
  };
}

function readAccess(settings: ServingSettings): AccessConfig {
  const { keyFile, keyUsageFile, anonymousScopes, certificateScopes } = settings;
  const { allowedAddresses, trustedProxies, auditFile, auditFileBytes, auditFiles } = settings;
  if (keyUsageFile !== undefined && keyFile === undefined) {
    rejectConfig('key-usage-file needs key-file');
  }
  if (certificateScopes !== undefined && settings.tlsCa === undefined) {
    rejectConfig('certificate-scopes needs tls-ca');
  }
  if (auditFile === undefined && (auditFileBytes !== undefined || auditFiles !== undefined)) {
    rejectConfig('audit-file-bytes and audit-files need audit-file');
  }
  return {
    ...(keyFile !== undefined && { keyFile }),
    ...(keyUsageFile !== undefined && { keyUsageFile }),
    ...(anonymousScopes !== undefined && { anonymousScopes }),
    ...(certificateScopes !== undefined && { certificateScopes }),
    ...(allowedAddresses !== undefined && { allowedAddresses }),
    ...(trustedProxies !== undefined && { trustedProxies }),
    ...(auditFile !== undefined && {
      audit: { path: auditFile, bytesMax: auditFileBytes ?? 64 << 20, filesMax: auditFiles ?? 10 },
    }),
  };
}

function readTls(settings: ServingSettings): Pick<ServingConfig, 'tls' | 'tlsOnly'> {
  const { tlsCert: cert, tlsKey: key, tlsCa: ca, tlsOnly = false } = settings;
  const { tlsClientCertificate: clientCertificate, tlsMinVersion: minVersion } = settings;
  const { tlsCiphers: ciphers } = settings;
  if (cert === undefined || key === undefined) {
    const others = [cert, key, ca, clientCertificate, minVersion, ciphers];
    if (tlsOnly || others.some((value) => value !== undefined)) {
      rejectConfig('TLS needs both tls-cert and tls-key');
    }
    return { tlsOnly };
  }
  if (clientCertificate !== undefined && ca === undefined) {
    rejectConfig('tls-client-certificate needs tls-ca');
  }
  return { tls: { cert, key, ca, clientCertificate, minVersion, ciphers }, tlsOnly };
}

function readLogFile({
  logFile,
  logFileBytes,
  logFiles,
}: ServingSettings): RotatingFileOptions | undefined {
  if (logFile !== undefined) {
    return { path: logFile, bytesMax: logFileBytes ?? 64 << 20, filesMax: logFiles ?? 4 };
  }
  if (logFileBytes === undefined && logFiles === undefined) return undefined;
  return rejectConfig('log-file-bytes and log-files need log-file');
}

function readExposures({
  exposureLog: path,
  exposureShare: share,
}: ServingSettings): Pick<ServingConfig, 'exposures'> {
  if (path !== undefined) {
    return { exposures: { file: { path, bytesMax: 64 << 20, filesMax: 4 }, share: share ?? 1 } };
  }
  return share === undefined ? {} : rejectConfig('exposure-share needs exposure-log');
}

function completeMessageBytes(bytes: number = 64 << 20): number {
  if (bytes >= MESSAGE_BYTES_MIN && bytes <= MESSAGE_BYTES_MAX) return bytes;
  return rejectConfig(`message-bytes: expected 64KiB to 256MiB, got ${bytes} bytes`);
}

/** The first name that occurs twice. */
function findDuplicate(names: readonly string[]): string | undefined {
  return names.find((name, i) => names.indexOf(name) !== i);
}

function completeModel(settings: ModelSettings, index: number): ModelConfig {
  const name = settings.name ?? settings.bundle ?? nameFile(settings.model);
  if (name === undefined) {
    rejectConfig(`model ${index + 1}: give --name, --bundle or --model`);
  }
  try {
    const record = readRecord(settings);
    return {
      name,
      source: readSource(settings),
      pollMs: settings.pollMs ?? 1_000,
      store: readStore(settings),
      instances: settings.instances ?? { perCore: 1 },
      batching: readBatching(settings),
      ...(settings.maxBatch !== undefined && { maxBatch: settings.maxBatch }),
      policy: {
        onUnavailable: settings.onUnavailable ?? 'fail',
        maxUnavailableShare: settings.maxUnavailableShare ?? 0,
      },
      warmUp: readWarmUp(settings),
      ...(record !== undefined && { record }),
      requestCacheBytes: settings.requestCache ?? 0,
      precision: settings.precision ?? 'fp32',
      splitsUsers: settings.splitUser !== 'off',
      placements: listProviderOrders(settings.provider ?? ['cpu'], settings.devices),
    };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `model ${name}: ${message}`, { cause: error });
  }
}

function readSource(settings: ModelSettings): ModelSource {
  const { repository, bundle, channel, pinnedVersion: version } = settings;
  const { bundleDir, reload, reloadFile, model } = settings;
  if (model !== undefined) {
    rejectSettings(settings, FILE_FOREIGN, 'not allowed with --model');
    return { kind: 'file', file: model };
  }
  if (bundleDir === undefined) {
    if (repository === undefined) {
      rejectConfig('give --repository with --bundle, or --bundle-dir, or --model');
    }
    if (bundle === undefined) rejectConfig('--repository needs --bundle, the bundle to serve');
    rejectSettings(settings, ['reload', 'reloadFile'], 'only allowed with --bundle-dir');
    if (version !== undefined) {
      rejectSettings(settings, ['channel'], 'not allowed with --pinned-version');
      return { kind: 'version', repository, bundle, version };
    }
    const [first = 'stable', ...others] = channel ?? [];
    return { kind: 'channel', repository, bundle, channels: [first, ...others] };
  }
  rejectSettings(
    settings,
    ['repository', 'channel', 'pinnedVersion'],
    'not allowed with --bundle-dir',
  );
  return {
    kind: 'folder',
    folder: bundleDir,
    reload: reload ?? 'timestamp_ne',
    ...(reloadFile !== undefined && { reloadFile }),
  };
}

/** Settings of other sources and of tables. */
const FILE_FOREIGN = [
  'repository',
  'bundle',
  'channel',
  'pinnedVersion',
  'bundleDir',
  'reload',
  'reloadFile',
  'store',
] as const;

/** models/bow.onnx → bow. */
function nameFile(file: string | undefined): string | undefined {
  return file === undefined ? undefined : basename(file).replace(/\.onnx$/, '');
}

function readStore(settings: ModelSettings): StoreChoice {
  const kind = settings.store ?? 'memory';
  const allowed = STORE_SETTINGS[kind];
  const foreign = Object.values(STORE_SETTINGS)
    .flat()
    .filter((key) => !allowed.includes(key));
  rejectSettings(settings, foreign, `not allowed with --store ${kind}`);
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
        ...(settings.store === undefined && dataDir !== undefined && { fallBackToDisk: true }),
      };
    case 'local':
      return { kind, dataDir: dataDir ?? rejectConfig('--store local needs --data-dir <folder>') };
    case 'remote':
      return {
        kind,
        fleetPath: fleet ?? rejectConfig('--store remote needs --fleet <fleet.json>'),
        ...(checksum !== undefined && { checksum }),
        ...readCallPolicy(settings),
        ...readShardCredentials(settings),
        ...cache,
      };
    case 'redis':
      return {
        kind,
        urls: redisUrl ?? rejectConfig('--store redis needs --redis-url <redis://host:port>'),
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

function readShardCredentials(settings: ModelSettings): Pick<RemoteChoice, 'credentials'> {
  const { shardKeyFile: tokenFile, shardTlsCa: ca, shardTlsCert: cert } = settings;
  const { shardTlsKey: key, shardTlsServerName: tlsServerName } = settings;
  if ((cert === undefined) !== (key === undefined)) {
    rejectConfig('a client certificate needs shard-tls-cert and shard-tls-key');
  }
  const files = [ca, cert, tlsServerName].some((value) => value !== undefined);
  const isSecure = settings.shardTls ?? files;
  if (files && !isSecure) rejectConfig('shard-tls-… is not allowed with shard-tls false');
  if (tokenFile === undefined && !isSecure) return {};
  const tls = isSecure ? { cert, key, ca } : undefined;
  return { credentials: { tokenFile, tls, tlsServerName } };
}

/** Only the settings that were given; cube.conf or the client supplies the others. */
function readCallPolicy(settings: ModelSettings): Pick<RemoteChoice, 'policy'> {
  const { loadBalancer, retryMax, backupRequest } = settings;
  const policy = {
    ...(loadBalancer !== undefined && { loadBalancer }),
    ...(retryMax !== undefined && { retryMax }),
    ...(backupRequest !== undefined && { backupRequest }),
  };
  return Object.keys(policy).length === 0 ? {} : { policy };
}

function readBatching(settings: ModelSettings): BatchingOptions {
  const maxBatch = Math.max(1, settings.maxBatch ?? DEFAULT_BATCHING.maxBatch);
  const tooLarge = settings.preferredBatches?.find((rows) => rows > maxBatch);
  if (tooLarge !== undefined) {
    rejectConfig(`--preferred-batches: ${tooLarge} is more than --max-batch ${maxBatch}`);
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

const INSTANCES_MAX = 256;

/** The number of model workers per version on this machine. */
export function countInstances(instances: Instances): number {
  if (typeof instances === 'number') return instances;
  const count = Math.round(instances.perCore * getProcessorCount());
  return Math.min(Math.max(count, 1), INSTANCES_MAX);
}
