/**
 * Shared parts of the benchmarks over sockets: a synthetic table published into a folder,
 * cube-server processes on a core of their own, their CPU time, open-loop load, and percentiles.
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { formatManifest, type LayerRef, type Manifest } from '../../lib/core/manifest.ts';
import { encodeRows } from '../../lib/core/row-codec.ts';
import { toArguments } from '../../lib/platform/arguments.ts';
import { replaceFile } from '../../lib/platform/files.ts';
import { layerPath, manifestPath } from '../../lib/repository/layout.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import { CONTROL_ACTIVATE, CONTROL_LOAD } from '../../proto/control.ts';

export const BUNDLE = 'bench';
export const TABLE = 'table';
export const DIM = 10;
/** Counted at the start: a process that is pinned to a core later counts only that one. */
const CORES = availableParallelism();

/** Writes key i of the table. Odd multipliers make keys spread and distinct. */
export function writeKey(words: Uint32Array, at: number, i: number): void {
  words[at] = Math.imul(i + 1, 0x9e37_79b1);
  words[at + 1] = Math.imul(i + 1, 0x85eb_ca6b) ^ (i >>> 3);
}

/** Draws `count` keys uniformly from the first `from` of the table. @returns 2 · count words */
export function drawKeys(count: number, from: number): Uint32Array {
  const words = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) writeKey(words, 2 * i, Math.floor(Math.random() * from));
  return words;
}

/** Publishes a version with this many rows and shards. Another `salt` makes other rows. */
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
  return writeManifest(folder, version, [table]);
}

/** Publishes layers that have been written. */
export function writeManifest(
  folder: string,
  version: string,
  tables: Manifest['tables'],
): Manifest {
  const manifest: Manifest = {
    bundle: BUNDLE,
    version,
    files: [],
    slots: [],
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    tables,
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
  const indices: number[] = [];
  for (let i = 0; i < rows; i++) {
    writeKey(key, 0, i);
    const [low = 0, high = 0] = key;
    const remainder = ((high % shardNum) * (2 ** 32 % shardNum) + (low % shardNum)) % shardNum;
    if (remainder === shardIndex) indices.push(i);
  }
  const keys = new Uint32Array(2 * indices.length);
  indices.forEach((i, at) => {
    writeKey(keys, 2 * at, i);
  });
  const values = new Float32Array(indices.length * DIM).map((_, i) => (i + salt) % 1000);
  const layer = {
    table: TABLE,
    dtype: 'f32' as const,
    dim: DIM,
    shardIndex,
    shardNum,
    keys,
    rows: encodeRows('f32', values, DIM).rows,
  };
  const written = writeLayer(layer, (id) => join(folder, layerPath(BUNDLE, TABLE, id)));
  const { contentId, bytes, sha256 } = written;
  return { contentId, kind: 'base', bytes, sha256, rows: indices.length };
}

/** Starts a process, on a core of its own if the machine has several and taskset. */
export function spawnPinned(core: number | undefined, command: readonly string[]): ChildProcess {
  const pin = core !== undefined && CORES > 1 && spawnSync('taskset', ['-V']).status === 0;
  const [program = '', ...args] = pin ? ['taskset', '-c', String(core), ...command] : command;
  return spawn(program, args, { stdio: ['ignore', 'inherit', 'pipe'] });
}

/** Pins this process to a core, if the machine has several. */
export function pinSelf(core: number): void {
  if (CORES > 1) spawnSync('taskset', ['-acp', String(core), `${process.pid}`]);
}

export interface BenchServer {
  readonly address: string;
  /** User and system time of the process so far. */
  cpuSeconds(): Promise<number>;
  control(path: string, version: string, more?: object): Promise<void>;
  signal(signal: NodeJS.Signals): void;
  stop(): Promise<void>;
}

/** Starts a cube-server of the folder, pinned to `core` when given. */
export async function startServer(
  folder: string,
  {
    shard,
    shardNum,
    core,
    flags = [],
  }: { shard: number; shardNum: number; core?: number; flags?: readonly string[] },
): Promise<BenchServer> {
  const main = join(import.meta.dirname, '..', '..', 'cube-server', 'main.js');
  const options = toArguments({ shard, shardNum, port: 0, dataDir: folder });
  const child = spawnPinned(core, [process.execPath, main, ...options, ...flags]);
  let log = '';
  const address = await new Promise<string>((resolve, reject) => {
    child.stderr?.on('data', (chunk) => {
      if (log.length < 65_536) log += chunk;
      const found = /"address":"([^"]+)"/.exec(log)?.[1];
      if (found !== undefined) resolve(found);
    });
    child.on('close', () => reject(new Error(`cube-server ended: ${log}`)));
  });
  return {
    address,
    async cpuSeconds() {
      const text = await (await fetch(`http://${address}/metrics`)).text();
      return Number(/^process_cpu_seconds_total (\S+)/m.exec(text)?.[1]);
    },
    control: (path, version, more) => callControl(address, path, version, more),
    signal(signal) {
      child.kill(signal);
    },
    async stop() {
      child.kill('SIGTERM');
      if (child.exitCode === null && child.signalCode === null)
        await new Promise((resolve) => child.on('close', resolve));
    },
  };
}

