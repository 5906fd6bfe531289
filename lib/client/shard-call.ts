/**
 * One request to one shard, until a replica has answered it or none can: the first replica, further
 * replicas after failures (each at most once, within the retry budget), and backup requests while
 * no replica answers (each on another replica, within the backup budget).
 *
 * Invariants
 * - `readResponse` completes at most once, and never starts after the call has settled: a late
 *   response is dropped unread.
 * - A failure that every replica would repeat (PERMANENT_ERRORS) ends the call at once.
 */
import type { CubeError } from '../core/errors.ts';
import type { TraceSpan } from '../core/trace-span.ts';
import type { CallResult } from '../rpc/channel.ts';
import { BackupCaller } from './backup-timer.ts';
import type { Replica } from './replica.ts';
import {
  type CallContext,
  type CallTarget,
  endFailedCall,
  isReplicaFailure,
  PERMANENT_ERRORS,
  probeInBackground,
} from './replica-probe.ts';
import type { ReplicaSet } from './replica-set.ts';
import type { ShardRequest } from './scatter-gather.ts';

/** The bytes of a call's requests, and the reader of their responses. */
export interface ShardRequestHandler {
  readonly target: CallTarget;
  readonly deadlineMs: number;
  /** Cancels the calls in flight, where the protocol can. */
  readonly signal?: AbortSignal;
  /** The parent of the spans of calls; undefined: they are not traced. */
  readonly span?: TraceSpan | undefined;
  /** Returns a u32 for consistent hashing. */
  getHash(request: ShardRequest): number;
  /** May return a view of scratch memory: it is sent before the next request is encoded. */
  encodePayload(request: ShardRequest): Uint8Array;
  /** May return a view of scratch memory, as `encodePayload`. */
  encodeAttachment(request: ShardRequest): Uint8Array;
  /**
   * Checks a response, then copies its content. Synchronous: the bytes are valid only during the
   * call.
   * @throws CubeError when it is not a valid response to the request
   */
  readResponse(request: ShardRequest, payload: Uint8Array, attachment: Uint8Array): void;
}

/** Why a request was not answered. */
export interface ShardFailure {
  /** The last failure, with the address of the replica. */
  readonly reason: string;
  /** The request was waited for until its deadline. */
  readonly deadlineExceeded: boolean;
  /** The replicas, or this client for them, refused the request because of their load. */
  readonly overloaded: boolean;
  /**
   * Set when every replica would fail alike: a mistake of the caller or the fleet file, not an
   * outage.
   */
  readonly permanentError: CubeError | undefined;
  /** The replica that returned `permanentError`; empty without one. */
  readonly endpoint: string;
}

export class ShardCall extends BackupCaller {
  readonly #context: CallContext;
  readonly #replicaSet: ReplicaSet;
  readonly #handler: ShardRequestHandler;
  readonly #request: ShardRequest;
  readonly #triedReplicas: Replica[] = [];
  #inFlight = 0;
  #isSettled = false;
  #span: TraceSpan | undefined;
  #backups = 0;
  #isOverloaded = false;
  #reason = 'the deadline passed before a replica was called';
  #resolve: (failure: ShardFailure | undefined) => void = () => undefined;

  constructor(
    context: CallContext,
    replicaSet: ReplicaSet,
    handler: ShardRequestHandler,
    request: ShardRequest,
  ) {
    super();
    this.#context = context;
    this.#replicaSet = replicaSet;
    this.#handler = handler;
    this.#request = request;
  }

  get isSettled(): boolean {
    return this.#isSettled;
  }

