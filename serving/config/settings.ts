/**
 * Every setting of serving, defined once: its name, its kind, its help and its heading in
 * `--help-all`. Flags (`--timeout-ms`), environment variables (`HYPERCUBE_TIMEOUT_MS`) and the
 * fields of serving.yaml (`timeout-ms`) are made from these two tables.
 */
import {
  type BackupRequest,
  LOAD_BALANCERS,
  type LoadBalancer,
} from '../../lib/client/call-policy.ts';
import { PRECISIONS, type Precision } from '../../lib/core/precisions.ts';
import {
  LOG_FORMAT_HELP,
  LOG_FORMATS,
  LOG_LEVELS,
  type LogFormat,
  type LogLevel,
} from '../../lib/platform/logs.ts';
import { PROVIDER_NAMES, type ProviderName } from '../../lib/platform/onnx-providers.ts';
import { TRUSTED_KEYS_VARIABLE } from '../../lib/repository/signatures.ts';
import type { WarmUpEntry } from '../engine/warm-up-rows.ts';
import { STORE_KINDS, type StoreKind } from '../stores/store-choice.ts';
import type { Setting, Table } from './setting-kinds.ts';
import * as kinds from './setting-kinds.ts';
import { ACCESS_SETTINGS, type AccessSettings } from './settings-access.ts';

/** Settings of the process; all are optional. */
export interface ProcessSettings extends AccessSettings {
  readonly host?: string;
  readonly port?: number;
  readonly timeoutMs?: number;
  readonly maxInFlight?: number;
  readonly messageBytes?: number;
  readonly controlTokenFile?: string;
  readonly trustedKeys?: string;
  readonly decryptKeyFile?: string;
  readonly decryptKeyCommand?: string;
  readonly logLevel?: LogLevel;
  readonly logFormat?: LogFormat;
  readonly logFile?: string;
  readonly logFileBytes?: number;
  readonly logFiles?: number;
  readonly slowRequestMs?: number;
  readonly requestLogShare?: number;
  readonly trafficFile?: string;
  readonly exposureLog?: string;
  readonly exposureShare?: number;
  readonly metricNames?: readonly (typeof METRIC_NAMES)[number][];
  readonly protocols?: readonly (typeof PROTOCOLS)[number][];
  readonly modelRepository?: string;
  readonly modelControlMode?: ModelControlMode;
  readonly repositoryPollMs?: number;
  readonly loadModel?: readonly string[];
}

/** How the models of a model repository are loaded; Triton's modes. */
const MODEL_CONTROL_MODES = ['none', 'poll', 'explicit'] as const;
export type ModelControlMode = (typeof MODEL_CONTROL_MODES)[number];

/** Protocols of the port. HTTP carries CTR, KServe, TensorFlow Serving and Paddle. */
export const PROTOCOLS = ['http', 'grpc', 'baidu_std'] as const;

/** Servers whose metric names can be added to our own. */
const METRIC_NAMES = ['triton', 'paddle'] as const;

/** Every client sends requests of this size. */
export const MESSAGE_BYTES_MIN: number = 64 << 10;
/** The text of a larger body may not fit into a string. */
export const MESSAGE_BYTES_MAX: number = 256 << 20;

/**
 * Settings of one model; only its source (repository and bundle, bundleDir, or model) is required.
 */
