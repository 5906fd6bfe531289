/**
 * Schedules the requests of one version: decides which rows form the next batch, and when it runs.
 * A `BatchRunner` does the work of a batch: run-batch.ts for bundles, run-graph-batch.ts for plain
 * models.
 *
 * Invariants
 * - While an instance is idle, no row waits: the rows that arrived in one turn of the event loop
 *   form a batch at once.
 * - While all instances are busy, the next batches are prepared when they reach a preferred size,
 *   or when their first row has waited for the maximum queue delay.
 * - A request whose deadline passed, or whose caller has gone, is dropped before more work is done
 *   for it.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { FadingSum } from '../../lib/core/fading-sum.ts';
import { LiveList } from '../../lib/core/live-list.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { AnnouncedBodies } from './announced-bodies.ts';
import type { BatchingOptions } from './engine-options.ts';
import type { EngineStats } from './engine-stats.ts';
import type { PredictOptions } from './prediction.ts';
import type {
  Batch,
  BatchScheduler,
  QueuedRequest,
  QueueEntry,
  RequestSlice,
} from './queued-request.ts';
import { RequestQueue } from './request-queue.ts';
import { ServiceRate } from './service-rate.ts';

/** What the batches of a version do. */
export interface BatchRunner<P, R extends QueuedRequest> {
  createRequest(payload: P, entry: QueueEntry): R;
  /** Runs one batch. Never rejects: errors fail the requests. */
  runBatch(batch: Batch<R>, scheduler: BatchScheduler<R>): Promise<void>;
  /** Counts an answered request. */
  recordOutcome(request: R, durationMs: number): void;
}

/** The instances that batches run on. */
interface Instances {
  readonly aliveInstances: number;
  onInstanceAdded(callback: () => void): void;
}

export interface BatcherOptions<P, R extends QueuedRequest> {
  readonly runner: BatchRunner<P, R>;
  readonly pool: Instances;
  readonly batching: BatchingOptions;
  readonly stats: EngineStats;
  readonly clock: Clock;
  /** Whether batches wait for a network or a disk, so that more of them are in flight. */
  readonly waitsForLookups: boolean;
}

/** Batches in flight for each instance: one runs, one is ready. */
const IN_FLIGHT_IN_MEMORY = 2;
/**
 * The same where the store looks rows up over a network or on disk: several lookups are in
 * progress.
 */
const IN_FLIGHT_ELSEWHERE = 8;
/** The weight of the newest request in the mean. */
const MEAN_ROWS_WEIGHT = 0.1;
/** Offered requests count for about this long. */
const OFFER_FADE_MS = 500;
/** How often waiting requests are checked for deadlines and cancellation. */
const SWEEP_INTERVAL_MS = 5;

export class Batcher<P, R extends QueuedRequest> implements BatchScheduler<R> {
  readonly #batching: BatchingOptions;
  readonly #options: BatcherOptions<P, R>;
  readonly #queue: RequestQueue<R>;
  /** Batches to run again; they go before new ones. */
  readonly #retries: Batch<R>[] = [];
  readonly #openRequests = new LiveList<R>();
  /** Ascending; the largest batch last. */
  readonly #preferredSizes: readonly number[];
  readonly #inFlightPerInstance: number;
  readonly #rate = new ServiceRate();
  /** Batches in flight, and their rows. */
  #inFlight = 0;
  #inFlightRows = 0;
  /** The time that all requests of this version would take, admitted or not. */
  readonly #offeredMs = new FadingSum(OFFER_FADE_MS);
  /** Admitted requests whose bodies are still arriving. */
  readonly #announced = new AnnouncedBodies();
  /** Rows of a usual request. */
  #meanRows = 1;
  #isScheduled = false;
  #delayTimer: NodeJS.Timeout | undefined;
  #sweepTimer: NodeJS.Timeout | undefined;

