/** One request on its way through the batches: which of its rows are where, and what has come of them. */
import type { CubeError } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/features.ts';
import type { OutcomeCounts } from './batch-buffers.ts';
import type { OutputShape } from './batch-slab.ts';

/** What a door says of a call. */
export interface PredictCall {
  /** On the scale of the clock's `nowMs`. */
  readonly deadlineMs: number;
  /** 0 goes first; default 1. */
  readonly priority?: number;
  /** Outcomes slot by slot are wanted. */
  readonly detail?: boolean;
  readonly signal?: CallerSignal;
}

/** Aborted when nobody waits for the answer any more. It is asked before each piece of work and need not tell; an AbortSignal is one. */
export type CallerSignal = Pick<AbortSignal, 'aborted'>;

/** Some rows of a request in one batch. */
export interface Slice {
  readonly request: EngineRequest;
  /** The first of the request's rows, and how many. */
  readonly start: number;
  readonly count: number;
  /** Where they are in the batch. */
  readonly at: number;
  /** Lookups that nobody answered, once they were made; made again, they count once. */
  unavailable: number;
}

export const DEFAULT_PRIORITY = 1;

export class EngineRequest {
  readonly rows: KeyedRows;
  readonly call: PredictCall;
  readonly arrivedMs: number;
  /** One for each output of the graph. */
  readonly outputs: readonly Float32Array[];
  readonly counts: OutcomeCounts = { unseen: 0, unavailable: 0 };
  /** With detail: hit, unseen, unavailable for each position of a row's keys. */
  readonly byKey: Uint32Array | undefined;
  /** Of all its slices that were looked up. */
  unavailable = 0;
  queueMicros = 0;
  /** Summed over its batches. */
  lookupMicros = 0;
  inferMicros = 0;
  /** The first row that is in no batch yet. */
  nextRow = 0;
  readonly #resolve: (request: EngineRequest) => void;
  readonly #reject: (error: CubeError) => void;
  readonly #onSettled: () => void;
  #doneRows = 0;
  #slices = 0;
  #isOpen = true;

  constructor(
    rows: KeyedRows,
    call: PredictCall,
    shape: { arrivedMs: number; outputs: readonly OutputShape[]; keyNum: number },
    /** `settled` is called once, when it is answered or failed and no batch holds rows of it any more. */
    on: {
      resolve(request: EngineRequest): void;
      reject(error: CubeError): void;
      settled(): void;
    },
  ) {
    this.rows = rows;
    this.call = call;
    this.arrivedMs = shape.arrivedMs;
    this.outputs = shape.outputs.map(({ width }) => new Float32Array(rows.rowCount * width));
    this.byKey = call.detail ? new Uint32Array(3 * shape.keyNum) : undefined;
    this.#resolve = on.resolve;
    this.#reject = on.reject;
    this.#onSettled = on.settled;
  }

  /** Neither answered nor failed. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Rows that are in no batch yet. */
  get waitingRows(): number {
    return this.#isOpen ? this.rows.rowCount - this.nextRow : 0;
  }

  /** Its next rows go into a batch, from `at` on. */
  take(count: number, at: number, nowMs: number): Slice {
    if (this.nextRow === 0) this.queueMicros = 1_000 * (nowMs - this.arrivedMs);
    const slice = { request: this, start: this.nextRow, count, at, unavailable: 0 };
    this.nextRow += count;
    this.#slices++;
    return slice;
  }

  /** Rows of a slice are in the outputs. @returns whether these were the last: it is answered now */
  finish(count: number): boolean {
    this.#doneRows += count;
    const isAnswered = this.#isOpen && this.#doneRows === this.rows.rowCount;
    if (isAnswered) {
      this.#isOpen = false;
      this.#resolve(this);
    }
    this.#leaveSlice();
    return isAnswered;
  }

  /** No batch holds rows of a slice any more, which failed. */
  drop(): void {
    this.#leaveSlice();
  }

  /** @returns false when it was answered or failed before */
  fail(error: CubeError): boolean {
    if (!this.#isOpen) return false;
    this.#isOpen = false;
    this.#reject(error);
    if (this.#slices === 0) this.#onSettled();
    return true;
  }

  #leaveSlice(): void {
    this.#slices--;
    if (this.#slices === 0 && !this.#isOpen) this.#onSettled();
  }
}
