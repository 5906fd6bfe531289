/**
 * Requests of one version to batches: rows of several callers are merged up to the largest batch, looked up once, run on one
 * instance, and handed back to who asked.
 *
 * Invariants
 * - With an idle instance nothing waits: what arrived in one turn of the event loop goes together, at once.
 * - While all are busy, the next batches are made ahead: when they have a preferred size, or their first row has waited enough.
 * - Work whose deadline passed, or that nobody waits for, is dropped before it is done.
 * - What fails, fails alone: a row that the graph answers with no number, an unavailable shard that only one request's policy
 *   does not bear; a batch that the graph refuses is run again request by request. A dead worker fails the batch that it held.
 */
import { type LookupGroup, OUTCOME_UNAVAILABLE } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/features.ts';
import { notFiniteAt } from '../../lib/core/finite-values.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { BatchBufferPool, type BatchBuffers, countOutcomes } from './batch-buffers.ts';
import type { SlabShape } from './batch-slab.ts';
import type { BatchingOptions, DegradationPolicy } from './batching.ts';
import { EngineRequest, type PredictCall, type Slice } from './engine-request.ts';
import { columnSum, type EngineStats } from './engine-stats.ts';
import type { ModelPool } from './model-pool.ts';
import type { BatchDone } from './model-worker.ts';
import { RequestQueue } from './request-queue.ts';

export interface BatcherOptions {
  readonly manifest: Manifest;
  readonly shape: SlabShape;
  readonly store: EmbeddingStore;
  readonly pool: ModelPool;
  readonly policy: DegradationPolicy;
  readonly batching: BatchingOptions;
  readonly stats: EngineStats;
  readonly clock?: Clock;
}

interface Batch {
  readonly slices: readonly Slice[];
  readonly rowCount: number;
}

/** Batches in flight for each instance: one runs, one is ready; where lookups go over a network or disk, more are on their way. */
const AHEAD_IN_MEMORY = 2;
const AHEAD_ELSEWHERE = 8;
/** How exactly deadlines are kept while a request waits. */
const SWEEP_MS = 5;

export class Batcher {
  readonly #options: BatcherOptions;
  readonly #clock: Clock;
  readonly #buffers: BatchBufferPool;
  readonly #queue: RequestQueue;
  /** Batches of one request each, to be run again. */
  readonly #again: Batch[] = [];
  readonly #open = new Set<EngineRequest>();
  readonly #sizesAhead: readonly number[];
  readonly #inFlightPerInstance: number;
  #inFlight = 0;
  #isScheduled = false;
  #delay: NodeJS.Timeout | undefined;
  #sweep: NodeJS.Timeout | undefined;

  constructor(options: BatcherOptions) {
    const { shape, batching, pool } = options;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#buffers = new BatchBufferPool(shape);
    this.#queue = new RequestQueue(batching);
    const sizes = batching.preferredSizes.filter((size) => size < batching.maxBatch);
    this.#sizesAhead = [...sizes, batching.maxBatch].sort((a, b) => a - b);
    this.#inFlightPerInstance = shape.looksUp === 'worker' ? AHEAD_IN_MEMORY : AHEAD_ELSEWHERE;
    pool.observe(() => this.#dispatch());
  }

  /**
   * Runs the rows of one request. @returns it, with outputs and counts filled
   * @param onSettled called once, when no batch holds rows of it any more: after the promise, if that fails early
   * @throws CubeError OVERLOADED, DEADLINE_EXCEEDED, UNAVAILABLE, INTERNAL
   */
  submit(rows: KeyedRows, call: PredictCall, onSettled: () => void): Promise<EngineRequest> {
    const { shape, stats } = this.#options;
    const arrivedMs = this.#clock.nowMs();
    return new Promise((resolve, reject) => {
      const request = new EngineRequest(
        rows,
        call,
        { arrivedMs, outputs: shape.outputs, keyNum: shape.plan.keyNum },
        { resolve, reject, settled: onSettled },
      );
      this.#open.add(request);
      stats.pendingRequests++;
      stats.pendingRows += rows.rowCount;
      const refusal = this.#whyRefused(request);
      if (refusal !== undefined) {
        this.#fail(request, refusal);
        return;
      }
      this.#queue.push(request);
      this.#schedule();
      this.#sweep ??= setTimeout(() => this.#sweepOpen(), SWEEP_MS).unref();
    });
  }

  #whyRefused({ rows: { rowCount }, call, arrivedMs }: EngineRequest): CubeError | undefined {
    if (arrivedMs >= call.deadlineMs) return expiredError();
    const { batching, stats } = this.#options;
    const before = stats.pendingRows - rowCount;
    if (before === 0 || stats.pendingRows <= batching.queueRowsMax) return undefined;
    return new CubeError(
      'OVERLOADED',
      `${before} rows wait to be predicted, and ${rowCount} more are over the limit of ${batching.queueRowsMax}; try again later`,
    );
  }

