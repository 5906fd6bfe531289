/** Real cube-server processes with one data folder, as an agent would run them, and their fleet. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import type { Fleet, ShardMap } from '../../../../lib/core/fleet.ts';
import { getShardNum, type Manifest } from '../../../../lib/core/manifest.ts';
import { createReplica } from '../../../client/support/test-fleet.ts';

const MAIN = join(import.meta.dirname, '..', '..', '..', '..', 'cube-server', 'main.js');

export class CubeServers {
  readonly #bundle: string;
  readonly #dataFolder: string;
  readonly #replicas: number;
  readonly #maps: ShardMap[] = [];
  /** By the address they listen on. */
  readonly #processes = new Map<string, ChildProcess>();

  /**
   * @param dataFolder has the layout of a repository
   * @param replicas servers for each shard
   */
  constructor(bundle: string, dataFolder: string, replicas = 1) {
    this.#bundle = bundle;
    this.#dataFolder = dataFolder;
    this.#replicas = replicas;
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
        const replicas = Array.from({ length: this.#replicas }, () => this.#start(shard, shardNum));
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

  /** Sends SIGSTOP or SIGCONT to a server. */
  signal(address: string, signal: NodeJS.Signals): void {
    const child = this.#processes.get(address);
    assert.ok(child?.kill(signal));
  }

  /** Kills a server with SIGKILL. */
  async kill(address: string): Promise<void> {
    const child = this.#processes.get(address)!;
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
    await Promise.all([...this.#processes.keys()].map((address) => this.kill(address)));
  }

  /** @returns the address that the process says it listens on */
  async #start(shard: number, shardNum: number, port = 0): Promise<string> {
    const flags = { shard, 'shard-num': shardNum, port, 'data-dir': this.#dataFolder };
    const args = Object.entries({ ...flags, memory: '256MiB' }).flatMap(([name, value]) => [
      `--${name}`,
      String(value),
    ]);
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
