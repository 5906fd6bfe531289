/**
 * The loads that failed, for the status: the last failure of each version. A failure ends when the
 * version is loaded or unloaded, or when nobody has tried the version for a while: an agent retries
 * what it wants at least once a minute, so an older failure is of a mistyped name.
 */
import type { CubeError } from '../lib/core/errors.ts';
import { versionKey } from '../lib/core/names.ts';
import type { Clock } from '../lib/platform/clock.ts';
import type { FailedLoad, VersionRequest } from '../proto/control.ts';

const FAILURES_MAX = 32;
export const FAILURE_KEPT_MS = 600_000;

export class FailedLoads {
  readonly #clock: Clock;
  /** Oldest first. */
  readonly #byVersion = new Map<string, FailedLoad & { readonly failedMs: number }>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  record({ bundle, version }: VersionRequest, { code, message }: CubeError): void {
    const key = versionKey({ bundle, version });
    this.#byVersion.delete(key);
    for (const oldest of this.#byVersion.keys()) {
      if (this.#byVersion.size < FAILURES_MAX) break;
      this.#byVersion.delete(oldest);
    }
    const failedMs = this.#clock.nowMs();
    this.#byVersion.set(key, { bundle, version, code, message, failedMs });
  }

  clear(request: VersionRequest): void {
    this.#byVersion.delete(versionKey(request));
  }

  list(): FailedLoad[] {
    const sinceMs = this.#clock.nowMs() - FAILURE_KEPT_MS;
    for (const [key, { failedMs }] of this.#byVersion) {
      if (failedMs < sinceMs) this.#byVersion.delete(key);
    }
    return [...this.#byVersion.values()].map(({ failedMs: _, ...failure }) => failure);
  }
}
