/** resource.prototxt, model_toolkit.prototxt and general_model.prototxt: which models there are, and how each is run. */
import { basename, dirname, join, resolve } from 'node:path';
import { NAME_PATTERN, NAME_RULE } from '../../lib/core/names.ts';
import { fileExists, isFolder } from '../../lib/platform/files.ts';
import type { TextMessage } from '../../proto/text-format.ts';
import { MANIFEST_FILE, RELOADS, type Reload } from '../models/folder-source.ts';
import { storeKindOfPaddle } from '../stores/store-choice.ts';
import type { Ignored } from './config-report.ts';
import type { Gflags } from './paddle-gflags.ts';
import type { ModelSettings } from './settings.ts';

export interface Resources {
  readonly toolkitPaths: readonly string[];
  readonly generalModelPaths: readonly string[];
  readonly cubeConfPath: string | undefined;
}

const RESOURCE_READ = [
  ...['model_toolkit_path', 'model_toolkit_file', 'general_model_path', 'general_model_file'],
  ...['cube_config_path', 'cube_config_file'],
];
const RESOURCE_IGNORED: Readonly<Record<string, string>> = {
  cube_quant_bits: 'tables say their own dtype',
  cube_cache_path: 'a cache of rows is set with hot-rows',
  auth_product_name: 'it was of a service that is gone',
  auth_container_id: 'it was of a service that is gone',
};

export function readResources(file: TextMessage, flags: Gflags, ignored: Ignored[]): Resources {
  ignoreOthers(file, RESOURCE_READ, RESOURCE_IGNORED, ignored);
  const paths = (kind: string): string[] => {
    const folders = file.strings(`${kind}_path`);
    const files = file.strings(`${kind}_file`);
    return files.map((name, i) =>
      resolve(flags.root, folders[i] ?? folders.at(-1) ?? 'conf', name),
    );
  };
  const toolkitPaths = paths('model_toolkit');
  if (toolkitPaths.length === 0) file.fail('model_toolkit_path and model_toolkit_file are missing');
  const general = paths('general_model');
  const usual = fileExists(flags.generalModelPath) ? [flags.generalModelPath] : [];
  return {
    toolkitPaths,
    generalModelPaths: general.length > 0 ? general : usual,
    cubeConfPath: paths('cube_config')[0],
  };
}

const ENGINE_READ = [
  ...['name', 'model_dir', 'model_data_path', 'reloadable_meta', 'reloadable_type'],
  ...['sparse_param_service_type', 'sparse_param_service_table_name'],
  ...['runtime_thread_num', 'batch_infer_size', 'enable_overrun', 'allow_split_request', 'type'],
];
const CPU_ONLY = 'CPU only';
const GRAPH = 'onnxruntime optimizes the graph by itself';
const ENGINE_IGNORED: Readonly<Record<string, string>> = {
  ...{ gpu_ids: CPU_ONLY, use_gpu: CPU_ONLY, use_trt: CPU_ONLY, use_xpu: CPU_ONLY },
  ...{ gpu_multi_stream: CPU_ONLY, gpu_memory_mb: CPU_ONLY, use_lite: CPU_ONLY },
  ...{ enable_memory_optimization: GRAPH, enable_ir_optimization: GRAPH, min_subgraph_size: GRAPH },
  cpu_math_thread_num: 'an instance is one thread; instances say how many there are',
  combined_model: 'a bundle has its weights where its graph says',
  version_file: 'a version is named by its manifest',
  version_type: 'a version is named by its manifest',
};

interface Surroundings {
  readonly flags: Gflags;
  readonly resources: Resources;
  readonly ignored: Ignored[];
}

/** The models of one model_toolkit.prototxt. */
export function readEngines(file: TextMessage, around: Surroundings): ModelSettings[] {
  return file.messages('engines').map((engine) => readEngine(engine, around));
}

function readEngine(engine: TextMessage, around: Surroundings): ModelSettings {
  const { flags, ignored } = around;
  const name = engine.string('name') ?? engine.fail('an engine without name');
  if (!NAME_PATTERN.test(name)) engine.fail(`engine name: expected ${NAME_RULE}`);
  if (engine.boolean('encrypted_model'))
    engine.fail(`engine ${name}: encrypted models are not read`);
  ignoreOthers(engine, ENGINE_READ, { ...ENGINE_IGNORED, encrypted_model: 'it is false' }, ignored);
  const given = engine.string('model_dir') ?? engine.string('model_data_path');
  if (given === undefined) engine.fail(`engine ${name}: model_dir is missing`);
  const folder = resolve(flags.root, given);
  checkBundle(engine, name, folder);
  return {
    ...flags.model,
    name,
    bundleDir: folder,
    ...reloadOf(engine, folder, flags.root),
    ...storeOf(engine, name, around),
    ...batchingOf(engine, ignored),
  };
}

