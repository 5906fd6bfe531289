/** Test servers as a fleet, and a client of it. */
import { CubeClient, type CubeClientOptions } from '../../lib/client/cube-client.ts';
import type { Fleet, Replica } from '../../lib/core/fleet.ts';
import type { OracleVersion } from './oracle.ts';
import { ShardServer } from './shard-server.ts';

export class TestFleet {
  /** By shard count, by shard: its replicas. */
  readonly maps: Map<number, ShardServer[][]> = new Map();
  readonly bundle: string;
  fleet: Fleet = { bundles: new Map() };
  readonly #clients: CubeClient[] = [];

  constructor(bundle: string) {
    this.bundle = bundle;
  }

  /** Starts `replicaCount` servers for each shard of the versions' shard count; the fleet lists them. */
  static async start(versions: readonly OracleVersion[], replicaCount: number): Promise<TestFleet> {
    const fleet = new TestFleet(versions[0]!.bundle);
    await fleet.addMap(versions, replicaCount);
    return fleet;
  }

  async addMap(versions: readonly OracleVersion[], replicaCount: number): Promise<void> {
    const { shardNum } = versions[0]!;
    const shards = Array.from({ length: shardNum }, (_, shard) =>
      Array.from({ length: replicaCount }, () => new ShardServer(shard, shardNum, versions)),
    );
    for (const server of shards.flat()) await server.start();
    this.maps.set(shardNum, shards);
    this.refresh();
  }

  /** Writes the fleet as the servers are now: a new object, as a reread fleet.json is. */
  refresh(): void {
    const maps = [...this.maps].map(([shardNum, shards]) => ({
      shardNum,
      shards: shards.map((replicas) => replicas.map(({ endpoint }) => replicaAt(endpoint))),
    }));
    this.fleet = { bundles: new Map([[this.bundle, maps]]) };
  }

  shard(shardNum: number, shard: number): ShardServer[] {
    return this.maps.get(shardNum)![shard]!;
  }

  get servers(): ShardServer[] {
    return [...this.maps.values()].flat(2);
  }

  client(options: Partial<CubeClientOptions> = {}): CubeClient {
    const client = new CubeClient({ fleet: () => this.fleet, ...options });
    this.#clients.push(client);
    return client;
  }

  async stop(): Promise<void> {
    for (const client of this.#clients) client.close();
    for (const server of this.servers) await server.kill();
  }
}

export function replicaAt(endpoint: string): Replica {
  return { data: endpoint, control: endpoint, group: 'default' };
}
