/**
 * Reads Triton's configuration of one model (config.pbtxt in protobuf's text format). Values that
 * the file does not give stay undefined: they are completed from the graph. Fields without effect
 * are listed with the reason; unknown fields, and those that would change predictions, are errors.
 */
import type { SessionTuning } from '../../lib/platform/onnx.ts';
import type { ProviderOrder } from '../../lib/platform/onnx-providers.ts';
import { parseTextFormat, type TextMessage } from '../../proto/text-format.ts';
import type { EnsembleStep } from '../engine/ensemble-plan.ts';
import type { IgnoredSetting } from './config-report.ts';
import { type DynamicBatching, readDynamicBatching } from './triton-batching.ts';
import { readEnsemble } from './triton-ensemble.ts';
import { checkFields } from './triton-fields.ts';
import { readInstances } from './triton-instances.ts';
import { MODEL_FIELDS } from './triton-schema.ts';
import { readSession } from './triton-session.ts';
import {
  readFileName,
  readInputs,
  readOutputs,
  type TritonInput,
  type TritonOutput,
} from './triton-tensors.ts';
import { readWarmUps, type TritonWarmUp } from './triton-warm-up.ts';

export type VersionPolicy =
  | { readonly kind: 'latest'; readonly count: number }
  | { readonly kind: 'all' }
  | { readonly kind: 'specific'; readonly versions: readonly string[] };

export interface TritonModelConfig {
  readonly name: string;
  /** The config.pbtxt, for errors; the model's folder when it has none. */
  readonly source: string;
  /** Rows of one run; 0: the first dimension is not a batch; undefined: not given. */
  readonly maxBatch: number | undefined;
  readonly inputs: readonly TritonInput[];
  readonly outputs: readonly TritonOutput[];
  /** The file with the graph in the folder of a version. */
  readonly modelFile: string;
  readonly versionPolicy: VersionPolicy;
  /** The execution providers of each instance; undefined: not given. */
  readonly instances: readonly ProviderOrder[] | undefined;
  readonly dynamicBatching: DynamicBatching | undefined;
  readonly warmUps: readonly TritonWarmUp[];
  readonly usesResponseCache: boolean;
  readonly session: SessionTuning;
  /** The steps of an ensemble; undefined for a model with a graph. */
  readonly ensemble: readonly EnsembleStep[] | undefined;
}

const PLATFORM = 'onnxruntime_onnx';
const BACKEND = 'onnxruntime';
const BATCH_MAX = 4096;
const VERSION_MAX = Number.MAX_SAFE_INTEGER;

/**
 * @param file its text, and its path for errors; undefined: the model has no config.pbtxt
 * @param folderName the name of the model's folder, which the model must have
 * @param ignored takes the fields without effect
 * @throws CubeError INVALID_ARGUMENT with file, line and column
 */
export function readTritonConfig(
  file: { readonly text: string; readonly path: string },
  folderName: string,
  ignored: IgnoredSetting[],
): TritonModelConfig {
  const root = parseTextFormat(file.text, file.path);
  checkFields(root, MODEL_FIELDS, ignored);
  const name = root.string('name') || folderName;
  if (name !== folderName) {
    root.failField('name', `name is ${name}, but the model's folder is ${folderName}; rename one`);
  }
  const ensemble = readEnsemble(root);
  checkPlatform(root, ensemble !== undefined);
  if (ensemble !== undefined) listForeignFields(root, ignored);
  const maxBatch = root.integer('max_batch_size', 0, BATCH_MAX);
  const dynamicBatching = readDynamicBatching(root, maxBatch);
  return {
    name,
    source: file.path,
    maxBatch: ensemble === undefined ? maxBatch : (maxBatch ?? 0),
    inputs: readInputs(root, maxBatch),
    outputs: readOutputs(root, maxBatch),
    modelFile: readFileName(root, 'default_model_filename') ?? 'model.onnx',
    versionPolicy: readVersionPolicy(root),
    instances: readInstances(root, ignored),
    dynamicBatching,
    warmUps: readWarmUps(root, maxBatch),
    usesResponseCache: root.messages('response_cache')[0]?.boolean('enable') ?? false,
    session: readSession(root, ignored),
    ensemble,
  };
}

/** The configuration of a model without config.pbtxt: everything comes from its graph. */
export function createDefaultConfig(folderName: string, folder: string): TritonModelConfig {
  return { ...readTritonConfig({ text: '', path: folder }, folderName, []), source: folder };
}

function checkPlatform(root: TextMessage, isEnsemble: boolean): void {
  const platform = root.string('platform') ?? '';
  const backend = root.string('backend') ?? '';
  if (isEnsemble || platform === 'ensemble') {
    if (!isEnsemble) root.failField('platform', 'platform: ensemble needs ensemble_scheduling');
    if (platform !== 'ensemble') {
      root.failField('ensemble_scheduling', 'ensemble_scheduling needs platform: "ensemble"');
    }
    for (const name of ['instance_group', 'optimization', 'model_warmup']) {
      if (root.has(name))
        root.failField(name, `${name}: an ensemble has none; set it in its steps`);
    }
    return;
  }
  const remedy = 'only ONNX models are served: export the model to ONNX';
  if (platform !== '' && platform !== PLATFORM) {
    root.failField('platform', `platform ${platform} is not supported (${PLATFORM} is); ${remedy}`);
  }
  if (backend !== '' && backend !== BACKEND) {
    root.failField('backend', `backend ${backend} is not supported (${BACKEND} is); ${remedy}`);
  }
}

/** Fields that Triton accepts for an ensemble, and that only its steps have here. */
const FIELDS_OF_STEPS: Readonly<Record<string, string>> = {
  response_cache: 'an ensemble has no cache; set it in its steps',
  default_model_filename: 'an ensemble has no file',
};

function listForeignFields(root: TextMessage, ignored: IgnoredSetting[]): void {
  for (const [name, reason] of Object.entries(FIELDS_OF_STEPS)) {
    if (!root.has(name)) continue;
    ignored.push({ setting: `${root.getFieldLocation(name)} ${name}`, reason });
  }
}

function readVersionPolicy(root: TextMessage): VersionPolicy {
  const [policy] = root.messages('version_policy');
  const [specific] = policy?.messages('specific') ?? [];
  if (specific !== undefined) {
    const versions = specific.integers('versions', 1, VERSION_MAX);
    if (versions.length === 0) specific.fail('version_policy: specific has no versions');
    return { kind: 'specific', versions: versions.map(String) };
  }
  if (policy?.has('all')) return { kind: 'all' };
  const [latest] = policy?.messages('latest') ?? [];
  return { kind: 'latest', count: latest?.integer('num_versions', 1, 1_000) ?? 1 };
}
