/** A fleet of fake shard servers, and its clients. */
import assert from 'node:assert/strict';
import { after } from 'node:test';
import { CubeClient, type CubeClientOptions } from '../../../lib/client/cube-client.ts';
import type { Fleet, Replica } from '../../../lib/core/fleet.ts';
import type { OracleVersion } from './oracle.ts';
import { FakeShardServer } from './shard-server.ts';

const startedFleets: TestFleet[] = [];
after(() => Promise.all(startedFleets.map((fleet) => fleet.stop())));

/** Starts a fleet that stops when all tests of the file have ended. */
export async function startFleet(
  versions: readonly OracleVersion[],
  replicas = 1,
): Promise<TestFleet> {
  const fleet = await TestFleet.start(versions, replicas);
  startedFleets.push(fleet);
  return fleet;
}

export class TestFleet {
  /** Shard count → replicas by shard. */
  readonly shardMaps: Map<number, FakeShardServer[][]> = new Map();
  readonly bundle: string;
  fleet: Fleet = { bundles: new Map() };
  readonly #clients: CubeClient[] = [];

  constructor(bundle: string) {
    this.bundle = bundle;
  }

  /** Starts `replicaCount` servers for each shard of the versions, and lists them in the fleet. */
  static async start(versions: readonly OracleVersion[], replicaCount: number): Promise<TestFleet> {
    const [version] = versions;
    assert.ok(version !== undefined);
    const fleet = new TestFleet(version.bundle);
    await fleet.addShardMap(versions, replicaCount);
    return fleet;
  }

  async addShardMap(versions: readonly OracleVersion[], replicaCount: number): Promise<void> {
    const shardNum = versions[0]?.shardNum ?? 1;
    const shards = Array.from({ length: shardNum }, (_, shard) =>
      Array.from({ length: replicaCount }, () => new FakeShardServer(shard, shardNum, versions)),
    );
    for (const server of shards.flat()) await server.start();
    this.shardMaps.set(shardNum, shards);
    this.refresh();
  }

  /** Replaces the fleet by a new object with the current servers, as a reread fleet.json does. */
  refresh(): void {
    const maps = [...this.shardMaps].map(([shardNum, shards]) => ({
      shardNum,
      shards: shards.map((replicas) => replicas.map(({ endpoint }) => createReplica(endpoint))),
    }));
    this.fleet = { bundles: new Map([[this.bundle, maps]]) };
  }

  getReplicas(shardNum: number, shard: number): FakeShardServer[] {
    return this.shardMaps.get(shardNum)?.[shard] ?? [];
  }

  /** Returns one replica of a shard. */
  getReplica(shardNum: number, shard: number, index = 0): FakeShardServer {
    const replica = this.getReplicas(shardNum, shard)[index];
    assert.ok(replica !== undefined);
    return replica;
  }

  /** Returns a server by its position among all servers. */
  getServer(index: number): FakeShardServer {
    const server = this.servers[index];
    assert.ok(server !== undefined);
    return server;
  }

  get servers(): FakeShardServer[] {
    return [...this.shardMaps.values()].flat(2);
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

export function createReplica(endpoint: string): Replica {
  return { data: endpoint, control: endpoint, group: 'default' };
}