  /** At the end of this turn of the event loop, so that what came together goes together. */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      this.#dispatch();
    });
  }

  /** Makes batches as long as instances can take them. */
  #dispatch(): void {
    const { pool, stats } = this.#options;
    for (;;) {
      if (this.#inFlight >= pool.alive * this.#inFlightPerInstance) return;
      const again = this.#again.shift();
      if (again !== undefined) {
        this.#launch(again);
        continue;
      }
      if (stats.pendingRows === 0) return;
      const nowMs = this.#clock.nowMs();
      const isIdle = this.#inFlight < pool.alive;
      const size = isIdle ? this.#options.batching.maxBatch : this.#sizeAhead(nowMs);
      if (size === 0) return;
      const batch = this.#form(size, nowMs);
      if (batch.rowCount > 0) this.#launch(batch);
    }
  }

  /** While all instances are busy: how many rows to take now; 0: wait for more. */
  #sizeAhead(nowMs: number): number {
    const { stats, batching } = this.#options;
    const preferred = this.#sizesAhead.findLast((size) => size <= stats.pendingRows);
    if (preferred !== undefined) return preferred;
    const waitedMs = nowMs - this.#queue.oldestMs();
    const leftMs = batching.maxQueueDelayMicros / 1_000 - waitedMs;
    if (leftMs <= 0) return stats.pendingRows;
    this.#delay ??= setTimeout(() => {
      this.#delay = undefined;
      this.#dispatch();
    }, Math.ceil(leftMs));
    return 0;
  }

  #form(rowsMax: number, nowMs: number): Batch {
    const { stats } = this.#options;
    const slices: Slice[] = [];
    let rowCount = 0;
    while (rowCount < rowsMax) {
      const request = this.#queue.head(nowMs);
      if (request === undefined) break;
      if (this.#drop(request, nowMs)) continue;
      const count = Math.min(request.waitingRows, rowsMax - rowCount);
      slices.push(request.take(count, rowCount, nowMs));
      stats.pendingRows -= count;
      rowCount += count;
    }
    return { slices, rowCount };
  }

  /** Fails a request that need not be worked on. @returns whether it did */
  #drop(request: EngineRequest, nowMs: number): boolean {
    const { deadlineMs, signal } = request.call;
    const { queueTimeoutMs } = this.#options.batching;
    if (nowMs >= deadlineMs) this.#fail(request, expiredError());
    else if (signal?.aborted) this.#fail(request, goneError());
    else if (
      queueTimeoutMs > 0 &&
      request.nextRow === 0 &&
      nowMs - request.arrivedMs >= queueTimeoutMs
    ) {
      const message = `the request waited ${queueTimeoutMs} ms for a model instance; try again later`;
      this.#fail(request, new CubeError('OVERLOADED', message));
    }
    return !request.isOpen;
  }

  #sweepOpen(): void {
    const nowMs = this.#clock.nowMs();
    const before = this.#open.size;
    for (const request of this.#open) this.#drop(request, nowMs);
    if (this.#open.size < before) this.#queue.purge();
    this.#sweep =
      this.#open.size === 0 ? undefined : setTimeout(() => this.#sweepOpen(), SWEEP_MS).unref();
  }

  #fail(request: EngineRequest, error: CubeError): void {
    const { stats } = this.#options;
    const { waitingRows } = request;
    if (!request.fail(error)) return;
    stats.pendingRows -= waitingRows;
    stats.pendingRequests--;
    stats.onFailure(error.code);
    this.#open.delete(request);
  }

  #launch(batch: Batch): void {
    this.#inFlight++;
    void this.#run(batch).finally(() => {
      this.#inFlight--;
      this.#dispatch();
    });
  }

  /** Never rejects: what goes wrong is told to the requests. */
  async #run(batch: Batch): Promise<void> {
    const { shape, pool } = this.#options;
    if (this.#isAbandoned(batch)) return;
    const buffers = this.#buffers.take();
    const startMs = this.#clock.nowMs();
    try {
      for (const { request, start, count, at } of batch.slices) {
        buffers.add(request.rows, start, count, at);
      }
      if (shape.looksUp === 'main' && shape.plan.tables.length > 0) {
        await this.#lookUp(batch, buffers);
      }
    } catch (error) {
      this.#failBatch(batch, CubeError.from(error));
      this.#buffers.give(buffers);
      return;
    }
    if (this.#isAbandoned(batch)) {
      this.#buffers.give(buffers);
      return;
    }
    const lookupMicros = 1_000 * (this.#clock.nowMs() - startMs);
    let done: BatchDone | undefined;
    try {
      done = await pool.run(buffers.slab, batch.rowCount);
    } catch (error) {
      this.#onRunFailed(batch, CubeError.from(error));
      return;
    }
    // The instance died before it began: the rows are still here.
    if (done === undefined) this.#again.push(batch);
    else this.#answer(batch, buffers, shape.looksUp === 'main' ? { ...done, lookupMicros } : done);
  }

  /** No request of the batch is open any more: it is dropped. */
  #isAbandoned({ slices }: Batch): boolean {
    if (slices.some(({ request }) => request.isOpen)) return false;
    for (const { request } of slices) request.drop();
    return true;
  }

  /** Fills the buffers' rows; requests whose policy does not bear what is unavailable fail here, the others go on. */
  async #lookUp(batch: Batch, buffers: BatchBuffers): Promise<void> {
    const { store, manifest } = this.#options;
    const groups: LookupGroup[] = buffers.groups(batch.rowCount);
    let deadlineMs = 0;
    for (const { request } of batch.slices) {
      deadlineMs = Math.max(deadlineMs, request.call.deadlineMs);
    }
    const summary = await store.lookup(manifest, groups, deadlineMs - this.#clock.nowMs());
    if (summary.version !== manifest.version) {
      throw new CubeError(
        'INTERNAL',
        `the store answered from version ${summary.version}, the graph is of version ${manifest.version}: refused`,
      );
    }
    buffers.spreadOutcomes(batch.rowCount);
    if (summary.unavailable === 0) return;
    for (const slice of batch.slices) this.#checkAvailable(slice, buffers, summary.reason);
  }

  #checkAvailable(slice: Slice, { outcomes }: BatchBuffers, reason: string | undefined): void {
    const { policy, shape } = this.#options;
    if (policy.onUnavailable === 'default') return;
    const { request } = slice;
    const counts = { unseen: 0, unavailable: 0 };
    countOutcomes(shape.plan, outcomes, slice, counts, undefined);
    request.unavailable += counts.unavailable - slice.unavailable;
    slice.unavailable = counts.unavailable;
    const lookups = shape.plan.tables.reduce((sum, { columns }) => sum + columns.length, 0);
    const total = lookups * request.rows.rowCount;
    if (request.unavailable <= policy.maxUnavailableShare * total) return;
    const where = [firstUnavailable(slice, shape.plan, outcomes), reason].filter(Boolean);
    const message = `no answer for ${request.unavailable} of ${total} lookups (${where.join('; ')}); nothing was predicted, try again`;
    this.#fail(request, new CubeError('UNAVAILABLE', message));
  }

  /** Hands the batch's outputs to its requests. */
  #answer(batch: Batch, buffers: BatchBuffers, done: BatchDone): void {
    const { shape, stats } = this.#options;
    stats.onBatch(batch.rowCount, done.lookupMicros, done.inferMicros);
    for (const slice of batch.slices) {
      const { request, count } = slice;
      this.#takeOutputs(slice, buffers.outputs);
      if (request.isOpen) {
        countOutcomes(shape.plan, buffers.outcomes, slice, request.counts, request.byKey);
        request.lookupMicros += done.lookupMicros;
        request.inferMicros += done.inferMicros;
      }
      if (request.finish(count)) this.#onAnswered(request);
    }
    this.#buffers.give(buffers);
  }

  #onAnswered(request: EngineRequest): void {
    const { stats, shape } = this.#options;
    const { rowCount } = request.rows;
    this.#open.delete(request);
    stats.pendingRequests--;
    stats.onAnswered(rowCount, request.queueMicros);
    const { keyNum, clickColumn } = shape.plan;
    stats.onOutcome(rowCount, {
      ...request.counts,
      scoreSum: columnSum(request.outputs[0]!, shape.outputs[0]!.width, clickColumn),
      lookups: rowCount * keyNum,
      millis: this.#clock.nowMs() - request.arrivedMs,
    });
  }

  #takeOutputs({ request, start, count, at }: Slice, outputs: readonly Float32Array[]): void {
    if (!request.isOpen) return;
    const { shape, manifest } = this.#options;
    for (let o = 0; o < outputs.length; o++) {
      const { width } = shape.outputs[o]!;
      const values = outputs[o]!.subarray(at * width, (at + count) * width);
      const bad = o === 0 ? notFiniteAt(values) : -1;
      if (bad >= 0) {
        const row = start + Math.floor(bad / width) + 1;
        const message = `the graph of version ${manifest.version} gave ${values[bad]} for row ${row}: a table or the graph holds values that are no numbers`;
        this.#fail(request, new CubeError('INTERNAL', message));
        return;
      }
      request.outputs[o]!.set(values, start * width);
    }
  }

  /** A graph may refuse a batch for one request's rows: each is then run alone, and answers for itself. */
  #onRunFailed(batch: Batch, error: CubeError): void {
    if (error.code !== 'INTERNAL' || batch.slices.length === 1) {
      this.#failBatch(batch, error);
      return;
    }
    for (const slice of batch.slices) {
      this.#again.push({ slices: [{ ...slice, at: 0 }], rowCount: slice.count });
    }
  }

  #failBatch(batch: Batch, error: CubeError): void {
    for (const { request } of batch.slices) {
      this.#fail(request, error);
      request.drop();
    }
  }
}

function firstUnavailable(
  { request, start, count, at }: Slice,
  { tables, keyNum }: SlabShape['plan'],
  outcomes: readonly Uint8Array[],
): string {
  for (let t = 0; t < tables.length; t++) {
    const { columns, name } = tables[t]!;
    for (let i = 0; i < count * columns.length; i++) {
      if (outcomes[t]![at * columns.length + i] !== OUTCOME_UNAVAILABLE) continue;
      const row = start + Math.floor(i / columns.length);
      const bag = row * keyNum + columns[i % columns.length]!;
      const { keys, ends } = request.rows;
      const key = keyToBigint(keys, ends === undefined || bag === 0 ? bag : ends[bag - 1]!);
      return `first: key ${key} of table ${name}`;
    }
  }
  return '';
}

function expiredError(): CubeError {
  return new CubeError(
    'DEADLINE_EXCEEDED',
    'the deadline passed before the prediction was ready; send fewer rows, or a larger timeout-ms',
  );
}

function goneError(): CubeError {
  return new CubeError('DEADLINE_EXCEEDED', 'nobody waits for this prediction any more');
}
