/**
 * Options of the engine: how requests form batches, and what happens when lookups are unavailable.
 */

/** How requests of one priority wait for an instance. */
export interface QueuePolicy {
  /** A request that waited too long fails, or runs after the others of its priority. */
  readonly timeoutAction: 'reject' | 'delay';
  /** Maximum time a request waits for its first batch; 0: until its deadline. */
  readonly timeoutMs: number;
  /** `PredictOptions.queueTimeoutMs` counts where it is shorter. */
  readonly allowsShorterTimeout: boolean;
  /** Maximum waiting requests; 0: no limit. */
  readonly requestsMax: number;
}

export interface BatchingOptions {
  /** Rows of the largest batch; the throughput of most graphs hardly grows beyond 64. */
  readonly maxBatch: number;
  /** Batch sizes to wait for while every instance is busy, ascending. */
  readonly preferredSizes: readonly number[];
  /** Maximum time a row waits for a preferred size. An idle instance never waits. */
  readonly maxQueueDelayMicros: number;
  /** Maximum waiting rows. A request that exceeds it fails, unless the queue is empty. */
  readonly queueRowsMax: number;
  /** Maximum time a request waits for its first batch; 0: until its deadline. */
  readonly queueTimeoutMs: number;
  /** Number of priorities; 0 is the highest. */
  readonly priorityLevels: number;
  /**
   * One for each priority, instead of `queueTimeoutMs`. A higher priority then always goes first;
   * otherwise requests of lower ones go first when they have waited long.
   */
  readonly queuePolicies?: readonly QueuePolicy[];
}

export const DEFAULT_BATCHING: BatchingOptions = {
  maxBatch: 64,
  preferredSizes: [32, 64],
  maxQueueDelayMicros: 500,
  queueRowsMax: 65_536,
  queueTimeoutMs: 0,
  priorityLevels: 3,
};

/** What happens to a request when no replica answers for some of its keys. */
export interface DegradationPolicy {
  /**
   * `fail`: the request fails; `default`: default rows are used, and the answer is marked degraded.
   */
  readonly onUnavailable: 'fail' | 'default';
  /**
   * With `fail`: the share of unavailable lookups up to which a request is still answered,
   * degraded.
   */
  readonly maxUnavailableShare: number;
}

export const DEFAULT_DEGRADATION: DegradationPolicy = {
  onUnavailable: 'fail',
  maxUnavailableShare: 0,
};

/** Batches that an instance may have: one runs, one is ready to run. */
export const BATCHES_PER_INSTANCE = 2;
