/**
 * One replica as this client knows it: its connections, health, latency and loaded versions. Every
 * bundle and shard count that the fleet lists for an endpoint shares one Replica.
 */
import type { CubeError, ErrorCode } from '../core/errors.ts';
import type { Clock } from '../platform/clock.ts';
import type { CallOptions, CallResult } from '../rpc/channel.ts';
import type { Credentials } from '../rpc/credentials.ts';
import { CircuitBreaker, type Probe, SILENCE_MS_MIN } from './circuit-breaker.ts';
import { ConcurrencyLimit } from './concurrency-limit.ts';
import { type Connections, type ConnectionType, openConnections } from './connections.ts';
import { type CallOutcomes, OutlierState } from './outlier-ejection.ts';
import { getSlowStartShare, OUTAGE_MS_MIN } from './slow-start.ts';

/** How long a failed replica is avoided; doubled with each further failure. */
const BACKOFF_MIN_MS = 50;
/** Upper limit of the backoff: a restarted server is used again within about a second. */
const BACKOFF_MAX_MS = 1_000;
/** How long a VERSION_ABSENT counts: a rollout may be loading the version. */
const ABSENT_MS = 1_000;
/** Maximum number of versions remembered; the oldest entry is dropped. */
const VERSIONS_MAX = 16;
/** Weight of the newest latency in the moving average, which covers about a dozen calls. */
const LATENCY_SHARE = 1 / 8;
/**
 * Limits the effect of one latency on the average: a pause of the server or of this process slows
 * one call, or a few, and says nothing about the next ones.
 */
const OUTLIER_FACTOR = 4;
const OUTLIER_MS = 5;
/** The average starts as the minimum of this many calls: the first ones include connecting. */
const FIRST_CALLS = 8;

/** Ranks of a replica for a version; lower is better. */
export const RANK_LOADED = 0;
export const RANK_UNKNOWN = 1;
/** It has as many calls in flight as it serves without queueing. */
export const RANK_BUSY = 2;
/** It fails more of its calls than the others. */
export const RANK_EJECTED = 3;
/** Slower than the other replicas of its shard, or hanging: only its ReplicaSet knows. */
export const RANK_SLOW = 4;
export const RANK_FAILED = 5;
const RANK_BACKING_OFF = 6;
const RANK_ABSENT = 7;
/** Never called, only probed. */
export const RANK_CIRCUIT_OPEN = 8;

/** Errors that may come from this client itself: they show nothing about the replica's process. */
const NO_ANSWER: ReadonlySet<ErrorCode> = new Set([
  'DEADLINE_EXCEEDED',
  'UNAVAILABLE',
  'OVERLOADED',
]);

/** Receives changes of state. Every pino logger fits. */
export interface ClientLogger {
  info(fields: object, text: string): void;
  warn(fields: object, text: string): void;
}

/** Counters and state of one replica, for `CubeClient.stats`. */
export interface ReplicaStats {
  readonly endpoint: string;
  /** `unknown`: not called yet. `failed`: the last call failed, or the circuit is open. */
  readonly state: 'unknown' | 'answering' | 'failed';
  /** It answers nothing: no calls are sent to it, only probes (circuit-breaker.ts). */
  readonly circuitOpen: boolean;
  /** It fails more of its calls than the others, and gets none for a while. */
  readonly ejected: boolean;
  /** The share of its calls that it gets: below 1 after an outage. */
  readonly share: number;
  /** The calls in flight that it serves without queueing. */
  readonly concurrencyLimit: number;
  readonly requests: number;
  readonly failures: number;
  readonly inFlight: number;
  /** Moving average over about a dozen calls; 0 without calls. */
  readonly latencyMs: number;
  /** The bundle/version keys that it is known to have loaded. */
  readonly versions: readonly string[];
}

/** Returns between half and all of a duration, so that clients do not return at the same moment. */
function addJitter(ms: number): number {
  return ms * (0.5 + Math.random() / 2);
}

export class Replica {
  readonly endpoint: string;
  readonly #connections: Connections;
  readonly #callOptions: CallOptions | undefined;
  readonly #logger: ClientLogger | undefined;
  readonly #breaker: CircuitBreaker;
  readonly #outlier = new OutlierState();
  readonly #limit = new ConcurrencyLimit();
  /** Since when its share grows. */
  #startedMs = Number.NEGATIVE_INFINITY;
  #startsSlowly = false;
  #failures = 0;
  /** The first of its successive failures. */
  #failedSinceMs = 0;
  #retryAtMs = 0;
  /** Version key → until when the version counts as absent; 0: it is loaded. */
  readonly #absentUntilMs = new Map<string, number>();
  #probeAtMs = 0;
  #inFlight = 0;
  /** Sum of the start times of the calls in flight. */
  #startedSumMs = 0;
  #latencyMs = 0;
  #latencyCount = 0;
  #hasLeftFleet = false;
  #requestCount = 0;
  #failureCount = 0;
  #hasAnswered = false;

