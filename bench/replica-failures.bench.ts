/**
 * Lookups in a fleet of three shards with two replicas each, with the client's default options,
 * while one replica of each shard hangs (SIGSTOP), and while the other one is killed (SIGKILL).
 * Open loop: requests are sent when they are due. The servers share one core, the client has the
 * other.
 *
 *     npm run bench -- replica-failures
 */
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeClient } from '../lib/client/cube-client.ts';
import type { Fleet } from '../lib/core/fleet.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import {
  type BenchServer,
  BUNDLE,
  DIM,
  drawKeys,
  loadAndActivate,
  openLoop,
  percentile,
  pinSelf,
  startServer,
  TABLE,
  writeVersion,
} from './support/cube-server-process.ts';

const SHARDS = 3;
const ROWS = 100_000;
const KEYS = 26;
const TIMEOUT_MS = 300;
const RATES = [190, 2_000];
const PHASE_MS = 5_000;
/** From the start of a phase to the failure. */
const FAILURE_AFTER_MS = 1_000;
const RECOVERY_MS = 2_500;

interface BenchFleet {
  readonly client: CubeClient;
  /** Shard → its two replicas. */
  readonly servers: readonly (readonly BenchServer[])[];
  readonly lookUp: () => Promise<void>;
  /** Lookups with unavailable keys since the last call. */
  takeFailures(): number;
  stop(): Promise<void>;
}

async function startFleet(folder: string, manifest: Manifest): Promise<BenchFleet> {
  const servers = await Promise.all(
    Array.from({ length: SHARDS }, (_, shard) =>
      Promise.all([0, 1].map(() => startServer(folder, { shard, shardNum: SHARDS, core: 0 }))),
    ),
  );
  await Promise.all(servers.flat().map((server) => loadAndActivate(server, manifest.version)));
  const shards = servers.map((replicas) =>
    replicas.map(({ address }) => ({ data: address, control: address, group: 'default' })),
  );
  const fleet: Fleet = { bundles: new Map([[BUNDLE, [{ shardNum: SHARDS, shards }]]]) };
  const client = new CubeClient({ fleet: () => fleet });
  const keys = drawKeys(1 << 16, ROWS);
  let at = 0;
  let failures = 0;
  return {
    client,
    servers,
    async lookUp() {
      at = at + 4 * KEYS > keys.length ? 0 : at + 2 * KEYS;
      const rows = new Float32Array(KEYS * DIM);
      const outcomes = new Uint8Array(KEYS);
      const words = keys.subarray(at, at + 2 * KEYS);
      const group = { table: TABLE, keys: words, count: KEYS, rows, outcomes };
      const { unavailable } = await client.lookup(manifest, [group], TIMEOUT_MS);
      if (unavailable > 0) failures++;
    },
    takeFailures() {
      const taken = failures;
      failures = 0;
      return taken;
    },
    async stop() {
      client.close();
      await Promise.all(servers.flat().map((server) => server.stop()));
    },
  };
}

/**
 * Sends lookups for PHASE_MS, and prints their latency.
 * @param fail causes the failure
 * @returns p99 in milliseconds
 */
async function runPhase(
  { client, lookUp, takeFailures }: BenchFleet,
  phase: { readonly name: string; readonly perSecond: number; readonly quietP99Ms?: number },
  fail: () => void,
): Promise<number> {
  const { name, perSecond, quietP99Ms } = phase;
  const before = client.stats();
  const timer = setTimeout(fail, FAILURE_AFTER_MS);
  const latencies = await openLoop(lookUp, { perSecond, forMs: PHASE_MS, waitBy: 'sleep' });
  clearTimeout(timer);
  const { backups, retries } = client.stats();
  const p99Ms = percentile(latencies, 0.99);
  const ratio = quietP99Ms === undefined ? '' : (p99Ms / quietP99Ms).toFixed(2);
  const figures = [
    String(perSecond).padStart(5),
    name.padEnd(26),
    String(latencies.length).padStart(8),
    String(takeFailures()).padStart(7),
    percentile(latencies, 0.5).toFixed(2).padStart(7),
    p99Ms.toFixed(2).padStart(7),
    ratio.padStart(10),
    String(backups - before.backups).padStart(8),
    String(retries - before.retries).padStart(8),
  ];
  process.stdout.write(`${figures.join(' ')}\n`);
  return p99Ms;
}

async function measure(folder: string, manifest: Manifest, perSecond: number): Promise<void> {
  const fleet = await startFleet(folder, manifest);
  const { servers, lookUp } = fleet;
  const signalAll = (replica: number, signal: NodeJS.Signals) => (): void => {
    for (const replicas of servers) replicas[replica]?.signal(signal);
  };
  await openLoop(lookUp, { perSecond: 1_000, forMs: 2_000, waitBy: 'sleep' });
  fleet.takeFailures();
  const quiet = { name: 'quiet', perSecond };
  const quietP99Ms = await runPhase(fleet, quiet, () => undefined);
  const hung = { name: 'one replica each hangs', perSecond, quietP99Ms };
  await runPhase(fleet, hung, signalAll(0, 'SIGSTOP'));
  const back = { name: 'they continue', perSecond, quietP99Ms };
  await runPhase(fleet, back, signalAll(0, 'SIGCONT'));
  await sleep(RECOVERY_MS);
  const killed = { name: 'the other ones are killed', perSecond, quietP99Ms };
  await runPhase(fleet, killed, signalAll(1, 'SIGKILL'));
  await fleet.stop();
}

const folder = makeTemporaryFolder('hypercube-bench-');
try {
  pinSelf(1);
  process.stdout.write(
    `${SHARDS} shards with 2 replicas each, ${KEYS} keys per lookup, deadline ${TIMEOUT_MS} ms; ` +
      `the failure comes ${FAILURE_AFTER_MS / 1000} s after the start of a phase of ` +
      `${PHASE_MS / 1000} s\n` +
      'req/s phase                       lookups  failed  p50 ms  p99 ms  p99/quiet  backups  ' +
      'retries\n',
  );
  const manifest = writeVersion(folder, { version: '1', rows: ROWS, shardNum: SHARDS });
  for (const perSecond of RATES) await measure(folder, manifest, perSecond);
} finally {
  removePath(folder);
}
