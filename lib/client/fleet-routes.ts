/**
 * Turns the fleet into connections: the replica sets of a bundle at a shard count. Replicas are
 * kept by endpoint, so that a changed fleet keeps the connections and the state of all endpoints
 * that remain. Replicas that left are closed after their last call.
 */
import { CubeError } from '../core/errors.ts';
import { type Fleet, findShardMap } from '../core/fleet.ts';
import type { TimerClock } from '../platform/clock.ts';
import type { CallOptions } from '../rpc/channel.ts';
import type { Credentials } from '../rpc/credentials.ts';
import { type CallPolicy, checkPolicy } from './call-policy.ts';
import { type ConnectionType, checkConnectionType } from './connections.ts';
import { type ClientLogger, Replica, type ReplicaStats } from './replica.ts';
import { ReplicaSet } from './replica-set.ts';

export interface RouteOptions {
  /**
   * Returns the current fleet; a new object takes effect at the next call. See `FleetFile` and
   * `CubeConf`.
   */
  readonly fleet: () => Fleet;
  /** One policy for all bundles, or a function of the bundle. */
  readonly policy?: CallPolicy | ((bundle: string) => CallPolicy);
  /** Default single. */
  readonly connectionType?: ConnectionType;
  /**
   * Send every request and response with a checksum: corrupted ones are retried and never returned.
   * False leaves only TCP's 16-bit checksum. Default true; `CubeDictClient` then accepts responses
   * without one, as brpc's servers send them.
   */
  readonly checksum?: boolean;
  /** The API key of every call, and whether connections use TLS. Default: neither. */
  readonly credentials?: Credentials | undefined;
  /** Logs when a replica fails and when it recovers; never one line per request. */
  readonly logger?: ClientLogger;
}

export class FleetRoutes {
  readonly #options: RouteOptions;
  readonly #callOptions: CallOptions | undefined;
  readonly #clock: TimerClock;
  readonly #replicas = new Map<string, Replica>();
  /** Bundle → shard count → replica sets; index = shard. */
  readonly #routes = new Map<string, Map<number, readonly ReplicaSet[]>>();
  #current: Fleet | undefined;
  /** The fleet is not the first one: its new servers join one that is in use. */
  #hasChanged = false;

  /**
   * @param callOptions of all calls, unless `checksum` is false
   * @throws CubeError INVALID_ARGUMENT for an invalid policy or connection type
   */
  constructor(options: RouteOptions, callOptions: CallOptions, clock: TimerClock) {
    this.#options = options;
    this.#callOptions = options.checksum === false ? undefined : callOptions;
    this.#clock = clock;
    checkConnectionType(options.connectionType ?? 'single');
    if (typeof options.policy === 'object') checkPolicy(options.policy);
  }

  /**
   * Returns one replica set per shard of the current fleet.
   * @throws CubeError NOT_FOUND when the fleet has no servers for this bundle and shard count
   */
  getReplicaSets(bundle: string, shardNum: number): readonly ReplicaSet[] {
    const fleet = this.#fleet();
    const known = this.#routes.get(bundle)?.get(shardNum);
    if (known !== undefined) return known;
    const policy = this.getPolicy(bundle);
    const sets = findShardMap(fleet, bundle, shardNum).shards.map((replicas, shard) => {
      const weights = replicas.map(({ weight }) => weight ?? 1);
      const connected = replicas.map(({ data }) => this.#replica(data));
      return new ReplicaSet(shard, connected, weights, policy, this.#clock);
    });
    const ofBundle = this.#routes.get(bundle) ?? new Map<number, readonly ReplicaSet[]>();
    this.#routes.set(bundle, ofBundle.set(shardNum, sets));
    return sets;
  }

  /**
   * @throws CubeError NOT_FOUND for an unknown bundle, INVALID_ARGUMENT for a bundle at several
   *   shard counts
   */
  getShardNum(bundle: string): number {
    const counts = (this.#fleet().bundles.get(bundle) ?? []).map(({ shardNum }) => shardNum);
    const [shardNum] = counts;
    if (shardNum === undefined) {
      const known = [...this.#fleet().bundles.keys()].join(', ');
      throw new CubeError(
        'NOT_FOUND',
        `the fleet has no ${JSON.stringify(bundle)} (it has: ${known})`,
        { details: { bundle } },
      );
    }
    if (counts.length === 1) return shardNum;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `the fleet has ${bundle} at several shard counts (${counts.join(', ')}): pass shardNum`,
      { details: { bundle } },
    );
  }

  getPolicy(bundle: string): CallPolicy {
    const { policy } = this.#options;
    return typeof policy === 'function' ? checkPolicy(policy(bundle)) : (policy ?? {});
  }

  stats(): ReplicaStats[] {
    return [...this.#replicas.values()].map((replica) => replica.stats(this.#clock.nowMs()));
  }

  close(): void {
    for (const replica of this.#replicas.values()) replica.close();
    this.#replicas.clear();
    this.#routes.clear();
  }

  #fleet(): Fleet {
    const fleet = this.#options.fleet();
    if (fleet !== this.#current) this.#adopt(fleet);
    return fleet;
  }

  #adopt(fleet: Fleet): void {
    this.#hasChanged = this.#current !== undefined;
    this.#current = fleet;
    this.#routes.clear();
    const named = new Set<string>();
    for (const maps of fleet.bundles.values()) {
      for (const map of maps) for (const replica of map.shards.flat()) named.add(replica.data);
    }
    for (const [endpoint, replica] of this.#replicas) {
      if (named.has(endpoint)) continue;
      this.#replicas.delete(endpoint);
      replica.closeWhenIdle();
    }
  }

  #replica(endpoint: string): Replica {
    let replica = this.#replicas.get(endpoint);
    if (replica === undefined) {
      const { connectionType = 'single', logger, credentials } = this.#options;
      const callOptions = this.#callOptions;
      const clock = this.#clock;
      replica = new Replica(endpoint, connectionType, logger, callOptions, clock, credentials);
      if (this.#hasChanged) replica.startSlowly();
      this.#replicas.set(endpoint, replica);
    }
    return replica;
  }
}
