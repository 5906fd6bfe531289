/**
 * Estimates the rate and the remaining time of work from its recent progress, so that a change of
 * speed and a standstill show soon.
 */

const WINDOW_MS = 15_000;
/** Shorter intervals say more about the size of the pieces of work than about the speed. */
const SAMPLE_MS = 500;

interface Sample {
  readonly timeMs: number;
  /** Without skipped work. */
  readonly done: number;
}

export class ProgressEstimate {
  /** Oldest first; the first is the last one before the window, or the start. */
  readonly #samples: Sample[];
  readonly #startMs: number;
  #sampleMs: number;
  #done = 0;
  #skipped = 0;

  constructor(startMs: number) {
    this.#startMs = startMs;
    this.#sampleMs = startMs;
    this.#samples = [{ timeMs: startMs, done: 0 }];
  }

  /** Counts work that an earlier run did: it takes no time now. */
  skip(count: number): void {
    this.#skipped += count;
  }

  /** @param done all work so far, with skipped work */
  update(nowMs: number, done: number): void {
    this.#done = done - this.#skipped;
    const samples = this.#samples;
    if (nowMs - this.#sampleMs < SAMPLE_MS) return;
    this.#sampleMs = nowMs;
    samples.push({ timeMs: nowMs, done: this.#done });
    const first = samples.findLastIndex(({ timeMs }) => timeMs <= nowMs - WINDOW_MS);
    if (first > 0) samples.splice(0, first);
  }

  /** Work per second; 0 before any. */
  getRate(nowMs: number): number {
    const start = this.#samples.findLast(({ timeMs }) => timeMs <= nowMs - WINDOW_MS);
    const { timeMs, done } = start ?? (this.#samples[0] as Sample);
    return Math.max(0, this.#done - done) / Math.max(1e-3, (nowMs - timeMs) / 1000);
  }

  /** Undefined while the rate is unknown: early, and after a standstill. */
  getSecondsLeft(nowMs: number, total: number): number | undefined {
    const left = total - this.#skipped - this.#done;
    if (left <= 0) return 0;
    const rate = this.getRate(nowMs);
    const isEarly = nowMs - this.#startMs < SAMPLE_MS;
    return rate === 0 || isEarly ? undefined : left / rate;
  }
}

/** "8 s", "3 min 20 s", "2 h 5 min" */
export function formatDuration(seconds: number): string {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min ${whole % 60} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
