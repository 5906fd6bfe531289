/** What came back from one endpoint: latencies, scores, versions, failures. Memory is bounded by the rows, not by the requests. */
import type { CubeError } from '../../../lib/core/errors.ts';
import type { Answer } from '../protocols/caller.ts';
import { LatencyHistogram } from './latency-histogram.ts';

export interface VersionSeen {
  requests: number;
  /** When its first and its last answer came, since the start. */
  readonly firstMs: number;
  lastMs: number;
}

export interface Failures {
  count: number;
  /** The first one's message, with the rows it was about. */
  readonly first: string;
}

export class Tally {
  /** Of the requests that were answered. */
  readonly latencies: LatencyHistogram = new LatencyHistogram();
  /** One a row, of its last answer; NaN without one. */
  readonly probabilities: Float64Array;
  /** One a row; '' without an answer, or where the protocol does not say. */
  readonly versionOf: string[];
  readonly versions: Map<string, VersionSeen> = new Map();
  /** By error code. */
  readonly failures: Map<string, Failures> = new Map();
  failed = 0;
  /** Those of every pass. */
  rowsAnswered = 0;
  /** Answers whose graph and tables were of different versions. */
  mixed = 0;
  unseen = 0;
  unavailable = 0;
  degraded = 0;

  constructor(rowCount: number) {
    this.probabilities = new Float64Array(rowCount).fill(Number.NaN);
    this.versionOf = new Array<string>(rowCount).fill('');
  }

  /** @param atMs since the start */
  addAnswer(start: number, answer: Answer, latencyMs: number, atMs: number): void {
    const { probabilities, version } = answer;
    this.latencies.add(latencyMs);
    this.probabilities.set(probabilities, start);
    this.versionOf.fill(version, start, start + probabilities.length);
    this.rowsAnswered += probabilities.length;
    const seen = this.versions.get(version);
    if (seen === undefined) {
      this.versions.set(version, { requests: 1, firstMs: atMs, lastMs: atMs });
    } else {
      seen.requests++;
      seen.lastMs = atMs;
    }
    if (version !== answer.tablesVersion) this.mixed++;
    this.unseen += answer.unseen;
    this.unavailable += answer.unavailable;
    if (answer.degraded) this.degraded++;
  }

  addFailure({ code, message }: CubeError, start: number, end: number): void {
    this.failed++;
    const first = `request of rows ${start + 1} to ${end}: ${message}`;
    const known = this.failures.get(code);
    if (known === undefined) this.failures.set(code, { count: 1, first });
    else known.count++;
  }
}
