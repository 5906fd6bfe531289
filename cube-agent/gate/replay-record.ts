/** The results of one version in a replay: scores, lookups by slot, latencies and failures. */
import type { CtrPrediction } from '../../lib/client/ctr-rows.ts';
import type { CubeError, ErrorCode } from '../../lib/core/errors.ts';
import type { GoldenRow } from './golden-rows.ts';

/** Failed lines whose error messages are kept. */
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

export class ReplayRecord {
  /** By row; NaN: no score. */
  readonly scores: Float64Array;
  readonly slots: Map<string, SlotLookups> = new Map();
  /** Milliseconds from the scheduled time of a request to its response. */
  readonly latencies: number[] = [];
  readonly failedLines: FailedLine[] = [];
  /** Failed rows of all requests, by code. */
  readonly failedRows: Map<ErrorCode, number> = new Map();
  #rowsSent = 0;

  constructor(rowCount: number) {
    this.scores = new Float64Array(rowCount).fill(Number.NaN);
  }

  /** Rows sent in all requests. */
  get rowsSent(): number {
    return this.#rowsSent;
  }

  addSent(rows: number): void {
    this.#rowsSent += rows;
  }

  addLatency(ms: number): void {
    this.latencies.push(ms);
  }

  /** @param start index of the first row that was scored */
  addPrediction(start: number, { probabilities, slots = [] }: CtrPrediction): void {
    this.scores.set(probabilities, start);
    for (const { slot, hit, unseen, unavailable } of slots) {
      const sum = this.slots.get(slot) ?? { slot, hit: 0, unseen: 0, unavailable: 0 };
      sum.hit += hit;
      sum.unseen += unseen;
      sum.unavailable += unavailable;
      this.slots.set(slot, sum);
    }
  }

  addFailure(rows: readonly GoldenRow[], { code, message }: CubeError): void {
    this.failedRows.set(code, (this.failedRows.get(code) ?? 0) + rows.length);
    for (const { line } of rows) {
      if (this.failedLines.length === FAILED_LINES_MAX) return;
      this.failedLines.push({ line, code, message });
    }
  }
}
