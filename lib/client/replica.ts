/**
 * One replica as this client knows it: its connection, its health, and which versions it was seen to hold. It is
 * the same object for every bundle and shard count that the fleet lists the endpoint under.
 */
import type { CubeError } from '../core/errors.ts';
import type { Logger } from '../platform/logs.ts';
import { Channel } from '../rpc/channel.ts';

/** A replica that failed is avoided for this long, doubled with each further failure, … */
const BACKOFF_MIN_MS = 50;
/** … up to this: a restarted server is used again within about a second. */
const BACKOFF_MAX_MS = 1_000;
/** VERSION_ABSENT is believed for this long: a rollout is loading it right now. */
const ABSENT_MS = 1_000;
/** Versions remembered: the ones in use and a rollout's; older knowledge is dropped. */
const VERSIONS_MAX = 16;

/** How good a replica is for a version; lower is better. */
export const RANK_HOLDS = 0;
const RANK_UNKNOWN = 1;
const RANK_FAILED = 2;
const RANK_FAILED_JUST_NOW = 3;
const RANK_ABSENT = 4;

/** Between half and all of a time, so that many clients do not come back at once. */
function jitter(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

export class Replica {
  readonly endpoint: string;
  readonly channel: Channel;
  readonly #logger: Logger | undefined;
  #failures = 0;
  #retryAtMs = 0;
  /** Version → until when it is known to be absent; 0: it is held. */
  readonly #absentUntilMs = new Map<string, number>();
  #probeAtMs = 0;
  #inFlight = 0;
  #left = false;

  constructor(endpoint: string, logger: Logger | undefined) {
    this.endpoint = endpoint;
    this.channel = new Channel(endpoint, { backoffMaxMs: BACKOFF_MAX_MS });
    this.#logger = logger;
  }

  rank(version: string, nowMs: number): number {
    const absentUntilMs = this.#absentUntilMs.get(version);
    if (absentUntilMs !== undefined && nowMs < absentUntilMs) return RANK_ABSENT;
    if (this.#failures > 0) return nowMs < this.#retryAtMs ? RANK_FAILED_JUST_NOW : RANK_FAILED;
    return absentUntilMs === 0 ? RANK_HOLDS : RANK_UNKNOWN;
  }

  /** True when it is time to ask this replica, apart from any lookup, whether it is back; then not again for a while. */
  takeProbe(version: string, nowMs: number): boolean {
    const rank = this.rank(version, nowMs);
    if (rank !== RANK_UNKNOWN && rank !== RANK_FAILED) return false;
    if (nowMs < this.#probeAtMs) return false;
    this.#probeAtMs = nowMs + jitter(BACKOFF_MAX_MS);
    return true;
  }

  /** Brackets the use of `channel`: a replica that left the fleet is closed when its last call ends. */
  enter(): void {
    this.#inFlight++;
  }

  exit(): void {
    this.#inFlight--;
    if (this.#left && this.#inFlight === 0) this.channel.close();
  }

  /** It answered from this version. */
  answered(version: string): void {
    this.#remember(version, 0);
    this.#recovered();
  }

  /** It answered, but does not hold this version. */
  lacks(version: string, nowMs: number): void {
    this.#remember(version, nowMs + jitter(ABSENT_MS));
    this.#recovered();
  }

  failed(error: CubeError, nowMs: number): void {
    // Everything in flight fails together when a connection is lost: that is one failure.
    if (this.#failures > 0 && nowMs < this.#retryAtMs) return;
    if (this.#failures === 0) {
      const { code, message } = error;
      this.#logger?.warn({ endpoint: this.endpoint, code, error: message }, 'replica failed');
    }
    this.#retryAtMs =
      nowMs + jitter(Math.min(BACKOFF_MIN_MS * 2 ** this.#failures, BACKOFF_MAX_MS));
    this.#failures++;
    // It may come back as a new process that holds other versions.
    this.#absentUntilMs.clear();
  }

  /** It is not in the fleet any more. */
  leave(): void {
    this.#left = true;
    if (this.#inFlight === 0) this.channel.close();
  }

  #recovered(): void {
    if (this.#failures === 0) return;
    this.#failures = 0;
    this.#logger?.info({ endpoint: this.endpoint }, 'replica answers again');
  }

  #remember(version: string, absentUntilMs: number): void {
    const known = this.#absentUntilMs;
    if (!known.has(version) && known.size >= VERSIONS_MAX) {
      known.delete(known.keys().next().value!);
    }
    known.set(version, absentUntilMs);
  }
}
