/**
 * Loads models of a model repository: a configuration and the files of a version become a graph
 * with declared inputs and outputs, or an ensemble.
 */
import { join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import type {
  GraphSignature,
  TensorDim,
  TensorSpec,
  TensorType,
} from '../../lib/core/graph-signature.ts';
import type { Tensor } from '../../lib/core/tensor.ts';
import { fileExists, isFolder, readFile, readText } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { separateDefaults } from '../../proto/onnx-defaults.ts';
import { readGraphSignature } from '../../proto/onnx-signature.ts';
import type { IgnoredSetting } from '../config/config-report.ts';
import { countInstances } from '../config/serving-config.ts';
import { type CompleteTritonConfig, completeTritonConfig } from '../config/triton-completion.ts';
import type { TritonModelConfig, VersionPolicy } from '../config/triton-model-config.ts';
import { readModelConfig } from '../config/triton-repository.ts';
import type { TritonOutput, TritonTensor } from '../config/triton-tensors.ts';
import { DeclaredGraph } from '../engine/declared-graph.ts';
import { DEFAULT_BATCHING } from '../engine/engine-options.ts';
import type { EnsembleStep } from '../engine/ensemble-plan.ts';
import { LoadedEnsemble } from '../engine/loaded-ensemble.ts';
import { LoadedGraph } from '../engine/loaded-graph.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { listExternalFiles, MODEL_BYTES_MAX, readExternalData } from './external-data.ts';
import { hideFolder, type ModelLook } from './repository-looks.ts';
import { type ModelPlan, sortVersions } from './repository-model.ts';
import { warmUpDeclared } from './triton-warm-up.ts';

export interface TritonLoadParts {
  readonly logger: Logger;
  /** The version that serves a step of an ensemble. @throws CubeError NOT_FOUND, NOT_READY */
  readonly find: (step: EnsembleStep) => TensorModel;
}

const LABEL_BYTES_MAX = 16 << 20;
/** Triton's default is one instance; here each core has one unless the configuration counts. */
const DEFAULT_INSTANCES = { perCore: 1 };

/** @throws CubeError INVALID_ARGUMENT with file, line and column */
export function planTritonModel(look: ModelLook, parts: TritonLoadParts): ModelPlan<TensorModel> {
  const ignored: IgnoredSetting[] = [];
  const config = readModelConfig(look.name, look.folder, ignored);
  for (const { setting, reason } of ignored) {
    parts.logger.warn({ model: look.name, setting, reason }, 'setting is ignored');
  }
  const { ensemble, versionPolicy } = config;
  const chooseVersions = (versions: readonly string[]): readonly string[] =>
    applyVersionPolicy(versionPolicy, versions);
  if (ensemble !== undefined) {
    const load = async (version: string): Promise<TensorModel> =>
      createEnsemble(look, version, { ...config, ensemble }, parts);
    return { dependencies: ensemble.map(({ model }) => model), chooseVersions, load };
  }
  return {
    dependencies: [],
    chooseVersions,
    load: (version, onStep) => loadGraph(look, version, config, { ...parts, onStep }),
  };
}

/** The versions to serve among those in the folder. */
function applyVersionPolicy(policy: VersionPolicy, versions: readonly string[]): readonly string[] {
  const sorted = sortVersions(versions);
  switch (policy.kind) {
    case 'all':
      return sorted;
    case 'latest':
      return sorted.slice(-policy.count);
    case 'specific':
      return sorted.filter((version) => policy.versions.includes(version));
  }
}

async function loadGraph(
  look: ModelLook,
  version: string,
  config: TritonModelConfig,
  { logger, onStep }: TritonLoadParts & { readonly onStep: (step: string) => void },
): Promise<TensorModel> {
  const files = readModelFiles(join(look.folder, version), config.modelFile);
  const optional = config.inputs.filter((input) => input.optional).map(({ name }) => name);
  const { model, defaults } = separateDefaults(files.model, optional, files.path);
  const signature = readGraphSignature(model, files.path);
  const complete = completeTritonConfig(config, signature, files.path);
  if (complete.maxBatch > 0) checkDefaults(defaults, files.path);
  const labels = readLabels(look.folder, complete.outputs);
  const graph = await LoadedGraph.load({
    name: look.name,
    version,
    model,
    data: files.data,
    instances: config.instances?.length ?? countInstances(DEFAULT_INSTANCES),
    ...(config.instances !== undefined && { placements: config.instances }),
    batching: toBatching(complete),
    requestCacheBytes: config.usesResponseCache ? RESPONSE_CACHE_BYTES : 0,
    tuning: config.session,
    logger,
    onStep,
  });
  const { dynamicBatching } = config;
  const declared = new DeclaredGraph(graph, {
    signature: toSignature(complete, complete.maxBatch > 0),
    reshapes: listReshapes(complete),
    labels,
    defaults,
    scheduling: dynamicBatching && {
      ...dynamicBatching,
      hasQueuePolicy: dynamicBatching.queuePolicies !== undefined,
    },
  });
  await warmUpDeclared(declared, config, look.folder, onStep);
  declared.stats.reset();
  return declared;
}

/** Each row of a batch has the default of its own. */
function checkDefaults(defaults: ReadonlyMap<string, Tensor>, path: string): void {
  for (const [name, { shape }] of defaults) {
    if (shape[0] === 1) continue;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path}: the default of the optional input ${name} has the shape [${shape.join(', ')}]; ` +
        'with max_batch_size it must be one row: its first dimension 1',
    );
  }
}

/** Bytes of a model's cache of answers; Triton's is shared by all models and has no default. */
const RESPONSE_CACHE_BYTES = 64 << 20;

/** A model without `dynamic_batching` gets it, as Triton's auto-complete adds it. */
function toBatching({ maxBatch, dynamicBatching }: CompleteTritonConfig) {
  const sizes = dynamicBatching?.preferredSizes ?? [];
  const queuePolicies = dynamicBatching?.queuePolicies;
  return {
    ...DEFAULT_BATCHING,
    maxBatch,
    preferredSizes: sizes.length > 0 ? [...sizes].sort((a, b) => a - b) : DEFAULT_SIZES,
    maxQueueDelayMicros: dynamicBatching?.maxQueueDelayMicros ?? 0,
    priorityLevels: Math.max(1, dynamicBatching?.priorityLevels ?? 1),
    ...(queuePolicies !== undefined && { queuePolicies }),
  };
}

const DEFAULT_SIZES = DEFAULT_BATCHING.preferredSizes;

interface ModelFiles {
  readonly path: string;
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
}

/** The graph is a file, or a folder of that name with a file of that name. */
function readModelFiles(folder: string, modelFile: string): ModelFiles {
  const given = join(folder, modelFile);
  const isInFolder = isFolder(given);
  const path = isInFolder ? join(given, modelFile) : given;
  if (!fileExists(path)) {
    throw new CubeError(
      'NOT_FOUND',
      `${path} does not exist; copy the model there, or name its file in default_model_filename`,
    );
  }
  const model = readFile(path, MODEL_BYTES_MAX);
  const data = readExternalData(path, listExternalFiles(model, path));
  return { path, model, data };
}

function readLabels(folder: string, outputs: readonly TritonOutput[]): Map<string, string[]> {
  const labels = new Map<string, string[]>();
  for (const { name, labelFile, location } of outputs) {
    if (labelFile === undefined) continue;
    const path = join(folder, labelFile);
    if (!fileExists(path)) {
      throw new CubeError('NOT_FOUND', `${location}: label_filename: ${path} does not exist`);
    }
    const lines = readText(path, LABEL_BYTES_MAX).split(/\r?\n/);
    while (lines.at(-1) === '') lines.pop();
    labels.set(name, lines);
  }
  return labels;
}

function toSignature(
  { inputs, outputs }: Pick<TritonModelConfig, 'inputs' | 'outputs'>,
  hasBatch: boolean,
): GraphSignature {
  const toSpec = ({ name, datatype, dims }: TritonTensor): TensorSpec => {
    const own = dims.map((size): TensorDim => (size === -1 ? '' : size));
    return { name, dataType: datatype as TensorType, dims: hasBatch ? ['', ...own] : own };
  };
  return { inputs: inputs.map(toSpec), outputs: outputs.map(toSpec) };
}

function listReshapes({ inputs, outputs }: TritonModelConfig): Map<string, readonly number[]> {
  const reshapes = new Map<string, readonly number[]>();
  for (const { name, reshape } of [...inputs, ...outputs]) {
    if (reshape !== undefined) reshapes.set(name, reshape);
  }
  return reshapes;
}

function createEnsemble(
  look: ModelLook,
  version: string,
  config: TritonModelConfig & { readonly ensemble: readonly EnsembleStep[] },
  { find }: TritonLoadParts,
): TensorModel {
  const { source, inputs, outputs, ensemble: steps } = config;
  if (inputs.length === 0 || outputs.length === 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}: an ensemble must declare its input and output`,
    );
  }
  const isBatched = (config.maxBatch ?? 0) > 0;
  return new LoadedEnsemble({
    name: look.name,
    version,
    signature: toSignature(config, isBatched),
    isBatched,
    maxBatch: Math.max(1, config.maxBatch ?? 0),
    // Callers get errors of the ensemble, and need no folder of the server.
    steps: steps.map((step) => ({ ...step, location: hideFolder(step.location, look) })),
    source: hideFolder(source, look),
    labels: readLabels(look.folder, outputs),
    find,
  });
}
