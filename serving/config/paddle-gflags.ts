/** gflags.conf: one `--flag=value` or `--flag` a line. What the process takes from it, and where the other files are. */
import { dirname, join, resolve } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, readText } from '../../lib/platform/files.ts';
import type { Ignored } from './config-report.ts';
import { integer } from './setting-kinds.ts';
import type { ModelSettings, ProcessSettings } from './settings.ts';

const FILE_BYTES_MAX = 1 << 20;
const FLAGFILE_DEPTH_MAX = 8;

export interface Gflags {
  /** Where the original is started: the folder above conf. */
  readonly root: string;
  readonly servicePath: string;
  readonly workflowPath: string;
  readonly resourcePath: string;
  readonly generalModelPath: string;
  readonly port: number;
  readonly process: ProcessSettings;
  /** For every model. */
  readonly model: Pick<ModelSettings, 'pollMs' | 'requestCache'>;
}

const IGNORED: Readonly<Record<string, string>> = {
  idle_timeout_s: 'idle connections are closed after ten minutes',
  log_dir: 'logs go to stderr',
  num_threads: 'one thread reads requests, model workers run them: runtime_thread_num',
  gpuid: 'CPU only',
  bthread_concurrency: 'there are no bthreads',
  bthread_min_concurrency: 'there are no bthreads',
  enable_protocol_list: 'every protocol is answered on the one port',
  enable_cube: 'sparse_param_service_type says where rows come from',
  enable_prometheus: 'metrics are always at GET /metrics',
  prometheus_port: 'metrics are at GET /metrics of the one port',
  enable_model_toolkit: 'models are always loaded as model_toolkit.prototxt says',
};

const PATH_FLAGS = [
  ...['inferservice_path', 'inferservice_file', 'workflow_path', 'workflow_file'],
  ...['resource_path', 'resource_file', 'general_model_path', 'general_model_file'],
];
const READ = [...PATH_FLAGS, 'port', 'max_concurrency', 'reload_interval_s', 'request_cache_size'];

/** @throws CubeError INVALID_ARGUMENT with file and line */
export function readGflags(folder: string, ignored: Ignored[]): Gflags {
  const root = dirname(folder);
  const flags = new Map<string, Flag>();
  const path = join(folder, 'gflags.conf');
  if (fileExists(path)) readLines(path, flags, 0);
  for (const [name, { place }] of flags) {
    if (READ.includes(name)) continue;
    ignored.push({ setting: `${place} --${name}`, why: IGNORED[name] ?? 'unknown here' });
  }
  const text = (name: string, fallback: string): string => flags.get(name)?.value ?? fallback;
  const fileOf = (kind: string, files: readonly string[]): string => {
    const from = flags.has(`${kind}_path`) ? resolve(root, text(`${kind}_path`, '.')) : folder;
    const named = text(`${kind}_file`, '');
    const candidates = (named === '' ? files : [named]).map((file) => join(from, file));
    return candidates.find(fileExists) ?? candidates[0]!;
  };
  const concurrency = numberOf(flags.get('max_concurrency'), -1, 1_000_000) ?? 0;
  const reloadS = numberOf(flags.get('reload_interval_s'), 1, 3_600) ?? 10;
  const requestCache = numberOf(flags.get('request_cache_size'), 0, 2 ** 40) ?? 0;
  return {
    root,
    servicePath: fileOf('inferservice', ['service.prototxt', 'infer_service.prototxt']),
    workflowPath: fileOf('workflow', ['workflow.prototxt']),
    resourcePath: fileOf('resource', ['resource.prototxt']),
    generalModelPath: fileOf('general_model', ['general_model.prototxt']),
    port: numberOf(flags.get('port'), 0, 65_535) ?? 8010,
    process: concurrency > 0 ? { maxInFlight: Math.min(concurrency, 100_000) } : {},
    model: { pollMs: reloadS * 1_000, ...(requestCache > 0 && { requestCache }) },
  };
}

interface Flag {
  readonly value: string;
  /** file:line. */
  readonly place: string;
}

function readLines(path: string, flags: Map<string, Flag>, depth: number): void {
  if (depth > FLAGFILE_DEPTH_MAX) {
    throw new CubeError('INVALID_ARGUMENT', `${path}: --flagfile names files in a circle`);
  }
  const lines = readText(path, FILE_BYTES_MAX).split('\n');
  lines.forEach((line, i) => {
    const text = line.trim();
    if (text === '' || text.startsWith('#')) return;
    const place = `${path}:${i + 1}`;
    const [, name, value] = /^--?([A-Za-z_][A-Za-z0-9_]*)(?:[= ](.*))?$/.exec(text) ?? [];
    if (name === undefined) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${place}: expected --flag=value, got ${JSON.stringify(text.slice(0, 60))}`,
      );
    }
    const unquoted = (value ?? 'true').trim().replace(/^(["'])(.*)\1$/, '$2');
    if (name === 'flagfile') readLines(resolve(dirname(path), unquoted), flags, depth + 1);
    else flags.set(name, { value: unquoted, place });
  });
}

function numberOf(flag: Flag | undefined, min: number, max: number): number | undefined {
  if (flag === undefined) return undefined;
  try {
    return integer(min, max, 'number').fromText(flag.value);
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', `${flag.place}: ${CubeError.from(error).message}`);
  }
}