export interface ModelSettings {
  readonly name?: string;
  readonly repository?: string;
  readonly bundle?: string;
  readonly channel?: readonly string[];
  readonly pinnedVersion?: string;
  readonly bundleDir?: string;
  readonly model?: string;
  readonly reload?: Reload;
  readonly reloadFile?: string;
  readonly pollMs?: number;
  readonly store?: StoreKind;
  readonly fleet?: string;
  readonly dataDir?: string;
  readonly memory?: number;
  readonly checksum?: boolean;
  readonly loadBalancer?: LoadBalancer;
  readonly retryMax?: number;
  readonly backupRequest?: BackupRequest;
  readonly shardKeyFile?: string;
  readonly shardTls?: boolean;
  readonly shardTlsCa?: string;
  readonly shardTlsCert?: string;
  readonly shardTlsKey?: string;
  readonly shardTlsServerName?: string;
  readonly redisUrl?: readonly string[];
  readonly redisUser?: string;
  readonly redisPasswordFile?: string;
  readonly redisCluster?: boolean;
  readonly redisFill?: boolean;
  readonly hotRows?: number;
  readonly instances?: kinds.Instances;
  readonly maxBatch?: number;
  readonly preferredBatches?: readonly number[];
  readonly maxQueueDelayUs?: number;
  readonly queueRowsMax?: number;
  readonly queueTimeoutMs?: number;
  readonly priorityLevels?: number;
  readonly onUnavailable?: 'fail' | 'default';
  readonly maxUnavailableShare?: number;
  readonly warmUp?: WarmUpKind;
  readonly warmUpFile?: string;
  readonly warmUpEntries?: readonly WarmUpEntry[];
  readonly warmUpTimeoutMs?: number;
  readonly record?: string;
  readonly recordShare?: number;
  readonly recordBytes?: number;
  readonly recordFiles?: number;
  readonly recordRedact?: readonly string[];
  readonly requestCache?: number;
  readonly precision?: Precision;
  readonly splitUser?: 'auto' | 'off';
  readonly provider?: readonly ProviderName[];
  readonly devices?: readonly number[];
}

/**
 * What counts as a change of a served folder: the watched file's time differs, is later, or its
 * content differs; or nothing.
 */
export const RELOADS = ['timestamp_ne', 'timestamp_gt', 'md5sum', 'none'] as const;
export type Reload = (typeof RELOADS)[number];

/** Where warm-up rows come from: published with the version, synthetic, or read from a file. */
const WARM_UPS = ['golden', 'synthetic', 'file'] as const;
export type WarmUpKind = (typeof WARM_UPS)[number];

const PROCESS = 'Process:';
const LOGS = 'Log file and logged requests:';
const MODEL_REPOSITORY = "Model repository in Triton's layout:";
const SOURCE = 'Model (describe several models in the file of --config):';
const STORE = 'Embedding rows:';
const REDIS = 'Redis (store redis):';
const BATCHING = 'Batching and queues:';
const UNAVAILABLE = 'Unavailable shards:';
const WARM_UP = 'Warm-up:';
const RECORDING = 'Recording of requests:';

