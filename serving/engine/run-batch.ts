/**
 * One batch from start to end. With it, this file tells how a prediction is made:
 *
 *     predictor.ts   features become keys; the request is submitted to the batcher
 *     batcher.ts     rows of several requests become one batch
 *     run-batch.ts   1. fill      copy the rows of the requests into the buffers of the batch
 *                    2. look up   fetch the embedding rows of the distinct keys from the store
 *                    3. run       a model worker runs the graph
 *                    4. deliver   copy the outputs to the requests, and answer complete ones
 *
 * Where the tables are in this process's memory, the model worker does step 2 by itself
 * (worker-lookup.ts) just before it runs the graph.
 *
 * Invariants
 * - All rows of a batch come from one version: an answer of the store from another version fails
 *   the batch.
 * - A failure fails only the requests that it concerns: a row whose score is not a finite number,
 *   or an unavailable shard that the policy of a request does not tolerate. When the graph refuses
 *   a batch, each request of it runs again alone. When a worker dies, only the batch that it was
 *   running fails.
 * - A batch that no open request needs is dropped before its next step.
 */
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';
import { findNonFinite, type KeyedRows } from '../../lib/core/feature-rows.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import { type LookupSummary, OUTCOME_UNAVAILABLE } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { BatchBufferPool, type BatchBuffers, countOutcomes } from './batch-buffers.ts';
import type { SlabShape } from './batch-slab.ts';
import { startBatchSpan } from './batch-span.ts';
import type { BatchRunner } from './batcher.ts';
import type { DegradationPolicy } from './engine-options.ts';
import { EngineRequest } from './engine-request.ts';
import { type EngineStats, sumColumn } from './engine-stats.ts';
import type { ModelPool } from './model-pool.ts';
import {
  type Batch,
  type BatchScheduler,
  dropIfAbandoned,
  failBatch,
  handleRunError,
  type QueueEntry,
  type RequestSlice,
} from './queued-request.ts';
import type { BatchResult } from './slab-channel.ts';

/**
 * Share of the time left to the first deadline of a batch that its lookup may take. The graph and
 * the response need the rest, also when a shard hangs and its keys are unavailable.
 */
const LOOKUP_SHARE = 2 / 3;
/**
 * The lookup may take at least this share of the time left to the last deadline: a caller with a
 * very short deadline must not make the keys of other callers unavailable.
 */
const LOOKUP_SHARE_MIN = 1 / 3;

type EngineBatch = Batch<EngineRequest>;
type EngineSlice = RequestSlice<EngineRequest>;

/** The version that batches run on. */
export interface BundleRunnerOptions {
  readonly manifest: Manifest;
  readonly shape: SlabShape;
  readonly store: EmbeddingStore;
  readonly pool: ModelPool;
  readonly policy: DegradationPolicy;
  readonly stats: EngineStats;
  readonly clock: Clock;
}

interface BatchContext extends BundleRunnerOptions {
  readonly buffers: BatchBufferPool;
  readonly scheduler: BatchScheduler<EngineRequest>;
  /** The span of the batch; undefined: none of its requests is traced. */
  readonly span: TraceSpan | undefined;
}

/** Runs the batches of a bundle. */
export class BundleBatchRunner implements BatchRunner<KeyedRows, EngineRequest> {
  readonly #options: BundleRunnerOptions;
  readonly #buffers: BatchBufferPool;

  constructor(options: BundleRunnerOptions) {
    this.#options = options;
    this.#buffers = new BatchBufferPool(options.shape);
  }

  createRequest(rows: KeyedRows, entry: QueueEntry): EngineRequest {
    const { plan, outputs } = this.#options.shape;
    return new EngineRequest(rows, entry, { outputs, keyNum: plan.keyNum });
  }