  constructor(options: BatcherOptions<P, R>) {
    const { batching, pool, waitsForLookups } = options;
    this.#batching = batching;
    this.#options = options;
    this.#queue = new RequestQueue(batching);
    const sizes = batching.preferredSizes.filter((size) => size < batching.maxBatch);
    this.#preferredSizes = [...sizes, batching.maxBatch].sort((a, b) => a - b);
    this.#inFlightPerInstance = waitsForLookups ? IN_FLIGHT_ELSEWHERE : IN_FLIGHT_IN_MEMORY;
    pool.onInstanceAdded(() => this.#dispatch());
  }

  /**
   * The expected milliseconds until rows of this priority that arrive now are in a batch: the rows
   * before them, at the measured rate. 0 when the engine is idle.
   * @param isHead the body of the request has not arrived: those of earlier requests come first
   */
  estimateWaitMs(priority?: number, isHead = false): number {
    const nowMs = this.#options.clock.nowMs();
    const known = this.#queue.countRowsBefore(priority) + this.#inFlightRows;
    const announced = isHead ? this.#estimateAnnouncedRows(known, nowMs) : 0;
    return this.#rate.estimateMs(known + announced, nowMs);
  }

  estimateRowsMs(rowCount: number): number {
    return this.#rate.estimateMs(rowCount, this.#options.clock.nowMs());
  }

  recordOffer(): number {
    const nowMs = this.#options.clock.nowMs();
    this.#offeredMs.add(this.#rate.estimateMs(this.#meanRows, nowMs), nowMs);
    return this.#offeredMs.get(nowMs) / OFFER_FADE_MS;
  }

  /**
   * Counts a request of the usual size as waiting, until its body has arrived: heads arrive long
   * before the bodies of earlier ones. @returns a function to call once then
   */
  announce(): () => void {
    const { clock } = this.#options;
    const period = this.#announced.add(clock.nowMs());
    return () => this.#announced.remove(period, clock.nowMs());
  }

  /** Callers that announce bodies and send none can at most halve what others may wait. */
  #estimateAnnouncedRows(knownRows: number, nowMs: number): number {
    const oldRows = this.#announced.countOld(nowMs) * this.#meanRows;
    return this.#announced.countNew(nowMs) * this.#meanRows + Math.min(oldRows, knownRows);
  }

  /**
   * Predicts the rows of one request. @returns the request, with outputs and counts filled
   * @param onSettled called once, when no batch holds rows of the request any more: after the
   *   promise settles, if that fails early
   * @throws CubeError OVERLOADED, DEADLINE_EXCEEDED, UNAVAILABLE, INTERNAL
   */
  submit(payload: P, options: PredictOptions, onSettled: () => void): Promise<R> {
    const { runner, stats, clock } = this.#options;
    const arrivedMs = clock.nowMs();
    // Before the request is counted, because this may start batches.
    const limit = this.#findExceededLimit(options.priority);
    return new Promise((resolve, reject) => {
      const request = runner.createRequest(payload, {
        options,
        arrivedMs,
        resolve: () => resolve(request),
        reject,
        settled: onSettled,
      });
      this.#openRequests.add(request);
      stats.pendingRequests++;
      this.#meanRows += (request.rowCount - this.#meanRows) * MEAN_ROWS_WEIGHT;
      this.#addPendingRows(request, request.rowCount);
      const refusal = this.#checkAdmission(request, limit);
      if (refusal !== undefined) {
        this.fail(request, refusal);
        return;
      }
      this.#queue.push(request);
      // A full batch need not wait for other requests; the caller may still cancel it.
      if (request.rowCount >= this.#batching.maxBatch) queueMicrotask(() => this.#dispatch());
      else this.#schedule();
      this.#sweepTimer ??= setTimeout(() => this.#sweep(), SWEEP_INTERVAL_MS).unref();
    });
  }

  fail(request: R, error: CubeError): void {
    const { stats } = this.#options;
    const { waitingRows } = request;
    if (!request.fail(error)) return;
    this.#addPendingRows(request, -waitingRows);
    this.#queue.update(request);
    stats.pendingRequests--;
    stats.recordFailure(error.code);
    this.#openRequests.delete(request);
  }

  complete(request: R): void {
    const { stats, runner, clock } = this.#options;
    this.#openRequests.delete(request);
    stats.pendingRequests--;
    stats.recordAnswer(request.rowCount, request.queueMicros);
    runner.recordOutcome(request, clock.nowMs() - request.arrivedMs);
  }

  retry(batch: Batch<R>): void {
    this.#retries.push(batch);
  }

  #addPendingRows({ options }: R, rowCount: number): void {
    this.#options.stats.pendingRows += rowCount;
    this.#queue.addRows(options.priority, rowCount);
  }

