/** A request as the hooks of one op see it, in the thread that runs them. */
import type { Logger } from '../../lib/platform/logs.ts';
import type { LazyAbort } from './lazy-abort.ts';
import type { OpContext, OpInputs, OpValues } from './op.ts';
import type { OpTiming } from './pipeline-answer.ts';
import type { RequestVersions } from './request-versions.ts';
import type { Stopped } from './stopped.ts';

/** Its `outMs` changes while the output waits. */
export type RunningTiming = { -readonly [K in keyof OpTiming]: OpTiming[K] };

/** A request in progress: of this thread, or a stand-in for one of another thread. */
export interface ExecutionCall {
  readonly dataId: number;
  readonly logId: bigint;
  /** On the scale of this thread's `performance.now()`; Infinity for none. */
  readonly deadlineMs: number;
  readonly versions: RequestVersions;
  readonly abort: LazyAbort;
  readonly logger: Logger;
  readonly hasEnded: boolean;
  /** A time of `performance.now()` on the scale of timings. */
  sinceStart(nowMs: number): number;
  /**
   * Takes the output of an op. Ignored after the end.
   * @returns a promise when a channel is full: it resolves when the output has a place
   */
  complete(step: number, values: OpValues, timing: RunningTiming): Promise<unknown> | undefined;
  /** Ends the request with a code. Ignored after the end. */
  fail(stopped: Stopped): void;
}

/** The complete inputs of an op for one request. */
export interface ExecutionTask {
  readonly call: ExecutionCall;
  /** Position of the op in the plan. */
  readonly step: number;
  readonly inputs: OpInputs;
  /** When the inputs were complete, on the scale of `performance.now()`. */
  readonly readyMs: number;
}

export class CallContext implements OpContext {
  readonly call: ExecutionCall;
  readonly concurrencyIndex: number;

  constructor(call: ExecutionCall, concurrencyIndex: number) {
    this.call = call;
    this.concurrencyIndex = concurrencyIndex;
  }

  get logId(): bigint {
    return this.call.logId;
  }

  get dataId(): number {
    return this.call.dataId;
  }

  get signal(): AbortSignal {
    return this.call.abort.signal;
  }

  get isAborted(): boolean {
    return this.call.hasEnded;
  }

  get remainingMs(): number {
    return this.call.deadlineMs - performance.now();
  }

  get versions(): RequestVersions {
    return this.call.versions;
  }

  get logger(): Logger {
    return this.call.logger;
  }
}
