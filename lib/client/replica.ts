/**
 * One replica as this client knows it: its connections, its health, its speed, and which versions it was seen to hold. It is
 * the same object for every bundle and shard count that the fleet lists the endpoint under.
 */
import type { CubeError } from '../core/errors.ts';
import type { CallOptions, CallResult } from '../rpc/channel.ts';
import { type Connections, type ConnectionType, openConnections } from './connections.ts';

/** A replica that failed is avoided for this long, doubled with each further failure, … */
const BACKOFF_MIN_MS = 50;
/** … up to this: a restarted server is used again within about a second. */
const BACKOFF_MAX_MS = 1_000;
/** VERSION_ABSENT is believed for this long: a rollout is loading it right now. */
const ABSENT_MS = 1_000;
/** Versions remembered: the ones in use and a rollout's; older knowledge is dropped. */
const VERSIONS_MAX = 16;
/** Share of the newest latency in the average: the last dozen calls count. */
const LATENCY_SHARE = 1 / 8;

/** How good a replica is for a version; lower is better. */
export const RANK_HOLDS = 0;
export const RANK_UNKNOWN = 1;
const RANK_FAILED = 2;
const RANK_FAILED_JUST_NOW = 3;
const RANK_ABSENT = 4;

/** Where changes of state are told; every pino logger is one. */
export interface ClientLogger {
  info(fields: object, text: string): void;
  warn(fields: object, text: string): void;
}

/** What a replica did so far, for `CubeClient.stats`. */
export interface ReplicaStats {
  readonly endpoint: string;
  /** `unknown`: not asked yet. `failed`: its last answer was a failure; it is asked again after a while. */
  readonly state: 'unknown' | 'answering' | 'failed';
  readonly requests: number;
  readonly failures: number;
  readonly inFlight: number;
  /** Of the last dozen calls; 0 when there was none. */
  readonly latencyMs: number;
  /** bundle/version it was seen to hold. */
  readonly versions: readonly string[];
}

/** Between half and all of a time, so that many clients do not come back at once. */
function jitter(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

export class Replica {
  readonly endpoint: string;
  readonly #connections: Connections;
  readonly #callOptions: CallOptions | undefined;
  readonly #logger: ClientLogger | undefined;
  #failures = 0;
  #retryAtMs = 0;
  /** Version → until when it is known to be absent; 0: it is held. */
  readonly #absentUntilMs = new Map<string, number>();
  #probeAtMs = 0;
  #inFlight = 0;
  /** Sum of the times at which the calls in flight began. */
  #startedSumMs = 0;
  #latencyMs = 0;
  #left = false;
  #requestCount = 0;
  #failureCount = 0;
  #answered = false;

  constructor(
    endpoint: string,
    connectionType: ConnectionType,
    logger: ClientLogger | undefined,
    callOptions?: CallOptions,
  ) {
    this.endpoint = endpoint;
    this.#connections = openConnections(endpoint, connectionType, BACKOFF_MAX_MS);
    this.#callOptions = callOptions;
    this.#logger = logger;
  }

  /** Bracketed by `exit`: a replica that left the fleet is closed when its last call ends. As `Channel.call`. */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    nowMs: number,
  ): Promise<CallResult> {
    this.#inFlight++;
    this.#requestCount++;
    this.#startedSumMs += nowMs;
    const options = this.#callOptions;
    return this.#connections.call(service, method, payload, attachment, timeoutMs, options);
  }

  /**
   * @param startedMs what was given to `call`
   * @param failed a failure is no proof of speed: it counts only when it was slow
   * @returns how long the call took, in milliseconds
   */
  exit(startedMs: number, nowMs: number, failed: boolean): number {
    const latencyMs = nowMs - startedMs;
    this.#inFlight--;
    this.#startedSumMs = this.#inFlight === 0 ? 0 : this.#startedSumMs - startedMs;
    if (this.#latencyMs === 0) this.#latencyMs = failed ? 0 : latencyMs;
    else if (!failed || latencyMs > this.#latencyMs) {
      this.#latencyMs += LATENCY_SHARE * (latencyMs - this.#latencyMs);
    }
    if (this.#left && this.#inFlight === 0) this.close();
    return latencyMs;
  }

  rank(version: string, nowMs: number): number {
    const absentUntilMs = this.#absentUntilMs.get(version);
    if (absentUntilMs !== undefined && nowMs < absentUntilMs) return RANK_ABSENT;
    if (this.#failures > 0) return nowMs < this.#retryAtMs ? RANK_FAILED_JUST_NOW : RANK_FAILED;
    return absentUntilMs === 0 ? RANK_HOLDS : RANK_UNKNOWN;
  }

  /** 1 / latency, less while the calls in flight have waited longer than it usually takes; 0: nothing is known. */
  speed(nowMs: number): number {
    const latencyMs = this.#latencyMs;
    if (latencyMs === 0) return 0;
    const waitedMs = this.#inFlight === 0 ? 0 : nowMs - this.#startedSumMs / this.#inFlight;
    return waitedMs > latencyMs ? 1 / waitedMs : 1 / latencyMs;
  }

  /** True when it is time to ask this replica, apart from any lookup, whether it is back; then not again for a while. */
  takeProbe(version: string, nowMs: number): boolean {
    const rank = this.rank(version, nowMs);
    if (rank !== RANK_UNKNOWN && rank !== RANK_FAILED) return false;
    if (nowMs < this.#probeAtMs) return false;
    this.#probeAtMs = nowMs + jitter(BACKOFF_MAX_MS);
    return true;
  }

  /** It answered from this version. */
  answered(version: string): void {
    if (this.#absentUntilMs.get(version) !== 0) this.#remember(version, 0);
    this.#recovered();
  }

  /**
   * It answered, but does not hold this version.
   * @param held the versions that it said it holds, when it said so
   */
  lacks(version: string, held: readonly string[], nowMs: number): void {
    for (const other of held) if (other !== version) this.#remember(other, 0);
    this.#remember(version, nowMs + jitter(ABSENT_MS));
    this.#recovered();
  }

  failed(error: CubeError, nowMs: number): void {
    this.#failureCount++;
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
    if (this.#inFlight === 0) this.close();
  }

  close(): void {
    this.#connections.close();
  }

  stats(): ReplicaStats {
    const known = [...this.#absentUntilMs].filter(([, until]) => until === 0);
    let state: ReplicaStats['state'] = this.#answered ? 'answering' : 'unknown';
    if (this.#failures > 0) state = 'failed';
    return {
      endpoint: this.endpoint,
      state,
      requests: this.#requestCount,
      failures: this.#failureCount,
      inFlight: this.#inFlight,
      latencyMs: this.#latencyMs,
      versions: known.map(([version]) => version),
    };
  }

  #recovered(): void {
    this.#answered = true;
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
