/**
 * Triton's extensions that its clients and perf_analyzer use: model configuration and statistics,
 * the repository index, and loading and unloading models. Objects have the form of protobuf's JSON:
 * HTTP sends them unchanged, gRPC encodes them by proto/oip.proto.
 */
import type { ControlAccess } from '../../lib/rpc/control-access.ts';
import type { ControlCaller } from '../../lib/rpc/control-caller.ts';
import type { BatchSizeStats } from '../engine/engine-stats.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import { findMissingStep, isTensorModel } from '../engine/loaded-version.ts';
import type { Models } from '../models/model-registry.ts';
import type { ModelStatus } from '../models/version-manager.ts';
import { getModelMetadata, PLATFORM } from './infer.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';

const DATA_TYPES: Readonly<Record<string, string>> = { BYTES: 'TYPE_STRING' };
const NANOS_PER_MICRO = 1000;
const MICROS_PER_MS = 1000;

interface Duration {
  readonly count: number;
  readonly ns: number;
}

export interface RepositoryIndexEntry {
  readonly name: string;
  readonly version: string;
  readonly state: 'READY' | 'LOADING' | 'UNAVAILABLE';
  readonly reason: string;
}

/** Dims do not include the batch, because `max_batch_size` is set. */
export function getModelConfig(model: string, loaded: LoadedVersion): object {
  const { inputs, outputs } = getModelMetadata(model, loaded);
  const isBatched = !isTensorModel(loaded) || loaded.isBatched;
  const tensor = (name: string, datatype: string, shape: readonly number[]): object => ({
    name,
    data_type: DATA_TYPES[datatype] ?? `TYPE_${datatype}`,
    dims: isBatched ? shape.slice(1) : shape,
  });
  const steps = isTensorModel(loaded) ? loaded.steps : undefined;
  if (steps !== undefined) {
    return {
      name: model,
      platform: 'ensemble',
      max_batch_size: isBatched ? loaded.batching.maxBatch : 0,
      input: inputs.map(({ name, datatype, shape }) => tensor(name, datatype, shape)),
      output: outputs.map(({ name, datatype, shape }) => tensor(name, datatype, shape)),
      ensemble_scheduling: { step: steps },
    };
  }
  return {
    name: model,
    platform: PLATFORM,
    backend: 'onnxruntime',
    max_batch_size: isBatched ? getMaxBatchSize(loaded) : 0,
    input: inputs.map(({ name, datatype, shape }) => ({
      ...tensor(name, datatype, shape),
      ...(isTensorModel(loaded) && loaded.optionalInputs?.has(name) && { optional: true }),
    })),
    output: outputs.map(({ name, datatype, shape }) => tensor(name, datatype, shape)),
    instance_group: getInstanceGroups(model, loaded),
    ...(isBatched && {
      dynamic_batching: getDynamicBatching(loaded),
    }),
    model_transaction_policy: { decoupled: false },
  };
}

/** Clients send no larger requests; models of a model repository say what Triton would say. */
function getMaxBatchSize(loaded: LoadedVersion): number {
  const declared = isTensorModel(loaded) ? loaded.declaredMaxBatch : undefined;
  return declared ?? ROWS_PER_REQUEST_MAX;
}

function getDynamicBatching(loaded: LoadedVersion): object {
  const { maxBatch, maxQueueDelayMicros, preferredSizes, queuePolicies } = loaded.batching;
  const scheduling = isTensorModel(loaded) ? loaded.scheduling : undefined;
  const policies = queuePolicies?.map((policy) => ({
    timeout_action: policy.timeoutAction === 'delay' ? 'DELAY' : 'REJECT',
    default_timeout_microseconds: policy.timeoutMs * MICROS_PER_MS,
    allow_timeout_override: policy.allowsShorterTimeout,
    max_queue_size: policy.requestsMax,
  }));
  const hasLevels = (scheduling?.priorityLevels ?? 0) > 0;
  return {
    preferred_batch_size: [...new Set([...preferredSizes, maxBatch])],
    max_queue_delay_microseconds: maxQueueDelayMicros,
    ...(scheduling && {
      preserve_ordering: scheduling.preserveOrdering,
      priority_levels: scheduling.priorityLevels,
      default_priority_level: scheduling.defaultPriorityLevel,
    }),
    ...(policies && !hasLevels && { default_queue_policy: policies[0] }),
    ...(policies &&
      hasLevels && {
        priority_queue_policy: Object.fromEntries(policies.map((policy, i) => [i + 1, policy])),
      }),
  };
}

/** One group for each GPU, and one for the CPU. */
function getInstanceGroups(name: string, { pool }: LoadedVersion): object[] {
  const counts = new Map<number | undefined, number>();
  for (const { providers, workers } of pool.placements) {
    const [first] = providers;
    const gpu = first === undefined || first.name === 'cpu' ? undefined : (first.device ?? 0);
    counts.set(gpu, (counts.get(gpu) ?? 0) + workers);
  }
  return [...counts].map(([gpu, count]) =>
    gpu === undefined
      ? { name, kind: 'KIND_CPU', count }
      : { name, kind: 'KIND_GPU', count, gpus: [gpu] },
  );
}

