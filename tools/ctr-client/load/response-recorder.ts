/**
 * Records responses of one endpoint: latencies, scores, versions, failures. Memory is bounded by
 * the number of rows, not by the number of requests.
 */
import type { CubeError } from '../../../lib/core/errors.ts';
import type { Variants } from '../../../proto/ctr.ts';
import type { PredictionResponse } from '../protocols/protocol-client.ts';
import { type LatencyCounts, LatencyHistogram } from './latency-histogram.ts';

export interface VersionUsage {
  requests: number;
  /** Times of its first and last response since the start. */
  firstMs: number;
  lastMs: number;
}

export interface FailureCount {
  count: number;
  /** Message of the first failure, with its rows. */
  readonly first: string;
}

/** What a recorder has recorded, to send it to another thread. */
export interface RecordedResponses
  extends Omit<ResponseRecorder, 'latencies' | 'export' | 'absorb' | `record${string}`> {
  readonly latencies: LatencyCounts;
}

export class ResponseRecorder {
  /** Latencies of answered requests. */
  readonly latencies: LatencyHistogram = new LatencyHistogram();
  /** Probability of each row from its last response; NaN without one. */
  readonly probabilities: Float64Array;
  /** Version of each row; '' without a response or if the protocol does not report it. */
  readonly rowVersions: string[];
  /** Variants of each row's last response, as an index into `variantSets`; -1 without. */
  readonly rowVariants: Int32Array;
  readonly variantSets: Variants[] = [];
  readonly #variantIndex = new Map<string, number>();
  readonly versions: Map<string, VersionUsage> = new Map();
  /** Failures by error code. */
  readonly failures: Map<string, FailureCount> = new Map();
  failedRequests = 0;
  /** Rows of all passes. */
  rowsAnswered = 0;
  /** Responses whose graph and tables came from different versions. */
  mixedResponses = 0;
  unseen = 0;
  unavailable = 0;
  degradedResponses = 0;

  constructor(rowCount: number) {
    this.probabilities = new Float64Array(rowCount).fill(Number.NaN);
    this.rowVariants = new Int32Array(rowCount).fill(-1);
    this.rowVersions = new Array<string>(rowCount).fill('');
  }

  /** @param atMs time since the start */
  recordResponse(start: number, answer: PredictionResponse, latencyMs: number, atMs: number): void {
    const { probabilities, version } = answer;
    this.latencies.add(latencyMs);
    this.probabilities.set(probabilities, start);
    this.rowVersions.fill(version, start, start + probabilities.length);
    const variants = this.#findVariants(answer.variants);
    this.rowVariants.fill(variants, start, start + probabilities.length);
    this.rowsAnswered += probabilities.length;
    const seen = this.versions.get(version);
    if (seen === undefined) {
      this.versions.set(version, { requests: 1, firstMs: atMs, lastMs: atMs });
    } else {
      seen.requests++;
      seen.lastMs = atMs;
    }
    if (version !== answer.tablesVersion) this.mixedResponses++;
    this.unseen += answer.unseen;
    this.unavailable += answer.unavailable;
    if (answer.degraded) this.degradedResponses++;
  }

  #findVariants(variants: Variants | undefined): number {
    if (variants === undefined) return -1;
    const text = JSON.stringify(variants);
    let index = this.#variantIndex.get(text);
    if (index === undefined) {
      index = this.variantSets.push(variants) - 1;
      this.#variantIndex.set(text, index);
    }
    return index;
  }

  export(): RecordedResponses {
    return { ...this, latencies: this.latencies.export() };
  }

  /** Adds what another recorder recorded of other rows of the same run. */
  absorb(other: RecordedResponses): void {
    this.latencies.absorb(other.latencies);
    for (const [row, probability] of other.probabilities.entries()) {
      if (Number.isNaN(probability)) continue;
      this.probabilities[row] = probability;
      this.rowVersions[row] = other.rowVersions[row] ?? '';
      this.rowVariants[row] = this.#findVariants(other.variantSets[other.rowVariants[row] ?? -1]);
    }
    for (const [version, usage] of other.versions) {
      const seen = this.versions.get(version);
      if (seen === undefined) this.versions.set(version, { ...usage });
      else {
        seen.requests += usage.requests;
        seen.firstMs = Math.min(seen.firstMs, usage.firstMs);
        seen.lastMs = Math.max(seen.lastMs, usage.lastMs);
      }
    }
    for (const [code, failure] of other.failures) {
      const known = this.failures.get(code);
      if (known === undefined) this.failures.set(code, { ...failure });
      else known.count += failure.count;
    }
    this.failedRequests += other.failedRequests;
    this.rowsAnswered += other.rowsAnswered;
    this.mixedResponses += other.mixedResponses;
    this.unseen += other.unseen;
    this.unavailable += other.unavailable;
    this.degradedResponses += other.degradedResponses;
  }

  recordFailure({ code, message }: CubeError, start: number, end: number): void {
    this.failedRequests++;
    const first = `request of rows ${start + 1} to ${end}: ${message}`;
    const known = this.failures.get(code);
    if (known === undefined) this.failures.set(code, { count: 1, first });
    else known.count++;
  }
}
