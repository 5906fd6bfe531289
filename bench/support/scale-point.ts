/**
 * One point of a curve: builds the versions, loads them into cube-servers that share a core, and
 * looks keys up with CubeClient from another core.
 */
import { join } from 'node:path';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { requireDefined } from '../../lib/core/errors.ts';
import type { Fleet } from '../../lib/core/fleet.ts';
import type { LookupGroup } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { makeTemporaryFolder, removePath } from '../../lib/platform/files.ts';
import { layerPath } from '../../lib/repository/layout.ts';
import { CONTROL_ACTIVATE, CONTROL_LOAD } from '../../proto/control.ts';
import { findMedian } from './alternating-rounds.ts';
import {
  type BenchServer,
  BUNDLE,
  DIM,
  drawKeys,
  openLoop,
  percentile,
  startServer,
} from './cube-server-process.ts';
import { buildVersion, computeTableRows, type VersionShape } from './scale-versions.ts';

const SERVER_CORE = 0;
const IN_FLIGHT = 64;
const TIMEOUT_MS = 10_000;
const DRAWN_KEYS = 1 << 21;
/** The open loop sends this share of the calls per second that the closed loop reached. */
const OPEN_SHARE = 0.25;
/** The open loop has this many rounds, of which the median counts. */
const OPEN_ROUNDS = 5;
/** Below the limit of a connection: further calls wait, and their latency counts it. */
const IN_FLIGHT_MAX = 1_000;
const MIB = 2 ** 20;
/** As fast as the disk allows, and more tables than the default budget holds. */
const SERVER_FLAGS = ['--load-rate', '0', '--memory', '16GiB'];

export interface ScalePoint extends VersionShape {
  /** Versions in memory; calls take turns at them. */
  readonly versions: number;
  /** Keys of a call, spread over all tables. */
  readonly keys: number;
  /** Connections to each server; calls take turns at them. */
  readonly connections: number;
}

export interface Durations {
  /** For each server, because each compiles its code when it has had enough calls. */
  readonly warmMs: number;
  readonly closedMs: number;
  /** Each round of the open loop. */
  readonly openMs: number;
}

const DURATIONS: Durations = { warmMs: 1_000, closedMs: 1_500, openMs: 400 };

export interface PointFigures {
  readonly buildSeconds: number;
  readonly loadSeconds: number;
  /** Memory of the servers for tables. */
  readonly memoryMiB: number;
  /** Resident memory of the servers. */
  readonly residentMiB: number;
  readonly keysPerSecond: number;
  readonly keysPerCpuSecond: number;
  readonly p50Ms: number;
  readonly p99Ms: number;
}

/** Leaves neither processes nor files. */
export async function measurePoint(
  point: ScalePoint,
  durations: Durations = DURATIONS,
): Promise<PointFigures> {
  const loaded = await LoadedPoint.start(point);
  try {
    const lookups = await measureLookups(loaded, durations);
    const { buildSeconds, loadSeconds } = loaded;
    return { buildSeconds, loadSeconds, ...(await loaded.measureMemory()), ...lookups };
  } finally {
    await loaded.stop();
  }
}

/** Calls at full speed, and the CPU time that the servers took for them. */
interface MeasuredCalls {
  readonly calls: number;
  readonly seconds: number;
  readonly cpuSeconds: number;
}

/** Servers that have loaded the versions of a point, and clients. */
export class LoadedPoint {
  readonly point: ScalePoint;
  readonly call: () => Promise<void>;
  readonly buildSeconds: number;
  readonly loadSeconds: number;
  /** The base of the first table in the first shard. */
  readonly layerPath: string;
  readonly #folder: string;
  readonly #servers: readonly BenchServer[];
  readonly #clients: readonly CubeClient[];

