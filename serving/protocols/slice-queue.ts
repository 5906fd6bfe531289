/**
 * Parses large request bodies in slices, one request after another, so that other requests are
 * answered between two slices.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import type { CancelSignal } from '../engine/prediction.ts';

/** Time for slices in one turn of the event loop; the last slice may exceed it. */
const TURN_MS = 2;

interface Job {
  readonly work: SlicedWork<unknown>;
  readonly signal: CancelSignal;
  resolve(value: unknown): void;
  reject(error: unknown): void;
}

export class SliceQueue {
  readonly #clock: Clock;
  readonly #jobs: Job[] = [];

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /**
   * Does the work after that of earlier callers. @returns its result
   * @throws CubeError DEADLINE_EXCEEDED when the caller has gone, and the errors of the work
   */
  run<T>(work: SlicedWork<T>, signal: CancelSignal): Promise<T> {
    return new Promise((resolve, reject) => {
      this.#jobs.push({ work, signal, resolve: resolve as Job['resolve'], reject });
      if (this.#jobs.length === 1) setImmediate(this.#runTurn);
    });
  }

  readonly #runTurn = (): void => {
    const endMs = this.#clock.nowMs() + TURN_MS;
    for (let job = this.#jobs[0]; job !== undefined; job = this.#jobs[0]) {
      if (runSlice(job)) this.#jobs.shift();
      if (this.#clock.nowMs() >= endMs) break;
    }
    if (this.#jobs.length > 0) setImmediate(this.#runTurn);
  };
}

/** @returns whether the job has ended */
function runSlice({ work, signal, resolve, reject }: Job): boolean {
  try {
    if (signal.aborted) throw new CubeError('DEADLINE_EXCEEDED', 'the caller has gone');
    const step = work.next();
    if (step.done !== true) return false;
    resolve(step.value);
  } catch (error) {
    reject(error);
  }
  return true;
}
