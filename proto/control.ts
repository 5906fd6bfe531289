/**
 * The control calls, JSON over HTTP between agent and server (docs/wire/README.md): paths, types,
 * and readers that check what a peer sent.
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

/** A field of the bodies of load, activate and unload. */
interface StatusOption {
  /** Whether the answer contains the status after the call, which saves the caller a request. */
  readonly status?: boolean;
}

/** The body of activate. */
export interface VersionRequest {
  readonly bundle: string;
  readonly version: string;
}

/** The answer of a call, and the status after it; undefined from servers that do not send it. */
export interface WithStatus<Answer> {
  readonly answer: Answer;
  readonly status: ControlStatus | undefined;
}

export interface LoadRequest extends VersionRequest {
  /**
   * Versions, as "bundle/version", that must not be unloaded to make room, however idle they are.
   */
  readonly keep?: readonly string[];
}

export interface UnloadRequest extends VersionRequest {
  /**
   * Unload only if the version was not looked up for this long; absent: the server's
   * --retire-grace-ms.
   */
  readonly ifIdleMs?: number;
  /** Unload even while clients use the version. */
  readonly force?: boolean;
}

export interface LoadAnswer {
  readonly layersLoaded: number;
  /** Layers that another loaded version already had. */
  readonly layersShared: number;
  readonly bytes: number;
  readonly durationMs: number;
  /** Versions unloaded to make room, as "bundle/version". Activating them again takes a load. */
  readonly gaveUp?: readonly string[];
  /**
   * Layers whose rows should stay on disk but are in memory, because their layout stores rows with
   * keys.
   */
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
  /** Milliseconds since its last lookup, or since it was loaded. */
  readonly idleMs: number;
  /**
   * Identifies the rows by content, independent of the version's name; absent in answers of older
   * servers.
   */
  readonly tablesDigest?: string;
  /** Layers of its longest chain; absent in answers of older servers. */
  readonly layers?: number;
}

export interface LoadingVersion extends VersionRequest {
  /** Bytes to read; 0 while it waits, absent in answers of older servers. */
  readonly bytes?: number;
  readonly loadedBytes?: number;
}

export interface BundleStatus {
  readonly bundle: string;
  /** Empty without an active version. */
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
  /**
   * Linux's setting of transparent huge pages: always, madvise or never; absent on other systems
   * and in answers of older servers.
   */
  readonly hugePages?: string;
}

export interface ControlStatus {
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly ready: boolean;
  /** True while every lookup is refused; absent in answers of servers that cannot drain. */
  readonly draining?: boolean;
  readonly pid: number;
  readonly bundles: readonly BundleStatus[];
  readonly loading: readonly LoadingVersion[];
  readonly failed: readonly FailedLoad[];
  readonly memory: MemoryStatus;
}

/** @throws CubeError INVALID_ARGUMENT */
export function readStatusOption(json: JsonReader): boolean {
  return json.optional('status', (field) => field.boolean()) ?? false;
}

/** Adds to the body of a call that its answer shall contain the status. */
export function askForStatus<Request extends object>(request: Request): Request & StatusOption {
  return { ...request, status: true };
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function readWithStatus<Answer>(json: JsonReader, answer: Answer): WithStatus<Answer> {
  return { answer, status: json.optional('status', readControlStatus) };
}

/** @throws CubeError INVALID_ARGUMENT. Names become parts of paths, so they are checked here */
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

/** A field that older servers do not send. */
function readCount<Name extends string>(
  json: JsonReader,
  name: Name,
): Partial<Record<Name, number>> {
  const count = json.optional(name, (field) => field.integer(0));
  return count === undefined ? {} : ({ [name]: count } as Partial<Record<Name, number>>);
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
        ...readCount(item, 'layers'),
      })),
  };
}

/** Reads a status answer. @throws CubeError INVALID_ARGUMENT naming the field */
export function readControlStatus(json: JsonReader): ControlStatus {
  const memory = json.field('memory');
  const hugePages = memory.optional('hugePages', (field) => field.string());
  return {
    shardIndex: json.field('shardIndex').integer(0),
    shardNum: json.field('shardNum').integer(1),
    ready: json.field('ready').boolean(),
    draining: json.optional('draining', (field) => field.boolean()) ?? false,
    pid: json.field('pid').integer(0),
    bundles: json.field('bundles').items().map(readBundleStatus),
    loading: json
      .field('loading')
      .items()
      .map((item) => ({
        ...readVersionRequest(item),
        ...readCount(item, 'bytes'),
        ...readCount(item, 'loadedBytes'),
      })),
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
      ...(hugePages === undefined ? {} : { hugePages }),
    },
  };
}
