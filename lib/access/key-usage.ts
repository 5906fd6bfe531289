/** What one key uses at the moment, and the limits on it. */
import { CubeError } from '../core/errors.ts';
import type { KeyLimits } from './api-keys.ts';
import type { AccessClock } from './key-store.ts';
import { TokenBucket } from './token-bucket.ts';

const DAY_MS = 86_400_000;
/** Wait before a request above the limit on concurrent ones is worth another attempt. */
const CONCURRENT_RETRY_MS = 100;

/** Counts of one day of UTC, which survive restarts. */
export interface DailyUsage {
  /** Days since 1970. */
  readonly day: number;
  readonly requests: number;
  readonly rows: number;
}

export class KeyUsage {
  readonly #id: string;
  readonly #clock: AccessClock;
  #limits: KeyLimits;
  #requestBucket: TokenBucket | undefined;
  #rowBucket: TokenBucket | undefined;
  #concurrent = 0;
  #daily: { day: number; requests: number; rows: number };

  constructor(id: string, limits: KeyLimits, clock: AccessClock, daily?: DailyUsage) {
    this.#id = id;
    this.#clock = clock;
    this.#limits = limits;
    this.#daily = { ...(daily ?? { day: 0, requests: 0, rows: 0 }) };
    this.#openBuckets();
  }

  get limits(): KeyLimits {
    return this.#limits;
  }

  get concurrent(): number {
    return this.#concurrent;
  }

  get daily(): DailyUsage {
    return this.#daily;
  }

  /** Applies changed limits and keeps what was used; buckets begin full. */
  setLimits(limits: KeyLimits): void {
    if (limits === this.#limits) return;
    const isRateSame =
      limits.requestsPerSecond === this.#limits.requestsPerSecond &&
      limits.rowsPerSecond === this.#limits.rowsPerSecond;
    this.#limits = limits;
    if (!isRateSame) this.#openBuckets();
  }

  /**
   * Begins a request, which counts even if a later check refuses it; call `leave` once afterwards.
   * @throws CubeError RATE_LIMITED, with the time after which to try again
   */
  enter(): void {
    const { concurrentMax } = this.#limits;
    if (concurrentMax !== undefined && this.#concurrent >= concurrentMax) {
      throw this.#refuse(`at most ${concurrentMax} requests at a time`, CONCURRENT_RETRY_MS);
    }
    this.takeRequest();
    this.#concurrent++;
  }

  /**
   * Counts a request of a call that has begun, such as a message of a stream.
   * @throws CubeError RATE_LIMITED
   */
  takeRequest(): void {
    const { dailyRequests, dailyRows } = this.#limits;
    const daily = this.#today();
    if (dailyRequests !== undefined && daily.requests >= dailyRequests) {
      throw this.#refuse(`at most ${dailyRequests} requests a day`, this.#untilTomorrowMs());
    }
    if (dailyRows !== undefined && daily.rows >= dailyRows) {
      throw this.#refuse(`at most ${dailyRows} rows a day`, this.#untilTomorrowMs());
    }
    this.#checkBucket(this.#requestBucket, `${this.#limits.requestsPerSecond} requests`);
    this.#checkBucket(this.#rowBucket, `${this.#limits.rowsPerSecond} rows`);
    this.#requestBucket?.take(1, this.#clock.nowMs());
    daily.requests++;
  }

  leave(): void {
    this.#concurrent--;
  }

  /**
   * Counts the rows of a request once they are known.
   * @throws CubeError TOO_LARGE; RATE_LIMITED when the rows before used up the rate or the quota
   */
  takeRows(rowCount: number): void {
    const { batchRowsMax, dailyRows } = this.#limits;
    if (batchRowsMax !== undefined && rowCount > batchRowsMax) {
      throw new CubeError(
        'TOO_LARGE',
        `${rowCount} rows in one request; key ${this.#id} may send ${batchRowsMax}: send them in ` +
          'several requests',
      );
    }
    const daily = this.#today();
    if (dailyRows !== undefined && daily.rows + rowCount > dailyRows) {
      throw this.#refuse(`at most ${dailyRows} rows a day`, this.#untilTomorrowMs());
    }
    this.#checkBucket(this.#rowBucket, `${this.#limits.rowsPerSecond} rows`);
    this.#rowBucket?.take(rowCount, this.#clock.nowMs());
    daily.rows += rowCount;
  }

  #openBuckets(): void {
    const nowMs = this.#clock.nowMs();
    const { requestsPerSecond, rowsPerSecond } = this.#limits;
    this.#requestBucket =
      requestsPerSecond === undefined ? undefined : new TokenBucket(requestsPerSecond, nowMs);
    this.#rowBucket =
      rowsPerSecond === undefined ? undefined : new TokenBucket(rowsPerSecond, nowMs);
  }

  #checkBucket(bucket: TokenBucket | undefined, rate: string): void {
    const waitMs = bucket?.getWaitMs(this.#clock.nowMs()) ?? 0;
    if (waitMs > 0) throw this.#refuse(`at most ${rate} per second`, waitMs);
  }

  #today(): { day: number; requests: number; rows: number } {
    const day = Math.floor(this.#clock.wallMs() / DAY_MS);
    const daysSince = day - this.#daily.day;
    // A clock that is set back must not give the quota of a day twice; but a clock that was far
    // ahead for a moment must not stop the counts from beginning anew.
    if (daysSince > 0 || daysSince < -1) this.#daily = { day, requests: 0, rows: 0 };
    return this.#daily;
  }

  #untilTomorrowMs(): number {
    return DAY_MS - (this.#clock.wallMs() % DAY_MS);
  }

  #refuse(limit: string, retryAfterMs: number): CubeError {
    return createRateLimitError(`key ${this.#id}: ${limit}`, retryAfterMs);
  }
}

/** Without a stack, which costs more than the rest of a refusal. */
function createRateLimitError(limit: string, retryAfterMs: number): CubeError {
  const { stackTraceLimit } = Error;
  Error.stackTraceLimit = 0;
  try {
    const text = `${limit}; try again in ${formatWait(retryAfterMs)}`;
    return new CubeError('RATE_LIMITED', text, { details: { retryAfterMs } });
  } finally {
    Error.stackTraceLimit = stackTraceLimit;
  }
}

function formatWait(ms: number): string {
  return ms < 10_000 ? `${ms} ms` : `${Math.ceil(ms / 1000)} s`;
}
