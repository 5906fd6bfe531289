/** Messages between the pipeline and the worker threads of its ops. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import type { LogLevel } from '../../lib/platform/logs.ts';
import type { ModuleSnapshot } from './module-snapshot.ts';
import type { OpInputs, OpValues } from './op.ts';
import type { ExecutionSettings } from './op-execution.ts';
import type { OpTiming } from './pipeline-answer.ts';

/** What a thread starts with. */
export interface OpThreadData {
  /** The file that exports the pipeline. */
  readonly file: string;
  /** The file as the pipeline was built from it; undefined: as it is. */
  readonly snapshot: ModuleSnapshot | undefined;
  readonly op: string;
  /** Which of the op's threads this is: its `concurrencyIndex`. */
  readonly slot: number;
  readonly settings: ExecutionSettings;
  /** The op has a client, which predicts in the pipeline's thread. */
  readonly hasClient: boolean;
  readonly logLevel: LogLevel;
  /** See `getClockOffsetMs`, in the pipeline's thread. */
  readonly clockOffsetMs: number;
  /** When the current try of `process` ends; see `TryDeadline`. */
  readonly tryDeadline: SharedArrayBuffer;
}

/** A request that an op is executed for. Times are those of the pipeline's thread. */
export interface ThreadTask {
  readonly dataId: number;
  readonly logId: bigint;
  readonly deadlineMs: number;
  readonly readyMs: number;
  readonly inputs: OpInputs;
  /** Its inputs could not be sent, so that it has failed already. */
  readonly isClosed?: boolean;
}

/** Why a request failed: the fields of `Stopped`. */
export interface ThreadFailure {
  readonly errNo: number;
  readonly message: string;
  readonly isProductError: boolean;
}

export interface ThreadError {
  readonly code: ErrorCode;
  readonly message: string;
}

export type MessageToThread =
  | { readonly type: 'run'; readonly tasks: readonly ThreadTask[] }
  /** The request of a task has ended. */
  | { readonly type: 'abort'; readonly task: number; readonly failure: ThreadFailure }
  | {
      readonly type: 'predicted';
      readonly id: number;
      readonly results?: readonly OpValues[];
      readonly error?: ThreadError;
    };

/** Requests of the running execution are named by their position in `run`. */
export type MessageFromThread =
  | { readonly type: 'ready' }
  | { readonly type: 'failed'; readonly error: ThreadError }
  | {
      readonly type: 'output';
      readonly task: number;
      readonly values: OpValues;
      readonly timing: OpTiming;
      readonly used?: UsedVersions;
    }
  | {
      readonly type: 'failure';
      readonly task: number;
      readonly failure: ThreadFailure;
      readonly used?: UsedVersions;
    }
  /** The execution has ended, with all its work. */
  | { readonly type: 'done' }
  /** The thread has seen that its requests have ended. */
  | { readonly type: 'aborted' }
  | {
      readonly type: 'predict';
      readonly id: number;
      readonly tasks: readonly number[];
      readonly feeds: readonly OpValues[];
      /** In the pipeline's thread. */
      readonly deadlineMs: number;
    }
  | { readonly type: 'cancel'; readonly id: number }
  | { readonly type: 'log'; readonly line: string };

/** What hooks recorded in `context.versions`. */
export interface UsedVersions {
  readonly versions: Readonly<Record<string, string>>;
  readonly degraded: boolean;
}

/** Differs between threads; its sum with `performance.now()` does not. */
export function getClockOffsetMs(): number {
  // Between its two readings the thread may wait for a core, which makes the difference smaller.
  const differences = Array.from({ length: 16 }, () => {
    return Number(process.hrtime.bigint()) / 1e6 - performance.now();
  });
  return Math.max(...differences);
}

/**
 * The end of a try of `process`, which the pipeline reads while its thread computes and answers no
 * message. In microseconds of the pipeline's clock.
 */
export class TryDeadline {
  readonly #cell: BigInt64Array;

  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(8)) {
    this.#cell = new BigInt64Array(buffer);
  }

  get buffer(): SharedArrayBuffer {
    return this.#cell.buffer as SharedArrayBuffer;
  }

  /** Infinity between tries. */
  get ms(): number {
    const micros = Atomics.load(this.#cell, 0);
    return micros === 0n ? Number.POSITIVE_INFINITY : Number(micros) / 1_000;
  }

  set ms(deadlineMs: number) {
    const hasEnd = Number.isFinite(deadlineMs);
    Atomics.store(this.#cell, 0, hasEnd ? BigInt(Math.ceil(1_000 * deadlineMs)) : 0n);
  }
}
