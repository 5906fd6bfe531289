/**
 * Every setting of serving, once: its name, what it may be and what it does. Flags (`--timeout-ms`), the environment
 * (`HYPERCUBE_TIMEOUT_MS`) and the fields of serving.yaml (`timeout-ms`) are all made from these two tables.
 */
import { LOAD_BALANCERS, type LoadBalancer } from '../../lib/client/call-policy.ts';
import { LOG_LEVELS } from '../../lib/platform/logs.ts';
import { TRUSTED_KEYS_VARIABLE } from '../../lib/repository/signatures.ts';
import { RELOADS, type Reload } from '../models/folder-source.ts';
import { STORE_KINDS, type StoreKind } from '../stores/store-choice.ts';
import * as kinds from './setting-kinds.ts';

export interface Setting<T> {
  readonly kind: kinds.Kind<T>;
  readonly help: string;
  /** A path: in a file it is meant from the file's folder. */
  readonly isPath?: boolean;
  /** Its variable, where that is one of every program. Default: HYPERCUBE_ and its name. */
  readonly variable?: string;
}

type Table<T> = { readonly [K in keyof T]-?: Setting<NonNullable<T[K]>> };

/** What concerns the process. All may be left out. */
export interface ProcessSettings {
  readonly host?: string;
  readonly port?: number;
  readonly timeoutMs?: number;
  readonly maxInFlight?: number;
  readonly controlTokenFile?: string;
  readonly trustedKeys?: string;
  readonly logLevel?: (typeof LOG_LEVELS)[number];
}

/** What concerns one model. All may be left out, but for where it comes from. */
export interface ModelSettings {
  readonly name?: string;
  readonly repository?: string;
  readonly bundle?: string;
  readonly channel?: readonly string[];
  readonly pinnedVersion?: string;
  readonly bundleDir?: string;
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
  readonly backupRequest?: number | 'p95';
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
  readonly warmUpTimeoutMs?: number;
  readonly record?: string;
  readonly recordShare?: number;
  readonly recordBytes?: number;
  readonly recordFiles?: number;
  readonly recordRedact?: readonly string[];
  readonly requestCache?: number;
}

/** Rows to try before a version answers: those published with it, made-up ones, or those of a file. */
const WARM_UPS = ['golden', 'synthetic', 'file'] as const;
export type WarmUpKind = (typeof WARM_UPS)[number];

export const PROCESS_SETTINGS: Table<ProcessSettings> = {
  host: { kind: kinds.text, help: 'address to listen on (default 127.0.0.1)' },
  port: {
    kind: kinds.integer(0, 65_535, 'number'),
    help: 'port to listen on; 0 takes a free one (default 8080)',
  },
  timeoutMs: {
    kind: kinds.integer(1, 600_000, 'ms'),
    help: 'deadline of a request that names none (default 1000)',
  },
  maxInFlight: {
    kind: kinds.integer(1, 100_000, 'number'),
    help: 'requests let in at a time; more are refused with 429 (default 256)',
  },
  controlTokenFile: {
    kind: kinds.text,
    isPath: true,
    help: 'loading and unloading models needs "Authorization: Bearer" with its content, reread when it changes; without it only this host may',
  },
  trustedKeys: {
    kind: kinds.text,
    isPath: true,
    variable: TRUSTED_KEYS_VARIABLE,
    help: 'public keys (a file or a folder): serve only what one of them has signed',
  },
  logLevel: { kind: kinds.choice(LOG_LEVELS), help: 'what to log (default info)' },
};

