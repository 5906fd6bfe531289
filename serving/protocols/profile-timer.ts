/** The profile of a request of the general model service. */
import { type Clock, wallClockMs } from '../../lib/platform/clock.ts';

/** Start and end of the steps (parse, predict, format), in microseconds of the wall clock. */
export class ProfileTimer {
  readonly #clock: Clock;
  readonly #offsetMs: number;
  readonly times: number[] = [];
  #lastMs: number;

  constructor(clock: Clock) {
    this.#clock = clock;
    this.#lastMs = clock.nowMs();
    this.#offsetMs = wallClockMs() - this.#lastMs;
  }

  /**
   * Ends the current step and starts the next one. @param repeated a step that ended before, which
   * ends now instead
   * @returns the step
   */
  end(repeated?: number): number {
    const nowMs = this.#clock.nowMs();
    const step = repeated ?? this.times.push(this.#toMicros(this.#lastMs), 0) - 2;
    this.times[step + 1] = this.#toMicros(nowMs);
    this.#lastMs = nowMs;
    return step;
  }

  #toMicros(ms: number): number {
    return Math.round(1_000 * (this.#offsetMs + ms));
  }
}
