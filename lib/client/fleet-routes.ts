/**
 * From the fleet to connections: the replica sets of a bundle at a shard count. Replicas are kept by endpoint, so a
 * changed fleet keeps the connections and the knowledge of all endpoints that stay; those that left are closed after use.
 */
import { type Fleet, shardMapOf } from '../core/fleet.ts';
import type { Logger } from '../platform/logs.ts';
import { Replica } from './replica.ts';
import { ReplicaSet } from './replica-set.ts';

export class FleetRoutes {
  readonly #fleet: () => Fleet;
  readonly #logger: Logger | undefined;
  readonly #replicas = new Map<string, Replica>();
  readonly #routes = new Map<string, readonly ReplicaSet[]>();
  #current: Fleet | undefined;

  constructor(fleet: () => Fleet, logger: Logger | undefined) {
    this.#fleet = fleet;
    this.#logger = logger;
  }

  /**
   * One replica set for each shard, of the fleet of now.
   * @throws CubeError NOT_FOUND when the fleet has no servers for this bundle and shard count
   */
  route(bundle: string, shardNum: number): readonly ReplicaSet[] {
    const fleet = this.#fleet();
    if (fleet !== this.#current) this.#adopt(fleet);
    const name = `${bundle}/${shardNum}`;
    let sets = this.#routes.get(name);
    if (sets === undefined) {
      sets = shardMapOf(fleet, bundle, shardNum).shards.map(
        (replicas, shard) =>
          new ReplicaSet(
            shard,
            replicas.map((replica) => this.#replica(replica.data)),
          ),
      );
      this.#routes.set(name, sets);
    }
    return sets;
  }

  close(): void {
    for (const replica of this.#replicas.values()) replica.channel.close();
    this.#replicas.clear();
    this.#routes.clear();
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
      replica = new Replica(endpoint, this.#logger);
      this.#replicas.set(endpoint, replica);
    }
    return replica;
  }
}
