/**
 * Cube-servers with one data folder, as an agent would run them, and their fleet: in the process of
 * the test, or processes of their own where a test sends signals to them.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { CubeServer } from '../../../../cube-server/server.ts';
import type { Fleet, ShardMap } from '../../../../lib/core/fleet.ts';
import { getShardNum, type Manifest } from '../../../../lib/core/manifest.ts';
import { createReplica } from '../../../client/support/test-fleet.ts';
import { createServer } from '../../../cube-server/support/create-server.ts';

const MEMORY_MIB = 256;
const MAIN = join(import.meta.dirname, '..', '..', '..', '..', 'cube-server', 'main.js');

export interface CubeServersOptions {
  /** Servers for each shard; default: one. */
  readonly replicas?: number;
  /** The test stops, kills or restarts servers. */
  readonly areProcesses?: boolean;
}

export class CubeServers {
  readonly #bundle: string;
  readonly #dataFolder: string;
  readonly #replicas: number;
  readonly #areProcesses: boolean;
  readonly #maps: ShardMap[] = [];
  /** By the address they listen on. */
  readonly #processes = new Map<string, ChildProcess>();
  readonly #servers: CubeServer[] = [];

  /** @param dataFolder has the layout of a repository */
  constructor(
    bundle: string,
    dataFolder: string,
    { replicas = 1, areProcesses = false }: CubeServersOptions = {},
  ) {
    this.#bundle = bundle;
    this.#dataFolder = dataFolder;
    this.#replicas = replicas;
    this.#areProcesses = areProcesses;
  }

  get fleet(): Fleet {
    return { bundles: new Map([[this.#bundle, this.#maps]]) };
  }

  /** Loads the version on all servers of its shards; starts those when there are none. */
  async load(manifest: Manifest): Promise<void> {
    const shardNum = getShardNum(manifest);
    let map = this.#maps.find((candidate) => candidate.shardNum === shardNum);
    if (map === undefined) {
      const starts = Array.from({ length: shardNum }, (_, shard) => {
        const start = () => this.#start(shard, shardNum);
        const replicas = Array.from({ length: this.#replicas }, start);
        return Promise.all(replicas);
      });
      const addresses = await Promise.all(starts);
      map = { shardNum, shards: addresses.map((replicas) => replicas.map(createReplica)) };
      this.#maps.push(map);
    }
    const body = JSON.stringify({ bundle: manifest.bundle, version: manifest.version });
    await Promise.all(
      map.shards.flat().map(async ({ control }) => {
        const url = `http://${control}/hypercube.ControlService/load`;
        const headers = { 'content-type': 'application/json' };
        const response = await fetch(url, { method: 'POST', headers, body });
        assert.equal(response.status, 200, await response.text());
      }),
    );
  }

  /** The address of a server of the only shard count. */
  getAddress(shard: number, replica = 0): string {
    const address = this.#maps[0]?.shards[shard]?.[replica]?.data;
    assert.ok(address !== undefined);
    return address;
  }

  /** Sends SIGSTOP or SIGCONT to the process of a server. */
  signal(address: string, signal: NodeJS.Signals): void {
    assert.ok(this.#getProcess(address).kill(signal));
  }

  /** Kills the process of a server with SIGKILL. */
  async kill(address: string): Promise<void> {
    const child = this.#getProcess(address);
    this.#processes.delete(address);
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** Starts a killed server again, empty, on its old port. */
  async restart(address: string): Promise<void> {
    for (const { shardNum, shards } of this.#maps) {
      const shard = shards.findIndex((replicas) => replicas.some(({ data }) => data === address));
      if (shard >= 0) await this.#start(shard, shardNum, Number(address.split(':')[1]));
    }
  }

  async stop(): Promise<void> {
    await Promise.all([
      ...[...this.#processes.keys()].map((address) => this.kill(address)),
      ...this.#servers.splice(0).map((server) => server.stop()),
    ]);
  }

  #getProcess(address: string): ChildProcess {
    const child = this.#processes.get(address);
    assert.ok(child !== undefined, 'start it with areProcesses');
    return child;
  }

  /** @returns the address it listens on */
  async #start(shard: number, shardNum: number, port = 0): Promise<string> {
    if (this.#areProcesses) return this.#startProcess(shard, shardNum, port);
    const place = { shardIndex: shard, shardNum, memoryBytes: MEMORY_MIB << 20 };
    const server = createServer(this.#dataFolder, place);
    this.#servers.push(server);
    return server.listen({ host: '127.0.0.1', port });
  }

  /** @returns the address that the process says it listens on */
  async #startProcess(shard: number, shardNum: number, port: number): Promise<string> {
    const flags = { shard, 'shard-num': shardNum, port, 'data-dir': this.#dataFolder };
    const args = Object.entries({ ...flags, memory: `${MEMORY_MIB}MiB` }).flatMap(
      ([name, value]) => [`--${name}`, String(value)],
    );
    const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'ignore', 'pipe'] });
    for await (const line of createInterface({ input: child.stderr! })) {
      const { msg, address } = JSON.parse(line) as { msg: string; address: string };
      if (msg !== 'listening') continue;
      child.stderr!.resume();
      this.#processes.set(address, child);
      return address;
    }
    throw new Error(`cube-server ${args.join(' ')} ended before it listened`);
  }
}
