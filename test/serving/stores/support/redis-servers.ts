/**
 * Real redis-server processes on free ports: one, or a Cluster of three. Tests are skipped without
 * redis-server.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { createClient } from 'redis';
import { freePort } from '../../../platform/support/free-port.ts';

const SLOTS = 16_384;

/** The reason to skip tests of Redis, if any. */
export const redisMissing: string | undefined =
  spawnSync('redis-server', ['--version']).status === 0
    ? undefined
    : 'redis-server is not on the PATH';

/** The reason to skip tests of Redis over TLS, if any: a build without TLS rejects the option. */
export function redisTlsMissing(): string | undefined {
  if (redisMissing !== undefined) return redisMissing;
  if (spawnSync('openssl', ['version']).status !== 0) return 'openssl is not on the PATH';
  const { stdout, stderr } = spawnSync('redis-server', ['--tls-port', '0', '--port', 'none']);
  return /tls-port/.test(`${stdout}${stderr}`) ? 'redis-server is built without TLS' : undefined;
}

/** Never connects: others duplicate it, because to make a client is to make a class of commands. */
const model = createClient();

async function command(port: number, args: string[], password?: string): Promise<unknown> {
  const client = model.duplicate({
    socket: { host: '127.0.0.1', port, reconnectStrategy: false },
    ...(password && { password }),
  });
  client.on('error', () => undefined);
  await client.connect();
  try {
    return await client.sendCommand(args);
  } finally {
    client.destroy();
  }
}

export class RedisServers {
  readonly ports: readonly number[];
  readonly #folder: string;
  readonly #flags: readonly string[];
  readonly #processes = new Map<number, ChildProcess>();

  private constructor(folder: string, ports: readonly number[], flags: readonly string[]) {
    this.#folder = folder;
    this.ports = ports;
    this.#flags = flags;
  }

  static async one(...flags: string[]): Promise<RedisServers> {
    const folder = await mkdtemp(join(tmpdir(), 'hypercube-redis-'));
    const servers = new RedisServers(folder, [await freePort()], flags);
    await servers.start(0);
    return servers;
  }

  /** Three nodes without replicas; the others answer when one is down. */
  static async cluster(): Promise<RedisServers> {
    const folder = await mkdtemp(join(tmpdir(), 'hypercube-redis-'));
    const first = await freePort(3);
    const ports = [first, first + 1, first + 2];
    const flags = ['--cluster-enabled', 'yes', '--cluster-require-full-coverage', 'no'];
    const servers = new RedisServers(folder, ports, [...flags, '--cluster-node-timeout', '1000']);
    await Promise.all(ports.map((_, node) => servers.start(node)));
    for (const [node, port] of ports.entries()) {
      const first = Math.floor((node * SLOTS) / 3);
      const last = Math.floor(((node + 1) * SLOTS) / 3) - 1;
      await command(port, ['CLUSTER', 'ADDSLOTSRANGE', `${first}`, `${last}`]);
      if (node > 0) await command(port, ['CLUSTER', 'MEET', '127.0.0.1', `${ports[0]}`]);
    }
    for (const port of ports) {
      for (;;) {
        const info = String(await command(port, ['CLUSTER', 'INFO']));
        if (/cluster_state:ok/.test(info) && /cluster_slots_ok:16384/.test(info)) break;
        await sleep(20);
      }
    }
    return servers;
  }

  get urls(): string[] {
    return this.ports.map((port) => `redis://127.0.0.1:${port}`);
  }

  async start(node: number, password?: string): Promise<void> {
    const port = this.ports[node]!;
    const folder = join(this.#folder, `${port}`);
    await mkdir(folder, { recursive: true });
    const own = ['--port', `${port}`, '--bind', '127.0.0.1', '--dir', folder];
    const child = spawn(
      'redis-server',
      [...own, '--save', '', '--appendonly', 'no', ...this.#flags],
      { stdio: 'ignore' },
    );
    this.#processes.set(node, child);
    for (;;) {
      if (child.exitCode !== null) throw new Error(`redis-server on ${port} ended`);
      try {
        await command(port, ['PING'], password);
        return;
      } catch (error) {
        if (/NOAUTH|WRONGPASS/.test((error as Error).message)) return;
        await sleep(10);
      }
    }
  }

  /** SIGSTOP or SIGCONT. */
  signal(node: number, signal: NodeJS.Signals): void {
    this.#processes.get(node)!.kill(signal);
  }

  async kill(node: number): Promise<void> {
    const child = this.#processes.get(node)!;
    this.#processes.delete(node);
    child.kill('SIGKILL');
    await once(child, 'exit');
  }

  send(node: number, ...args: string[]): Promise<unknown> {
    return command(this.ports[node]!, args);
  }

  async stop(): Promise<void> {
    await Promise.all([...this.#processes.keys()].map((node) => this.kill(node)));
    await rm(this.#folder, { recursive: true, force: true });
  }
}
