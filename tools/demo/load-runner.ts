/**
 * Sends a steady load during a rollout. Every response names its version, and its scores must be
 * those of that version. Rows of one version with the graph of another would be detected.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { ExpectedScores } from './expected-scores.ts';

const ROWS_PER_REQUEST = 16;
const CONCURRENCY = 4;
const TOLERANCE = 1e-5;
const SWITCH_TIMEOUT_MS = 120_000;
/** Pause between requests, so that the load does not starve the rollout of CPU time. */
const PAUSE_MS = 10;

export interface LoadReport {
  readonly requests: number;
  readonly failed: number;
  /** The error of the first failed request; empty when none failed. */
  readonly firstFailure: string;
  /** Responses whose scores are not those of the version they name. */
  readonly mixed: number;
  readonly versions: Readonly<Record<string, number>>;
}

interface PredictionResponse {
  readonly version: string;
  readonly tables_version: string;
  readonly probabilities: readonly number[];
}

export class LoadRunner {
  readonly #url: string;
  readonly #lines: readonly string[];
  readonly #reference: Readonly<Record<string, ExpectedScores>>;
  readonly #versions: Record<string, number> = {};
  readonly #stop: AbortSignal;
  #workers: Promise<void>[] = [];
  #running = true;
  #requests = 0;
  #failed = 0;
  #firstFailure = '';
  #mixed = 0;
  #latest = '';
  #latestCount = 0;

  /**
   * @param reference the expected score of every row, by version
   * @param stop ends the load without a call of `stop()`
   */
  constructor(
    endpoint: string,
    rows: string,
    reference: Readonly<Record<string, ExpectedScores>>,
    stop: AbortSignal = new AbortController().signal,
  ) {
    this.#url = `${endpoint}/v1/ctr:predict`;
    this.#lines = rows.trimEnd().split('\n');
    this.#reference = reference;
    this.#stop = stop;
  }

  start(): void {
    this.#workers = Array.from({ length: CONCURRENCY }, (_, worker) => this.#sendRequests(worker));
  }

  /** Resolves when at least the last `count` responses came from this version. */
  async waitForVersion(version: string, count: number): Promise<void> {
    const startMs = performance.now();
    while (this.#latest !== version || this.#latestCount < count) {
      this.#stop.throwIfAborted();
      if (performance.now() - startMs > SWITCH_TIMEOUT_MS) {
        throw new CubeError(
          'DEADLINE_EXCEEDED',
          `version ${version} did not serve all requests within ${SWITCH_TIMEOUT_MS / 1000} s: ` +
            `the last ${this.#latestCount} responses came from version ` +
            `${this.#latest || 'none'}, ` +
            `${this.#failed} of ${this.#requests} requests failed`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async stop(): Promise<LoadReport> {
    this.#running = false;
    await Promise.all(this.#workers);
    return {
      requests: this.#requests,
      failed: this.#failed,
      firstFailure: this.#firstFailure,
      mixed: this.#mixed,
      versions: this.#versions,
    };
  }

  async #sendRequests(worker: number): Promise<void> {
    const batches = Math.floor(this.#lines.length / ROWS_PER_REQUEST);
    for (let i = worker; this.#running && !this.#stop.aborted; i += CONCURRENCY) {
      const from = (i % batches) * ROWS_PER_REQUEST;
      this.#requests += 1;
      try {
        const response = await fetch(this.#url, {
          method: 'POST',
          headers: { 'content-type': 'text/tab-separated-values' },
          body: this.#lines.slice(from, from + ROWS_PER_REQUEST).join('\n'),
        });
        if (response.ok) this.#check((await response.json()) as PredictionResponse, from);
        else this.#fail(`${response.status} ${await response.text()}`);
      } catch (error) {
        this.#fail(String(error));
      }
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    }
  }

  #fail(text: string): void {
    this.#failed += 1;
    this.#firstFailure ||= text;
  }

  #check(response: PredictionResponse, from: number): void {
    const { version, probabilities } = response;
    this.#versions[version] = (this.#versions[version] ?? 0) + 1;
    this.#latestCount = version === this.#latest ? this.#latestCount + 1 : 1;
    this.#latest = version;
    const expected = this.#reference[version];
    const isEqual = probabilities.every(
      (score, i) => Math.abs(score - (expected?.[from + i] ?? Number.NaN)) <= TOLERANCE,
    );
    const isComplete = probabilities.length === ROWS_PER_REQUEST;
    if (version !== response.tables_version || !isEqual || !isComplete) this.#mixed += 1;
  }
}