/**
 * @param model empty: all models @param version empty: all loaded versions @throws CubeError
 *   NOT_FOUND
 */
export function getModelStatistics(models: Models, model: string, version: string): object[] {
  if (model !== '') {
    const names = version === '' ? listLoadedVersions(models, model) : [version];
    return names.map((name) => getVersionStatistics(model, models.find(model, { version: name })));
  }
  return models.status().flatMap((status) => getModelStatistics(models, status.model, ''));
}

/** @throws CubeError NOT_FOUND */
function listLoadedVersions(models: Models, model: string): readonly string[] {
  const status = models.status().find((candidate) => candidate.model === model);
  if (status !== undefined) return status.held;
  return [models.find(model).version];
}

function getVersionStatistics(name: string, { version, stats }: LoadedVersion): object {
  const failed = [...stats.failures.values()].reduce((sum, count) => sum + count, 0);
  const formatDuration = (micros: number, count: number): Duration => {
    return { count, ns: Math.round(micros * NANOS_PER_MICRO) };
  };
  const { requests, queueMicros, lookupMicros, inferMicros, outputMicros } = stats;
  const successMicros = queueMicros + lookupMicros + inferMicros + outputMicros;
  return {
    name,
    version,
    last_inference: Math.round(stats.lastInferenceMs),
    inference_count: stats.rows,
    execution_count: stats.executions,
    inference_stats: {
      success: formatDuration(successMicros, requests),
      fail: formatDuration(0, failed),
      queue: formatDuration(queueMicros, requests),
      compute_input: formatDuration(lookupMicros, requests),
      compute_infer: formatDuration(inferMicros, requests),
      compute_output: formatDuration(outputMicros, requests),
      cache_hit: formatDuration(stats.cacheHitMicros, stats.cacheHits),
      cache_miss: formatDuration(stats.cacheMissMicros, stats.cacheMisses),
    },
    batch_stats: stats.batchSizes().map((size: BatchSizeStats) => ({
      batch_size: size.rows,
      compute_input: formatDuration(size.lookupMicros, size.executions),
      compute_infer: formatDuration(size.inferMicros, size.executions),
      compute_output: formatDuration(0, size.executions),
    })),
  };
}

/**
 * One entry for each loaded version, for each one that failed to load, and for a model without
 * either. A loaded version whose changed files cannot be loaded is ready, with the reason.
 */
export function getRepositoryIndex(models: Models, onlyReady: boolean): RepositoryIndexEntry[] {
  const index = models.status().flatMap((status): RepositoryIndexEntry[] => {
    const { model: name, held, loading, problem, failed } = status;
    const entries = held.map((version): RepositoryIndexEntry => {
      const reason = findMissingStep(models.find(name, { version }));
      if (reason === undefined) {
        return { name, version, state: 'READY', reason: explainOldContent(status, version) };
      }
      return { name, version, state: 'UNAVAILABLE', reason };
    });
    const isNew = (version: string): boolean => version !== loading && !held.includes(version);
    for (const { version, message } of failed.filter((failure) => isNew(failure.version))) {
      entries.push({ name, version, state: 'UNAVAILABLE', reason: message });
    }
    if (loading !== undefined && !held.includes(loading)) {
      entries.push({ name, version: loading, state: 'LOADING', reason: '' });
    }
    if (entries.length > 0) return entries;
    return [
      { name, version: '', state: 'UNAVAILABLE', reason: problem ?? 'the model is not loaded' },
    ];
  });
  return onlyReady ? index.filter(({ state }) => state === 'READY') : index;
}

/** Why changed files of a version that serves are not used; empty when they are. */
function explainOldContent(status: ModelStatus, version: string): string {
  const { failed, problem, missingStep } = status;
  const failure = failed.find((candidate) => candidate.version === version);
  if (failure !== undefined) return failure.message;
  // A problem that is no failure of a version concerns all: the configuration, or the source.
  const isOfAll = failed.length === 0 && problem !== missingStep;
  return (isOfAll ? problem : undefined) ?? '';
}

/** @throws CubeError DENIED, NOT_FOUND, NOT_READY */
export async function loadModel(
  context: { readonly models: Models; readonly access: ControlAccess },
  caller: ControlCaller,
  model: string,
): Promise<void> {
  const action = { scope: 'control:stage', action: 'load model', target: model } as const;
  await context.access.run(caller, action, () => context.models.load(model));
}

/** @throws CubeError DENIED, NOT_FOUND */
export async function unloadModel(
  context: { readonly models: Models; readonly access: ControlAccess },
  caller: ControlCaller,
  request: { readonly model: string; readonly withDependents: boolean },
): Promise<void> {
  const { model, withDependents } = request;
  const action = { scope: 'control:stage', action: 'unload model', target: model } as const;
  await context.access.run(caller, action, () => context.models.unload(model, withDependents));
}
