/**
 * Calls a service that several servers offer alike, over baidu_std, gRPC or HTTP, with the
 * balancing, retries, backup requests, limits and circuit breakers of lookups. The requests must be
 * safe to repeat.
 */
import { CubeError, type ErrorCode } from '../core/errors.ts';
import { systemClock, type TimerClock } from '../platform/clock.ts';
import { type CallPolicy, checkPolicy } from './call-policy.ts';
import { type ClientStats, createCounters } from './client-stats.ts';
import { murmur32 } from './murmur32.ts';
import { listServers, type NamedServer, type NamingService } from './naming.ts';
import { type ClientLogger, Replica } from './replica.ts';
import type { CallContext, CallTarget } from './replica-probe.ts';
import { ReplicaSet } from './replica-set.ts';
import {
  openServiceConnections,
  type ServiceProtocol,
  type ServiceTransport,
} from './service-transport.ts';
import { ShardCall, type ShardFailure, type ShardRequestHandler } from './shard-call.ts';

export interface ServiceClientOptions {
  /** host:port of each server, or the names of servers that may change. */
  readonly endpoints: readonly string[] | NamingService;
  readonly protocol: ServiceProtocol;
  /** The full name of the service. */
  readonly service: string;
  /**
   * Called on servers that may be unhealthy, with an empty request. Any answer counts, so the
   * method need not exist.
   */
  readonly probeMethod: string;
  readonly policy?: CallPolicy;
  /**
   * Retries of a call on servers that failed before, after a pause, where there are fewer servers
   * than retries. Default 0: each server is called at most once.
   */
  readonly repeatMax?: number;
  readonly transport?: ServiceTransport;
  readonly logger?: ClientLogger;
  readonly clock?: TimerClock;
}

export interface ServiceCallOptions {
  readonly timeoutMs: number;
  readonly signal?: AbortSignal | undefined;
  /** u32 for consistent hashing. Default: the hash of the request. */
  readonly requestCode?: number | undefined;
}

/**
 * Reads a response; synchronous, because its bytes are valid only during the call. A retryable
 * CubeError that it throws sends the request to another server.
 */
export type ReadResponse<T> = (payload: Uint8Array, attachment: Uint8Array) => T;

const NO_BYTES = new Uint8Array(0);
const WHOLE_REQUEST = { shard: 0, start: 0, end: 0, parts: [] };
/** Longer than the first pause of a channel before it connects again. */
const REPEAT_PAUSE_MS = 25;
/** gRPC's deadlines are whole milliseconds of the wall clock. */
const DEADLINE_TOLERANCE_MS = 5;

export class ServiceClient {
  readonly #options: ServiceClientOptions;
  readonly #naming: NamingService;
  readonly #clock: TimerClock;
  readonly #context: CallContext;
  readonly #replicas = new Map<string, Replica>();
  #servers: readonly NamedServer[] = [];
  #set: ReplicaSet;
  #isClosed = false;

  /** Connects at the first call. @throws CubeError INVALID_ARGUMENT for the endpoints or policy */
  constructor(options: ServiceClientOptions) {
    const { endpoints, service, policy = {}, clock = systemClock } = options;
    checkPolicy(policy);
    this.#options = options;
    this.#clock = clock;
    this.#context = { clock, counters: createCounters() };
    this.#naming = 'servers' in endpoints ? endpoints : toNaming(endpoints, service);
    this.#servers = this.#naming.servers();
    this.#set = this.#createSet();
  }

