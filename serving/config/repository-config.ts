/** The settings of a folder of models in Triton's layout. */
import { CubeError } from '../../lib/core/errors.ts';
import { rejectConfig, rejectSettings } from './reject-settings.ts';
import {
  type ModelControlMode,
  type ModelSettings,
  type ProcessSettings,
  toKebabCase,
} from './settings.ts';
import { type RecordConfig, readRecord, readWarmUp, type WarmUpConfig } from './warm-up-config.ts';

/** A folder of models in Triton's layout. */
export interface RepositoryConfig {
  readonly folder: string;
  readonly mode: ModelControlMode;
  readonly pollMs: number;
  /** Models to load at the start in mode explicit; `*`: all. */
  readonly load: readonly string[];
  /** What config.pbtxt cannot say of some of its models. */
  readonly models: readonly RepositoryModelConfig[];
}

/** The settings of one model of a model repository. */
export interface RepositoryModelConfig {
  readonly name: string;
  /** Recorded requests that run before a version serves. */
  readonly warmUp?: WarmUpConfig;
  readonly record?: RecordConfig;
}

/** @throws CubeError INVALID_ARGUMENT for settings that do not apply */
export function readModelRepository(
  settings: ProcessSettings & { readonly models: readonly ModelSettings[] },
): RepositoryConfig | undefined {
  const { modelRepository: folder, modelControlMode, repositoryPollMs, loadModel } = settings;
  const mode = modelControlMode ?? 'none';
  const reject = (key: keyof ProcessSettings, reason: string): void => {
    if (settings[key] !== undefined) rejectConfig(`--${toKebabCase(key)}: ${reason}`);
  };
  if (folder === undefined) reject('modelControlMode', 'only allowed with --model-repository');
  if (mode !== 'poll') reject('repositoryPollMs', 'only allowed with --model-control-mode poll');
  if (mode !== 'explicit') reject('loadModel', 'only allowed with --model-control-mode explicit');
  if (folder === undefined) return undefined;
  const models = settings.models
    .filter((model) => !hasSource(model))
    .map((model) => completeRepositoryModel(model));
  return { folder, mode, pollMs: repositoryPollMs ?? 15_000, load: loadModel ?? [], models };
}

/** Whether settings name where a model comes from: it is not in the model repository. */
export function hasSource({ repository, bundle, bundleDir, model }: ModelSettings): boolean {
  return [repository, bundle, bundleDir, model].some((value) => value !== undefined);
}

/** Settings that a model of a model repository may have; config.pbtxt has the others. */
const REPOSITORY_MODEL_KEYS: readonly (keyof ModelSettings)[] = [
  'name',
  'warmUp',
  'warmUpFile',
  'warmUpTimeoutMs',
  'record',
  'recordShare',
  'recordBytes',
  'recordFiles',
  'recordRedact',
];

function completeRepositoryModel(settings: ModelSettings): RepositoryModelConfig {
  const { name, warmUp = 'file' } = settings;
  const keys = Object.keys(settings) as (keyof ModelSettings)[];
  const foreign = keys.filter((key) => !REPOSITORY_MODEL_KEYS.includes(key));
  const place = name === undefined ? '' : `model ${name}: `;
  try {
    rejectSettings(
      settings,
      foreign,
      'not allowed for a model of --model-repository; its config.pbtxt has such settings',
    );
    if (name === undefined) {
      rejectConfig('settings of a model of --model-repository need --name, the model');
    }
    if (warmUp !== 'file') {
      rejectConfig('--warm-up: expected file; model_warmup in config.pbtxt has other warm-ups');
    }
    const hasFile = settings.warmUpFile !== undefined;
    if (!hasFile) rejectSettings(settings, ['warmUp', 'warmUpTimeoutMs'], 'needs --warm-up-file');
    const record = readRecord(settings);
    return {
      name,
      ...(hasFile && { warmUp: readWarmUp(settings) }),
      ...(record !== undefined && { record }),
    };
  } catch (error) {
    const { code, message } = CubeError.from(error);
    throw new CubeError(code, `${place}${message}`, { cause: error });
  }
}
