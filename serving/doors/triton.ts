/**
 * What Triton's clients and perf_analyzer ask beside OIP: a model's configuration and statistics, and the repository's index, loading
 * and unloading. Shapes as protobuf's JSON has them: the HTTP routes send them as they are, gRPC by proto/oip.proto.
 */
import type { ControlAccess } from '../../lib/rpc/control-access.ts';
import type { ControlCaller } from '../../lib/rpc/control-caller.ts';
import type { BatchSizeStats } from '../engine/engine-stats.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import type { Models } from '../models/models.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { modelMetadata, PLATFORM } from './infer.ts';

const DATA_TYPES: Readonly<Record<string, string>> = { BYTES: 'TYPE_STRING' };
const NANOS_PER_MICRO = 1000;

interface Duration {
  readonly count: number;
  readonly ns: number;
}

export interface ModelIndex {
  readonly name: string;
  readonly version: string;
  readonly state: 'READY' | 'LOADING' | 'UNAVAILABLE';
  readonly reason: string;
}

/** Dims are without the batch, which `max_batch_size` allows. */
export function modelConfig(model: string, bundle: LoadedBundle): object {
  const { inputs, outputs } = modelMetadata(model, bundle);
  const tensor = (name: string, datatype: string, shape: readonly number[]): object => ({
    name,
    data_type: DATA_TYPES[datatype] ?? `TYPE_${datatype}`,
    dims: shape.slice(1),
  });
  const { maxBatch, maxQueueDelayMicros, preferredSizes } = bundle.batching;
  return {
    name: model,
    platform: PLATFORM,
    backend: 'onnxruntime',
    max_batch_size: ROWS_PER_REQUEST_MAX,
    input: inputs.map(({ name, datatype, shape }) => tensor(name, datatype, shape)),
    output: outputs.map(({ name, datatype, shape }) => tensor(name, datatype, shape)),
    instance_group: [{ name: model, kind: 'KIND_CPU', count: bundle.pool.alive }],
    dynamic_batching: {
      preferred_batch_size: [...new Set([...preferredSizes, maxBatch])],
      max_queue_delay_microseconds: maxQueueDelayMicros,
    },
    model_transaction_policy: { decoupled: false },
  };
}

/** @param model empty: all models @param version empty: all that are loaded @throws CubeError NOT_FOUND */
export function modelStatistics(models: Models, model: string, version: string): object[] {
  if (model !== '') {
    const names = version === '' ? heldOf(models, model) : [version];
    return names.map((held) => statisticsOf(model, models.find(model, { version: held })));
  }
  return models.status().flatMap((status) => modelStatistics(models, status.model, ''));
}

/** @throws CubeError NOT_FOUND */
function heldOf(models: Models, model: string): readonly string[] {
  const status = models.status().find((candidate) => candidate.model === model);
  if (status !== undefined) return status.held;
  return [models.find(model).version];
}

function statisticsOf(name: string, { version, stats }: LoadedBundle): object {
  const failed = [...stats.failures.values()].reduce((sum, count) => sum + count, 0);
  const once = (micros: number, count: number): Duration => {
    return { count, ns: Math.round(micros * NANOS_PER_MICRO) };
  };
  const { requests, queueMicros, lookupMicros, inferMicros } = stats;
  return {
    name,
    version,
    last_inference: Math.round(stats.lastInferenceMs),
    inference_count: stats.rows,
    execution_count: stats.executions,
    inference_stats: {
      success: once(queueMicros + lookupMicros + inferMicros, requests),
      fail: once(0, failed),
      queue: once(queueMicros, requests),
      compute_input: once(lookupMicros, requests),
      compute_infer: once(inferMicros, requests),
      compute_output: once(0, requests),
      cache_hit: once(0, stats.cacheHits),
      cache_miss: once(0, stats.cacheMisses),
    },
    batch_stats: stats.batchSizes().map((size: BatchSizeStats) => ({
      batch_size: size.rows,
      compute_input: once(size.lookupMicros, size.executions),
      compute_infer: once(size.inferMicros, size.executions),
      compute_output: once(0, size.executions),
    })),
  };
}

/** A line for each version that is loaded, and one for a model that has none. */
export function repositoryIndex(models: Models, onlyReady: boolean): ModelIndex[] {
  const index = models.status().flatMap((status): ModelIndex[] => {
    const { model: name, held, loading, problem } = status;
    const ready = held.map(
      (version): ModelIndex => ({ name, version, state: 'READY', reason: '' }),
    );
    if (loading !== undefined) {
      return [...ready, { name, version: loading, state: 'LOADING', reason: '' }];
    }
    if (ready.length > 0) return ready;
    return [{ name, version: '', state: 'UNAVAILABLE', reason: problem ?? 'it is not loaded' }];
  });
  return onlyReady ? index.filter(({ state }) => state === 'READY') : index;
}

/** @throws CubeError DENIED, NOT_FOUND, NOT_READY */
export async function loadModel(
  context: { readonly models: Models; readonly access: ControlAccess },
  caller: ControlCaller,
  model: string,
): Promise<void> {
  context.access.check(caller);
  await context.models.load(model);
}

/** @throws CubeError DENIED, NOT_FOUND */
export async function unloadModel(
  context: { readonly models: Models; readonly access: ControlAccess },
  caller: ControlCaller,
  model: string,
): Promise<void> {
  context.access.check(caller);
  await context.models.unload(model);
}