  get stats(): ClientStats {
    const nowMs = this.#clock.nowMs();
    const replicas = [...this.#replicas.values()].map((replica) => replica.stats(nowMs));
    return { ...this.#context.counters, replicas };
  }

  /**
   * @throws CubeError as a server or `read` failed; OVERLOADED, UNAVAILABLE, DEADLINE_EXCEEDED. The
   *   reason of the signal when it aborts
   */
  async call<T>(
    method: string,
    payload: Uint8Array,
    read: ReadResponse<T>,
    { timeoutMs, signal, requestCode }: ServiceCallOptions,
  ): Promise<T> {
    signal?.throwIfAborted();
    if (this.#isClosed) throw new CubeError('STOPPING', `${this.#options.service}: closed`);
    const deadlineMs = this.#clock.nowMs() + timeoutMs;
    const { service, probeMethod } = this.#options;
    let result: { readonly value: T } | undefined;
    const handler: ShardRequestHandler = {
      target: new ServiceTarget(service, method, probeMethod),
      get deadlineMs() {
        // A call that nobody waits for is not sent again.
        return signal?.aborted ? 0 : deadlineMs;
      },
      ...(signal === undefined ? {} : { signal }),
      getHash: () => (this.#isHashing ? (requestCode ?? murmur32(payload)) : 0),
      encodePayload: () => payload,
      encodeAttachment: () => NO_BYTES,
      readResponse: (_request, bytes, attachment) => {
        result = { value: read(bytes, attachment) };
      },
    };
    this.#context.counters.calls++;
    const run = this.#run(handler);
    const failure = await (signal === undefined ? run : untilAborted(run, signal));
    if (failure === undefined && result !== undefined) return result.value;
    throw this.#toError(failure, deadlineMs);
  }

  /** Fails the calls in flight. */
  close(): void {
    this.#isClosed = true;
    for (const replica of this.#replicas.values()) replica.close();
  }

  /** Sends a request to one server after another, and to the same ones again if they are few. */
  async #run(handler: ShardRequestHandler): Promise<ShardFailure | undefined> {
    const { repeatMax = 0 } = this.#options;
    for (let round = 0; ; round++) {
      const set = this.#getSet();
      const failure = await new ShardCall(this.#context, set, handler, WHOLE_REQUEST).run();
      if (failure === undefined || failure.permanentError !== undefined) return failure;
      const triedMax = (round + 1) * set.replicas.length;
      if (failure.overloaded || triedMax > repeatMax || this.#isClosed) return failure;
      if (this.#clock.nowMs() + REPEAT_PAUSE_MS >= handler.deadlineMs) return failure;
      if (!set.retryBudget.tryTake(true)) {
        this.#context.counters.retryBudgetRefusals++;
        return failure;
      }
      this.#context.counters.retries++;
      await this.#clock.sleep(REPEAT_PAUSE_MS, handler.signal);
    }
  }

  get #isHashing(): boolean {
    return this.#options.policy?.loadBalancer?.startsWith('c_') === true;
  }

  #toError(failure: ShardFailure | undefined, deadlineMs: number): CubeError {
    const { permanentError, reason = 'no response', overloaded = false } = failure ?? {};
    if (permanentError !== undefined) return permanentError;
    const isLate = this.#clock.nowMs() >= deadlineMs - DEADLINE_TOLERANCE_MS;
    const code: ErrorCode = overloaded ? 'OVERLOADED' : 'UNAVAILABLE';
    return new CubeError(isLate ? 'DEADLINE_EXCEEDED' : code, reason);
  }

  #getSet(): ReplicaSet {
    const servers = this.#naming.servers();
    if (servers === this.#servers) return this.#set;
    this.#servers = servers;
    const named = new Set(servers.map(({ endpoint }) => endpoint));
    for (const [endpoint, replica] of this.#replicas) {
      if (named.has(endpoint)) continue;
      this.#replicas.delete(endpoint);
      replica.closeWhenIdle();
    }
    this.#set = this.#createSet(this.#set);
    return this.#set;
  }

  #createSet(previous?: ReplicaSet): ReplicaSet {
    const replicas = this.#servers.map(({ endpoint }) => {
      const known = this.#replicas.get(endpoint);
      if (known !== undefined) return known;
      const replica = this.#createReplica(endpoint);
      if (previous !== undefined) replica.startSlowly();
      this.#replicas.set(endpoint, replica);
      return replica;
    });
    const weights = this.#servers.map(({ weight }) => weight);
    return new ReplicaSet(0, replicas, weights, this.#options.policy, this.#clock, previous);
  }

  #createReplica(endpoint: string): Replica {
    const { protocol, probeMethod, transport = {}, logger } = this.#options;
    const { compressType = 0 } = transport;
    const connections = openServiceConnections(endpoint, protocol, probeMethod, transport);
    const callOptions = compressType === 0 ? undefined : { compressType };
    return new Replica(endpoint, connections, logger, callOptions, this.#clock);
  }
}

function toNaming(endpoints: readonly string[], service: string): NamingService {
  if (endpoints.length > 0) return listServers(endpoints, service);
  throw new CubeError('INVALID_ARGUMENT', `${service}: no endpoints; give at least one`);
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
