/** What one side of a replay did: a score for each golden row, lookups slot by slot, latencies, and what failed. */
import type { CtrPrediction } from '../../lib/client/ctr-rows.ts';
import type { CubeError, ErrorCode } from '../../lib/core/errors.ts';
import type { GoldenRow } from './golden-rows.ts';

/** Lines whose failures are kept word for word. */
const FAILED_LINES_MAX = 1_000;

export interface SlotLookups {
  readonly slot: string;
  hit: number;
  unseen: number;
  unavailable: number;
}

export interface FailedLine {
  readonly line: number;
  readonly code: ErrorCode;
  readonly message: string;
}

export class SideRecord {
  /** NaN where a row has none. */
  readonly scores: Float64Array;
  readonly slots: Map<string, SlotLookups> = new Map();
  /** Milliseconds from when a request was due until it was answered. */
  readonly latencies: number[] = [];
  readonly failedLines: FailedLine[] = [];
  /** Rows that were not answered, over all requests, by code. */
  readonly failedRows: Map<ErrorCode, number> = new Map();
  #rowsSent = 0;

  constructor(rowCount: number) {
    this.scores = new Float64Array(rowCount).fill(Number.NaN);
  }

  /** Rows of all requests. */
  get rowsSent(): number {
    return this.#rowsSent;
  }

  noteSent(rows: number): void {
    this.#rowsSent += rows;
  }

  noteLatency(ms: number): void {
    this.latencies.push(ms);
  }

  /** @param start the first of the rows that the answer has scores for */
  noteAnswer(start: number, { probabilities, slots = [] }: CtrPrediction): void {
    this.scores.set(probabilities, start);
    for (const { slot, hit, unseen, unavailable } of slots) {
      const sum = this.slots.get(slot) ?? { slot, hit: 0, unseen: 0, unavailable: 0 };
      sum.hit += hit;
      sum.unseen += unseen;
      sum.unavailable += unavailable;
      this.slots.set(slot, sum);
    }
  }

  noteFailure(rows: readonly GoldenRow[], { code, message }: CubeError): void {
    this.failedRows.set(code, (this.failedRows.get(code) ?? 0) + rows.length);
    for (const { line } of rows) {
      if (this.failedLines.length === FAILED_LINES_MAX) return;
      this.failedLines.push({ line, code, message });
    }
  }
}
