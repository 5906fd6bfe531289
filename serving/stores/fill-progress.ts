/** How far the filling of a store is: a bar on a terminal, and a line in the log now and then, with rate and time left. */
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { type Progress, startProgress } from '../../lib/platform/progress.ts';

const LINE_INTERVAL_MS = 5_000;

export interface FillProgressOptions {
  /** What is filled, for the lines. */
  readonly subject: Readonly<Record<string, string>>;
  readonly rowsTotal: number;
  readonly logger?: Logger;
  readonly clock?: Clock;
  /** Told the rows written so far, of all. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

export class FillProgress {
  readonly #options: FillProgressOptions;
  readonly #clock: Clock;
  readonly #bar: Progress;
  readonly #startMs: number;
  #lineAtMs: number;
  #rows = 0;
  /** Rows that were there before: they say nothing about how fast it goes. */
  #skipped = 0;

  constructor(options: FillProgressOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    this.#startMs = this.#clock.nowMs();
    this.#lineAtMs = this.#startMs + LINE_INTERVAL_MS;
    this.#bar = startProgress('filling', options.rowsTotal, 'rows');
  }

  /** Rows of an earlier attempt that need not be written again. */
  skip(count: number): void {
    this.#skipped += count;
    this.add(count);
  }

  add(count: number): void {
    const { rowsTotal, logger, subject, onProgress } = this.#options;
    this.#rows += count;
    this.#bar.update(this.#rows);
    onProgress?.(this.#rows, rowsTotal);
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#lineAtMs) return;
    this.#lineAtMs = nowMs + LINE_INTERVAL_MS;
    const rowsPerSecond = this.#rate(nowMs);
    const secondsLeft = Math.ceil((rowsTotal - this.#rows) / Math.max(1, rowsPerSecond));
    logger?.info(
      { ...subject, rows: this.#rows, rowsTotal, rowsPerSecond, secondsLeft },
      'filling',
    );
  }

  /** The last word. */
  finish(): void {
    this.#bar.stop();
    const { logger, subject } = this.#options;
    const rowsPerSecond = this.#rate(this.#clock.nowMs());
    if (this.#rows > 0) logger?.info({ ...subject, rows: this.#rows, rowsPerSecond }, 'filled');
  }

  /** It failed: who called says why. */
  abandon(): void {
    this.#bar.stop();
  }

  #rate(nowMs: number): number {
    const seconds = Math.max(1e-3, (nowMs - this.#startMs) / 1_000);
    return Math.round((this.#rows - this.#skipped) / seconds);
  }
}
