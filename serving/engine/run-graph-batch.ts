/**
 * One batch of a plain model from start to end: merge the tensors of its requests along the first
 * dimension, run the graph in a worker, and split the outputs again.
 *
 * Invariants
 * - Only requests with equal other dimensions share a batch (`QueuedRequest.group`).
 * - A failure fails only the requests that it concerns: when the graph refuses a batch, each
 *   request of it runs again alone. When a worker dies, only the batch that it was running fails.
 */
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';
import type { GraphSignature } from '../../lib/core/graph-signature.ts';
import { type NamedTensor, viewRows } from '../../lib/core/tensor.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import { startBatchSpan } from './batch-span.ts';
import type { BatchRunner } from './batcher.ts';
import type { EngineStats } from './engine-stats.ts';
import type { GraphJob, GraphResult } from './graph-channel.ts';
import { type GraphInputs, GraphRequest } from './graph-request.ts';
import {
  type Batch,
  type BatchScheduler,
  dropIfAbandoned,
  handleRunError,
  type QueueEntry,
} from './queued-request.ts';

interface GraphPool {
  run(job: GraphJob): Promise<GraphResult | undefined>;
}

export interface GraphRunnerOptions {
  readonly pool: GraphPool;
  readonly stats: EngineStats;
  readonly signature: GraphSignature;
  readonly isBatched: boolean;
}

type GraphBatch = Batch<GraphRequest>;

export class GraphBatchRunner implements BatchRunner<GraphInputs, GraphRequest> {
  readonly #options: GraphRunnerOptions;
  /** All requests have the same dimensions besides the batch. */
  readonly #hasOneShape: boolean;
  #lastWanted: readonly string[] | undefined;
  #lastPositions: readonly number[] = [];

  constructor(options: GraphRunnerOptions) {
    this.#options = options;
    const { signature, isBatched } = options;
    this.#hasOneShape =
      isBatched && signature.inputs.every(({ dims }) => dims?.slice(1).every(Number.isInteger));
  }

  createRequest(inputs: GraphInputs, entry: QueueEntry): GraphRequest {
    return new GraphRequest(inputs, entry, this.#hasOneShape ? undefined : groupByShape(inputs));
  }

  async runBatch(batch: GraphBatch, scheduler: BatchScheduler<GraphRequest>): Promise<void> {
    const span = startBatchSpan(batch);
    const code = await this.#run(batch, scheduler);
    span?.end(code);
  }

  /** Runs one batch. Never rejects. @returns the code of the whole batch */
  async #run(
    batch: GraphBatch,
    scheduler: BatchScheduler<GraphRequest>,
  ): Promise<ErrorCode | 'OK'> {
    if (dropIfAbandoned(batch)) return 'DEADLINE_EXCEEDED';
    const { pool, stats } = this.#options;
    try {
      const job = this.#createJob(batch);
      const result = await pool.run(job);
      // The worker died before it began this batch.
      if (result === undefined) {
        scheduler.retry(batch);
        return 'UNAVAILABLE';
      }
      const outputs = this.#readOutputs(job, result);
      if (this.#options.isBatched) checkBatchDimension(outputs, batch.rowCount);
      stats.recordBatch(batch.rowCount, 0, result.inferMicros);
      const byName = new Map(outputs.map((one) => [one.name, one]));
      stats.outputMicros += deliver(batch, byName, result.inferMicros, scheduler);
      return 'OK';
    } catch (error) {
      const failure = CubeError.from(error);
      handleRunError(batch, failure, scheduler);
      return failure.code;
    }
  }

  /** Its rows have no scores. */
  recordOutcome(_request: GraphRequest, durationMs: number): void {
    this.#options.stats.recordOutcome(0, {
      scoreSum: 0,
      lookups: 0,
      unseen: 0,
      unavailable: 0,
      durationMs,
    });
  }

  #createJob({ slices, rowCount }: GraphBatch): GraphJob {
    const { signature, isBatched } = this.#options;
    const [first] = slices;
    const inputs = signature.inputs.map((_, i) =>
      slices.map(({ request, firstRow, rowCount }) => {
        const tensor = request.inputs.tensors[i]!;
        return isBatched ? viewRows(tensor, firstRow, rowCount) : tensor;
      }),
    );
    const shapes = requireDefined(first, 'a request').request.inputs.tensors.map(({ shape }) =>
      isBatched && shape[0] !== rowCount ? [rowCount, ...shape.slice(1)] : shape,
    );
    return { inputs, shapes, outputs: this.#listOutputs(slices) };
  }

  /** Positions of the outputs that the requests want. */
  #listOutputs(slices: GraphBatch['slices']): readonly number[] {
    const { outputs } = this.#options.signature;
    // Usually each request has the list of all names itself.
    const [first] = slices;
    const wanted = first?.request.inputs.outputs ?? [];
    if (slices.every(({ request }) => request.inputs.outputs === wanted)) {
      if (wanted === this.#lastWanted) return this.#lastPositions;
      this.#lastWanted = wanted;
    } else this.#lastWanted = undefined;
    const names = new Set(slices.flatMap(({ request }) => request.inputs.outputs));
    this.#lastPositions = [...outputs.keys()].filter((i) => names.has(outputs[i]!.name));
    return this.#lastPositions;
  }

  #readOutputs({ outputs }: GraphJob, { data, shapes }: GraphResult): NamedTensor[] {
    return outputs.map((position, i) => {
      const { name, dataType } = this.#options.signature.outputs[position]!;
      return { name, dataType, shape: shapes[i]!, data: data[i]! };
    });
  }
}

/** Equal for requests whose dimensions besides the first are equal. */
function groupByShape({ tensors }: GraphInputs): string {
  return tensors.map(({ shape }) => shape.slice(1)).join(';');
}

function checkBatchDimension(outputs: readonly NamedTensor[], rowCount: number): void {
  for (const { name, shape } of outputs) {
    if (shape[0] === rowCount) continue;
    throw new CubeError(
      'UNSUPPORTED',
      `output ${JSON.stringify(name)} has shape [${shape.join(', ')}] for a batch of ${rowCount} ` +
        'rows: its first dimension is not the batch; serve the model with max-batch 0, so that ' +
        'each request runs alone',
    );
  }
}

/** @returns the time of copying outputs, in microseconds */
function deliver(
  { slices }: GraphBatch,
  outputs: ReadonlyMap<string, NamedTensor>,
  inferMicros: number,
  scheduler: BatchScheduler<GraphRequest>,
): number {
  const isAlone = slices.length === 1;
  let outputMicros = 0;
  for (const { request, firstRow, rowCount, batchRow } of slices) {
    if (request.isOpen) {
      const startMs = systemClock.nowMs();
      const parts = request.inputs.outputs.map((name) => {
        const output = requireDefined(outputs.get(name), `the output ${name}`);
        const { dataType, shape, data } = output;
        const tensor = { dataType, shape, data };
        return isAlone ? tensor : viewRows(tensor, batchRow, rowCount);
      });
      request.addOutputs(firstRow, parts);
      request.inferMicros += inferMicros;
      const micros = 1_000 * (systemClock.nowMs() - startMs);
      request.outputMicros += micros;
      outputMicros += micros;
    }
    if (request.finishSlice(rowCount)) scheduler.complete(request);
  }
  return outputMicros;
}
