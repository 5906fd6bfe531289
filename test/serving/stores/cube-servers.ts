/** Real cube-server processes over one data folder, as an agent would run them, and the fleet they make. */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { dirname, join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';
import type { Fleet, ShardMap } from '../../../lib/core/fleet.ts';
import { type Manifest, shardNumOf } from '../../../lib/core/manifest.ts';
import { replicaAt } from '../../client/test-fleet.ts';

const MAIN = join(
  dirname(fileURLToPath(import.meta.url)),
  ...['..', '..', '..', 'cube-server', 'main.js'],
);

export class CubeServers {
  readonly #bundle: string;
  readonly #dataFolder: string;
  readonly #maps: ShardMap[] = [];
  /** By the address they listen on. */
  readonly #processes = new Map<string, ChildProcess>();

  /** @param dataFolder of the shape that a repository has too */
  constructor(bundle: string, dataFolder: string) {
    this.#bundle = bundle;
    this.#dataFolder = dataFolder;
  }

  get fleet(): Fleet {
    return { bundles: new Map([[this.#bundle, this.#maps]]) };
  }

  /** Loads the version on a server of each of its shards; starts those when there are none. */
  async load(manifest: Manifest): Promise<void> {
    const shardNum = shardNumOf(manifest);
    let map = this.#maps.find((candidate) => candidate.shardNum === shardNum);
    if (map === undefined) {
      const starts = Array.from({ length: shardNum }, (_, shard) => this.#start(shard, shardNum));
      const addresses = await Promise.all(starts);
      map = { shardNum, shards: addresses.map((address) => [replicaAt(address)]) };
      this.#maps.push(map);
    }
    const body = JSON.stringify({ bundle: manifest.bundle, version: manifest.version });
    await Promise.all(
      map.shards.map(async ([replica]) => {
        const url = `http://${replica!.control}/hypercube.ControlService/load`;
        const headers = { 'content-type': 'application/json' };
        const response = await fetch(url, { method: 'POST', headers, body });
        assert.equal(response.status, 200, await response.text());
      }),
    );
  }

  /** kill -9. */
  async kill(address: string): Promise<void> {
    const child = this.#processes.get(address)!;
    this.#processes.delete(address);
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  /** Starts a killed server again, empty, on its old port. */
  async restart(address: string): Promise<void> {
    for (const { shardNum, shards } of this.#maps) {
      const shard = shards.findIndex(([replica]) => replica!.data === address);
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
