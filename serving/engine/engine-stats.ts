/** What the engine has done for one version: counts since its warm-up. Written by the batcher, read by metrics and doors. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';

/** Batches of one size. */
export interface BatchSizeStats {
  readonly rows: number;
  readonly executions: number;
  readonly lookupMicros: number;
  readonly inferMicros: number;
}

/** What came of a request whose rows went through the graph. */
export interface RequestOutcome {
  /** Of its scores, row by row. */
  readonly scoreSum: number;
  readonly lookups: number;
  readonly unseen: number;
  readonly unavailable: number;
  /** From its arrival to its answer. */
  readonly millis: number;
}

/** Requests are counted up to 1, 2, 4 … milliseconds. */
const DURATION_STEPS = 18;

export class EngineStats {
  /** Answered. */
  requests = 0;
  /** Of requests that were answered. */
  rows = 0;
  /** Requests that failed, by code; the caller's own mistakes are refused before they come here. */
  readonly failures: Map<ErrorCode, number> = new Map();
  /** Answered from the request cache, among `requests`. */
  cacheHits = 0;
  cacheMisses = 0;
  /** Of requests that the graph answered: what the version makes of them. */
  scoredRows = 0;
  scoreSum = 0;
  lookups = 0;
  unseen = 0;
  unavailable = 0;
  /** Rows that wait to be put into a batch, and requests that are not answered yet. */
  pendingRows = 0;
  pendingRequests = 0;
  /** Runs of the graph. */
  executions = 0;
  /** From a request's arrival to its first batch, summed over requests. */
  queueMicros = 0;
  /** Summed over batches. */
  lookupMicros = 0;
  inferMicros = 0;
  /** When the last request was answered, milliseconds since 1970; 0: none was. */
  lastInferenceMs = 0;
  readonly #byDuration = new Float64Array(DURATION_STEPS);
  readonly #executionsBySize: Float64Array;
  readonly #lookupBySize: Float64Array;
  readonly #inferBySize: Float64Array;

  constructor(rowsMax: number) {
    this.#executionsBySize = new Float64Array(rowsMax + 1);
    this.#lookupBySize = new Float64Array(rowsMax + 1);
    this.#inferBySize = new Float64Array(rowsMax + 1);
  }

  onBatch(rowCount: number, lookupMicros: number, inferMicros: number): void {
    this.executions++;
    this.lookupMicros += lookupMicros;
    this.inferMicros += inferMicros;
    this.#executionsBySize[rowCount]!++;
    this.#lookupBySize[rowCount]! += lookupMicros;
    this.#inferBySize[rowCount]! += inferMicros;
  }

  /** @param known what the request cache had */
  onCache(known: { readonly rowCount: number } | undefined): void {
    if (known === undefined) {
      this.cacheMisses++;
      return;
    }
    this.cacheHits++;
    this.onAnswered(known.rowCount, 0);
  }

  onAnswered(rowCount: number, queueMicros: number): void {
    this.requests++;
    this.rows += rowCount;
    this.queueMicros += queueMicros;
    this.lastInferenceMs = wallClockMs();
  }

  onOutcome(rowCount: number, outcome: RequestOutcome): void {
    this.scoredRows += rowCount;
    this.scoreSum += outcome.scoreSum;
    this.lookups += outcome.lookups;
    this.unseen += outcome.unseen;
    this.unavailable += outcome.unavailable;
    const step = Math.ceil(Math.log2(Math.max(1, outcome.millis)));
    this.#byDuration[Math.min(step, DURATION_STEPS - 1)]!++;
  }

  /** Requests that took up to so many milliseconds, and more than the step before; the last step takes all that is longer. */
  durations(): { readonly millis: number; readonly requests: number }[] {
    return Array.from(this.#byDuration, (requests, step) => ({ millis: 2 ** step, requests }));
  }

  onFailure(code: ErrorCode): void {
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
  }

  /** From zero again, as after a warm-up: what nobody asked for is not counted. Nothing may be pending. */
  reset(): void {
    this.requests = this.rows = this.executions = this.cacheHits = this.cacheMisses = 0;
    this.scoredRows = this.scoreSum = this.lookups = this.unseen = this.unavailable = 0;
    this.queueMicros = this.lookupMicros = this.inferMicros = this.lastInferenceMs = 0;
    this.failures.clear();
    const bySize = [this.#executionsBySize, this.#lookupBySize, this.#inferBySize];
    for (const sums of [this.#byDuration, ...bySize]) sums.fill(0);
  }

  /** Of the sizes that occurred, ascending. */
  batchSizes(): BatchSizeStats[] {
    const sizes: BatchSizeStats[] = [];
    this.#executionsBySize.forEach((executions, rows) => {
      if (executions === 0) return;
      const [lookupMicros, inferMicros] = [this.#lookupBySize[rows]!, this.#inferBySize[rows]!];
      sizes.push({ rows, executions, lookupMicros, inferMicros });
    });
    return sizes;
  }
}

/** Of one column of rows of so many values. */
export function columnSum(values: Float32Array, width: number, column: number): number {
  let sum = 0;
  for (let i = column; i < values.length; i += width) sum += values[i]!;
  return sum;
}
