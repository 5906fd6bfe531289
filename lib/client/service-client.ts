/**
 * Calls a service that several servers offer alike, over baidu_std or gRPC, with the balancing,
 * retries, backup requests and circuit breakers of lookups. The requests must be safe to repeat.
 */
import { CubeError } from '../core/errors.ts';
import { systemClock } from '../platform/clock.ts';
import type { CallResult } from '../rpc/channel.ts';
import { type CallPolicy, checkPolicy } from './call-policy.ts';
import { type ClientStats, createCounters } from './client-stats.ts';
import { type Connections, openConnections } from './connections.ts';
import { GrpcConnections } from './grpc-connections.ts';
import { type ClientLogger, Replica } from './replica.ts';
import type { CallContext, CallTarget } from './replica-probe.ts';
import { ReplicaSet } from './replica-set.ts';
import { ShardCall, type ShardRequestHandler } from './shard-call.ts';

export interface ServiceClientOptions {
  /** host:port of each server. */
  readonly endpoints: readonly string[];
  readonly protocol: 'baidu_std' | 'grpc';
  /** The full name of the service. */
  readonly service: string;
  /**
   * Called on servers that may be unhealthy, with an empty request. Any answer counts, so the
   * method need not exist.
   */
  readonly probeMethod: string;
  readonly policy?: CallPolicy;
  readonly logger?: ClientLogger;
}

export interface ServiceCallOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal;
}

const NO_BYTES = new Uint8Array(0);
const WHOLE_REQUEST = { shard: 0, start: 0, end: 0, parts: [] };
const BACKOFF_MAX_MS = 1_000;
/** gRPC's deadlines are whole milliseconds of the wall clock. */
const DEADLINE_TOLERANCE_MS = 5;

export class ServiceClient {
  readonly #replicas: ReplicaSet;
  readonly #service: string;
  readonly #probeMethod: string;
  readonly #context: CallContext = { clock: systemClock, counters: createCounters() };

  /** Connects at the first call. @throws CubeError INVALID_ARGUMENT for the endpoints or policy */
  constructor(options: ServiceClientOptions) {
    const { endpoints, protocol, service, probeMethod, policy = {}, logger } = options;
    if (endpoints.length === 0) {
      throw new CubeError('INVALID_ARGUMENT', `${service}: no endpoints; give at least one`);
    }
    checkPolicy(policy);
    this.#service = service;
    this.#probeMethod = probeMethod;
    const replicas = endpoints.map((endpoint) => {
      const connections = new ProbedConnections(open(endpoint, protocol), probeMethod);
      return new Replica(endpoint, connections, logger);
    });
    const weights = endpoints.map(() => 1);
    this.#replicas = new ReplicaSet(0, replicas, weights, policy);
  }

  get stats(): ClientStats {
    const replicas = this.#replicas.replicas.map((replica) => replica.stats());
    return { ...this.#context.counters, replicas };
  }

  /**
   * @param read reads a response; synchronous, because its bytes are valid only during the call. A
   *   retryable CubeError that it throws sends the request to another server
   * @throws CubeError as a server or `read` failed; UNAVAILABLE, DEADLINE_EXCEEDED
   */
  async call<T>(
    method: string,
    payload: Uint8Array,
    read: (payload: Uint8Array) => T,
    { timeoutMs, signal }: ServiceCallOptions,
  ): Promise<T> {
    signal?.throwIfAborted();
    const deadlineMs = systemClock.nowMs() + timeoutMs;
    let result: { readonly value: T } | undefined;
    const handler: ShardRequestHandler = {
      target: new ServiceTarget(this.#service, method, this.#probeMethod),
      get deadlineMs() {
        // A call that nobody waits for is not sent again.
        return signal?.aborted ? 0 : deadlineMs;
      },
      ...(signal === undefined ? {} : { signal }),
      getHash: () => 0,
      encodePayload: () => payload,
      encodeAttachment: () => NO_BYTES,
      readResponse: (_request, bytes) => {
        result = { value: read(bytes) };
      },
    };
    this.#context.counters.calls++;
    const run = new ShardCall(this.#context, this.#replicas, handler, WHOLE_REQUEST).run();
    const failure = await (signal === undefined ? run : untilAborted(run, signal));
    if (failure === undefined && result !== undefined) return result.value;
    const { permanentError, reason = 'no response' } = failure ?? {};
    if (permanentError !== undefined) throw permanentError;
    const isLate = systemClock.nowMs() >= deadlineMs - DEADLINE_TOLERANCE_MS;
    throw new CubeError(isLate ? 'DEADLINE_EXCEEDED' : 'UNAVAILABLE', reason);
  }

  /** Fails the calls in flight. */
  close(): void {
    for (const replica of this.#replicas.replicas) replica.close();
  }
}

function open(endpoint: string, protocol: ServiceClientOptions['protocol']): Connections {
  if (protocol === 'grpc') return new GrpcConnections(endpoint);
  return openConnections(endpoint, 'single', BACKOFF_MAX_MS);
}

/** Rejects with the signal's reason as soon as it aborts. */
function untilAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const stop = (): void => reject(signal.reason);
    signal.addEventListener('abort', stop, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop));
  });
}

class ServiceTarget implements CallTarget {
  readonly service: string;
  readonly method: string;
  readonly probeMethod: string;

  constructor(service: string, method: string, probeMethod: string) {
    this.service = service;
    this.method = method;
    this.probeMethod = probeMethod;
  }

  get versionKey(): string {
    return this.service;
  }

  probePayload(): Uint8Array {
    return NO_BYTES;
  }

  checkProbeResponse(): void {}

  getLoadedVersions(): readonly string[] {
    return [];
  }
}

/** A server that answers a probe is healthy, whatever it answers. */
class ProbedConnections implements Connections {
  readonly #inner: Connections;
  readonly #probeMethod: string;

  constructor(inner: Connections, probeMethod: string) {
    this.#inner = inner;
    this.#probeMethod = probeMethod;
  }

  async call(...call: Parameters<Connections['call']>): Promise<CallResult> {
    const [, method] = call;
    if (method !== this.#probeMethod) return this.#inner.call(...call);
    try {
      return await this.#inner.call(...call);
    } catch (error) {
      const { code } = CubeError.from(error);
      if (code === 'UNAVAILABLE' || code === 'DEADLINE_EXCEEDED') throw error;
      return { payload: NO_BYTES, attachment: NO_BYTES };
    }
  }

  close(): void {
    this.#inner.close();
  }
}
