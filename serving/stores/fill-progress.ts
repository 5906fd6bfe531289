/**
 * Reports the progress of filling a store: a bar on a terminal, and a log line every 5 s with rate
 * and remaining time.
 */
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';

const LOG_INTERVAL_MS = 5_000;

export interface FillProgressOptions {
  /** Fields of the log lines that name the version. */
  readonly subject: Readonly<Record<string, string>>;
  readonly rowsTotal: number;
  readonly logger?: Logger;
  readonly clock?: Clock;
  /** Called with the rows written so far and the total. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

export class FillProgress {
  readonly #options: FillProgressOptions;
  readonly #clock: Clock;
  readonly #bar: Progress;
  readonly #startMs: number;
  #nextLogMs: number;
  #rows = 0;
  /** Rows of an earlier attempt: they do not count for the rate. */
  #skipped = 0;

  constructor(options: FillProgressOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#startMs = this.#clock.nowMs();
    this.#nextLogMs = this.#startMs + LOG_INTERVAL_MS;
    this.#bar = startProgress('filling', options.rowsTotal, 'rows');
  }

  /** Counts rows that an earlier attempt wrote. */
  addSkipped(count: number): void {
    this.#skipped += count;
    this.#bar.skip(count);
    this.addRows(count);
  }

  addRows(count: number): void {
    const { rowsTotal, logger, subject, onProgress } = this.#options;
    this.#rows += count;
    this.#bar.update(this.#rows);
    onProgress?.(this.#rows, rowsTotal);
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#nextLogMs) return;
    this.#nextLogMs = nowMs + LOG_INTERVAL_MS;
    const rowsPerSecond = this.#computeRate(nowMs);
    const secondsLeft = Math.ceil((rowsTotal - this.#rows) / Math.max(1, rowsPerSecond));
    logger?.info(
      { ...subject, rows: this.#rows, rowsTotal, rowsPerSecond, secondsLeft },
      'filling',
    );
  }

  /** Ends after success. */
  finish(): void {
    this.#bar.stop();
    const { logger, subject } = this.#options;
    const rowsPerSecond = this.#computeRate(this.#clock.nowMs());
    if (this.#rows > 0) logger?.info({ ...subject, rows: this.#rows, rowsPerSecond }, 'filled');
  }

  /** Ends after a failure, which the caller reports. */
  stop(): void {
    this.#bar.stop();
  }

  #computeRate(nowMs: number): number {
    const seconds = Math.max(1e-3, (nowMs - this.#startMs) / 1_000);
    return Math.round((this.#rows - this.#skipped) / seconds);
  }
}
