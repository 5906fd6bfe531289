/**
 * Decides when requests are sent. Closed loop: each of `concurrency` workers sends its next request
 * when the last one is answered. Open loop (`rps`): request i is due at start + i / rps and its
 * latency counts from then, so a stalled server is charged for every request that had to wait, not
 * only for those in flight ("coordinated omission"). The same holds for requests with recorded
 * times (`dueMs`).
 */
import { setMaxListeners } from 'node:events';
import { type Clock, systemClock, TIMER_MS_MAX } from '../../../lib/platform/clock.ts';
import { startUtilizationMeter } from '../../../lib/platform/machine.ts';

export interface LoadSchedule {
  /** Maximum requests in flight. */
  readonly concurrency: number;
  /** Requests due per second; undefined: closed loop. */
  readonly rps?: number;
  /** With `rps`: when the first request is due after the start. Default 0. */
  readonly firstDueMs?: number;
  /** Open loop: when each batch is due after the start, ascending. Each is sent once. */
  readonly dueMs?: readonly number[];
  /** The batches repeat until this time is over; undefined: each is sent once. */
  readonly durationMs?: number;
}

/** Sends one batch; its latency counts from `dueMs`. @returns whether it was answered */
export type SendBatch = (batch: number, dueMs: number) => Promise<boolean>;

export interface LoadResult {
  readonly durationMs: number;
  /** The user stopped the run. */
  readonly interrupted: boolean;
  /** Open loop: requests without a free worker when due. */
  readonly waited: number;
  /** Open loop: requests due before the end and not sent. */
  readonly unsent: number;
  /** Open loop: requests that this process sent late although a worker was free. */
  readonly late: number;
  /** Open loop: the longest time from when a request was due until it was sent. */
  readonly lagMaxMs: number;
  /** CPU utilization of this process, 0..1: near 1 it measures itself. */
  readonly busyShare: number;
}

/** Inexactness of timers that does not count as late. */
const LATE_TOLERANCE_MS = 5;
/** Time for requests in flight to finish after the user stops the run. */
const STOP_GRACE_MS = 1_000;
/** Pause after a failure in runs limited by time, so that a dead server is not flooded. */
const FAILED_PAUSE_MS = 10;

/** One run; `run` is called once. */
export class LoadGenerator {
  readonly #schedule: LoadSchedule;
  readonly #batchCount: number;
  readonly #sendBatch: SendBatch;
  readonly #stop: AbortSignal;
  readonly #clock: Clock;
  #startMs = 0;
  #next = 0;
  #waited = 0;
  #late = 0;
  #lagMaxMs = 0;

  constructor(
    schedule: LoadSchedule,
    batchCount: number,
    sendBatch: SendBatch,
    stop: AbortSignal,
    clock: Clock = systemClock,
  ) {
    this.#schedule = schedule;
    this.#batchCount = batchCount;
    this.#sendBatch = sendBatch;
    this.#stop = stop;
    // Each waiting worker adds a listener.
    setMaxListeners(0, stop);
    this.#clock = clock;
  }

  async run(): Promise<LoadResult> {
    const { concurrency, durationMs } = this.#schedule;
    const busyShare = startUtilizationMeter();
    this.#startMs = this.#clock.nowMs();
    const workers = Promise.all(Array.from({ length: concurrency }, () => this.#runWorker()));
    await Promise.race([workers, this.#waitForStop(workers)]);
    const interrupted = this.#stop.aborted;
    const elapsedMs = this.#clock.nowMs() - this.#startMs;
    const due = this.#countDueBy(durationMs ?? Number.POSITIVE_INFINITY);
    return {
      durationMs: elapsedMs,
      interrupted,
      waited: this.#waited,
      unsent: interrupted ? 0 : Math.max(0, due - this.#next),
      late: this.#late,
      lagMaxMs: this.#lagMaxMs,
      busyShare: busyShare(),
    };
  }

  /** Requests due within `ms` after the start; 0 in a closed loop. */
  #countDueBy(ms: number): number {
    const { rps, durationMs, firstDueMs = 0 } = this.#schedule;
    if (rps === undefined || durationMs === undefined) return 0;
    return Math.max(0, Math.ceil(((ms - firstDueMs) / 1_000) * rps));
  }

  async #waitForStop(workers: Promise<unknown>): Promise<void> {
    await new Promise<void>((resolve) => {
      this.#stop.addEventListener('abort', () => resolve());
      if (this.#stop.aborted) resolve();
      workers.then(
        () => resolve(),
        () => resolve(),
      );
    });
    await Promise.race([workers, this.#clock.sleep(STOP_GRACE_MS)]);
  }

  async #runWorker(): Promise<void> {
    const { durationMs, dueMs: dueTimes } = this.#schedule;
    const isSentOnce = durationMs === undefined || dueTimes !== undefined;
    const endMs = this.#startMs + (durationMs ?? Number.POSITIVE_INFINITY);
    while (!this.#stop.aborted && this.#clock.nowMs() < endMs) {
      const i = this.#next;
      if (isSentOnce && i >= this.#batchCount) return;
      const dueMs = this.#computeDueMs(i);
      if (dueMs >= endMs) return;
      this.#next++;
      await this.#waitUntilDue(dueMs);
      if (this.#stop.aborted) return;
      const isAnswered = await this.#sendBatch(
        i % this.#batchCount,
        Math.min(dueMs, this.#clock.nowMs()),
      );
      if (!isAnswered && durationMs !== undefined) {
        await this.#clock.sleep(FAILED_PAUSE_MS, this.#stop);
      }
    }
  }

  #computeDueMs(i: number): number {
    const { rps, firstDueMs = 0, dueMs } = this.#schedule;
    if (dueMs !== undefined) return this.#startMs + (dueMs[i] ?? Number.POSITIVE_INFINITY);
    if (rps === undefined) return this.#clock.nowMs();
    return this.#startMs + firstDueMs + (i * 1_000) / rps;
  }

  /** Returns up to a millisecond early, because timers have millisecond resolution. */
  async #waitUntilDue(dueMs: number): Promise<void> {
    const { rps, dueMs: dueTimes } = this.#schedule;
    if (rps === undefined && dueTimes === undefined) return;
    const aheadMs = dueMs - this.#clock.nowMs();
    if (aheadMs < -1) this.#waited++;
    if (aheadMs >= 1) await this.#sleep(aheadMs);
    const lagMs = this.#clock.nowMs() - dueMs;
    this.#lagMaxMs = Math.max(this.#lagMaxMs, lagMs);
    if (aheadMs >= 1 && lagMs > LATE_TOLERANCE_MS && !this.#stop.aborted) this.#late++;
  }

  async #sleep(ms: number): Promise<void> {
    let restMs = Math.floor(ms);
    for (; restMs > TIMER_MS_MAX && !this.#stop.aborted; restMs -= TIMER_MS_MAX) {
      await this.#clock.sleep(TIMER_MS_MAX, this.#stop);
    }
    if (!this.#stop.aborted) await this.#clock.sleep(restMs, this.#stop);
  }
}