  /**
   * Resolves with undefined once a response was read, else with the failure. Never rejects. Call it
   * once.
   */
  run(): Promise<ShardFailure | undefined> {
    return new Promise((resolve) => {
      this.#resolve = resolve;
      if (this.#handler.span !== undefined) this.#startSpan(this.#handler.span);
      this.#replicaSet.countRequest();
      this.#callNextReplica();
    });
  }

  #startSpan(parent: TraceSpan): void {
    const { service, method, versionKey } = this.#handler.target;
    const { shard, start, end } = this.#request;
    this.#span = parent.startChild(`${service}/${method}`, 'client', {
      'rpc.system': 'brpc',
      'rpc.service': service,
      'rpc.method': method,
      'hypercube.version': versionKey,
      'hypercube.shard': shard,
      'hypercube.keys': end - start,
    });
  }

  /** Calls the next replica, or settles when none is left and no request is in flight. */
  #callNextReplica(): void {
    const { target, deadlineMs } = this.#handler;
    const nowMs = this.#context.clock.nowMs();
    const triedCount = this.#triedReplicas.length;
    if (nowMs < deadlineMs && triedCount <= this.#replicaSet.retryMax) {
      const hash = this.#handler.getHash(this.#request);
      const replica = this.#replicaSet.pick(target.versionKey, this.#triedReplicas, nowMs, hash);
      if (replica === undefined && triedCount === 0) this.#explainRefusal(nowMs);
      if (replica !== undefined && (triedCount === 0 || this.#tryTakeRetry())) {
        if (triedCount > 0) this.#context.counters.retries++;
        this.#send(replica, nowMs, false);
        if (triedCount === 0) this.#replicaSet.awaitBackup(this, nowMs, deadlineMs);
        return;
      }
    }
    if (this.#inFlight > 0) return;
    const deadlineExceeded = nowMs >= deadlineMs;
    this.#settle({
      reason: this.#reason,
      deadlineExceeded,
      overloaded: this.#isOverloaded,
      permanentError: undefined,
      endpoint: '',
    });
  }

  #tryTakeRetry(): boolean {
    if (this.#replicaSet.retryBudget.tryTake(true)) return true;
    this.#context.counters.retryBudgetRefusals++;
    this.#reason = `${this.#reason}; the retry budget is spent`;
    return false;
  }

  #explainRefusal(nowMs: number): void {
    const endpoints = this.#replicaSet.replicas.map(({ endpoint }) => endpoint).join(' and ');
    if (this.#replicaSet.isSaturated(this.#handler.target.versionKey, nowMs)) {
      this.#isOverloaded = true;
      this.#context.counters.concurrencyRefusals++;
      this.#reason = `${endpoints}: as many calls are in flight as they serve; send fewer at once`;
    } else this.#reason = `${endpoints}: no answers; nothing is sent until a probe is answered`;
  }

  #send(replica: Replica, nowMs: number, isBackup: boolean): void {
    const handler = this.#handler;
    const { target } = handler;
    this.#triedReplicas.push(replica);
    this.#inFlight++;
    this.#context.counters.requests++;
    probeInBackground(this.#context, this.#replicaSet, target, replica, nowMs);
    const payload = handler.encodePayload(this.#request);
    const attachment = handler.encodeAttachment(this.#request);
    const remainingMs = handler.deadlineMs - nowMs;
    const { service, method } = target;
    const { signal } = handler;
    const traceparent = this.#span?.traceparent;
    replica
      .call(service, method, payload, attachment, remainingMs, nowMs, signal, traceparent)
      .then(
        (response) => this.#receive(replica, nowMs, response, isBackup),
        (error: unknown) => this.#fail(replica, nowMs, error),
      );
  }

  /** The response's bytes are valid only during this call. */
  #receive(replica: Replica, startedMs: number, response: CallResult, isBackup: boolean): void {
    if (this.#isSettled) {
      this.#inFlight--;
      replica.endCall(startedMs, this.#context.clock.nowMs());
      return;
    }
    try {
      this.#handler.readResponse(this.#request, response.payload, response.attachment);
    } catch (error) {
      this.#fail(replica, startedMs, error);
      return;
    }
    this.#inFlight--;
    const nowMs = this.#context.clock.nowMs();
    this.#replicaSet.recordLatency(replica.endCall(startedMs, nowMs));
    replica.recordAnswer(this.#handler.target.versionKey, nowMs);
    replica.recordOutcome(nowMs, false);
    if (isBackup) this.#context.counters.backupsWon++;
    this.#span?.setAttributes({
      'server.address': replica.endpoint,
      'hypercube.response_bytes': response.payload.length + response.attachment.length,
    });
    this.#settle(undefined);
  }

  #fail(replica: Replica, startedMs: number, thrown: unknown): void {
    const { endpoint } = replica;
    const { target } = this.#handler;
    const { shard } = this.#replicaSet;
    this.#inFlight--;
    const error = endFailedCall(this.#context, shard, replica, target, startedMs, thrown);
    // Replicas without answers are judged by their silence (circuit-breaker.ts).
    const hasAnswered = error.code !== 'DEADLINE_EXCEEDED';
    if (hasAnswered && isReplicaFailure(error)) this.#countFailure(replica);
    if (this.#isSettled) return;
    this.#isOverloaded = error.code === 'OVERLOADED';
    this.#reason = `${endpoint}: ${error.code} ${error.message}`;
    if (PERMANENT_ERRORS.has(error.code)) {
      const reason = this.#reason;
      const [deadlineExceeded, overloaded] = [false, false];
      this.#settle({ reason, deadlineExceeded, overloaded, permanentError: error, endpoint });
    } else this.#callNextReplica();
  }

  #countFailure(replica: Replica): void {
    const isEjected = this.#replicaSet.recordFailure(replica, this.#context.clock.nowMs());
    if (isEjected) this.#context.counters.ejections++;
  }

  sendBackup(nowMs: number): void {
    const { target, deadlineMs } = this.#handler;
    const set = this.#replicaSet;
    const tried = this.#triedReplicas;
    if (nowMs >= deadlineMs || tried.length > set.retryMax) return;
    if (this.#backups >= set.backupMax) return;
    if (tried.length === set.replicas.length) return;
    const hash = this.#handler.getHash(this.#request);
    const replica = set.pickBackup(target.versionKey, tried, nowMs, hash);
    if (replica !== undefined && set.tryTakeBackup(tried, replica, nowMs)) {
      this.#context.counters.backups++;
      this.#backups++;
      this.#send(replica, nowMs, true);
    } else if (replica !== undefined) this.#context.counters.backupBudgetRefusals++;
    set.awaitFurtherBackup(this, nowMs, deadlineMs);
  }

  #settle(failure: ShardFailure | undefined): void {
    this.#isSettled = true;
    if (this.#span !== undefined) this.#endSpan(this.#span, failure);
    this.#resolve(failure);
  }

  #endSpan(span: TraceSpan, failure: ShardFailure | undefined): void {
    span.setAttributes({ 'hypercube.attempts': this.#triedReplicas.length });
    if (failure === undefined) span.end('OK');
    else {
      const { permanentError, deadlineExceeded, reason } = failure;
      const code = deadlineExceeded ? 'DEADLINE_EXCEEDED' : 'UNAVAILABLE';
      span.end(permanentError?.code ?? code, reason);
    }
  }
}
