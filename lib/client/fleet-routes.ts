/**
 * From the fleet to connections: the replica sets of a bundle at a shard count. Replicas are kept by endpoint, so a
 * changed fleet keeps the connections and the knowledge of all endpoints that stay; those that left are closed after use.
 */
import { CubeError } from '../core/errors.ts';
import { type Fleet, shardMapOf } from '../core/fleet.ts';
import { type CallPolicy, checkPolicy } from './call-policy.ts';
import { type ConnectionType, checkConnectionType } from './connections.ts';
import { type ClientLogger, Replica, type ReplicaStats } from './replica.ts';
import { ReplicaSet } from './replica-set.ts';

export interface RouteOptions {
  /** The fleet of now; a new object is taken over at the next call (`FleetFile` rereads fleet.json, `CubeConf` its names). */
  readonly fleet: () => Fleet;
  /** For all bundles, or for each. */
  readonly policy?: CallPolicy | ((bundle: string) => CallPolicy);
  /** Default single. */
  readonly connectionType?: ConnectionType;
  /**
   * Every request and answer travels with a crc32c, so that what the network damages is asked again and never given out.
   * Default false: TCP's own 16 bits. The servers must know checksums (ours and brpc of today do).
   */
  readonly checksum?: boolean;
  /** Told when a replica fails and when it is back; never a line a request. */
  readonly logger?: ClientLogger;
}

export class FleetRoutes {
  readonly #options: RouteOptions;
  readonly #replicas = new Map<string, Replica>();
  /** By bundle, by shard count. */
  readonly #routes = new Map<string, Map<number, readonly ReplicaSet[]>>();
  #current: Fleet | undefined;

  /** @throws CubeError INVALID_ARGUMENT for a policy or connection type that is none */
  constructor(options: RouteOptions) {
    this.#options = options;
    checkConnectionType(options.connectionType ?? 'single');
    if (typeof options.policy === 'object') checkPolicy(options.policy);
  }

  /**
   * One replica set for each shard, of the fleet of now.
   * @throws CubeError NOT_FOUND when the fleet has no servers for this bundle and shard count
   */
  route(bundle: string, shardNum: number): readonly ReplicaSet[] {
    const fleet = this.#fleet();
    const known = this.#routes.get(bundle)?.get(shardNum);
    if (known !== undefined) return known;
    const policy = this.policyOf(bundle);
    const sets = shardMapOf(fleet, bundle, shardNum).shards.map((replicas, shard) => {
      const weights = replicas.map(({ weight }) => weight ?? 1);
      const connected = replicas.map(({ data }) => this.#replica(data));
      return new ReplicaSet(shard, connected, weights, policy);
    });
    const ofBundle = this.#routes.get(bundle) ?? new Map<number, readonly ReplicaSet[]>();
    this.#routes.set(bundle, ofBundle.set(shardNum, sets));
    return sets;
  }

  /** @throws CubeError NOT_FOUND for an unknown bundle, INVALID_ARGUMENT when the fleet has it at several shard counts */
  shardNumOf(bundle: string): number {
    const counts = (this.#fleet().bundles.get(bundle) ?? []).map(({ shardNum }) => shardNum);
    if (counts.length === 1) return counts[0]!;
    if (counts.length === 0) {
      const known = [...this.#fleet().bundles.keys()].join(', ');
      throw new CubeError(
        'NOT_FOUND',
        `the fleet has no ${JSON.stringify(bundle)} (it has: ${known})`,
      );
    }
    throw new CubeError(
      'INVALID_ARGUMENT',
      `the fleet has ${bundle} at several shard counts (${counts.join(', ')}): say shardNum`,
    );
  }

  policyOf(bundle: string): CallPolicy {
    const { policy } = this.#options;
    return typeof policy === 'function' ? checkPolicy(policy(bundle)) : (policy ?? {});
  }

  /** Of every replica in use. */
  stats(): ReplicaStats[] {
    return [...this.#replicas.values()].map((replica) => replica.stats());
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
    this.#current = fleet;
    this.#routes.clear();
    const named = new Set<string>();
    for (const maps of fleet.bundles.values()) {
      for (const map of maps) for (const replica of map.shards.flat()) named.add(replica.data);
    }
    for (const [endpoint, replica] of this.#replicas) {
      if (named.has(endpoint)) continue;
      this.#replicas.delete(endpoint);
      replica.leave();
    }
  }

  #replica(endpoint: string): Replica {
    let replica = this.#replicas.get(endpoint);
    if (replica === undefined) {
      const { connectionType = 'single', logger, checksum = false } = this.#options;
      const callOptions = checksum ? { checksum } : undefined;
      replica = new Replica(endpoint, connectionType, logger, callOptions);
      this.#replicas.set(endpoint, replica);
    }
    return replica;
  }
}
