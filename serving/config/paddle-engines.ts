/**
 * Reads resource.prototxt, model_toolkit.prototxt and general_model.prototxt: the models and how
 * each one is run.
 */
import { basename, dirname, join, resolve } from 'node:path';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import { fileExists, isFolder } from '../../lib/platform/files.ts';
import { getProcessorCount } from '../../lib/platform/machine.ts';
import { MANIFEST_FILE } from '../../lib/repository/layout.ts';
import type { TextMessage } from '../../proto/text-format.ts';
import type { IgnoredSetting } from './config-report.ts';
import { toGpuSettings } from './paddle-devices.ts';
import { listIgnoredFields, readRenamed } from './paddle-fields.ts';
import type { Gflags } from './paddle-gflags.ts';
import { type ModelSettings, RELOADS, type Reload } from './settings.ts';

export interface Resources {
  readonly toolkitPaths: readonly string[];
  readonly generalModelPaths: readonly string[];
  readonly cubeConfPath: string | undefined;
}

const RESOURCE_FIELDS = [
  'model_toolkit_path',
  'model_toolkit_file',
  'model_manager_path',
  'model_manager_file',
  'general_model_path',
  'general_model_file',
  'cube_config_path',
  'cube_config_file',
];
const RESOURCE_IGNORED: Readonly<Record<string, string>> = {
  cube_quant_bits: 'the table defines its dtype',
  cube_cache_path: 'use hot-rows for a cache of rows',
  auth_product_name: 'the service that used it no longer exists',
  auth_container_id: 'the service that used it no longer exists',
};

export function readResources(
  file: TextMessage,
  flags: Gflags,
  ignored: IgnoredSetting[],
): Resources {
  listIgnoredFields(file, RESOURCE_FIELDS, RESOURCE_IGNORED, ignored);
  const toPaths = (folders: readonly string[], files: readonly string[]): string[] =>
    files.map((name, i) => resolve(flags.root, folders[i] ?? folders.at(-1) ?? flags.folder, name));
  const toolkitPaths = toPaths(
    readRenamed(file, 'model_toolkit_path', 'model_manager_path'),
    readRenamed(file, 'model_toolkit_file', 'model_manager_file'),
  );
  if (toolkitPaths.length === 0) file.fail('model_toolkit_path and model_toolkit_file are missing');
  const general = toPaths(file.strings('general_model_path'), file.strings('general_model_file'));
  const usual = fileExists(flags.generalModelPath) ? [flags.generalModelPath] : [];
  return {
    toolkitPaths,
    generalModelPaths: general.length > 0 ? general : usual,
    cubeConfPath: findCubeConf(file, flags),
  };
}

/**
 * `cube_config_file` is a name in `cube_config_path`. Without that it is a path from the start
 * folder, or a name in the conf folder.
 */
function findCubeConf(file: TextMessage, { root, folder }: Gflags): string | undefined {
  const name = file.string('cube_config_file') ?? '';
  if (name === '') return undefined;
  const path = file.string('cube_config_path') ?? '';
  if (path !== '') return resolve(root, path, name);
  const inFolder = resolve(folder, name);
  return !fileExists(resolve(root, name)) && fileExists(inFolder) ? inFolder : resolve(root, name);
}

