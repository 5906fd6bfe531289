/**
 * The models that a pipeline's config.yml names with `local_service_conf.model_config`: folders and
 * files become models of the process, which all protocols can call one by one.
 */
import { dirname, join, resolve } from 'node:path';
import {
  type ClientConf,
  type ClientVariable,
  readClientConf,
} from '../../lib/client/client-conf.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { fileExists, isFolder, listFolder } from '../../lib/platform/files.ts';
import { readPaddleDevices } from './paddle-devices.ts';
import type { PipelineConfig } from './pipeline-config.ts';
import type { LocalServiceFields } from './pipeline-fields.ts';
import type { ModelSettings } from './settings.ts';

const MANIFEST_FILE = 'manifest.json';
/** Files by which a folder of Paddle's own format is recognized. */
const PADDLE_FILES: readonly RegExp[] = [
  /\.pdmodel$/,
  /^__model__$/,
  /^serving_server_conf\.prototxt$/,
];

export interface PipelineModels {
  /** Models to add to those of the process. */
  readonly models: readonly ModelSettings[];
  /** Op → its model, for ops with a local model. */
  readonly modelOfOp: ReadonlyMap<string, string>;
}

/** Alias → name of the inputs and outputs of a remote model. */
export interface ClientVariables {
  readonly feeds: ReadonlyMap<string, string>;
  readonly fetches: ReadonlyMap<string, string>;
}

/**
 * Reads the `client_config` (serving_client_conf.prototxt, or its folder) of ops with endpoints.
 * @throws CubeError INVALID_ARGUMENT, NOT_FOUND naming the op
 */
export function readClientVariables(
  { ops }: PipelineConfig,
  configPath: string,
): ReadonlyMap<string, ClientVariables> {
  const variables = new Map<string, ClientVariables>();
  for (const [op, { server_endpoints: endpoints = [], client_config: value }] of ops) {
    if (value === undefined || endpoints.length === 0) continue;
    variables.set(op, toVariables(op, value, resolve(dirname(configPath), value)));
  }
  return variables;
}

function toVariables(op: string, value: string, path: string): ClientVariables {
  let conf: ClientConf;
  try {
    conf = readClientConf(path);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `op ${op}: client_config ${value}: ${message}`);
  }
  const toPairs = (variables: readonly ClientVariable[]): Map<string, string> =>
    new Map(variables.map(({ alias, name }) => [alias, name]));
  return { feeds: toPairs(conf.feeds), fetches: toPairs(conf.fetches) };
}

/**
 * Ops with the same path share a model, which is named after the first of them.
 * @param configPath the config.yml; paths start from its folder
 * @param names of the models of the process, which `model_config` may name instead of a path
 * @throws CubeError INVALID_ARGUMENT, NOT_FOUND naming the op
 */
export function readPipelineModels(
  { ops }: PipelineConfig,
  configPath: string,
  names: readonly string[],
): PipelineModels {
  const models = new Map<string, ModelSettings & { readonly name: string }>();
  const modelOfOp = new Map<string, string>();
  for (const [op, { server_endpoints: endpoints = [], local_service_conf: conf }] of ops) {
    const value = conf?.model_config ?? '';
    // As in the original, endpoints go before a local model.
    if (value === '' || endpoints.length > 0) continue;
    if (names.includes(value)) {
      modelOfOp.set(op, value);
      continue;
    }
    const path = resolve(dirname(configPath), value);
    const known = models.get(path);
    modelOfOp.set(op, known?.name ?? op);
    if (known !== undefined) continue;
    models.set(path, { name: op, ...readModelSource(op, conf ?? {}, configPath) });
  }
  return { models: [...models.values()], modelOfOp };
}

/**
 * The model that `local_service_conf` describes.
 * @throws CubeError INVALID_ARGUMENT, NOT_FOUND naming the op
 */
export function readModelSource(
  op: string,
  { model_config: value = '', precision, device_type: type = -1, devices = '' }: LocalServiceFields,
  configPath: string,
): ModelSettings {
  const path = resolve(dirname(configPath), value);
  return {
    ...findSource(path, `op ${op}: model_config ${value}`),
    ...readPaddleDevices(type, devices, `op ${op}: local_service_conf`),
    ...(precision !== undefined && { precision }),
  };
}

function findSource(path: string, what: string): ModelSettings {
  if (!isFolder(path)) {
    if (!fileExists(path)) {
      throw new CubeError('NOT_FOUND', `${what}: no such file, folder or model of the process`);
    }
    return { model: path };
  }
  if (fileExists(join(path, MANIFEST_FILE))) return { bundleDir: path };
  const files = listFolder(path);
  const graphs = files.filter((name) => name.endsWith('.onnx'));
  const [graph] = graphs;
  if (graph !== undefined && graphs.length === 1) return { model: join(path, graph) };
  const isPaddle = files.some((name) => PADDLE_FILES.some((pattern) => pattern.test(name)));
  const problem = isPaddle
    ? "a model in Paddle's own format; convert it with paddle2onnx, or with prune-model --to onnx"
    : `expected ${MANIFEST_FILE} or one .onnx file, found ${graphs.length} .onnx files`;
  throw new CubeError('INVALID_ARGUMENT', `${what}: ${problem}`);
}
