/**
 * Time as a parameter: production passes `systemClock`, tests and simulations pass their own clock.
 */

export interface Clock {
  /** Monotonic milliseconds, with fractions. */
  nowMs(): number;
  /** Wall-clock time for logs and users: ISO 8601, UTC. */
  isoTime(): string;
  /** The system's clock sleeps at most 24 days. */
  sleep(ms: number, signal?: AbortSignal): Promise<void>;
}

/** A clock that calls back, for timers that need no promise. */
export interface TimerClock extends Clock {
  /**
   * Calls `run` once, after the sockets have been read: after this process itself was suspended,
   * its timers run first, and answers may have arrived meanwhile. Does not keep the process alive.
   */
  after(ms: number, run: () => void): void;
}

/** The maximum delay of Node's timers, 24 days; a longer one would fire after 1 ms. */
export const TIMER_MS_MAX = 0x7fff_ffff;

export const systemClock: TimerClock = {
  nowMs: () => performance.now(),
  isoTime: () => new Date().toISOString(),
  sleep: (ms, signal) =>
    new Promise((resolve) => {
      const done = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener('abort', done);
        resolve();
      };
      const timer = setTimeout(done, Math.min(ms, TIMER_MS_MAX));
      signal?.addEventListener('abort', done);
      if (signal?.aborted) done();
    }),
  after: (ms, run) => {
    setTimeout(setImmediate, ms, run).unref();
  },
};

/**
 * `setTimeout`, also for delays that a timer cannot have: no process waits for their end.
 * @returns undefined, which `clearTimeout` takes too, when there is no timer
 */
export function startTimer(run: () => void, ms: number): NodeJS.Timeout | undefined {
  return ms > TIMER_MS_MAX ? undefined : setTimeout(run, ms);
}

/**
 * Milliseconds since 1970, for absolute deadlines of other libraries. Measure durations with
 * `nowMs`.
 */
export function wallClockMs(): number {
  return Date.now();
}

/**
 * A time of `systemClock` as milliseconds since 1970, with fractions. Differences between two
 * results are exact; the clock of the machine is read at the start of the process only.
 */
export function toUnixMs(nowMs: number): number {
  return performance.timeOrigin + nowMs;
}
