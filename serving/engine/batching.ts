/** How requests become batches. */

export interface BatchingOptions {
  /** Rows of the largest batch; 64 is the knee of most graphs' throughput. */
  readonly maxBatch: number;
  /** Sizes to make while every instance is busy, ascending: the next batch waits until it has the first of them. */
  readonly preferredSizes: readonly number[];
  /** So long rows wait for a preferred size. An idle instance takes what there is at once. */
  readonly maxQueueDelayMicros: number;
  /** Rows that may wait; a request beyond is refused, unless nothing waits. */
  readonly queueRowsMax: number;
  /** So long a request may wait for its first batch; 0: as long as its deadline lets it. */
  readonly queueTimeoutMs: number;
  /** 0 goes first. */
  readonly priorityLevels: number;
}

export const DEFAULT_BATCHING: BatchingOptions = {
  maxBatch: 64,
  preferredSizes: [32, 64],
  maxQueueDelayMicros: 500,
  queueRowsMax: 65_536,
  queueTimeoutMs: 10_000,
  priorityLevels: 3,
};

/** What to do when no replica answers for a key. */
export interface DegradationPolicy {
  /** `fail`: refuse the request; `default`: answer with the tables' default rows, marked degraded. */
  readonly onUnavailable: 'fail' | 'default';
  /** With `fail`: the share of a request's lookups that may be unavailable and still be answered, degraded. */
  readonly maxUnavailableShare: number;
}

export const DEFAULT_POLICY: DegradationPolicy = { onUnavailable: 'fail', maxUnavailableShare: 0 };