/** What is not there may come; what is there and no bundle never becomes one by itself. */
function checkBundle(engine: TextMessage, name: string, folder: string): void {
  if (!isFolder(folder) || fileExists(join(folder, MANIFEST_FILE))) return;
  const files = ['__model__', 'inference.pdmodel', 'model.pdmodel', '__params__'];
  const isPaddle = files.some((file) => fileExists(join(folder, file)));
  const what = isPaddle ? 'a model in Paddle’s own format' : `no ${MANIFEST_FILE}`;
  engine.fail(
    `engine ${name}: ${folder} has ${what}; make a bundle of it (prune-model --to onnx, cube-builder) and name its folder here`,
  );
}

function reloadOf(
  engine: TextMessage,
  folder: string,
  root: string,
): Pick<ModelSettings, 'reload' | 'reloadFile'> {
  const type = engine.string('reloadable_type') ?? 'timestamp_ne';
  const meta = engine.string('reloadable_meta');
  // The original knows revision and never reloads for it.
  const reload = type === 'revision' ? 'none' : RELOADS.find((one) => one === type);
  if (reload === undefined) {
    engine.fail(`reloadable_type: expected one of ${RELOADS.join(', ')}, revision; got "${type}"`);
  }
  const watched: { reload: Reload; reloadFile?: string } = { reload };
  if (meta === undefined) return watched;
  const path = resolve(root, meta);
  return { ...watched, reloadFile: dirname(path) === folder ? basename(path) : path };
}

function storeOf(
  engine: TextMessage,
  name: string,
  { flags, resources, ignored }: Surroundings,
): Pick<ModelSettings, 'store' | 'fleet' | 'dataDir'> {
  const type = engine.word('sparse_param_service_type') ?? 'NONE';
  const numbered = ['NONE', 'LOCAL', 'REMOTE'][Number(type)] ?? type;
  const store = storeKindOfPaddle(numbered);
  if (store === undefined)
    engine.fail(`sparse_param_service_type: expected NONE, LOCAL or REMOTE, got ${type}`);
  const table = engine.string('sparse_param_service_table_name');
  if (table !== undefined && store !== 'remote') {
    const setting = `${engine.placeOfField('sparse_param_service_table_name')} ${table}`;
    ignored.push({ setting, why: "the bundle's manifest names its tables" });
  }
  if (store === 'local') return { store, dataDir: resolve(flags.root, 'data', name) };
  if (store !== 'remote') return { store };
  const fleet = resources.cubeConfPath;
  if (fleet === undefined)
    engine.fail(`engine ${name}: REMOTE, but resource.prototxt names no cube_config_file`);
  return { store, fleet };
}

function batchingOf(
  engine: TextMessage,
  ignored: Ignored[],
): Pick<ModelSettings, 'instances' | 'maxBatch'> {
  const threads = engine.integer('runtime_thread_num', 0, 256) ?? 0;
  const maxBatch = engine.integer('batch_infer_size', 1, 4096) ?? 32;
  if (engine.boolean('enable_overrun')) {
    const setting = `${engine.placeOfField('enable_overrun')} enable_overrun`;
    ignored.push({
      setting,
      why: 'a batch never exceeds batch_infer_size: large requests are cut',
    });
  }
  if (engine.boolean('allow_split_request') === false) {
    const setting = `${engine.placeOfField('allow_split_request')} allow_split_request`;
    ignored.push({
      setting,
      why: 'requests larger than a batch are cut; rows do not depend on each other',
    });
  }
  // 0 is the original's synchronous mode: every server thread infers, nothing is merged.
  return threads === 0 ? { maxBatch } : { instances: threads, maxBatch };
}

/** What callers call tensors, to the names of the model. */
export function readAliases(file: TextMessage): Map<string, string> {
  const aliases = new Map<string, string>();
  for (const variable of [...file.messages('feed_var'), ...file.messages('fetch_var')]) {
    const name = variable.string('name') ?? variable.fail('a variable without name');
    const alias = variable.string('alias_name');
    if (alias !== undefined && alias !== name) aliases.set(alias, name);
  }
  return aliases;
}

function ignoreOthers(
  message: TextMessage,
  read: readonly string[],
  reasons: Readonly<Record<string, string>>,
  ignored: Ignored[],
): void {
  for (const name of message.names.filter((one) => !read.includes(one))) {
    const why = Object.hasOwn(reasons, name) ? reasons[name]! : 'unknown here';
    ignored.push({ setting: `${message.placeOfField(name)} ${name}`, why });
  }
}
