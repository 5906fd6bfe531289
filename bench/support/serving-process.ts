/**
 * A serving process on the service's core, alone or in front of cube-servers that share the core.
 */
import { join } from 'node:path';
import { formatFleet } from '../../lib/core/fleet.ts';
import { replaceFile } from '../../lib/platform/files.ts';
import { CONTROL_LOAD } from '../../proto/control.ts';
import { type BenchServer, spawnPinned, startServer } from './cube-server-process.ts';
import { BUNDLE } from './demo-model.ts';

export const SERVICE_CORE = 0;

export interface Service {
  readonly url: URL;
  /** User and system time of all its processes so far. */
  cpuSeconds(): Promise<number>;
  stop(): Promise<void>;
}

export interface LoggingService extends Service {
  /** What the process has logged so far. */
  readLog(): string;
}

interface ServiceOptions {
  /** The core of the process; undefined: any. Default SERVICE_CORE. */
  readonly core?: number | undefined;
  /** Instances of the model. Default 1. */
  readonly instances?: number;
}

/** Starts serving with the published model, and waits until it is ready. */
export async function startServing(
  folder: string,
  flags: readonly string[],
  given: ServiceOptions = {},
): Promise<LoggingService> {
  const { core, instances } = { core: SERVICE_CORE, instances: 1, ...given };
  const main = join(import.meta.dirname, '..', '..', 'serving', 'main.js');
  const options = ['--repository', join(folder, 'repo'), '--bundle', BUNDLE, '--port', '0'];
  const command = [process.execPath, main, ...options, '--instances', String(instances), ...flags];
  const child = spawnPinned(core, command);
  let log = '';
  const url = await new Promise<URL>((resolve, reject) => {
    child.stderr?.on('data', (chunk) => {
      if (log.length < 65_536) log += chunk;
      const address = /"address":"([^"]+)"/.exec(log)?.[1];
      if (address !== undefined) resolve(new URL(`http://${address}`));
    });
    child.on('close', () => reject(new Error(`serving ended: ${log}`)));
  });
  while (!(await fetch(new URL('/readyz', url))).ok) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  return {
    url,
    readLog: () => log,
    async cpuSeconds() {
      const text = await (await fetch(new URL('/metrics', url))).text();
      return Number(/^process_cpu_seconds_total (\S+)/m.exec(text)?.[1]);
    },
    async stop() {
      child.kill('SIGTERM');
      if (child.exitCode === null) await new Promise((resolve) => child.on('close', resolve));
    },
  };
}

/** Starts serving with its tables on cube-servers, whose CPU time counts too. */
export async function startServingWithShards(folder: string, shardNum: number): Promise<Service> {
  const shards: BenchServer[] = [];
  for (let shard = 0; shard < shardNum; shard++) {
    const options = { shard, shardNum, core: SERVICE_CORE };
    const server = await startServer(join(folder, 'repo'), options);
    await server.control(CONTROL_LOAD, '1', { bundle: BUNDLE });
    shards.push(server);
  }
  const replicas = shards.map(({ address }) => [
    { data: address, control: address, group: 'default' },
  ]);
  const layouts = [{ shardNum, shards: replicas }];
  const fleet = join(folder, 'fleet.json');
  replaceFile(fleet, formatFleet({ bundles: new Map([[BUNDLE, layouts]]) }));
  const serving = await startServing(folder, ['--store', 'remote', '--fleet', fleet]);
  return {
    url: serving.url,
    async cpuSeconds() {
      const parts = await Promise.all([serving, ...shards].map((part) => part.cpuSeconds()));
      return parts.reduce((sum, part) => sum + part, 0);
    },
    async stop() {
      await serving.stop();
      for (const shard of shards) await shard.stop();
    },
  };
}