export const PROCESS_SETTINGS: Table<ProcessSettings> = {
  host: {
    kind: kinds.text,
    group: PROCESS,
    isCommon: true,
    help: 'Address to listen on (default: 127.0.0.1)',
  },
  port: {
    kind: kinds.integer(0, 65_535, 'number'),
    group: PROCESS,
    isCommon: true,
    help: 'Port to listen on; 0 chooses a free port (default: 8080)',
  },
  timeoutMs: {
    kind: kinds.integer(1, 600_000, 'ms'),
    group: PROCESS,
    isCommon: true,
    help:
      'Deadline of requests without a timeout of their own, in milliseconds; requests that ' +
      'exceed it fail with HTTP 504 (default: 1000)',
  },
  maxInFlight: {
    kind: kinds.integer(1, 100_000, 'number'),
    group: PROCESS,
    isCommon: true,
    help: 'Maximum concurrent requests; further requests get HTTP 429 (default: 4096)',
  },
  messageBytes: {
    kind: kinds.bytes,
    group: PROCESS,
    help:
      'Maximum size of a request, compressed and decompressed, in bytes or with a unit; larger ' +
      'ones get HTTP 413 (default: 64MiB)',
  },
  controlTokenFile: {
    kind: kinds.text,
    group: PROCESS,
    isPath: true,
    help:
      'File with the bearer token that loading and unloading models requires; reread when it ' +
      'changes. Without it, only requests from this host may load and unload',
  },
  trustedKeys: {
    kind: kinds.text,
    group: PROCESS,
    isPath: true,
    variable: TRUSTED_KEYS_VARIABLE,
    help:
      'File or folder of public keys; only versions signed by one of them are served ' +
      '(default: signatures are not checked)',
  },
  decryptKeyFile: {
    kind: kinds.text,
    group: PROCESS,
    isPath: true,
    help:
      'File with the keys of encrypted versions, one of 64 hex digits on a line (default: none; ' +
      'encrypted versions are refused)',
  },
  decryptKeyCommand: {
    kind: kinds.text,
    group: PROCESS,
    help:
      'Program that prints the keys of encrypted versions, with arguments separated by spaces, ' +
      'or as a JSON array of strings; it is run without a shell',
  },
  logLevel: {
    kind: kinds.choice(LOG_LEVELS),
    group: PROCESS,
    isCommon: true,
    help: 'Lowest level of log messages to write (default: info)',
  },
  logFormat: {
    kind: kinds.choice(LOG_FORMATS),
    group: PROCESS,
    help: LOG_FORMAT_HELP,
  },
  logFile: {
    kind: kinds.text,
    group: LOGS,
    isPath: true,
    help: 'File to write log messages to (default: stderr)',
  },
  logFileBytes: {
    kind: kinds.bytes,
    group: LOGS,
    help:
      'Size at which the file of --log-file is renamed to <file>.1 and a new one begins ' +
      '(default: 64MiB)',
  },
  logFiles: {
    kind: kinds.integer(1, 100, 'number'),
    group: LOGS,
    help: 'Number of log files to keep, including the current one (default: 4)',
  },
  slowRequestMs: {
    kind: kinds.integer(1, 600_000, 'ms'),
    group: LOGS,
    help:
      'Log each prediction that takes at least this long, in milliseconds, with the time of each ' +
      'stage; at most one line per second, which counts the omitted ones (default: none)',
  },
  requestLogShare: {
    kind: kinds.fraction,
    group: LOGS,
    help:
      'Share of predictions, from 0 to 1, to log with the time of each stage; never their ' +
      'features (default: 0)',
  },
  trafficFile: {
    kind: kinds.text,
    group: PROCESS,
    isPath: true,
    help: 'YAML file of experiments and shadows, read again when it changes (default: none)',
  },
  exposureLog: {
    kind: kinds.text,
    group: LOGS,
    isPath: true,
    help:
      'File to write a JSON line to for each request in an experiment; renamed at 64MiB, the ' +
      'newest four are kept (default: none)',
  },
  exposureShare: {
    kind: kinds.fraction,
    group: LOGS,
    help:
      'Share of the requests in experiments, from 0 to 1, to write to --exposure-log ' +
      '(default: 1)',
  },
  metricNames: {
    kind: kinds.list(kinds.choice(METRIC_NAMES)),
    group: PROCESS,
    help:
      'Servers under whose metric names GET /metrics adds metrics for existing dashboards: ' +
      'triton (nv_inference_*, nv_cache_*), paddle (pd_*) (default: none)',
  },
  protocols: {
    kind: kinds.list(kinds.choice(PROTOCOLS)),
    group: PROCESS,
    help:
      'Protocols to accept; connections of the others are closed. HTTP is always accepted, ' +
      'because health checks and metrics use it (default: all)',
  },
  modelRepository: {
    kind: kinds.text,
    group: MODEL_REPOSITORY,
    isCommon: true,
    isPath: true,
    help:
      "Folder of ONNX models in Triton's layout (<model>/<version>/model.onnx, config.pbtxt), " +
      'served beside the other models',
  },
  modelControlMode: {
    kind: kinds.choice(MODEL_CONTROL_MODES),
    group: MODEL_REPOSITORY,
    help:
      'How models of --model-repository are loaded. none: all at the start; poll: all, and ' +
      'changes of the folder are followed; explicit: --load-model and load requests ' +
      '(default: none)',
  },
  repositoryPollMs: {
    kind: kinds.integer(10, 3_600_000, 'ms'),
    group: MODEL_REPOSITORY,
    help:
      'Poll interval for changes of --model-repository, in milliseconds (only with ' +
      '--model-control-mode poll; default: 15000)',
  },
  loadModel: {
    kind: kinds.list(kinds.text),
    group: MODEL_REPOSITORY,
    help:
      'Models to load at the start, separated by commas; * loads all (only with ' +
      '--model-control-mode explicit; default: none)',
  },
  ...ACCESS_SETTINGS,
};

