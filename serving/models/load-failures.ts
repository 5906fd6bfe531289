/**
 * The versions of a model that failed to load, and when each is tried again. Pauses grow for a
 * version that is broken. A version that is only not available yet is tried at every poll.
 */
import type { CubeError } from '../../lib/core/errors.ts';
import type { Clock } from '../../lib/platform/clock.ts';

/** A version that failed to load; shown in `/v1/status`. */
export interface LoadFailure {
  readonly version: string;
  readonly code: string;
  readonly message: string;
  readonly at: string;
  readonly attempts: number;
}

const RETRY_MAX_MS = 60_000;
/** How long servers may load a version before its absence is a problem. */
const NORMAL_WAIT_MS = 30_000;

type FailureLevel = 'info' | 'warn';

interface FailureEntry extends LoadFailure {
  readonly retryAtMs: number;
  readonly firstMs: number;
  readonly level: FailureLevel;
}

export class LoadFailures {
  readonly #clock: Clock;
  readonly #pollMs: number;
  readonly #byVersion = new Map<string, FailureEntry>();

  constructor(clock: Clock, pollMs: number) {
    this.#clock = clock;
    this.#pollMs = pollMs;
  }

  list(): LoadFailure[] {
    return [...this.#byVersion.values()].map(
      ({ retryAtMs: _, firstMs: __, level: ___, ...failure }) => failure,
    );
  }

  find(version: string): LoadFailure | undefined {
    return this.#byVersion.get(version);
  }

  /** Whether the version may be tried now. */
  canTry(version: string): boolean {
    return this.#clock.nowMs() >= (this.#byVersion.get(version)?.retryAtMs ?? 0);
  }

  /**
   * @param isUrgent a version that is not available yet is tried again at the next poll
   * @returns how to log the failure if it is news: `info` while servers may still be loading the
   *   version
   */
  record(
    version: string,
    { code, message, status }: CubeError,
    isUrgent: boolean,
  ): FailureLevel | undefined {
    const nowMs = this.#clock.nowMs();
    const earlier = this.#byVersion.get(version);
    const attempts = (earlier?.attempts ?? 0) + 1;
    const pauseMs =
      status.retryable && isUrgent
        ? 0
        : Math.min(this.#pollMs * 2 ** Math.min(attempts, 20), RETRY_MAX_MS);
    const at = this.#clock.isoTime();
    const firstMs = earlier?.firstMs ?? nowMs;
    const isNormal = code === 'NOT_READY' && nowMs - firstMs < NORMAL_WAIT_MS;
    const level = isNormal ? 'info' : 'warn';
    const retryAtMs = nowMs + pauseMs;
    const entry = { version, code, message, at, attempts, retryAtMs, firstMs, level } as const;
    this.#byVersion.set(version, entry);
    return earlier?.message === message && earlier.level === level ? undefined : level;
  }

  delete(version: string): void {
    this.#byVersion.delete(version);
  }

  /** Forgets the versions that are not wanted any more. */
  keepOnly(isWanted: (version: string) => boolean): void {
    for (const version of this.#byVersion.keys()) {
      if (!isWanted(version)) this.#byVersion.delete(version);
    }
  }

  clear(): void {
    this.#byVersion.clear();
  }
}