  private constructor(
    point: ScalePoint,
    parts: {
      folder: string;
      servers: readonly BenchServer[];
      manifests: readonly Manifest[];
      buildSeconds: number;
      loadSeconds: number;
    },
  ) {
    const { folder, servers, manifests, buildSeconds, loadSeconds } = parts;
    this.point = point;
    this.buildSeconds = buildSeconds;
    this.loadSeconds = loadSeconds;
    this.#folder = folder;
    this.#servers = servers;
    this.#clients = connect(point, servers);
    this.call = limitInFlight(createCall(point, this.#clients, manifests));
    const table = requireDefined(manifests[0]?.tables[0], 'a table');
    const contentId = requireDefined(table.shards[0]?.[0]?.contentId, 'a layer');
    this.layerPath = join(folder, layerPath(BUNDLE, table.name, contentId));
  }

  static async start(point: ScalePoint): Promise<LoadedPoint> {
    const folder = makeTemporaryFolder('hypercube-bench-');
    const servers: BenchServer[] = [];
    try {
      const built = Array.from({ length: point.versions }, (_, at) =>
        buildVersion(folder, point, String(at + 1), 100 * at),
      );
      const manifests = built.map(({ manifest }) => manifest);
      const buildSeconds = built.reduce((sum, one) => sum + one.buildSeconds, 0);
      for (let shard = 0; shard < point.shards; shard++) {
        const options = { shard, shardNum: point.shards, core: SERVER_CORE, flags: SERVER_FLAGS };
        servers.push(await startServer(folder, options));
      }
      const loadSeconds = await loadVersions(servers, manifests);
      return new LoadedPoint(point, { folder, servers, manifests, buildSeconds, loadSeconds });
    } catch (error) {
      await Promise.all(servers.map((server) => server.stop()));
      removePath(folder);
      throw error;
    }
  }

  async measureCalls(forMs: number): Promise<MeasuredCalls> {
    const before = await sumMetric(this.#servers, 'process_cpu_seconds_total');
    const { calls, seconds } = await runClosedLoop(this.call, forMs);
    const cpuSeconds = (await sumMetric(this.#servers, 'process_cpu_seconds_total')) - before;
    return { calls, seconds, cpuSeconds };
  }

  async measureMemory(): Promise<Pick<PointFigures, 'memoryMiB' | 'residentMiB'>> {
    const memory = await sumMetric(this.#servers, 'hypercube_memory_bytes{kind="used"}');
    const resident = await sumMetric(this.#servers, 'process_resident_memory_bytes');
    return { memoryMiB: memory / MIB, residentMiB: resident / MIB };
  }

  async stop(): Promise<void> {
    for (const client of this.#clients) client.close();
    await Promise.all(this.#servers.map((server) => server.stop()));
    removePath(this.#folder);
  }
}

function connect(point: ScalePoint, servers: readonly BenchServer[]): CubeClient[] {
  const shards = servers.map(({ address }) => [
    { data: address, control: address, group: 'default' },
  ]);
  const fleet: Fleet = { bundles: new Map([[BUNDLE, [{ shardNum: point.shards, shards }]]]) };
  return Array.from({ length: point.connections }, () => new CubeClient({ fleet: () => fleet }));
}

/** One server after another, because they share a core. @returns seconds of all loads */
async function loadVersions(
  servers: readonly BenchServer[],
  manifests: readonly Manifest[],
): Promise<number> {
  const startMs = performance.now();
  for (const { version } of manifests) {
    for (const server of servers) await server.control(CONTROL_LOAD, version);
  }
  const seconds = (performance.now() - startMs) / 1000;
  for (const server of servers) {
    await server.control(CONTROL_ACTIVATE, String(manifests.length));
  }
  return seconds;
}

async function measureLookups(
  loaded: LoadedPoint,
  { warmMs, closedMs, openMs }: Durations,
): Promise<Pick<PointFigures, 'keysPerSecond' | 'keysPerCpuSecond' | 'p50Ms' | 'p99Ms'>> {
  const { call, point } = loaded;
  await runClosedLoop(call, warmMs * point.shards);
  const { calls, seconds, cpuSeconds } = await loaded.measureCalls(closedMs);
  const perSecond = Math.max(1, Math.floor((OPEN_SHARE * calls) / seconds));
  const rounds: Float64Array[] = [];
  while (rounds.length < OPEN_ROUNDS) {
    rounds.push(await openLoop(call, { perSecond, forMs: openMs, waitBy: 'spin' }));
  }
  return {
    keysPerSecond: (calls * point.keys) / seconds,
    keysPerCpuSecond: (calls * point.keys) / cpuSeconds,
    p50Ms: findMedian(rounds.map((latencies) => percentile(latencies, 0.5))),
    p99Ms: findMedian(rounds.map((latencies) => percentile(latencies, 0.99))),
  };
}

/** Each call looks other keys up, and fails unless all are found. */
function createCall(
  point: ScalePoint,
  clients: readonly CubeClient[],
  manifests: readonly Manifest[],
): () => Promise<void> {
  const count = Math.max(1, Math.floor(point.keys / point.tables));
  const drawn = drawKeys(DRAWN_KEYS, computeTableRows(point));
  const buffers: Pick<LookupGroup, 'rows' | 'outcomes'>[][] = [];
  const names = Array.from({ length: point.tables }, (_, at) => `table${at}`);
  let at = 0;
  let next = 0;
  return async () => {
    const own =
      buffers.pop() ??
      names.map(() => ({
        rows: new Float32Array(count * DIM),
        outcomes: new Uint8Array(count),
      }));
    const groups = own.map(({ rows, outcomes }, table) => {
      at = at + 4 * count > drawn.length ? 0 : at + 2 * count;
      const keys = drawn.subarray(at, at + 2 * count);
      return { table: requireDefined(names[table], 'a table'), keys, count, rows, outcomes };
    });
    const client = requireDefined(clients[next % clients.length], 'a client');
    const manifest = requireDefined(manifests[next % manifests.length], 'a version');
    next++;
    const { unseen, unavailable, reason } = await client.lookup(manifest, groups, TIMEOUT_MS);
    if (unseen + unavailable > 0) throw new Error(`${unseen + unavailable} not found: ${reason}`);
    buffers.push(own);
  };
}

function limitInFlight(call: () => Promise<void>): () => Promise<void> {
  const waiting: (() => void)[] = [];
  let inFlight = 0;
  return async () => {
    if (inFlight >= IN_FLIGHT_MAX) await new Promise<void>((resolve) => waiting.push(resolve));
    inFlight++;
    try {
      await call();
    } finally {
      inFlight--;
      waiting.shift()?.();
    }
  };
}

async function runClosedLoop(
  call: () => Promise<void>,
  forMs: number,
): Promise<{ calls: number; seconds: number }> {
  let calls = 0;
  const startMs = performance.now();
  const callAgain = async (): Promise<void> => {
    while (performance.now() - startMs < forMs) {
      await call();
      calls++;
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, callAgain));
  return { calls, seconds: (performance.now() - startMs) / 1000 };
}

/** @param metric a line of the text format up to its value */
async function sumMetric(servers: readonly BenchServer[], metric: string): Promise<number> {
  let sum = 0;
  for (const { address } of servers) {
    const text = await (await fetch(`http://${address}/metrics`)).text();
    const line = text.split('\n').find((each) => each.startsWith(`${metric} `));
    sum += Number(requireDefined(line, metric).slice(metric.length));
  }
  return sum;
}
