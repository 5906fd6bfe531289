/**
 * Steady requests during a rollout. Every answer says which version gave it; its scores must be that version's own:
 * rows of one version under the graph of another would show.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Scores } from './reference.ts';

const ROWS_PER_REQUEST = 16;
const CONCURRENCY = 4;
const TOLERANCE = 1e-5;
const PATIENCE_MS = 120_000;
/** Between an answer and the next request: callers that never pause take the processor from the rollout they watch. */
const PAUSE_MS = 10;

export interface TrafficReport {
  readonly requests: number;
  readonly failed: number;
  /** What the first of them came to; empty without one. */
  readonly firstFailure: string;
  /** Answers whose scores are not those of the version they name. */
  readonly mixed: number;
  readonly versions: Readonly<Record<string, number>>;
}

interface Answer {
  readonly version: string;
  readonly tables_version: string;
  readonly probabilities: readonly number[];
}

export class Traffic {
  readonly #url: string;
  readonly #lines: readonly string[];
  readonly #reference: Readonly<Record<string, Scores>>;
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
   * @param reference for each version the expected score of every row
   * @param stop ends the requests, also when nobody calls `stop()` any more
   */
  constructor(
    endpoint: string,
    rows: string,
    reference: Readonly<Record<string, Scores>>,
    stop: AbortSignal = new AbortController().signal,
  ) {
    this.#url = `${endpoint}/v1/ctr:predict`;
    this.#lines = rows.trimEnd().split('\n');
    this.#reference = reference;
    this.#stop = stop;
  }

  start(): void {
    this.#workers = Array.from({ length: CONCURRENCY }, (_, worker) => this.#work(worker));
  }

  /** Resolves when the last `count` answers (or more) all came from this version. */
  async untilAnswered(version: string, count: number): Promise<void> {
    const startMs = performance.now();
    while (this.#latest !== version || this.#latestCount < count) {
      this.#stop.throwIfAborted();
      if (performance.now() - startMs > PATIENCE_MS) {
        throw new CubeError(
          'DEADLINE_EXCEEDED',
          `version ${version} did not take over the traffic within ${PATIENCE_MS / 1000} s: ${this.#latestCount} answers by version ${this.#latest || 'none'} in a row, ${this.#failed} of ${this.#requests} requests failed`,
        );
      }
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  async stop(): Promise<TrafficReport> {
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

  async #work(worker: number): Promise<void> {
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
        if (response.ok) this.#check((await response.json()) as Answer, from);
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

  #check(answer: Answer, from: number): void {
    const { version, probabilities } = answer;
    this.#versions[version] = (this.#versions[version] ?? 0) + 1;
    this.#latestCount = version === this.#latest ? this.#latestCount + 1 : 1;
    this.#latest = version;
    const expected = this.#reference[version];
    const agrees = probabilities.every(
      (score, i) => Math.abs(score - (expected?.[from + i] ?? Number.NaN)) <= TOLERANCE,
    );
    const complete = probabilities.length === ROWS_PER_REQUEST;
    if (version !== answer.tables_version || !agrees || !complete) this.#mixed += 1;
  }
}