/** Calls the control service of a server. */
export async function callControl(
  address: string,
  path: string,
  version: string,
  more: object = {},
): Promise<void> {
  const response = await fetch(`http://${address}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ bundle: BUNDLE, version, ...more }),
  });
  if (!response.ok) throw new Error(await response.text());
  await response.arrayBuffer();
}

/** Loads a version and activates it. */
export async function loadAndActivate(server: BenchServer, version: string): Promise<void> {
  await server.control(CONTROL_LOAD, version);
  await server.control(CONTROL_ACTIVATE, version);
}

/** The value that this share of the measurements is below. */
export function percentile(sorted: Float64Array, share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
}

export interface OpenLoopOptions {
  readonly perSecond: number;
  readonly forMs: number;
  /** Ends the load before that. */
  readonly until?: { readonly done: boolean };
  /**
   * Wait between calls: `spin` sends on time and takes a whole core; `sleep` sends once a
   * millisecond.
   */
  readonly waitBy: 'spin' | 'sleep';
}

/**
 * Open-loop load: calls start when they are due, even if earlier calls are late, and latency counts
 * from that time. Only the latency of a call is kept, so that the client has little garbage to
 * collect.
 * @returns latencies in milliseconds, sorted
 */
export async function openLoop(
  call: () => Promise<void>,
  { perSecond, forMs, until, waitBy }: OpenLoopOptions,
): Promise<Float64Array> {
  const total = Math.floor((perSecond * forMs) / 1000);
  const latencies = new Float64Array(total);
  const startMs = performance.now();
  let sent = 0;
  let answered = 0;
  let failure: unknown;
  const send = async (at: number): Promise<void> => {
    const exactMs = (at * 1000) / perSecond;
    const dueMs = startMs + (waitBy === 'spin' ? exactMs : Math.ceil(exactMs));
    try {
      await call();
      latencies[at] = performance.now() - dueMs;
    } catch (error) {
      failure ??= error;
    }
    answered++;
  };
  const rest = (): Promise<unknown> =>
    new Promise((resolve) => (waitBy === 'spin' ? setImmediate(resolve) : setTimeout(resolve, 1)));
  for (; sent < total && until?.done !== true; await rest()) {
    const elapsedMs = performance.now() - startMs;
    const dueBy = waitBy === 'spin' ? elapsedMs : Math.floor(elapsedMs);
    for (; sent < total && (sent * 1000) / perSecond <= dueBy; sent++) void send(sent);
  }
  while (answered < sent) await rest();
  if (failure !== undefined) throw failure;
  return latencies.subarray(0, sent).sort();
}
