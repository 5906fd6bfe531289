/** Sends all rows, in batches, over a number of lanes, and keeps what came back: latencies, answers, failures. */
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Endpoint } from './endpoint.ts';

export interface TrafficOptions {
  readonly lines: readonly string[];
  readonly batchRows: number;
  readonly concurrency: number;
  readonly onRows?: (rowsDone: number) => void;
  readonly clock?: Clock;
}

export interface Failures {
  count: number;
  /** The first one's message, with the rows it was about. */
  first: string;
}

export interface TrafficResult {
  readonly durationMs: number;
  /** Of the requests that were answered. */
  readonly latenciesMs: Float64Array;
  /** One a row; NaN where its request failed. */
  readonly probabilities: Float64Array;
  /** One a row; '' where its request failed. */
  readonly versions: readonly string[];
  /** Requests answered, by version. */
  readonly requestsByVersion: ReadonlyMap<string, number>;
  /** By error code. */
  readonly failures: ReadonlyMap<string, Failures>;
  /** Answers whose graph and tables were of different versions. */
  readonly mixed: number;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: number;
}

/** One run; `go` is called once. */
export class Traffic {
  readonly #endpoint: Endpoint;
  readonly #options: TrafficOptions;
  readonly #clock: Clock;
  readonly #latenciesMs: number[] = [];
  readonly #probabilities: Float64Array;
  readonly #versions: string[];
  readonly #requestsByVersion = new Map<string, number>();
  readonly #failures = new Map<string, Failures>();
  #next = 0;
  #rowsDone = 0;
  #mixed = 0;
  #unseen = 0;
  #unavailable = 0;
  #degraded = 0;

  constructor(endpoint: Endpoint, options: TrafficOptions) {
    this.#endpoint = endpoint;
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#probabilities = new Float64Array(options.lines.length).fill(Number.NaN);
    this.#versions = new Array<string>(options.lines.length).fill('');
  }

  /** Sends everything. A failed request is counted, never sent again. */
  async go(): Promise<TrafficResult> {
    const startMs = this.#clock.nowMs();
    const { concurrency } = this.#options;
    await Promise.all(Array.from({ length: concurrency }, () => this.#runLane()));
    return {
      durationMs: this.#clock.nowMs() - startMs,
      latenciesMs: Float64Array.from(this.#latenciesMs),
      probabilities: this.#probabilities,
      versions: this.#versions,
      requestsByVersion: this.#requestsByVersion,
      failures: this.#failures,
      mixed: this.#mixed,
      unseen: this.#unseen,
      unavailable: this.#unavailable,
      degraded: this.#degraded,
    };
  }

  async #runLane(): Promise<void> {
    const { lines, batchRows, onRows } = this.#options;
    while (this.#next < lines.length) {
      const start = this.#next;
      const batch = lines.slice(start, start + batchRows);
      this.#next += batch.length;
      try {
        await this.#send(start, batch);
      } catch (error) {
        this.#noteFailure(CubeError.from(error), start, batch.length);
      }
      this.#rowsDone += batch.length;
      onRows?.(this.#rowsDone);
    }
  }

  async #send(start: number, batch: readonly string[]): Promise<void> {
    const body = `${batch.join('\n')}\n`;
    const sentMs = this.#clock.nowMs();
    const answer = await this.#endpoint.predict(body, batch.length);
    this.#latenciesMs.push(this.#clock.nowMs() - sentMs);
    this.#probabilities.set(answer.probabilities, start);
    this.#versions.fill(answer.version, start, start + batch.length);
    const known = this.#requestsByVersion.get(answer.version) ?? 0;
    this.#requestsByVersion.set(answer.version, known + 1);
    if (answer.version !== answer.tablesVersion) this.#mixed++;
    this.#unseen += answer.unseen;
    this.#unavailable += answer.unavailable;
    if (answer.degraded) this.#degraded++;
  }

  #noteFailure({ code, message }: CubeError, start: number, rowCount: number): void {
    const rows = `rows ${start + 1} to ${start + rowCount}`;
    const failures = this.#failures.get(code) ?? {
      count: 0,
      first: `request of ${rows}: ${message}`,
    };
    failures.count++;
    this.#failures.set(code, failures);
  }
}
