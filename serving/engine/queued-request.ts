/**
 * One request on its way through the batches: which of its rows are in which batch, and whether it
 * is answered. Engines add its rows and its results (EngineRequest, GraphRequest).
 */
import type { CubeError } from '../../lib/core/errors.ts';
import type { LiveItem } from '../../lib/core/live-list.ts';
import type { PredictOptions } from './prediction.ts';

/** Consecutive rows of a request in one batch. */
export interface RequestSlice<R extends QueuedRequest> {
  readonly request: R;
  /** The first row, counted in the request. */
  readonly firstRow: number;
  readonly rowCount: number;
  /** The first row, counted in the batch. */
  readonly batchRow: number;
  /**
   * Unavailable lookups of the last attempt, so that a repeated batch does not count them twice.
   */
  unavailable: number;
}

/** Rows of one or more requests, at most as many as the largest batch has. */
export interface Batch<R extends QueuedRequest> {
  readonly slices: readonly RequestSlice<R>[];
  readonly rowCount: number;
}

/** How a request is queued. */
export interface QueueEntry {
  readonly options: PredictOptions;
  readonly arrivedMs: number;
  /** Its last row is in the outputs. */
  resolve(): void;
  reject(error: CubeError): void;
  /** Called once, when the request has ended and no batch holds rows of it any more. */
  settled(): void;
}

export const DEFAULT_PRIORITY = 1;

export abstract class QueuedRequest implements LiveItem {
  previous: LiveItem | undefined;
  next: LiveItem | undefined;
  readonly rowCount: number;
  /** Only requests of one group share a batch; undefined: all of them. */
  readonly group: string | undefined;
  readonly options: PredictOptions;
  readonly arrivedMs: number;
  queueMicros = 0;
  /** Summed over its batches. */
  lookupMicros = 0;
  inferMicros = 0;
  /** Time of copying the outputs of its batches. */
  outputMicros = 0;
  /** The first row that is not in a batch yet. */
  nextRow = 0;
  /** Its place among the requests of its priority. */
  place = 0;
  /** It has waiting rows in a queue. */
  isQueued = false;
  readonly #entry: QueueEntry;
  #finishedRows = 0;
  /** Slices that are in a batch. */
  #sliceCount = 0;
  #isOpen = true;

  constructor(rowCount: number, entry: QueueEntry, group?: string) {
    this.rowCount = rowCount;
    this.group = group;
    this.options = entry.options;
    this.arrivedMs = entry.arrivedMs;
    this.#entry = entry;
  }

  /** Neither answered nor failed. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Rows that are not in a batch yet. */
  get waitingRows(): number {
    return this.#isOpen ? this.rowCount - this.nextRow : 0;
  }

  /** Moves the next rows into a batch, from row `batchRow` of it on. */
  takeSlice(rowCount: number, batchRow: number, nowMs: number): RequestSlice<this> {
    if (this.nextRow === 0) {
      this.queueMicros = 1_000 * (nowMs - this.arrivedMs);
      this.options.onScheduled?.();
    }
    const slice = { request: this, firstRow: this.nextRow, rowCount, batchRow, unavailable: 0 };
    this.nextRow += rowCount;
    this.#sliceCount++;
    return slice;
  }

  /**
   * The rows of a slice are in the outputs. @returns whether they were the last rows, so that the
   * request is answered
   */
  finishSlice(rowCount: number): boolean {
    this.#finishedRows += rowCount;
    const isAnswered = this.#isOpen && this.#finishedRows === this.rowCount;
    if (isAnswered) {
      this.#isOpen = false;
      this.#entry.resolve();
    }
    this.dropSlice();
    return isAnswered;
  }

  /** No batch holds the rows of a slice any more. */
  dropSlice(): void {
    this.#sliceCount--;
    if (this.#sliceCount === 0 && !this.#isOpen) this.#entry.settled();
  }

  /** @returns false when the request was answered or failed before */
  fail(error: CubeError): boolean {
    if (!this.#isOpen) return false;
    this.#isOpen = false;
    this.#entry.reject(error);
    if (this.#sliceCount === 0) this.#entry.settled();
    return true;
  }
}

/** What a batch asks of its scheduler, which keeps track of the requests. */
export interface BatchScheduler<R extends QueuedRequest> {
  /** Fails a request. No effect on one that was answered or failed before. */
  fail(request: R, error: CubeError): void;
  /** Every row of the request is in its outputs. */
  complete(request: R): void;
  /** Runs the batch again. */
  retry(batch: Batch<R>): void;
}

/** Drops the batch when none of its requests is open any more. @returns whether it did */
export function dropIfAbandoned({ slices }: Batch<QueuedRequest>): boolean {
  if (slices.some(({ request }) => request.isOpen)) return false;
  for (const { request } of slices) request.dropSlice();
  return true;
}

/**
 * The graph may refuse a batch because of one request's rows: each request then runs alone, and
 * fails alone.
 */
export function handleRunError<R extends QueuedRequest>(
  batch: Batch<R>,
  error: CubeError,
  scheduler: BatchScheduler<R>,
): void {
  if (error.code !== 'INTERNAL' || batch.slices.length === 1) {
    failBatch(batch, error, scheduler);
    return;
  }
  for (const slice of batch.slices) {
    scheduler.retry({ slices: [{ ...slice, batchRow: 0 }], rowCount: slice.rowCount });
  }
}

export function failBatch<R extends QueuedRequest>(
  { slices }: Batch<R>,
  error: CubeError,
  scheduler: BatchScheduler<R>,
): void {
  for (const { request } of slices) {
    scheduler.fail(request, error);
    request.dropSlice();
  }
}
