/**
 * What the benchmarks over sockets share: a made-up table published into a folder, cube-server processes on a core of
 * their own, their CPU time, and percentiles of what was measured.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { formatManifest, type LayerRef, type Manifest } from '../lib/core/manifest.ts';
import { encodeRows } from '../lib/core/row-codec.ts';
import { replaceFile } from '../lib/platform/files.ts';
import { layerPath, manifestPath } from '../lib/repository/layout.ts';
import { writeLayer } from '../lib/store/layer-file.ts';
import { CONTROL_ACTIVATE, CONTROL_LOAD } from '../proto/control.ts';

export const BUNDLE = 'bench';
export const TABLE = 'table';
export const DIM = 10;

/** Key i of the table: odd multipliers, so that keys are spread and distinct. */
export function writeKey(words: Uint32Array, at: number, i: number): void {
  words[at] = Math.imul(i + 1, 0x9e37_79b1);
  words[at + 1] = Math.imul(i + 1, 0x85eb_ca6b) ^ (i >>> 3);
}

/** `count` keys of the first `from` of the table, drawn uniformly: 2 · count words. */
export function drawKeys(count: number, from: number): Uint32Array {
  const words = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) writeKey(words, 2 * i, Math.floor(Math.random() * from));
  return words;
}

/** Publishes a version with this many rows in so many shards; `salt` makes its rows other ones. */
export function writeVersion(
  folder: string,
  {
    version,
    rows,
    shardNum,
    salt = 0,
  }: { version: string; rows: number; shardNum: number; salt?: number },
): Manifest {
  const shards = Array.from({ length: shardNum }, (_, shard) => [
    writeShard(folder, rows, shard, shardNum, salt),
  ]);
  const table = {
    name: TABLE,
    dim: DIM,
    dtype: 'f32',
    rows,
    defaultRow: [],
    shardNum,
    shards,
  } as const;
  const manifest: Manifest = {
    ...{ bundle: BUNDLE, version, files: [], slots: [] },
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    tables: [table],
  };
  replaceFile(join(folder, manifestPath(BUNDLE, version)), formatManifest(manifest));
  return manifest;
}

function writeShard(
  folder: string,
  rows: number,
  shardIndex: number,
  shardNum: number,
  salt: number,
): LayerRef {
  const key = new Uint32Array(2);
  const own: number[] = [];
  for (let i = 0; i < rows; i++) {
    writeKey(key, 0, i);
    const remainder =
      ((key[1]! % shardNum) * (2 ** 32 % shardNum) + (key[0]! % shardNum)) % shardNum;
    if (remainder === shardIndex) own.push(i);
  }
  const keys = new Uint32Array(2 * own.length);
  own.forEach((i, at) => {
    writeKey(keys, 2 * at, i);
  });
  const values = new Float32Array(own.length * DIM).map((_, i) => (i + salt) % 1000);
  const layer = {
    ...{ table: TABLE, dtype: 'f32' as const, dim: DIM, shardIndex, shardNum, keys },
    rows: encodeRows('f32', values, DIM).rows,
  };
  const written = writeLayer(layer, (id) => join(folder, layerPath(BUNDLE, TABLE, id)));
  const { contentId, bytes, sha256 } = written;
  return { contentId, kind: 'base', bytes, sha256, rows: own.length };
}

/** A process on a core of its own, where the machine lets us choose. */
export function spawnPinned(core: number | undefined, command: readonly string[]): ChildProcess {
  const pin =
    core !== undefined && availableParallelism() > 1 && spawnSync('taskset', ['-V']).status === 0;
  const words = pin ? ['taskset', '-c', String(core), ...command] : command;
  return spawn(words[0]!, words.slice(1), { stdio: ['ignore', 'inherit', 'pipe'] });
}

/** Puts this process on a core, where there are several. */
export function pinSelf(core: number): void {
  if (availableParallelism() > 1) spawnSync('taskset', ['-acp', String(core), `${process.pid}`]);
}

