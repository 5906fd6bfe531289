/**
 * Warms up a plain model before it serves requests: tensors of zeros and of random floats, alone
 * and in batches of growing size, on every instance. Configured entries give the sizes instead, and
 * recorded requests the tensors.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { TensorSpec } from '../../lib/core/graph-signature.ts';
import { countElements, type NamedTensor } from '../../lib/core/tensor.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { readText } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { WarmUpConfig } from '../config/warm-up-config.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { formatWarmUpEntry, type WarmUpEntry } from '../engine/warm-up-rows.ts';
import { parseRecordedRequests } from './recorded-tensors.ts';
import { createElements } from './warm-up-elements.ts';

const FILE_BYTES_MAX = 1 << 30;

interface WarmUpParts {
  readonly logger: Logger;
  readonly onStep: (step: string) => void;
  readonly signal: AbortSignal;
}

/**
 * Retires the version when it fails. Where dimensions besides the batch are dynamic, tensors of one
 * element in each may not fit the graph, and empty texts may not fit one that reads numbers from
 * them: this is logged, and not a failure.
 */
export async function warmUpGraph(
  graph: TensorModel,
  config: WarmUpConfig & WarmUpParts,
): Promise<void> {
  const { name, version } = graph;
  try {
    if (config.file === undefined) await runEntries(graph, config);
    else await runRequests(graph, config.file, config);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const isSynthetic = config.file === undefined;
    if (isSynthetic && code === 'INVALID_ARGUMENT' && (hasDynamicDims(graph) || hasTexts(graph))) {
      config.logger.warn({ model: name, version, error: message }, 'the warm-up does not fit');
      return;
    }
    await graph.retire();
    throw new CubeError(code, `the warm-up failed: ${message}`, { cause: error });
  }
}

async function runEntries(graph: TensorModel, config: WarmUpConfig & WarmUpParts): Promise<void> {
  const deadlineMs = systemClock.nowMs() + config.timeoutMs;
  for (const entry of config.entries ?? createEntries(graph)) {
    config.onStep(`warm-up, ${formatWarmUpEntry(entry)}`);
    for (let i = 0; i < entry.count; i++) {
      if (config.signal.aborted) throw new CubeError('STOPPING', 'the load was cancelled');
      const inputs = graph.signature.inputs.map((spec) => createTensor(spec, graph, entry));
      await predictOnInstances(graph, inputs, deadlineMs);
    }
  }
}

/** Recorded requests, each on every instance. @throws CubeError naming file and line */
async function runRequests(
  graph: TensorModel,
  file: string,
  { onStep, signal, timeoutMs }: WarmUpConfig & WarmUpParts,
): Promise<void> {
  const deadlineMs = systemClock.nowMs() + timeoutMs;
  const requests = parseRecordedRequests(readText(file, FILE_BYTES_MAX), file);
  for (const [i, { place, inputs }] of requests.entries()) {
    onStep(`warm-up, request ${i + 1} of ${requests.length}`);
    if (signal.aborted) throw new CubeError('STOPPING', 'the load was cancelled');
    try {
      await predictOnInstances(graph, inputs, deadlineMs);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(code, `${place}: ${message}`, { cause: error });
    }
  }
}

function createEntries({ isBatched, batching }: TensorModel): WarmUpEntry[] {
  const entries: WarmUpEntry[] = [{ data: 'zeros', rows: 1, count: 1 }];
  if (!isBatched) return entries;
  for (let rows = 2; rows < 2 * batching.maxBatch; rows *= 2) {
    entries.push({ data: 'random', rows: Math.min(rows, batching.maxBatch), count: 1 });
  }
  return entries;
}

/** Predicts the tensors on every instance. */
export async function predictOnInstances(
  graph: TensorModel,
  inputs: readonly NamedTensor[],
  deadlineMs: number,
): Promise<void> {
  const requests: Promise<unknown>[] = [];
  for (let instance = 0; instance < graph.pool.aliveInstances; instance++) {
    const request = graph.predict({ inputs, outputs: [] }, { deadlineMs });
    // It may fail during the pauses, before anything waits for it.
    request.catch(() => undefined);
    requests.push(request);
    // Without a pause the runs would be merged. Each goes to an instance that has not run yet.
    await new Promise((resolve) => setImmediate(resolve));
  }
  await Promise.all(requests);
}

function createTensor(
  { name, dataType, dims = [] }: TensorSpec,
  { isBatched }: TensorModel,
  { data, rows }: WarmUpEntry,
): NamedTensor {
  const shape = dims.map((dim, i) => {
    if (isBatched && i === 0) return rows;
    return typeof dim === 'number' ? dim : 1;
  });
  return { name, dataType, shape, data: createElements(dataType, countElements(shape), data) };
}

function hasTexts({ signature }: TensorModel): boolean {
  return signature.inputs.some(({ dataType }) => dataType === 'BYTES');
}

function hasDynamicDims({ signature, isBatched }: TensorModel): boolean {
  return signature.inputs.some(({ dims = [''] }) =>
    dims.slice(isBatched ? 1 : 0).some((dim) => typeof dim === 'string'),
  );
}
