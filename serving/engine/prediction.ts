/** What callers of the engine pass to a prediction, and what they get. */
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { Share } from './fair-order.ts';

export interface PredictOptions {
  /** On the scale of the clock's `nowMs`. */
  readonly deadlineMs: number;
  /** 0 is the highest; default 1. */
  readonly priority?: number;
  /** Whether the result lists the lookup outcomes of each slot. */
  readonly slotOutcomes?: boolean;
  readonly signal?: CancelSignal;
  /** Maximum wait for the first batch, where the queue policy allows requests to give one. */
  readonly queueTimeoutMs?: number;
  /** The caller and its weight; callers share the capacity. Absent: all count as one. */
  readonly share?: Share;
  /** The span of the request; absent: it is not traced. */
  readonly span?: TraceSpan | undefined;
  /** Records the steps of the request; absent: it has no profile. */
  readonly profile?: TraceSpan | undefined;
  /** Called once, when the request is in its first batch or answered without one. */
  onScheduled?(): void;
}

/**
 * Aborted when the caller no longer waits for the result. The engine polls it before each step, so
 * it needs no events; an AbortSignal is one.
 */
export type CancelSignal = Pick<AbortSignal, 'aborted'>;

/** A float output of the graph: rowCount × width. */
export interface PredictionOutput {
  readonly name: string;
  readonly data: Float32Array;
  readonly width: number;
}

/** Outcomes of the lookups of one slot, counted over all rows. */
export interface SlotOutcomes {
  readonly slot: string;
  readonly hit: number;
  readonly unseen: number;
  readonly unavailable: number;
}

export interface Prediction {
  readonly rowCount: number;
  /** The graph's click output: rowCount × clickWidth. */
  readonly clickOutput: Float32Array;
  readonly clickWidth: number;
  /** Every float output of the graph, the click output first. */
  readonly outputs: readonly PredictionOutput[];
  /** The version of graph and tables. */
  readonly version: string;
  readonly unseen: number;
  readonly unavailable: number;
  /** Some lookups were unavailable: their default rows were used. */
  readonly degraded: boolean;
  /** Present when `slotOutcomes` was set. */
  readonly slots?: readonly SlotOutcomes[];
  readonly timings: {
    /** Wait for the first batch. */
    readonly queueMicros: number;
    /** Summed over the batches that the request was in. */
    readonly lookupMicros: number;
    readonly inferMicros: number;
    /** Copies of outputs. */
    readonly outputMicros: number;
    /** The lookup in the request cache; absent without a cache. */
    readonly cacheMicros?: number;
  };
}

/** What is counted and logged of an answered request. */
export type PredictionSummary = Pick<
  Prediction,
  'version' | 'rowCount' | 'unseen' | 'unavailable' | 'degraded' | 'timings'
>;
