/**
 * When requests are sent. Closed loop: so many lanes, each sends its next request when the last one is answered. Open loop (`rps`):
 * request i is due at start + i / rps whatever became of those before it, and its latency counts from then, so that a server which
 * stalls is charged for all that had to wait, and not only for what was in flight ("coordinated omission").
 */
import { setMaxListeners } from 'node:events';
import { type Clock, systemClock } from '../../../lib/platform/clock.ts';
import { startBusyMeter } from '../../../lib/platform/machine.ts';

export interface Pace {
  /** Requests in flight at most. */
  readonly concurrency: number;
  /** Requests due a second; undefined: as fast as answers come. */
  readonly rps?: number;
  /** Batches are taken from the first again until the time is over; undefined: each once. */
  readonly durationMs?: number;
}

/** Sends batch `batch`. @param dueMs when its latency begins @returns whether it was answered */
export type Work = (batch: number, dueMs: number) => Promise<boolean>;

export interface LoadResult {
  readonly durationMs: number;
  /** The user stopped it. */
  readonly interrupted: boolean;
  /** Open loop: found no free lane when they were due. */
  readonly waited: number;
  /** Open loop: due before the end, and not sent. */
  readonly unsent: number;
  /** Open loop: had a free lane, and yet this process sent them late. */
  readonly late: number;
  /** How busy this process was, 0..1: near 1 it measures itself. */
  readonly busyShare: number;
}

/** A timer's own inexactness is no lateness. */
const LATE_MS = 5;
/** What is in flight when the user stops may still be answered. */
const STOP_GRACE_MS = 1_000;
/** In runs by time a server that is gone is not asked as fast as it can refuse. */
const FAILED_PAUSE_MS = 10;

/** One run; `run` is called once. */
export class LoadGenerator {
  readonly #pace: Pace;
  readonly #batches: number;
  readonly #work: Work;
  readonly #stop: AbortSignal;
  readonly #clock: Clock;
  #startMs = 0;
  #next = 0;
  #waited = 0;
  #late = 0;

  constructor(
    pace: Pace,
    batches: number,
    work: Work,
    stop: AbortSignal,
    clock: Clock = systemClock,
  ) {
    this.#pace = pace;
    this.#batches = batches;
    this.#work = work;
    this.#stop = stop;
    // Each lane that waits listens.
    setMaxListeners(0, stop);
    this.#clock = clock;
  }

  async run(): Promise<LoadResult> {
    const { concurrency, durationMs } = this.#pace;
    const busyShare = startBusyMeter();
    this.#startMs = this.#clock.nowMs();
    const lanes = Promise.all(Array.from({ length: concurrency }, () => this.#runLane()));
    await Promise.race([lanes, this.#stopped(lanes)]);
    const interrupted = this.#stop.aborted;
    const elapsedMs = this.#clock.nowMs() - this.#startMs;
    const due = this.#dueBy(durationMs ?? Number.POSITIVE_INFINITY);
    return {
      durationMs: elapsedMs,
      interrupted,
      waited: this.#waited,
      unsent: interrupted ? 0 : Math.max(0, due - this.#next),
      late: this.#late,
      busyShare: busyShare(),
    };
  }

  /** Requests that are due before so long after the start; in a closed loop none is ever due. */
  #dueBy(ms: number): number {
    const { rps, durationMs } = this.#pace;
    return rps === undefined || durationMs === undefined ? 0 : Math.ceil((ms / 1_000) * rps);
  }

  async #stopped(lanes: Promise<unknown>): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#stop.addEventListener('abort', () => resolve());
      if (this.#stop.aborted) resolve();
      lanes.then(
        () => resolve(),
        () => resolve(),
      );
    });
    await Promise.race([lanes, this.#clock.sleep(STOP_GRACE_MS)]);
  }

  async #runLane(): Promise<void> {
    const { durationMs } = this.#pace;
    const endMs = this.#startMs + (durationMs ?? Number.POSITIVE_INFINITY);
    while (!this.#stop.aborted && this.#clock.nowMs() < endMs) {
      const i = this.#next;
      if (durationMs === undefined && i >= this.#batches) return;
      const dueMs = this.#dueMs(i);
      if (dueMs >= endMs) return;
      this.#next++;
      await this.#untilDue(dueMs);
      if (this.#stop.aborted) return;
      const isAnswered = await this.#work(i % this.#batches, Math.min(dueMs, this.#clock.nowMs()));
      if (!isAnswered && durationMs !== undefined) {
        await this.#clock.sleep(FAILED_PAUSE_MS, this.#stop);
      }
    }
  }

  #dueMs(i: number): number {
    const { rps } = this.#pace;
    return rps === undefined ? this.#clock.nowMs() : this.#startMs + (i * 1_000) / rps;
  }

  /** Up to a millisecond early: timers know no fractions of one, and late would be counted. */
  async #untilDue(dueMs: number): Promise<void> {
    const aheadMs = dueMs - this.#clock.nowMs();
    if (aheadMs < -1 && this.#pace.rps !== undefined) this.#waited++;
    if (aheadMs < 1) return;
    await this.#clock.sleep(Math.floor(aheadMs), this.#stop);
    if (this.#clock.nowMs() - dueMs > LATE_MS) this.#late++;
  }
}