const TABLE_NAME = 'sparse_param_service_table_name';
const ENGINE_FIELDS = [
  'name',
  'type',
  'model_dir',
  'model_data_path',
  'reloadable_meta',
  'reloadable_type',
  'sparse_param_service_type',
  TABLE_NAME,
  'runtime_thread_num',
  'batch_infer_size',
  'enable_overrun',
  'allow_split_request',
  'encrypted_model',
  'use_gpu',
  'gpu_ids',
  'use_trt',
];
const NO_PROVIDER = 'onnxruntime-node has no execution provider for this device; the CPU is used';
const NO_OPTION = 'onnxruntime-node has no such option of a GPU provider';
const GRAPH = 'onnxruntime optimizes the graph';
const MANIFEST = 'the manifest names the version';
const ONE_GRAPH = 'the graph of a bundle is not distributed';
const ENGINE_IGNORED: Readonly<Record<string, string>> = {
  use_xpu: NO_PROVIDER,
  use_ascend_cl: NO_PROVIDER,
  use_ipu: NO_PROVIDER,
  ipu_cfg_file: NO_PROVIDER,
  gpu_multi_stream: NO_OPTION,
  gpu_memory_mb: NO_OPTION,
  trt_workspace_size: NO_OPTION,
  trt_use_static: NO_OPTION,
  min_subgraph_size: NO_OPTION,
  min_input_shape: NO_OPTION,
  max_input_shape: NO_OPTION,
  opt_input_shape: NO_OPTION,
  use_lite: 'onnxruntime runs the graph',
  enable_memory_optimization: GRAPH,
  enable_ir_optimization: GRAPH,
  static_optimization: GRAPH,
  force_update_static_cache: GRAPH,
  enable_batch_align: 'a batch has as many rows as wait; it is not padded',
  cpu_math_thread_num: 'an instance is one thread; set the number of instances',
  combined_model: 'the graph of a bundle names its weight files',
  version_file: MANIFEST,
  version_type: MANIFEST,
  enable_dist_model: ONE_GRAPH,
  dist_carrier_id: ONE_GRAPH,
  dist_cfg_file: ONE_GRAPH,
  dist_nranks: ONE_GRAPH,
  dist_endpoints: ONE_GRAPH,
  dist_subgraph_index: ONE_GRAPH,
};

interface EngineContext {
  readonly flags: Gflags;
  readonly resources: Resources;
  readonly ignored: IgnoredSetting[];
  /** A workflow looks up the engine's rows in Cube. */
  readonly usesCube: boolean;
}

/** The engines of all model_toolkit.prototxt files, by name. */
export function listEngines(files: readonly TextMessage[]): ReadonlyMap<string, TextMessage> {
  const engines = new Map<string, TextMessage>();
  for (const engine of files.flatMap((file) => file.messages('engines'))) {
    const name = engine.string('name') ?? engine.fail('the engine has no name');
    if (!NAME_PATTERN.test(name)) engine.fail(`engine name: expected ${NAME_RULE}`);
    if (engines.has(name)) engine.fail(`two engines are named ${name}: rename one of them`);
    engines.set(name, engine);
  }
  return engines;
}

export function readEngine(engine: TextMessage, context: EngineContext): ModelSettings {
  const { flags, ignored } = context;
  const name = engine.string('name') ?? engine.fail('the engine has no name');
  if (engine.boolean('encrypted_model'))
    engine.fail(`engine ${name}: encrypted models are not supported`);
  listIgnoredFields(engine, ENGINE_FIELDS, ENGINE_IGNORED, ignored);
  const { parameters, isForGpu } = readEngineType(engine);
  const modelDir = readRenamed(engine, 'model_dir', 'model_data_path').at(-1) ?? '';
  if (modelDir === '') engine.fail(`engine ${name}: model_dir is missing`);
  const folder = resolve(flags.root, modelDir);
  checkBundle(engine, folder, parameters);
  return {
    ...flags.model,
    name,
    ...(isPlainModel(folder)
      ? readPlainModel(engine, folder, context)
      : {
          bundleDir: folder,
          ...readReload(engine, folder, flags.root),
          ...readStore(engine, name, context),
        }),
    ...readBatching(engine, context),
    ...readDevices(engine, isForGpu, ignored),
  };
}

function isPlainModel(folder: string): boolean {
  return !fileExists(join(folder, MANIFEST_FILE)) && fileExists(join(folder, ONNX_FILE));
}

/** An ONNX file is reloaded when it changes itself, and has no tables. */
function readPlainModel(
  engine: TextMessage,
  folder: string,
  { ignored, usesCube }: EngineContext,
): Pick<ModelSettings, 'model'> {
  const file = join(folder, ONNX_FILE);
  const type = engine.enumValue('sparse_param_service_type') ?? 'NONE';
  if (usesCube || !['NONE', '0'].includes(type)) {
    engine.fail(
      `engine ${engine.string('name')}: ${file} is a graph without tables, but the engine looks ` +
        'up rows; use the folder of a bundle (cube-builder)',
    );
  }
  for (const name of ['reloadable_meta', 'reloadable_type', TABLE_NAME]) {
    if (engine.string(name) === undefined) continue;
    const reason =
      name === TABLE_NAME ? 'the graph has no tables' : `changes of ${file} itself are loaded`;
    ignored.push({ setting: `${engine.getFieldLocation(name)} ${name}`, reason });
  }
  return { model: file };
}