export interface BenchServer {
  readonly address: string;
  /** User and system time of the process so far. */
  cpuSeconds(): Promise<number>;
  control(path: string, version: string, more?: object): Promise<void>;
  stop(): Promise<void>;
}

/** A cube-server of the folder; pinned to `core` when one is given. */
export async function startServer(
  folder: string,
  {
    shard,
    shardNum,
    core,
    flags = [],
  }: { shard: number; shardNum: number; core?: number; flags?: readonly string[] },
): Promise<BenchServer> {
  const main = join(import.meta.dirname, '..', 'cube-server', 'main.js');
  const own = [
    '--shard',
    `${shard}`,
    '--shard-num',
    `${shardNum}`,
    '--port',
    '0',
    '--data-dir',
    folder,
  ];
  const child = spawnPinned(core, [process.execPath, main, ...own, ...flags]);
  let log = '';
  const address = await new Promise<string>((resolve, reject) => {
    child.stderr?.on('data', (chunk) => {
      if (log.length < 65_536) log += chunk;
      const found = /"address":"([^"]+)"/.exec(log)?.[1];
      if (found !== undefined) resolve(found);
    });
    child.on('close', () => reject(new Error(`the server ended: ${log}`)));
  });
  return {
    address,
    async cpuSeconds() {
      const text = await (await fetch(`http://${address}/metrics`)).text();
      return Number(/^process_cpu_seconds_total (\S+)/m.exec(text)?.[1]);
    },
    async control(path, version, more = {}) {
      const response = await fetch(`http://${address}${path}`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ bundle: BUNDLE, version, ...more }),
      });
      if (!response.ok) throw new Error(await response.text());
    },
    async stop() {
      child.kill('SIGTERM');
      if (child.exitCode === null) await new Promise((resolve) => child.on('close', resolve));
    },
  };
}

/** Loads and activates. */
export async function serveVersion(server: BenchServer, version: string): Promise<void> {
  await server.control(CONTROL_LOAD, version);
  await server.control(CONTROL_ACTIVATE, version);
}

/** The value below which this share of the measurements lies. */
export function percentile(sorted: Float64Array, share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export interface OpenLoopOptions {
  readonly perSecond: number;
  readonly forMs: number;
  /** Between calls: `spin` sends to the microsecond and takes a core; `sleep` sends what is due each millisecond. */
  readonly between: 'spin' | 'sleep';
}

/**
 * Open-loop load: calls start when they are due, whatever became of the earlier ones, and latency counts from then.
 * Nothing is kept of a call but its latency, so that the client has little to collect.
 * @returns milliseconds, sorted
 */
export async function openLoop(
  call: () => Promise<void>,
  { perSecond, forMs, between }: OpenLoopOptions,
): Promise<Float64Array> {
  const total = Math.floor((perSecond * forMs) / 1000);
  const latencies = new Float64Array(total);
  const startMs = performance.now();
  let answered = 0;
  let failure: unknown;
  const send = async (at: number): Promise<void> => {
    const exactMs = (at * 1000) / perSecond;
    const dueMs = startMs + (between === 'spin' ? exactMs : Math.ceil(exactMs));
    try {
      await call();
      latencies[at] = performance.now() - dueMs;
    } catch (error) {
      failure ??= error;
    }
    answered++;
  };
  const rest = (): Promise<unknown> =>
    new Promise((resolve) => (between === 'spin' ? setImmediate(resolve) : setTimeout(resolve, 1)));
  for (let sent = 0; sent < total; await rest()) {
    const elapsedMs = performance.now() - startMs;
    const dueBy = between === 'spin' ? elapsedMs : Math.floor(elapsedMs);
    for (; sent < total && (sent * 1000) / perSecond <= dueBy; sent++) void send(sent);
  }
  while (answered < total) await rest();
  if (failure !== undefined) throw failure;
  return latencies.sort();
}
