/**
 * Reads Paddle Serving's flag file (gflags.conf, proj.conf), one `--flag=value`, `--flag` or
 * `--noflag` per line: process settings and the paths of the other files.
 */
import { dirname, join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import { fileExists, readText } from '../../lib/platform/files.ts';
import type { IgnoredSetting } from './config-report.ts';
import { integer } from './setting-kinds.ts';
import {
  MESSAGE_BYTES_MAX,
  MESSAGE_BYTES_MIN,
  type ModelSettings,
  PROTOCOLS,
  type ProcessSettings,
} from './settings.ts';

const FILE_BYTES_MAX = 1 << 20;
const FLAGFILE_DEPTH_MAX = 8;

/** Where the configuration begins. */
export interface PaddleConfLocation {
  /** The folder in which Paddle Serving is started: relative paths in its files begin here. */
  readonly root: string;
  /** The conf folder, for files whose path no flag gives. */
  readonly folder: string;
  readonly flagFile: string;
  /** False: the flag file may be missing. */
  readonly needsFlagFile: boolean;
}

export interface Gflags {
  readonly root: string;
  readonly folder: string;
  readonly servicePath: string;
  readonly workflowPath: string;
  readonly resourcePath: string;
  readonly generalModelPath: string;
  readonly port: number;
  readonly process: ProcessSettings;
  /** Settings of every model. */
  readonly model: Pick<ModelSettings, 'pollMs' | 'requestCache'>;
  /** The threads of the original server, each of which runs every model; undefined: by default. */
  readonly threads: number | undefined;
}

const NO_BTHREADS = 'there are no bthreads; runtime_thread_num sets the model instances';
const LOGS = 'log_dir names the folder of the log file; --log-level sets the level';
const PRECISION = 'the graph of the bundle defines its precision';

const IGNORED_FLAGS: Readonly<Record<string, string>> = {
  alsologtostderr: LOGS,
  bthread_concurrency: NO_BTHREADS,
  bthread_min_concurrency: NO_BTHREADS,
  el_log_level: LOGS,
  enable_cube: 'sparse_param_service_type and the operator select the store',
  enable_general_model: 'general_model.prototxt is read if it exists',
  enable_model_toolkit: 'model_toolkit.prototxt is always read',
  enable_rd_dict: 'there are no dictionaries',
  g: 'it only selects the flag file',
  gpuid: 'gpu_ids of the engine names its devices',
  idle_timeout_s: 'quiet connections stay open; a full server closes the longest idle one',
  logbufsecs: LOGS,
  logger_file: LOGS,
  logger_path: LOGS,
  logtostderr: LOGS,
  max_log_size: LOGS,
  minloglevel: LOGS,
  precision: PRECISION,
  prometheus_port: 'GET /metrics of the serving port has the metrics; there is no further port',
  stderrthreshold: LOGS,
  use_calib: PRECISION,
  use_parallel_infer_service: 'requests always run in parallel',
  v: LOGS,
};

const PATH_FLAGS = [
  'inferservice_path',
  'inferservice_file',
  'workflow_path',
  'workflow_file',
  'resource_path',
  'resource_file',
  'general_model_path',
  'general_model_file',
];
const SUPPORTED_FLAGS = [
  ...PATH_FLAGS,
  'port',
  'max_body_size',
  'max_concurrency',
  'reload_interval_s',
  'request_cache_size',
  'num_threads',
  'enable_protocol_list',
  'log_dir',
  'enable_prometheus',
];
const KNOWN_FLAGS: ReadonlySet<string> = new Set([
  ...SUPPORTED_FLAGS,
  ...Object.keys(IGNORED_FLAGS),
]);

/** @throws CubeError INVALID_ARGUMENT with file and line; NOT_FOUND */
export function readGflags(location: PaddleConfLocation, ignored: IgnoredSetting[]): Gflags {
  const { root, folder } = location;
  const flags = readFlags(location);
  listIgnoredFlags(flags, ignored);
  const text = (name: string, fallback: string): string => flags.get(name)?.value ?? fallback;
  const findFile = (kind: string, files: readonly string[]): string => {
    const from = flags.has(`${kind}_path`) ? resolve(root, text(`${kind}_path`, '.')) : folder;
    const named = text(`${kind}_file`, '');
    const candidates = (named === '' ? files : [named]).map((file) => join(from, file));
    const [preferred = ''] = candidates;
    return candidates.find(fileExists) ?? preferred;
  };
  const concurrency = parseNumber(flags.get('max_concurrency'), -1, 1_000_000) ?? 0;
  const bodyBytes = parseNumber(flags.get('max_body_size'), 1, 2 ** 40);
  const reloadS = parseNumber(flags.get('reload_interval_s'), 1, 3_600) ?? 10;
  const requestCache = parseNumber(flags.get('request_cache_size'), 0, 2 ** 40) ?? 0;
  const threads = parseNumber(flags.get('num_threads'), -1, 100_000) ?? 0;
  const protocols = readProtocols(flags.get('enable_protocol_list'), ignored);
  const logFolder = text('log_dir', '');
  return {
    root,
    folder,
    servicePath: findFile('inferservice', ['service.prototxt', 'infer_service.prototxt']),
    workflowPath: findFile('workflow', ['workflow.prototxt']),
    resourcePath: findFile('resource', ['resource.prototxt']),
    generalModelPath: findFile('general_model', ['general_model.prototxt']),
    port: parseNumber(flags.get('port'), 0, 65_535) ?? 8010,
    process: {
      ...(concurrency > 0 && { maxInFlight: Math.min(concurrency, 100_000) }),
      ...(bodyBytes !== undefined && {
        messageBytes: Math.min(Math.max(bodyBytes, MESSAGE_BYTES_MIN), MESSAGE_BYTES_MAX),
      }),
      ...(protocols !== undefined && { protocols }),
      ...(readBoolean(flags.get('enable_prometheus')) && { metricNames: ['paddle'] }),
      ...(logFolder !== '' && { logFile: resolve(root, logFolder, 'serving.log') }),
    },
    model: { pollMs: reloadS * 1_000, ...(requestCache > 0 && { requestCache }) },
    threads: threads > 0 ? threads : undefined,
  };
}

/** As gflags reads it. @throws CubeError INVALID_ARGUMENT naming the line */
function readBoolean(flag: Flag | undefined): boolean {
  const value = flag?.value.toLowerCase() ?? 'false';
  if (['true', 't', 'yes', 'y', '1'].includes(value)) return true;
  if (['false', 'f', 'no', 'n', '0'].includes(value)) return false;
  const shown = JSON.stringify(value.slice(0, 20));
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${flag?.location}: expected true or false, got ${shown}`,
  );
}

interface Flag {
  readonly value: string;
  /** file:line. */
  readonly location: string;
}

function readFlags({
  root,
  flagFile,
  needsFlagFile,
}: PaddleConfLocation): ReadonlyMap<string, Flag> {
  const flags = new Map<string, Flag>();
  if (needsFlagFile || fileExists(flagFile)) readLines(flagFile, { root, flags, depth: 0 });
  return flags;
}

interface FlagReader {
  readonly root: string;
  readonly flags: Map<string, Flag>;
  readonly depth: number;
}

function readLines(path: string, { root, flags, depth }: FlagReader): void {
  if (depth > FLAGFILE_DEPTH_MAX) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path}: --flagfile includes are nested too deeply or circular`,
    );
  }
  const lines = readText(path, FILE_BYTES_MAX).split('\n');
  lines.forEach((line, i) => {
    const text = line.trim();
    if (text === '' || text.startsWith('#')) return;
    const location = `${path}:${i + 1}`;
    const [, name, value] = /^--?([A-Za-z_][A-Za-z0-9_]*)(?:[= ](.*))?$/.exec(text) ?? [];
    if (name === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${location}: expected --flag=value, got ${JSON.stringify(text.slice(0, 60))}`,
      );
    }
    const unquoted = value?.trim().replace(/^(["'])(.*)\1$/, '$2');
    if (name === 'flagfile') {
      for (const file of (unquoted ?? '').split(',')) {
        readLines(findFlagFile(file, root, path), { root, flags, depth: depth + 1 });
      }
    } else {
      const flag = parseFlag(name, unquoted);
      flags.set(flag.name, { value: flag.value, location });
    }
  });
}

/** Another flag file is relative to the start folder, as in the original, or to the file itself. */
function findFlagFile(file: string, root: string, namedIn: string): string {
  const fromRoot = resolve(root, file);
  return fileExists(fromRoot) ? fromRoot : resolve(dirname(namedIn), file);
}

/** `--noflag` is `--flag=false`. */
function parseFlag(name: string, value: string | undefined): { name: string; value: string } {
  if (value !== undefined) return { name, value };
  const negated = /^no(.+)$/.exec(name)?.[1];
  if (negated !== undefined && !KNOWN_FLAGS.has(name) && KNOWN_FLAGS.has(negated)) {
    return { name: negated, value: 'false' };
  }
  return { name, value: 'true' };
}

function listIgnoredFlags(flags: ReadonlyMap<string, Flag>, ignored: IgnoredSetting[]): void {
  for (const [name, { location }] of flags) {
    if (SUPPORTED_FLAGS.includes(name)) continue;
    const known = Object.hasOwn(IGNORED_FLAGS, name) ? IGNORED_FLAGS[name] : undefined;
    ignored.push({
      setting: `${location} --${name}`,
      reason: known ?? `unknown flag; ${suggestNames(name, KNOWN_FLAGS)}`,
    });
  }
}

/** Names of brpc for the protocols that can be switched off. */
const BRPC_PROTOCOLS: Readonly<Record<string, (typeof PROTOCOLS)[number]>> = {
  baidu_std: 'baidu_std',
  http: 'http',
  h2: 'grpc',
  'h2:grpc': 'grpc',
  grpc: 'grpc',
};

/**
 * The protocols that brpc accepts with this list: the listed ones, and HTTP and HTTP/2, which it
 * never switches off.
 * @returns undefined: all
 */
function readProtocols(
  flag: Flag | undefined,
  ignored: IgnoredSetting[],
): ProcessSettings['protocols'] {
  const names = (flag?.value ?? '').split(/[ ,]+/).filter((name) => name !== '');
  if (flag === undefined || names.length === 0) return undefined;
  for (const name of names.filter((one) => !Object.hasOwn(BRPC_PROTOCOLS, one))) {
    ignored.push({
      setting: `${flag.location} --enable_protocol_list ${name}`,
      reason: `not a protocol of this server (${Object.keys(BRPC_PROTOCOLS).join(', ')})`,
    });
  }
  const accepted = new Set([...names.map((name) => BRPC_PROTOCOLS[name]), 'http', 'grpc']);
  return PROTOCOLS.filter((protocol) => accepted.has(protocol));
}

function parseNumber(flag: Flag | undefined, min: number, max: number): number | undefined {
  if (flag === undefined) return undefined;
  try {
    return integer(min, max, 'number').fromText(flag.value);
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', `${flag.location}: ${CubeError.from(error).message}`);
  }
}
