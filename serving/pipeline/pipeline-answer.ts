/** What a pipeline answers. */
import type { OpValues, RequestIds } from './op.ts';

/** The stages of an op for one request, in milliseconds from the start of the request. */
export interface OpTiming {
  readonly op: string;
  /** Which of the op's concurrent executions it was. */
  readonly slot: number;
  /** All inputs are there. */
  readonly readyMs: number;
  /** A slot is free: preprocess starts. */
  readonly startMs: number;
  /** Preprocess has ended. */
  readonly processMs: number;
  /** Process has ended. */
  readonly postMs: number;
  /** Postprocess has ended. */
  readonly endMs: number;
  /** The output has a place in the queue of every next op; `endMs` unless one was full. */
  readonly outMs: number;
}

export interface PipelineAnswer extends RequestIds {
  /** 0 or a code of `PIPELINE_ERROR` or of the user. */
  readonly errNo: number;
  /** Empty when `errNo` is 0. Names the op that failed. */
  readonly errMsg: string;
  /** Empty when `errNo` is not 0. */
  readonly values: OpValues;
  /** From the start of the request, or of its last try. */
  readonly durationMs: number;
  /** The ops that ended, in that order. */
  readonly timings: readonly OpTiming[];
  /** Model → the version that took part, also in requests that failed. */
  readonly versions: Readonly<Record<string, string>>;
  /** A prediction used default rows, because keys were unavailable. */
  readonly degraded: boolean;
}