export const MODEL_SETTINGS: Table<ModelSettings> = {
  name: { kind: kinds.name, help: 'what requests call the model (default: the bundle)' },
  repository: { kind: kinds.text, isPath: true, help: 'where versions are published' },
  bundle: { kind: kinds.name, help: 'the bundle to serve' },
  channel: {
    kind: kinds.list(kinds.name),
    help: 'channels to follow; the first answers requests that name none (default stable)',
  },
  pinnedVersion: {
    kind: kinds.name,
    help: 'instead of channels: exactly this version, whatever they point to (a gate compares two so)',
  },
  bundleDir: {
    kind: kinds.text,
    isPath: true,
    help: "instead of a repository: one version's folder, with manifest.json, model.onnx, slots.json and layers",
  },
  reload: {
    kind: kinds.choice(RELOADS),
    help: 'when the folder is taken again: the time of --reload-file is another, or later; its content is another; never (default timestamp_ne)',
  },
  reloadFile: {
    kind: kinds.text,
    help: 'the file whose change tells, in the folder (default manifest.json)',
  },
  pollMs: {
    kind: kinds.integer(10, 3_600_000, 'ms'),
    help: 'how often the channels, or the folder, are looked at (default 1000)',
  },
  store: {
    kind: kinds.choice(STORE_KINDS),
    help: 'where embedding rows come from (default memory; with a data-dir, versions that do not fit are kept on disk)',
  },
  fleet: {
    kind: kinds.text,
    isPath: true,
    help: 'fleet.json or cube.conf with the shard servers (store remote)',
  },
  dataDir: {
    kind: kinds.text,
    isPath: true,
    help: 'where the embedded store lives, and layers that are fetched (stores local and memory)',
  },
  memory: {
    kind: kinds.bytes,
    help: "what all tables may take (store memory; default: a share of the machine's memory)",
  },
  checksum: { kind: kinds.flag, help: 'lookups with checksums both ways (store remote)' },
  loadBalancer: {
    kind: kinds.choice(LOAD_BALANCERS),
    help: "which replica of a shard is asked: in turn, by weight, at random, the faster, by hash (store remote; default rr, or cube.conf's)",
  },
  retryMax: {
    kind: kinds.integer(0, 1_000, 'number'),
    help: "other replicas tried after one that failed (store remote; default all of the shard's, or cube.conf's)",
  },
  backupRequest: {
    kind: kinds.backupRequest,
    help: "so long without an answer, and another replica is asked too (store remote; default never, or cube.conf's)",
  },
  redisUrl: {
    kind: kinds.list(kinds.text),
    help: 'redis://host:port, several for a Cluster (store redis)',
  },
  redisUser: { kind: kinds.text, help: 'who to log in as (store redis)' },
  redisPasswordFile: {
    kind: kinds.text,
    isPath: true,
    help: 'a file with the password alone (store redis)',
  },
  redisCluster: { kind: kinds.flag, help: 'the node named is one of a Cluster (store redis)' },
  redisFill: { kind: kinds.flag, help: 'load what a version lacks (store redis)' },
  hotRows: {
    kind: kinds.bytes,
    help: 'a cache of rows before the store: its size (stores remote and redis)',
  },
  instances: {
    kind: kinds.instances,
    help: 'model workers of each version, each one thread (default cpu)',
  },
  maxBatch: {
    kind: kinds.integer(1, 4096, 'rows'),
    help: 'rows of one run of the graph: requests are merged up to it (default 64)',
  },
  preferredBatches: {
    kind: kinds.list(kinds.integer(1, 4096, 'rows')),
    help: 'sizes to make while all instances are busy (default 32,64)',
  },
  maxQueueDelayUs: {
    kind: kinds.integer(0, 1_000_000, 'us'),
    help: 'so long rows wait for a preferred size; an idle instance takes what there is at once (default 500)',
  },
  queueRowsMax: {
    kind: kinds.integer(1, 1_000_000, 'rows'),
    help: 'rows that may wait for an instance; more are refused (default 65536)',
  },
  queueTimeoutMs: {
    kind: kinds.integer(1, 600_000, 'ms'),
    help: 'how long a request may wait for an instance (default 10000)',
  },
  priorityLevels: {
    kind: kinds.integer(1, 16, 'number'),
    help: 'priorities that requests may name (default 3)',
  },
  onUnavailable: {
    kind: kinds.choice(['fail', 'default']),
    help: 'when no replica answers for a key: fail the request, or take the default row and say degraded (default fail)',
  },
  maxUnavailableShare: {
    kind: kinds.share,
    help: "with fail: the share of a request's lookups that may be unavailable, then degraded (default 0)",
  },
  warmUp: {
    kind: kinds.choice(WARM_UPS),
    help: "rows tried on every instance before a version answers: the version's golden.jsonl, made-up ones, or --warm-up-file (default golden)",
  },
  warmUpFile: {
    kind: kinds.text,
    isPath: true,
    help: 'rows as golden.jsonl has them, or as --record wrote them',
  },
  warmUpTimeoutMs: {
    kind: kinds.integer(1, 3_600_000, 'ms'),
    help: 'how long that may take (default 30000)',
  },
  record: {
    kind: kinds.text,
    isPath: true,
    help: 'a file that takes rows of live requests, one JSON row a line',
  },
  recordShare: { kind: kinds.share, help: 'the share of requests that is recorded (default 0.01)' },
  recordBytes: {
    kind: kinds.bytes,
    help: 'the file is moved to .1 and begun anew when it has so many bytes (default 64MiB)',
  },
  recordFiles: {
    kind: kinds.integer(1, 100, 'number'),
    help: 'files that are kept, the one that grows among them (default 4)',
  },
  recordRedact: {
    kind: kinds.list(kinds.text),
    help: 'features, by name, that are recorded as missing',
  },
  requestCache: {
    kind: kinds.bytes,
    help: 'answers kept for requests that come again: their size (default 0: none)',
  },
};

/** timeoutMs → timeout-ms. */
export function kebabOf(key: string): string {
  return key.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
}

/** timeoutMs → HYPERCUBE_TIMEOUT_MS. */
export function variableOf(key: string, { variable }: Pick<Setting<unknown>, 'variable'>): string {
  if (variable !== undefined) return variable;
  return `HYPERCUBE_${kebabOf(key).replaceAll('-', '_').toUpperCase()}`;
}