export const MODEL_SETTINGS: Table<ModelSettings> = {
  name: {
    kind: kinds.name,
    group: SOURCE,
    help:
      'Name of the model in requests (default: the bundle name, or the file name of --model); or ' +
      'the model of --model-repository that --record and --warm-up-file are for',
  },
  repository: {
    kind: kinds.text,
    group: SOURCE,
    isCommon: true,
    isPath: true,
    help: 'Repository where versions are published: a folder, or an http, https or s3 URL',
  },
  bundle: {
    kind: kinds.name,
    group: SOURCE,
    isCommon: true,
    help: 'Bundle to serve',
  },
  channel: {
    kind: kinds.list(kinds.name),
    group: SOURCE,
    isCommon: true,
    help:
      'Channels to serve, separated by commas; a request can name one, otherwise the first ' +
      'answers (default: stable)',
  },
  pinnedVersion: {
    kind: kinds.name,
    group: SOURCE,
    help: 'Serve exactly this version, instead of the versions of channels',
  },
  bundleDir: {
    kind: kinds.text,
    group: SOURCE,
    isCommon: true,
    isPath: true,
    help:
      'Folder with one version (manifest.json, model.onnx, slots.json, layers), served ' +
      'instead of a repository',
  },
  model: {
    kind: kinds.text,
    group: SOURCE,
    isCommon: true,
    isPath: true,
    help:
      'ONNX file of a plain model (any graph without tables), served as version 1 instead of a ' +
      'repository and reloaded when it changes',
  },
  reload: {
    kind: kinds.choice(RELOADS),
    group: SOURCE,
    help:
      'When to reload --bundle-dir. timestamp_ne: the time of --reload-file differs; ' +
      'timestamp_gt: it is later; md5sum: its content differs; none: never (default: ' +
      'timestamp_ne)',
  },
  reloadFile: {
    kind: kinds.text,
    group: SOURCE,
    help: 'File in --bundle-dir whose change causes a reload (default: manifest.json)',
  },
  pollMs: {
    kind: kinds.integer(10, 3_600_000, 'ms'),
    group: SOURCE,
    help: 'Poll interval for channel and folder changes, in milliseconds (default: 1000)',
  },
  store: {
    kind: kinds.choice(STORE_KINDS),
    group: STORE,
    isCommon: true,
    help:
      'Where embedding rows are looked up. memory: this process; local: a database in ' +
      '--data-dir; remote: shard servers; redis: Redis; none: the model has no tables ' +
      '(default: memory; with --data-dir, versions that do not fit into --memory use local)',
  },
  fleet: {
    kind: kinds.text,
    group: STORE,
    isCommon: true,
    isPath: true,
    help:
      'File that lists the shard servers: fleet.json or cube.conf (only with --store ' + 'remote)',
  },
  dataDir: {
    kind: kinds.text,
    group: STORE,
    isCommon: true,
    isPath: true,
    help:
      'Folder for the local database and downloaded layers (only with --store local or ' +
      'memory)',
  },
  memory: {
    kind: kinds.bytes,
    group: STORE,
    help:
      'Memory limit for all tables, in bytes or with a unit such as 16GiB (only with ' +
      "--store memory; default: 60 % of the machine's memory)",
  },
  checksum: {
    kind: kinds.flag,
    group: STORE,
    help:
      'Protect lookup requests and responses with checksums (only with --store remote; ' +
      'default: true)',
  },
  loadBalancer: {
    kind: kinds.choice(LOAD_BALANCERS),
    group: STORE,
    help:
      'How to choose a replica of a shard. rr: round robin; wrr: weighted round robin; ' +
      'random; wr: weighted random; la: random, weighted by 1 / latency; c_murmurhash, ' +
      'c_md5: consistent hashing (only with --store remote; default: rr, or the value in ' +
      'cube.conf)',
  },
  retryMax: {
    kind: kinds.integer(0, 1_000, 'number'),
    group: STORE,
    help:
      'Maximum retries after failures, each on another replica (only with --store remote; ' +
      'default: one on each other replica of the shard, or the value in cube.conf)',
  },
  backupRequest: {
    kind: kinds.backupRequest,
    group: STORE,
    help:
      'Hedged requests: time without a response after which another replica is asked too, ' +
      'in milliseconds; p95 is the measured 95th percentile of the shard (only with --store ' +
      'remote; default: p95, or the value in cube.conf)',
  },
  shardKeyFile: {
    kind: kinds.text,
    group: STORE,
    isPath: true,
    help:
      'File with the API key for lookups in shard servers; reread when it changes (only with ' +
      '--store remote; default: none)',
  },
  shardTls: {
    kind: kinds.flag,
    group: STORE,
    help:
      'Look up over TLS (only with --store remote; default: true with a --shard-tls file, else ' +
      'false)',
  },
  shardTlsCa: {
    kind: kinds.text,
    group: STORE,
    isPath: true,
    help:
      'Certificate authorities (PEM) of shard servers (only with --store remote; default: those ' +
      'of Node)',
  },
  shardTlsCert: {
    kind: kinds.text,
    group: STORE,
    isPath: true,
    help:
      'Client certificate (PEM) for lookups, with its chain (only with --store remote; default: ' +
      'none)',
  },
  shardTlsKey: {
    kind: kinds.text,
    group: STORE,
    isPath: true,
    help: 'Private key of --shard-tls-cert (PEM)',
  },
  shardTlsServerName: {
    kind: kinds.text,
    group: STORE,
    help:
      'Name in the certificates of shard servers (only with --store remote; default: the address ' +
      'called)',
  },
  hotRows: {
    kind: kinds.bytes,
    group: STORE,
    help:
      'Size of the cache of frequently used rows, in bytes or with a unit such as 64MiB ' +
      '(only with --store remote or redis; default: no cache)',
  },
  redisUrl: {
    kind: kinds.list(kinds.text),
    group: REDIS,
    help:
      'Redis addresses as redis[s]://host:port, separated by commas; several addresses are ' +
      'nodes of one Redis Cluster',
  },
  redisUser: {
    kind: kinds.text,
    group: REDIS,
    help: 'Redis user name (default: the user in --redis-url)',
  },
  redisPasswordFile: {
    kind: kinds.text,
    group: REDIS,
    isPath: true,
    help: 'File that contains only the Redis password',
  },
  redisCluster: {
    kind: kinds.flag,
    group: REDIS,
    help:
      'Whether a single address in --redis-url is a node of a Redis Cluster; several ' +
      'addresses always are (default: false)',
  },
  redisFill: {
    kind: kinds.flag,
    group: REDIS,
    help: 'Load rows of a version into Redis if they are not there yet (default: false)',
  },
  instances: {
    kind: kinds.instances,
    group: BATCHING,
    isCommon: true,
    help:
      'Model instances per version, one worker thread each: a number, cpu for one per ' +
      'core, or cpu*n for n per core (default: cpu)',
  },
  maxBatch: {
    kind: kinds.integer(0, 4096, 'rows'),
    group: BATCHING,
    help:
      'Maximum rows in one run of the model; smaller requests are merged, larger ones split. 0: ' +
      'a plain model without a batch dimension, whose requests run alone (default: 64; plain ' +
      'models: 0 unless all first dimensions are dynamic)',
  },
  preferredBatches: {
    kind: kinds.list(kinds.integer(1, 4096, 'rows')),
    group: BATCHING,
    help:
      'Batch sizes to assemble in advance while all instances are busy, so that a free ' +
      'instance starts at once (default: 32 and 64, unless above --max-batch)',
  },
  maxQueueDelayUs: {
    kind: kinds.integer(0, 1_000_000, 'us'),
    group: BATCHING,
    help:
      'Maximum time a row waits for a larger batch, in microseconds. An idle instance never ' +
      'waits (default: 500)',
  },
  queueRowsMax: {
    kind: kinds.integer(1, 1_000_000, 'rows'),
    group: BATCHING,
    help:
      'Maximum rows waiting for an instance, which limits memory; further requests get HTTP ' +
      '429. Requests get it earlier when they would wait for more than half of their timeout, ' +
      'and while more is offered than the model can do, when 4,096 rows wait (default: 65536)',
  },
  queueTimeoutMs: {
    kind: kinds.integer(1, 600_000, 'ms'),
    group: BATCHING,
    help:
      'Maximum time a request waits for an instance, in milliseconds (default: until its ' +
      'deadline)',
  },
  priorityLevels: {
    kind: kinds.integer(1, 16, 'number'),
    group: BATCHING,
    help:
      'Number of priority levels; more urgent requests run first, and requests below the ' +
      'lowest level use it (default: 3)',
  },
  requestCache: {
    kind: kinds.bytes,
    group: BATCHING,
    help:
      'Size of the cache of responses to repeated requests of a version, in bytes or with a ' +
      'unit (default: 0, no cache)',
  },
  precision: {
    kind: kinds.choice(PRECISIONS),
    group: BATCHING,
    help:
      'Bits of the weights of the graph. A version whose outputs would change by more than a ' +
      'tolerance is not loaded (default: fp32, as trained)',
  },
  splitUser: {
    kind: kinds.choice(['auto', 'off']),
    group: BATCHING,
    help:
      'Whether the part of the graph that depends only on slots of side user runs once for each ' +
      'user of a batch: auto, where the outputs stay the same, or off (default: auto)',
  },
  provider: {
    kind: kinds.list(kinds.choice(PROVIDER_NAMES)),
    group: BATCHING,
    help:
      'Execution providers of onnxruntime, separated by commas, the preferred first. A missing ' +
      'one stops the load with what to install, unless cpu is listed after it (default: cpu)',
  },
  devices: {
    kind: kinds.list(kinds.integer(0, 63, 'number')),
    group: BATCHING,
    help:
      'Numbers of the GPUs that the instances are spread over, separated by commas (only with ' +
      '--provider cuda, tensorrt or dml; default: 0)',
  },
  onUnavailable: {
    kind: kinds.choice(['fail', 'default']),
    group: UNAVAILABLE,
    help:
      'What to do when no replica can look up a key: fail the request, or use the default row ' +
      'and mark the response as degraded (default: fail)',
  },
  maxUnavailableShare: {
    kind: kinds.fraction,
    group: UNAVAILABLE,
    help:
      "With --on-unavailable fail: share of a request's keys, from 0 to 1, that may be " +
      'unavailable; the response is then degraded (default: 0)',
  },
  warmUp: {
    kind: kinds.choice(WARM_UPS),
    group: WARM_UP,
    help:
      'Rows to predict on every instance before a version serves requests. golden: the ' +
      "version's golden.jsonl, or as synthetic if it has none; synthetic: zeros and random " +
      'values, or --warm-up-entries; file: --warm-up-file (default: golden)',
  },
  warmUpFile: {
    kind: kinds.text,
    group: WARM_UP,
    isPath: true,
    help: 'File of warm-up rows, in the format of golden.jsonl and of --record',
  },
  warmUpEntries: {
    kind: kinds.list(kinds.warmUpEntry),
    group: WARM_UP,
    help:
      'Synthetic requests to each instance, in this order, as data:rows*count: zeros:1 is one ' +
      'request with one row, random:64*10 is ten with 64 random rows each (default: 8 rows, then ' +
      'batches of 2, 4, … --max-batch rows)',
  },
  warmUpTimeoutMs: {
    kind: kinds.integer(1, 3_600_000, 'ms'),
    group: WARM_UP,
    help: 'Maximum time for the warm-up of a version, in milliseconds (default: 30000)',
  },
  record: {
    kind: kinds.text,
    group: RECORDING,
    isPath: true,
    help:
      'File to record sampled requests in, one JSON row (plain models: request) per line ' +
      '(default: no recording)',
  },
  recordShare: {
    kind: kinds.fraction,
    group: RECORDING,
    help: 'Share of requests to record, from 0 to 1 (default: 0.01)',
  },
  recordBytes: {
    kind: kinds.bytes,
    group: RECORDING,
    help:
      'Size at which the file of --record is renamed to <file>.1 and a new one begins ' +
      '(default: 64MiB)',
  },
  recordFiles: {
    kind: kinds.integer(1, 100, 'number'),
    group: RECORDING,
    help: 'Number of recorded files to keep, including the current one (default: 4)',
  },
  recordRedact: {
    kind: kinds.list(kinds.text),
    group: RECORDING,
    help:
      'Names of columns (dense features, slots, inputs of plain models) whose values --record ' +
      'omits (default: none)',
  },
};

/** timeoutMs → timeout-ms. */
export function toKebabCase(key: string): string {
  return key.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

/** timeoutMs → HYPERCUBE_TIMEOUT_MS. */
export function getVariableName(
  key: string,
  { variable }: Pick<Setting<unknown>, 'variable'>,
): string {
  if (variable !== undefined) return variable;
  return `HYPERCUBE_${toKebabCase(key).replaceAll('-', '_').toUpperCase()}`;
}