/** Where a model in Paddle's own format keeps its parameters. */
type ParameterFiles = 'one file' | 'separate files' | 'unknown';

const PADDLE_INFER = 'PADDLE_INFER';
const FLUID_TYPES = ['CPU', 'GPU'].flatMap((device) =>
  ['NATIVE', 'ANALYSIS'].flatMap((api) =>
    ['', '_DIR'].map((files) => `FLUID_${device}_${api}${files}`),
  ),
);

/** Older engine types name a device, an interface, and with _DIR that parameters are separate. */
function readEngineType(engine: TextMessage): {
  readonly parameters: ParameterFiles;
  readonly isForGpu: boolean;
} {
  const type = engine.string('type') ?? PADDLE_INFER;
  if (type === PADDLE_INFER) return { parameters: 'unknown', isForGpu: false };
  if (!FLUID_TYPES.includes(type)) {
    const known = [PADDLE_INFER, ...FLUID_TYPES];
    engine.fail(`engine type ${type} is not supported (${suggestNames(type, known)})`);
  }
  const parameters = type.endsWith('_DIR') ? 'separate files' : 'one file';
  return { parameters, isForGpu: type.startsWith('FLUID_GPU') };
}

const PROGRAM_FILES = ['__model__', 'inference.pdmodel', 'model.pdmodel'];
const PARAMETER_FILE = '__params__';
const ONNX_FILE = 'model.onnx';

/** A missing folder may be created later. A folder that is not a bundle is an error. */
function checkBundle(engine: TextMessage, folder: string, parameters: ParameterFiles): void {
  if (!isFolder(folder) || fileExists(join(folder, MANIFEST_FILE))) return;
  if (isPlainModel(folder)) return;
  const hasFile = (file: string): boolean => fileExists(join(folder, file));
  const program = PROGRAM_FILES.find(hasFile);
  const isPaddle = program !== undefined || hasFile(PARAMETER_FILE);
  const place = `engine ${engine.string('name')}: ${folder}`;
  if (!isPaddle) {
    engine.fail(
      `${place} has no ${MANIFEST_FILE} and no ${ONNX_FILE}; use the folder of a bundle ` +
        '(cube-builder), or of a graph without tables',
    );
  }
  const hint = parameters === 'unknown' ? '' : ` with its parameters in ${parameters}`;
  const model =
    parameters === 'one file'
      ? `${join(folder, program ?? '__model__')} --params ${join(folder, PARAMETER_FILE)}`
      : folder;
  engine.fail(
    `${place} has a model in Paddle’s own format${hint}; convert it to a bundle ` +
      `(prune-model --model ${model} --to onnx --output <folder>, then cube-builder) and use the ` +
      'folder of the bundle',
  );
}

function readReload(
  engine: TextMessage,
  folder: string,
  root: string,
): Pick<ModelSettings, 'reload' | 'reloadFile'> {
  const type = engine.string('reloadable_type') ?? 'timestamp_ne';
  const meta = engine.string('reloadable_meta');
  // Paddle Serving accepts revision and never reloads for it.
  const reload = type === 'revision' ? 'none' : RELOADS.find((one) => one === type);
  if (reload === undefined) {
    engine.fail(`reloadable_type: expected one of ${RELOADS.join(', ')}, revision; got "${type}"`);
  }
  const watched: { reload: Reload; reloadFile?: string } = { reload };
  if (meta === undefined) return watched;
  const path = resolve(root, meta);
  return { ...watched, reloadFile: dirname(path) === folder ? basename(path) : path };
}

const SPARSE_TYPES = ['NONE', 'LOCAL', 'REMOTE'] as const;

/**
 * NONE: the original has the tables in the model, and a bundle has them in its layers, which the
 * default store keeps in memory.
 */
