/**
 * A Redis server with the rows of the lookup benchmarks: written by MSET, read by MGET; INFO gives
 * its CPU time.
 */
import { spawnSync } from 'node:child_process';
import { createServer } from 'node:net';
import { createClient, RESP_TYPES } from 'redis';
import { DIM, spawnPinned, writeKey } from './cube-server-process.ts';

const MSET_KEYS = 1000;

export interface MgetClient {
  mget(keys: readonly Buffer[]): Promise<readonly (Buffer | null)[]>;
  mset(pairs: readonly (readonly [Buffer, Buffer])[]): Promise<void>;
  cpuSeconds(): Promise<number>;
  close(): void;
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return typeof address === 'object' && address !== null ? address.port : 0;
}

/**
 * Starts redis-server on the first core, without persistence. @returns undefined when it is not
 * installed
 */
export async function startRedis(
  folder: string,
): Promise<{ port: number; stop(): Promise<void> } | undefined> {
  if (spawnSync('redis-server', ['--version']).status !== 0) return undefined;
  const port = await freePort();
  const flags = ['--port', `${port}`, '--bind', '127.0.0.1', '--save', '', '--appendonly', 'no'];
  const files = ['--dir', folder, '--logfile', `${folder}/redis.log`];
  const child = spawnPinned(0, ['redis-server', ...flags, ...files]);
  const stop = async (): Promise<void> => {
    child.kill('SIGTERM');
    await new Promise((resolve) => child.on('close', resolve));
  };
  return { port, stop };
}

/** Connects to a server, which may still be starting. */
export async function openMget(port: number): Promise<MgetClient> {
  const plain = createClient({ socket: { host: '127.0.0.1', port } });
  await plain.connect();
  const buffers = plain.withTypeMapping({ [RESP_TYPES.BLOB_STRING]: Buffer });
  return {
    mget: (keys) => buffers.mGet([...keys]),
    async mset(pairs) {
      await buffers.mSet(pairs.map(([key, value]): [Buffer, Buffer] => [key, value]));
    },
    async cpuSeconds() {
      const info = await plain.info('cpu');
      const part = (name: string): number =>
        Number(new RegExp(`^${name}:(\\S+)`, 'm').exec(info)?.[1]);
      return part('used_cpu_user') + part('used_cpu_sys');
    },
    close: () => plain.destroy(),
  };
}

/** Writes the keys of a version with this many rows, and rows of the same size. */
export async function fillRedis(redis: MgetClient, rows: number): Promise<void> {
  const value = Buffer.alloc(4 * DIM, 1);
  for (let first = 0; first < rows; first += MSET_KEYS) {
    const keys = new Uint32Array(2 * MSET_KEYS);
    for (let i = 0; i < MSET_KEYS; i++) writeKey(keys, 2 * i, first + i);
    await redis.mset(
      Array.from({ length: MSET_KEYS }, (_, i) => [Buffer.from(keys.buffer, 8 * i, 8), value]),
    );
  }
}
