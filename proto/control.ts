/**
 * The control calls: JSON over HTTP, as agent and server both know them (docs/wire/README.md). Types, paths, and
 * readers that check what a peer sent.
 */
import type { JsonReader } from '../lib/core/json.ts';
import { NAME_PATTERN, NAME_RULE } from '../lib/core/names.ts';

const CONTROL_PATH = '/hypercube.ControlService';
export const CONTROL_LOAD: string = `${CONTROL_PATH}/load`;
export const CONTROL_ACTIVATE: string = `${CONTROL_PATH}/activate`;
export const CONTROL_UNLOAD: string = `${CONTROL_PATH}/unload`;
export const CONTROL_DRAIN: string = `${CONTROL_PATH}/drain`;
export const CONTROL_UNDRAIN: string = `${CONTROL_PATH}/undrain`;
export const CONTROL_STATUS: string = `${CONTROL_PATH}/status`;

/** The body of activate. */
export interface VersionRequest {
  readonly bundle: string;
  readonly version: string;
}

export interface LoadRequest extends VersionRequest {
  /** Versions, as "bundle/version", that are not given up to make room for it, however idle they are. */
  readonly keep?: readonly string[];
}

export interface UnloadRequest extends VersionRequest {
  /** Only if it was not looked up for so long; absent: the server's own --retire-grace-ms. */
  readonly ifIdleMs?: number;
  /** Whoever uses it. */
  readonly force?: boolean;
}

export interface LoadAnswer {
  readonly layersLoaded: number;
  /** Layers that another resident version had already. */
  readonly layersShared: number;
  readonly bytes: number;
  readonly durationMs: number;
  /** Versions unloaded to make room, as "bundle/version": going back to them takes a load. */
  readonly gaveUp?: readonly string[];
  /** Layers whose rows were to stay on disk and are in memory: their layout has them beside their keys. */
  readonly inMemory?: readonly string[];
}

export interface ActivateAnswer {
  readonly active: string;
}

export interface UnloadAnswer {
  readonly unloaded: boolean;
}

export interface DrainAnswer {
  readonly draining: boolean;
}

interface VersionStatus {
  readonly version: string;
  readonly rows: number;
  readonly bytes: number;
  /** Since it last answered a lookup, or was loaded. */
  readonly idleMs: number;
  /** What the rows are, whatever the version is called; of a server that says it. */
  readonly tablesDigest?: string;
}

export interface BundleStatus {
  readonly bundle: string;
  /** Empty: none. */
  readonly active: string;
  readonly versions: readonly VersionStatus[];
}

export interface FailedLoad extends VersionRequest {
  readonly code: string;
  readonly message: string;
}

interface MemoryStatus {
  readonly budgetBytes: number;
  readonly usedBytes: number;
  readonly pooledBytes: number;
}

export interface ControlStatus {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly ready: boolean;
  /** Every lookup is refused; of a server that can drain. */
  readonly draining?: boolean;
  readonly pid: number;
  readonly bundles: readonly BundleStatus[];
  readonly loading: readonly VersionRequest[];
  readonly failed: readonly FailedLoad[];
  readonly memory: MemoryStatus;
}

/** @throws CubeError INVALID_ARGUMENT: the names become parts of paths, so they are checked here */
export function readVersionRequest(json: JsonReader): VersionRequest {
  return {
    bundle: json.field('bundle').string(NAME_PATTERN, NAME_RULE),
    version: json.field('version').string(NAME_PATTERN, NAME_RULE),
  };
}

/** @throws CubeError INVALID_ARGUMENT */
export function readLoadRequest(json: JsonReader): LoadRequest {
  const keep = json.optional('keep', (field) => field.items().map((item) => item.string()));
  return { ...readVersionRequest(json), ...(keep === undefined ? {} : { keep }) };
}

/** @throws CubeError INVALID_ARGUMENT */
export function readUnloadRequest(json: JsonReader): UnloadRequest {
  const ifIdleMs = json.optional('ifIdleMs', (field) => field.integer(0));
  const force = json.optional('force', (field) => field.boolean());
  return {
    ...readVersionRequest(json),
    ...(ifIdleMs === undefined ? {} : { ifIdleMs }),
    ...(force === undefined ? {} : { force }),
  };
}

export function readLoadAnswer(json: JsonReader): LoadAnswer {
  const gaveUp = json.optional('gaveUp', (field) => field.items().map((item) => item.string()));
  return {
    ...(gaveUp === undefined ? {} : { gaveUp }),
    layersLoaded: json.field('layersLoaded').integer(0),
    layersShared: json.field('layersShared').integer(0),
    bytes: json.field('bytes').integer(0),
    durationMs: json.field('durationMs').number(),
  };
}

function readBundleStatus(json: JsonReader): BundleStatus {
  return {
    bundle: json.field('bundle').string(NAME_PATTERN, NAME_RULE),
    active: json.field('active').string(),
    versions: json
      .field('versions')
      .items()
      .map((item) => ({
        version: item.field('version').string(NAME_PATTERN, NAME_RULE),
        rows: item.field('rows').integer(0),
        bytes: item.field('bytes').integer(0),
        idleMs: item.field('idleMs').number(),
        tablesDigest: item.optional('tablesDigest', (field) => field.string()) ?? '',
      })),
  };
}

/** Reads a status answer. @throws CubeError INVALID_ARGUMENT naming the field */
export function readControlStatus(json: JsonReader): ControlStatus {
  const memory = json.field('memory');
  return {
    shardIndex: json.field('shardIndex').integer(0),
    shardNum: json.field('shardNum').integer(1),
    ready: json.field('ready').boolean(),
    draining: json.optional('draining', (field) => field.boolean()) ?? false,
    pid: json.field('pid').integer(0),
    bundles: json.field('bundles').items().map(readBundleStatus),
    loading: json.field('loading').items().map(readVersionRequest),
    failed: json
      .field('failed')
      .items()
      .map((item) => ({
        ...readVersionRequest(item),
        code: item.field('code').string(),
        message: item.field('message').string(),
      })),
    memory: {
      budgetBytes: memory.field('budgetBytes').integer(0),
      usedBytes: memory.field('usedBytes').integer(0),
      pooledBytes: memory.field('pooledBytes').integer(0),
    },
  };
}