  constructor(
    endpoint: string,
    connections: ConnectionType | Connections,
    logger: ClientLogger | undefined,
    callOptions?: CallOptions,
    clock?: Clock,
    credentials?: Credentials,
  ) {
    this.endpoint = endpoint;
    this.#breaker = new CircuitBreaker(clock);
    this.#connections =
      typeof connections === 'string'
        ? openConnections(endpoint, connections, { backoffMaxMs: BACKOFF_MAX_MS }, credentials)
        : connections;
    this.#callOptions = callOptions;
    this.#logger = logger;
  }

  /**
   * As `Channel.call`. Protocols that can cancel a call do so when the signal aborts. Each call
   * must be followed by `endCall`, which closes a replica that has left the fleet.
   * @param traceparent of the span of the call, if it is traced
   */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    nowMs: number,
    signal?: AbortSignal,
    traceparent?: string,
  ): Promise<CallResult> {
    this.#inFlight++;
    this.#requestCount++;
    this.#limit.recordCall(this.#inFlight);
    this.#startedSumMs += nowMs;
    this.#breaker.recordCall(nowMs);
    const own = this.#callOptions;
    const options = traceparent === undefined ? own : { traceparent, ...own };
    return this.#connections.call(service, method, payload, attachment, timeoutMs, options, signal);
  }

  /**
   * Records the end of a call, and returns its duration in milliseconds.
   * @param startedMs the `nowMs` given to `call`
   * @param error a failed call counts for the latency only when it was slow
   */
  endCall(startedMs: number, nowMs: number, error?: CubeError): number {
    const latencyMs = nowMs - startedMs;
    if (error === undefined || latencyMs > this.#latencyMs) this.#addLatency(latencyMs);
    if (error === undefined || error.code === 'DEADLINE_EXCEEDED')
      this.#limit.recordAnswer(latencyMs, nowMs);
    else if (error.code === 'OVERLOADED') this.#limit.recordRefusal(nowMs);
    this.#finish(startedMs, nowMs, error);
    return latencyMs;
  }

  /**
   * As `endCall`, for a probe that was answered. The average latency may be of the time before the
   * replica failed or became slow, so it is forgotten; that of the probe says nothing about calls,
   * which do more.
   */
  endProbe(startedMs: number, nowMs: number): void {
    this.#latencyMs = 0;
    this.#latencyCount = 0;
    this.#finish(startedMs, nowMs);
  }

  #finish(startedMs: number, nowMs: number, error?: CubeError): void {
    this.#inFlight--;
    this.#startedSumMs = this.#inFlight === 0 ? 0 : this.#startedSumMs - startedMs;
    if (error === undefined || !NO_ANSWER.has(error.code)) {
      if (this.#breaker.isOpen) this.#startedMs = nowMs;
      this.#breaker.recordAnswer();
    }
    if (this.#hasLeftFleet && this.#inFlight === 0) this.close();
  }

  /** @param limitShare the share of its concurrency limit that may be used */
  rank(versionKey: string, nowMs: number, limitShare: number): number {
    if (this.#breaker.isOpen) return RANK_CIRCUIT_OPEN;
    const absentUntilMs = this.#absentUntilMs.get(versionKey);
    if (absentUntilMs !== undefined && nowMs < absentUntilMs) return RANK_ABSENT;
    if (this.#failures > 0) return nowMs < this.#retryAtMs ? RANK_BACKING_OFF : RANK_FAILED;
    if (this.#outlier.isEjected(nowMs)) return RANK_EJECTED;
    if (this.#inFlight >= this.#limit.value * limitShare) return RANK_BUSY;
    return absentUntilMs === 0 ? RANK_LOADED : RANK_UNKNOWN;
  }

  /** Its next answer begins a slow start: it has joined a fleet that is in use. */
  startSlowly(): void {
    this.#startsSlowly = true;
  }

  /** The share of its calls that it should get; 1 unless it has just returned. */
  getShare(nowMs: number): number {
    const startedMs = Math.max(this.#startedMs, this.#outlier.ejectedUntilMs);
    return getSlowStartShare(nowMs - startedMs);
  }

  isEjected(nowMs: number): boolean {
    return this.#outlier.isEjected(nowMs);
  }

  /** The outcomes of its recent calls, without probes. */
  getOutcomes(nowMs: number): CallOutcomes {
    return this.#outlier.getOutcomes(nowMs);
  }

  /** Counts the outcome of a call for the comparison with other replicas. */
  recordOutcome(nowMs: number, hasFailed: boolean): void {
    this.#outlier.record(nowMs, hasFailed);
  }

  /** It gets no calls for a while, unless no other replica is healthy. */
  eject(nowMs: number): void {
    this.#outlier.eject(nowMs);
    const { endpoint } = this;
    this.#logger?.warn({ endpoint }, 'replica ejected: it fails more calls than the others');
  }

  /**
   * 1 / latency, or less while the calls in flight wait longer than usual; 0 when nothing is known.
   */
  speed(nowMs: number): number {
    const latencyMs = this.#latencyMs;
    if (latencyMs === 0) return 0;
    const waitedMs = this.#inFlight === 0 ? 0 : nowMs - this.#startedSumMs / this.#inFlight;
    return waitedMs > latencyMs ? 1 / waitedMs : 1 / latencyMs;
  }

  /** It is not called, only probed. */
  get isCircuitOpen(): boolean {
    return this.#breaker.isOpen;
  }

  /** Average latency of its calls; 0 when nothing is known. */
  get latencyMs(): number {
    return this.#latencyMs;
  }

  /** Milliseconds since the first call that no answer has followed; 0 without such a call. */
  silentMs(nowMs: number): number {
    return this.#breaker.silentMs(nowMs);
  }

  /** Whether calls have waited so long without any answer that the replica may hang. */
  isSilent(nowMs: number): boolean {
    return !this.#breaker.isOpen && this.#breaker.silentMs(nowMs) >= SILENCE_MS_MIN;
  }

  /** Returns true when a background probe is due, and then not again for about a second. */
  tryStartProbe(nowMs: number): boolean {
    if (nowMs < this.#probeAtMs) return false;
    this.#probeAtMs = nowMs + addJitter(BACKOFF_MAX_MS);
    return true;
  }

  /** Records a response from this version. */
  recordAnswer(versionKey: string, nowMs: number): void {
    if (this.#absentUntilMs.get(versionKey) !== 0) this.#remember(versionKey, 0);
    this.#recordRecovery(nowMs);
  }

  /**
   * Records that the replica answers, but has not loaded this version.
   * @param loaded keys of the versions that it reported as loaded
   */
  recordVersionAbsent(versionKey: string, loaded: readonly string[], nowMs: number): void {
    for (const other of loaded) if (other !== versionKey) this.#remember(other, 0);
    this.#remember(versionKey, nowMs + addJitter(ABSENT_MS));
    this.#recordRecovery(nowMs);
  }

  /** @param probe asks whether the replica answers again, if it answers nothing now */
  recordFailure(error: CubeError, nowMs: number, probe: Probe): void {
    this.#failureCount++;
    const opened = NO_ANSWER.has(error.code) && this.#breaker.recordNoAnswer(nowMs, probe);
    // The deadline of a call that a healthy replica did not answer may have been short.
    if (error.code === 'DEADLINE_EXCEEDED' && !opened) return;
    // A lost connection fails all calls in flight; they count as one failure.
    if (this.#failures > 0 && nowMs < this.#retryAtMs) return;
    if (this.#failures === 0) {
      this.#failedSinceMs = nowMs;
      const { code, message } = error;
      this.#logger?.warn({ endpoint: this.endpoint, code, error: message }, 'replica failed');
    }
    this.#retryAtMs =
      nowMs + addJitter(Math.min(BACKOFF_MIN_MS * 2 ** this.#failures, BACKOFF_MAX_MS));
    this.#failures++;
    // It may return as a new process with other versions loaded.
    this.#absentUntilMs.clear();
  }

  /** Call when the replica has left the fleet: closes it once its last call has ended. */
  closeWhenIdle(): void {
    this.#hasLeftFleet = true;
    if (this.#inFlight === 0) this.close();
  }

  close(): void {
    this.#breaker.stop();
    this.#connections.close();
  }

  stats(nowMs: number): ReplicaStats {
    const known = [...this.#absentUntilMs].filter(([, until]) => until === 0);
    let state: ReplicaStats['state'] = this.#hasAnswered ? 'answering' : 'unknown';
    const circuitOpen = this.#breaker.isOpen;
    if (this.#failures > 0 || circuitOpen) state = 'failed';
    return {
      endpoint: this.endpoint,
      state,
      circuitOpen,
      ejected: this.isEjected(nowMs),
      share: this.getShare(nowMs),
      concurrencyLimit: this.#limit.value,
      requests: this.#requestCount,
      failures: this.#failureCount,
      inFlight: this.#inFlight,
      latencyMs: this.#latencyMs,
      versions: known.map(([versionKey]) => versionKey),
    };
  }

  #addLatency(latencyMs: number): void {
    const averageMs = this.#latencyMs;
    if (averageMs === 0) this.#latencyMs = latencyMs;
    else if (this.#latencyCount < FIRST_CALLS) this.#latencyMs = Math.min(averageMs, latencyMs);
    else {
      const limitMs = OUTLIER_FACTOR * averageMs + OUTLIER_MS;
      this.#latencyMs += LATENCY_SHARE * (Math.min(latencyMs, limitMs) - averageMs);
    }
    this.#latencyCount++;
  }

  #recordRecovery(nowMs: number): void {
    this.#hasAnswered = true;
    if (this.#startsSlowly) this.#startedMs = nowMs;
    this.#startsSlowly = false;
    if (this.#failures === 0) return;
    this.#failures = 0;
    if (nowMs - this.#failedSinceMs >= OUTAGE_MS_MIN) this.#startedMs = nowMs;
    this.#logger?.info({ endpoint: this.endpoint }, 'replica recovered');
  }

  #remember(versionKey: string, absentUntilMs: number): void {
    const known = this.#absentUntilMs;
    if (!known.has(versionKey) && known.size >= VERSIONS_MAX) {
      for (const oldest of known.keys()) {
        known.delete(oldest);
        break;
      }
    }
    known.set(versionKey, absentUntilMs);
  }
}