  #checkAdmission(
    { rowCount, options, arrivedMs }: R,
    limit: number | undefined,
  ): CubeError | undefined {
    if (arrivedMs >= options.deadlineMs) return makeExpiredError();
    if (limit !== undefined) return makeQueueFullError(limit);
    const { queueRowsMax } = this.#batching;
    const { pendingRows } = this.#options.stats;
    const waiting = pendingRows - rowCount;
    if (waiting === 0 || pendingRows <= queueRowsMax) return undefined;
    return new CubeError(
      'OVERLOADED',
      `the queue has ${waiting} rows; ${rowCount} more exceed its limit of ${queueRowsMax}; ` +
        'try again later',
    );
  }

  #findExceededLimit(priority: number | undefined): number | undefined {
    const isFull = this.#queue.findExceededLimit(priority) !== undefined;
    // Requests of this turn of the event loop do not wait if an instance is idle.
    if (isFull && this.#inFlight < this.#options.pool.aliveInstances) this.#dispatch();
    return this.#queue.findExceededLimit(priority);
  }

  /**
   * Dispatches at the end of this turn of the event loop, so that requests that arrive together
   * share a batch.
   */
  #schedule(): void {
    if (this.#isScheduled) return;
    this.#isScheduled = true;
    setImmediate(() => {
      this.#isScheduled = false;
      this.#dispatch();
    });
  }

  /** Starts batches as long as instances can take them. */
  #dispatch(): void {
    const { pool, stats, clock } = this.#options;
    for (;;) {
      if (this.#inFlight >= pool.aliveInstances * this.#inFlightPerInstance) return;
      const retry = this.#retries.shift();
      if (retry !== undefined) {
        this.#start(retry);
        continue;
      }
      if (stats.pendingRows === 0) return;
      const nowMs = clock.nowMs();
      const isIdle = this.#inFlight < pool.aliveInstances;
      const rowsMax = isIdle ? this.#batching.maxBatch : this.#chooseSize(nowMs);
      if (rowsMax === 0) return;
      const batch = this.#formBatch(rowsMax, nowMs);
      if (batch.rowCount > 0) this.#start(batch);
    }
  }

  /** While all instances are busy: rows to take now; 0 to wait for more. */
  #chooseSize(nowMs: number): number {
    const { pendingRows } = this.#options.stats;
    const preferred = this.#preferredSizes.findLast((size) => size <= pendingRows);
    if (preferred !== undefined) return preferred;
    const waitedMs = nowMs - this.#queue.oldestArrivalMs();
    const remainingMs = this.#batching.maxQueueDelayMicros / 1_000 - waitedMs;
    if (remainingMs <= 0) return pendingRows;
    this.#delayTimer ??= setTimeout(() => {
      this.#delayTimer = undefined;
      this.#dispatch();
    }, Math.ceil(remainingMs));
    return 0;
  }

  #formBatch(rowsMax: number, nowMs: number): Batch<R> {
    const slices: RequestSlice<R>[] = [];
    let rowCount = 0;
    while (rowCount < rowsMax) {
      let request = this.#queue.next(nowMs);
      const [first] = slices;
      if (first !== undefined && request?.group !== first.request.group) {
        request = this.#queue.nextOfGroup(first.request.group);
      }
      if (request === undefined) break;
      if (this.#dropExpired(request, nowMs)) continue;
      const count = Math.min(request.waitingRows, rowsMax - rowCount);
      slices.push(request.takeSlice(count, rowCount, nowMs));
      this.#addPendingRows(request, -count);
      this.#queue.update(request);
      rowCount += count;
    }
    return { slices, rowCount };
  }

  #start(batch: Batch<R>): void {
    const { rowCount } = batch;
    this.#inFlight++;
    this.#inFlightRows += rowCount;
    void this.#options.runner.runBatch(batch, this).then(() => {
      const { stats, clock } = this.#options;
      this.#inFlight--;
      this.#inFlightRows -= rowCount;
      this.#rate.recordBatch(rowCount, clock.nowMs(), stats.pendingRows > 0);
      this.#dispatch();
    });
  }

  /**
   * Fails a request that was cancelled or has waited too long. @returns whether it is no longer
   * open
   */
  #dropExpired(request: R, nowMs: number): boolean {
    const { deadlineMs, signal } = request.options;
    if (nowMs >= deadlineMs) this.fail(request, makeExpiredError());
    else if (signal?.aborted) this.fail(request, makeCancelledError());
    else {
      const timeoutMs = this.#queue.findExceededTimeout(request, nowMs);
      if (timeoutMs !== undefined) this.fail(request, makeQueueTimeoutError(timeoutMs));
    }
    return !request.isOpen;
  }

  #sweep(): void {
    const nowMs = this.#options.clock.nowMs();
    const before = this.#openRequests.size;
    this.#openRequests.forEach((request) => {
      this.#dropExpired(request, nowMs);
    });
    if (this.#openRequests.size < before) this.#queue.removeFinished();
    this.#sweepTimer =
      this.#openRequests.size === 0
        ? undefined
        : setTimeout(() => this.#sweep(), SWEEP_INTERVAL_MS).unref();
  }
}

function makeExpiredError(): CubeError {
  return new CubeError(
    'DEADLINE_EXCEEDED',
    'the deadline passed before the prediction was ready; send fewer rows, or a larger timeout-ms',
  );
}

function makeQueueFullError(limit: number): CubeError {
  return new CubeError(
    'OVERLOADED',
    `${limit} requests of this priority wait, which is the limit of the model; try again later`,
  );
}

function makeQueueTimeoutError(queueTimeoutMs: number): CubeError {
  return new CubeError(
    'OVERLOADED',
    `the request waited ${queueTimeoutMs} ms for a model instance; try again later`,
  );
}

function makeCancelledError(): CubeError {
  return new CubeError('DEADLINE_EXCEEDED', 'the caller cancelled the request');
}
