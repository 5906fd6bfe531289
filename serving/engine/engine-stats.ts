/**
 * Counters of the engine for one version since its warm-up. The engine writes them; metrics and
 * protocols read them.
 */
import type { ErrorCode } from '../../lib/core/errors.ts';
import { wallClockMs } from '../../lib/platform/clock.ts';

/** Lookups without a row, by position of a row's keys. */
export interface KeyMisses {
  readonly unseen: Float64Array;
  readonly unavailable: Float64Array;
}

/** Batches of one size. */
export interface BatchSizeStats {
  readonly rows: number;
  readonly executions: number;
  readonly lookupMicros: number;
  readonly inferMicros: number;
}

/** The outcome of a request that the graph answered. */
export interface RequestOutcome {
  /** Sum of the scores of its rows. */
  readonly scoreSum: number;
  readonly lookups: number;
  readonly unseen: number;
  readonly unavailable: number;
  /** From arrival to answer. */
  readonly durationMs: number;
}

/** Durations are counted in steps of 1, 2, 4 … milliseconds. */
const DURATION_STEPS = 18;

export class EngineStats {
  /** Answered requests. */
  requests = 0;
  /** Rows of answered requests. */
  rows = 0;
  /**
   * Failed requests by error code. Invalid requests fail before they reach the engine, and are not
   * counted.
   */
  readonly failures: Map<ErrorCode, number> = new Map();
  /** Requests answered from the request cache; `requests` includes them. */
  cacheHits = 0;
  cacheMisses = 0;
  /** Time of the request cache's lookups. */
  cacheHitMicros = 0;
  cacheMissMicros = 0;
  /** The following sums are over the requests that the graph answered. */
  scoredRows = 0;
  scoreSum = 0;
  lookups = 0;
  unseen = 0;
  unavailable = 0;
  /** Rows that are not in a batch yet. */
  pendingRows = 0;
  /** Requests that are not answered yet. */
  pendingRequests = 0;
  /** Runs of the graph. */
  executions = 0;
  /** Time from arrival to first batch, summed over requests. */
  queueMicros = 0;
  /** Summed over batches. */
  lookupMicros = 0;
  inferMicros = 0;
  /** Time of copying outputs to requests. */
  outputMicros = 0;
  /** Lookups of answered requests without a row, by position of a row's keys. */
  readonly misses: KeyMisses;
  /** Time of the last answer, in milliseconds since 1970; 0 before the first. */
  lastInferenceMs = 0;
  readonly #byDuration = new Float64Array(DURATION_STEPS);
  readonly #executionsBySize: Float64Array;
  readonly #lookupBySize: Float64Array;
  readonly #inferBySize: Float64Array;

  /** @param keyNum keys of a row; 0 for a graph without tables */
  constructor(rowsMax: number, keyNum = 0) {
    this.misses = {
      unseen: new Float64Array(keyNum),
      unavailable: new Float64Array(keyNum),
    };
    this.#executionsBySize = new Float64Array(rowsMax + 1);
    this.#lookupBySize = new Float64Array(rowsMax + 1);
    this.#inferBySize = new Float64Array(rowsMax + 1);
  }

  recordBatch(rowCount: number, lookupMicros: number, inferMicros: number): void {
    this.executions++;
    this.lookupMicros += lookupMicros;
    this.inferMicros += inferMicros;
    this.#executionsBySize[rowCount]!++;
    this.#lookupBySize[rowCount]! += lookupMicros;
    this.#inferBySize[rowCount]! += inferMicros;
  }

  /** Counts lookups that a request made before its batch. */
  recordLookups(
    counts: Pick<RequestOutcome, 'lookups' | 'unseen' | 'unavailable'> & {
      readonly lookupMicros: number;
    },
  ): void {
    this.lookups += counts.lookups;
    this.unseen += counts.unseen;
    this.unavailable += counts.unavailable;
    this.lookupMicros += counts.lookupMicros;
  }

  /** @param cached the cached prediction, undefined for a miss */
  recordCacheLookup(cached: { readonly rowCount: number } | undefined, micros: number): void {
    if (cached === undefined) {
      this.cacheMisses++;
      this.cacheMissMicros += micros;
      return;
    }
    this.cacheHits++;
    this.cacheHitMicros += micros;
    this.recordAnswer(cached.rowCount, 0);
  }

  recordAnswer(rowCount: number, queueMicros: number): void {
    this.requests++;
    this.rows += rowCount;
    this.queueMicros += queueMicros;
    this.lastInferenceMs = wallClockMs();
  }

  recordOutcome(rowCount: number, outcome: RequestOutcome): void {
    this.scoredRows += rowCount;
    this.scoreSum += outcome.scoreSum;
    this.lookups += outcome.lookups;
    this.unseen += outcome.unseen;
    this.unavailable += outcome.unavailable;
    const step = Math.ceil(Math.log2(Math.max(1, outcome.durationMs)));
    this.#byDuration[Math.min(step, DURATION_STEPS - 1)]!++;
  }

  /**
   * Requests by duration: up to `millis`, and more than the previous step. The last step includes
   * all longer ones.
   */
  durationHistogram(): { readonly millis: number; readonly requests: number }[] {
    return Array.from(this.#byDuration, (requests, step) => ({ millis: 2 ** step, requests }));
  }

  recordFailure(code: ErrorCode): void {
    this.failures.set(code, (this.failures.get(code) ?? 0) + 1);
  }

  /** Resets all counters after the warm-up, whose rows do not count. Nothing may be pending. */
  reset(): void {
    this.requests = this.rows = this.executions = this.cacheHits = this.cacheMisses = 0;
    this.scoredRows = this.scoreSum = this.lookups = this.unseen = this.unavailable = 0;
    this.queueMicros = this.lookupMicros = this.inferMicros = this.lastInferenceMs = 0;
    this.cacheHitMicros = this.cacheMissMicros = this.outputMicros = 0;
    for (const counts of [this.misses.unseen, this.misses.unavailable]) counts.fill(0);
    this.failures.clear();
    const bySize = [this.#executionsBySize, this.#lookupBySize, this.#inferBySize];
    for (const counts of [this.#byDuration, ...bySize]) counts.fill(0);
  }

  /** The batch sizes that occurred, ascending. */
  batchSizes(): BatchSizeStats[] {
    const sizes: BatchSizeStats[] = [];
    this.#executionsBySize.forEach((executions, rows) => {
      if (executions === 0) return;
      const lookupMicros = this.#lookupBySize[rows] ?? 0;
      const inferMicros = this.#inferBySize[rows] ?? 0;
      sizes.push({ rows, executions, lookupMicros, inferMicros });
    });
    return sizes;
  }
}

/** Sums one column of rows that have `width` values each. */
export function sumColumn(values: Float32Array, width: number, column: number): number {
  let sum = 0;
  for (let i = column; i < values.length; i += width) sum += values[i]!;
  return sum;
}