  async runBatch(batch: EngineBatch, scheduler: BatchScheduler<EngineRequest>): Promise<void> {
    const span = startBatchSpan(batch);
    const context = { buffers: this.#buffers, scheduler, span, ...this.#options };
    const code = await runBatch(batch, context);
    span?.end(code);
  }

  recordOutcome(request: EngineRequest, durationMs: number): void {
    const { shape, stats } = this.#options;
    const { keyNum, clickColumn } = shape.plan;
    const clicks = requireDefined(request.outputs[0], 'the click output');
    const { width } = requireDefined(shape.outputs[0], 'the click output');
    stats.recordOutcome(request.rowCount, {
      scoreSum: sumColumn(clicks, width, clickColumn),
      lookups: request.rowCount * keyNum,
      durationMs,
      ...request.counts,
    });
  }
}

/** Runs one batch. Never rejects: errors fail the requests. @returns the code of the whole batch */
async function runBatch(batch: EngineBatch, context: BatchContext): Promise<ErrorCode | 'OK'> {
  const { shape, clock, pool, scheduler } = context;
  if (dropIfAbandoned(batch)) return 'DEADLINE_EXCEEDED';
  const buffers = context.buffers.acquire();
  const startMs = clock.nowMs();
  let misses = 0;
  try {
    fill(batch, buffers);
    if (shape.lookupThread === 'main' && shape.plan.tables.length > 0) {
      misses = await lookUp(batch, buffers, context);
    }
  } catch (error) {
    const failure = CubeError.from(error);
    failBatch(batch, failure, scheduler);
    context.buffers.release(buffers);
    return failure.code;
  }
  if (dropIfAbandoned(batch)) {
    context.buffers.release(buffers);
    return 'DEADLINE_EXCEEDED';
  }
  const lookupMicros = 1_000 * (clock.nowMs() - startMs);
  let result: BatchResult | undefined;
  try {
    result = await pool.run({ slab: buffers.slab, rowCount: batch.rowCount });
  } catch (error) {
    const failure = CubeError.from(error);
    handleRunError(batch, failure, scheduler);
    return failure.code;
  }
  // The worker died before it began this batch.
  if (result === undefined) {
    scheduler.retry(batch);
    return 'UNAVAILABLE';
  }
  if (shape.lookupThread === 'main') {
    const { inferMicros } = result;
    result = { misses, lookupMicros, inferMicros };
  }
  deliver(batch, buffers, result, context);
  return 'OK';
}

// Step 1: fill

function fill({ slices, rowCount }: EngineBatch, buffers: BatchBuffers): void {
  for (const { request, firstRow, rowCount, batchRow } of slices) {
    buffers.addRows(request.rows, firstRow, rowCount, batchRow);
  }
  buffers.assignUsers(rowCount);
}

// Step 2: look up

/**
 * Fills the embedding rows. Fails the requests that need unavailable keys, unless their policy
 * tolerates it. @returns the number of unseen and unavailable keys
 */
async function lookUp(
  batch: EngineBatch,
  buffers: BatchBuffers,
  context: BatchContext,
): Promise<number> {
  const { store, manifest, clock, span } = context;
  const groups = buffers.prepareGroups(batch.rowCount);
  const timeoutMs = computeLookupTimeoutMs(batch, clock.nowMs());
  const summary = await store.lookup(manifest, groups, timeoutMs, span);
  if (summary.version !== manifest.version) {
    throw new CubeError(
      'INTERNAL',
      `the store answered from version ${summary.version}, but the graph is of version ` +
        `${manifest.version}: nothing was predicted`,
    );
  }
  buffers.expandOutcomes(batch.rowCount);
  const { unseen, unavailable } = summary;
  if (unavailable > 0) {
    for (const slice of batch.slices) checkAvailable(slice, buffers, summary, context);
  }
  return unseen + unavailable;
}

/** May be ≤ 0. */
function computeLookupTimeoutMs({ slices }: EngineBatch, nowMs: number): number {
  let earliestMs = Number.POSITIVE_INFINITY;
  let latestMs = 0;
  for (const { request } of slices) {
    if (!request.isOpen) continue;
    const { deadlineMs } = request.options;
    earliestMs = Math.min(earliestMs, deadlineMs);
    latestMs = Math.max(latestMs, deadlineMs);
  }
  return Math.max(LOOKUP_SHARE * (earliestMs - nowMs), LOOKUP_SHARE_MIN * (latestMs - nowMs));
}

function checkAvailable(
  slice: EngineSlice,
  { outcomes }: BatchBuffers,
  { reason, deadlineExceeded }: LookupSummary,
  { policy, shape, scheduler }: BatchContext,
): void {
  if (policy.onUnavailable === 'default') return;
  const { request } = slice;
  const counts = { unseen: 0, unavailable: 0 };
  countOutcomes(shape.plan, outcomes, slice, counts, undefined);
  request.unavailableLookups += counts.unavailable - slice.unavailable;
  slice.unavailable = counts.unavailable;
  const perRow = shape.plan.tables.reduce((sum, { columns }) => sum + columns.length, 0);
  const total = perRow * request.rowCount;
  if (request.unavailableLookups <= policy.maxUnavailableShare * total) return;
  const details = [findFirstUnavailable(slice, shape.plan, outcomes), reason].filter(Boolean);
  scheduler.fail(
    request,
    new CubeError(
      deadlineExceeded ? 'DEADLINE_EXCEEDED' : 'UNAVAILABLE',
      `no answer for ${request.unavailableLookups} of ${total} lookups (${details.join('; ')}); ` +
        'nothing was predicted, try again',
    ),
  );
}

function findFirstUnavailable(
  { request, firstRow, rowCount, batchRow }: EngineSlice,
  { tables, keyNum }: SlabShape['plan'],
  outcomes: readonly Uint8Array[],
): string {
  for (let t = 0; t < tables.length; t++) {
    const { columns, name } = tables[t]!;
    for (let i = 0; i < rowCount * columns.length; i++) {
      if (outcomes[t]![batchRow * columns.length + i] !== OUTCOME_UNAVAILABLE) continue;
      const row = firstRow + Math.floor(i / columns.length);
      const bag = row * keyNum + columns[i % columns.length]!;
      const { keys, ends } = request.rows;
      const key = keyToBigint(keys, ends === undefined || bag === 0 ? bag : ends[bag - 1]!);
      return `first: key ${key} of table ${name}`;
    }
  }
  return '';
}

// Steps 3 and 4: run (queued-request.ts handles its errors) and deliver

function deliver(
  batch: EngineBatch,
  buffers: BatchBuffers,
  { misses, lookupMicros, inferMicros }: BatchResult,
  context: BatchContext,
): void {
  const { shape, stats, scheduler, clock } = context;
  const { plan } = shape;
  stats.recordBatch(batch.rowCount, lookupMicros, inferMicros);
  for (const slice of batch.slices) {
    const { request, rowCount } = slice;
    const startMs = clock.nowMs();
    copyOutputs(slice, buffers.outputs, context);
    if (request.isOpen) {
      const { counts, outcomesByKey } = request;
      if (misses > 0 || outcomesByKey !== undefined) {
        countOutcomes(plan, buffers.outcomes, slice, counts, outcomesByKey, stats.misses);
      }
      request.lookupMicros += lookupMicros;
      request.inferMicros += inferMicros;
      const outputMicros = 1_000 * (clock.nowMs() - startMs);
      request.outputMicros += outputMicros;
      stats.outputMicros += outputMicros;
    }
    if (request.finishSlice(rowCount)) scheduler.complete(request);
  }
  context.buffers.release(buffers);
}

/**
 * Copies the slice's outputs to its request. Fails the request when a click output is not a finite
 * number.
 */
function copyOutputs(
  { request, firstRow, rowCount, batchRow }: EngineSlice,
  outputs: readonly Float32Array[],
  { shape, manifest, scheduler }: BatchContext,
): void {
  if (!request.isOpen) return;
  for (let o = 0; o < outputs.length; o++) {
    const { width } = shape.outputs[o]!;
    const values = outputs[o]!.subarray(batchRow * width, (batchRow + rowCount) * width);
    const bad = o === 0 ? findNonFinite(values) : -1;
    if (bad >= 0) {
      const row = firstRow + Math.floor(bad / width) + 1;
      scheduler.fail(
        request,
        new CubeError(
          'INTERNAL',
          `the graph of version ${manifest.version} gave ${values[bad]} for row ${row}: ` +
            'a table or the graph contains values that are not finite numbers',
        ),
      );
      return;
    }
    request.outputs[o]!.set(values, firstRow * width);
  }
}