function readStore(
  engine: TextMessage,
  name: string,
  { flags, resources, ignored, usesCube }: EngineContext,
): Pick<ModelSettings, 'store' | 'fleet' | 'dataDir'> {
  const given = engine.enumValue('sparse_param_service_type') ?? 'NONE';
  const type = SPARSE_TYPES.find((one, number) => one === given || String(number) === given);
  if (type === undefined)
    engine.fail(`sparse_param_service_type: expected NONE, LOCAL or REMOTE, got ${given}`);
  const isRemote = type === 'REMOTE' || (type === 'NONE' && usesCube);
  if (engine.string(TABLE_NAME) !== undefined) {
    const reason = isRemote
      ? "the bundle's name selects the dict of cube.conf"
      : "the bundle's manifest names its tables";
    ignored.push({ setting: `${engine.getFieldLocation(TABLE_NAME)} ${TABLE_NAME}`, reason });
  }
  if (type === 'LOCAL') return { store: 'local', dataDir: resolve(flags.root, 'data', name) };
  if (!isRemote) return {};
  const fleet = resources.cubeConfPath;
  if (fleet === undefined) {
    const reason = type === 'REMOTE' ? type : 'its operator looks up rows in Cube';
    engine.fail(`engine ${name}: ${reason}, but resource.prototxt names no cube_config_file`);
  }
  return { store: 'remote', fleet };
}

/**
 * With `runtime_thread_num` 0 each thread of the original server runs the model for one request:
 * requests are not merged, and the batch size has no effect. Here requests are always merged.
 */
function readBatching(
  engine: TextMessage,
  { flags, ignored }: EngineContext,
): Pick<ModelSettings, 'instances' | 'maxBatch'> {
  const ignore = (name: string, reason: string): void => {
    ignored.push({ setting: `${engine.getFieldLocation(name)} ${name}`, reason });
  };
  if (engine.boolean('enable_overrun')) {
    ignore('enable_overrun', 'a batch never exceeds batch_infer_size; large requests are split');
  }
  if (engine.boolean('allow_split_request') === false) {
    ignore('allow_split_request', 'large requests are always split; rows are independent');
  }
  const threads = engine.integer('runtime_thread_num', 0, 256) ?? 0;
  if (threads > 0) {
    return { instances: threads, maxBatch: engine.integer('batch_infer_size', 1, 4096) ?? 32 };
  }
  if (engine.integer('batch_infer_size', 0, 2 ** 31 - 1) !== undefined) {
    ignore('batch_infer_size', 'without runtime_thread_num it has no effect');
  }
  if (flags.threads === undefined) return {};
  return { instances: Math.min(flags.threads, getProcessorCount()) };
}

const GPU_MAX = 63;
/** What Paddle's own files have where no GPU is used. */
const NO_GPU = -1;

function readDevices(
  engine: TextMessage,
  isForGpu: boolean,
  ignored: IgnoredSetting[],
): Pick<ModelSettings, 'provider' | 'devices'> {
  const gpus = engine.integers('gpu_ids', NO_GPU, GPU_MAX);
  const devices = gpus.filter((gpu) => gpu !== NO_GPU);
  const usesTensorRt = engine.boolean('use_trt') ?? false;
  if (!(engine.boolean('use_gpu') ?? (isForGpu || usesTensorRt))) {
    if (devices.length > 0) {
      const setting = `${engine.getFieldLocation('gpu_ids')} gpu_ids`;
      ignored.push({ setting, reason: 'without use_gpu it has no effect' });
    }
    return {};
  }
  return toGpuSettings(devices, usesTensorRt);
}

const VARIABLE_FIELDS = ['name', 'alias_name', 'is_lod_tensor', 'feed_type', 'fetch_type', 'shape'];
const OLDER_VARIABLES = 'the older form without names; clients use the names of the model';
const GENERAL_MODEL_IGNORED: Readonly<Record<string, string>> = {
  is_lod_feed: OLDER_VARIABLES,
  feed_type: OLDER_VARIABLES,
  feed_shape: OLDER_VARIABLES,
};

/** Tensor names used by clients, to the names in the model. */
export function readAliases(file: TextMessage, ignored: IgnoredSetting[]): Map<string, string> {
  listIgnoredFields(file, ['feed_var', 'fetch_var'], GENERAL_MODEL_IGNORED, ignored);
  const aliases = new Map<string, string>();
  for (const variable of [...file.messages('feed_var'), ...file.messages('fetch_var')]) {
    listIgnoredFields(variable, VARIABLE_FIELDS, {}, ignored);
    const name = variable.string('name') ?? variable.fail('the variable has no name');
    const alias = variable.string('alias_name');
    if (alias !== undefined && alias !== name) aliases.set(alias, name);
  }
  return aliases;
}
