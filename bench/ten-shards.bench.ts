/**
 * Ten shards, batches of a thousand keys, a hundred batches per second: the measurement of Cube's
 * own performance page (average 675 µs, p99 2.1 ms, on ten machines with a ping of 0.06 ms). Here
 * ten cube-server processes share this machine's first core, and the client has the second. Keys
 * are cold: uniform over the whole table.
 */
import { pathToFileURL } from 'node:url';
import { CubeClient } from '../lib/client/cube-client.ts';
import type { Fleet } from '../lib/core/fleet.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import { parseManifest } from '../lib/core/manifest.ts';
import { makeTemporaryFolder, readText, removePath } from '../lib/platform/files.ts';
import { manifestPath } from '../lib/repository/layout.ts';
import {
  BUNDLE,
  DIM,
  drawKeys,
  loadAndActivate,
  openLoop,
  percentile,
  spawnPinned,
  startServer,
  TABLE,
  writeVersion,
} from './support/cube-server-process.ts';

const SHARDS = 10;
const ROWS = 1_000_000;
const PER_SECOND = 100;
const WARM_MS = 4000;
const MEASURE_MS = 10_000;
/** Cube's page, for 10 shards at 100 batches per second: average and p99 in microseconds. */
const PUBLISHED: ReadonlyMap<number, readonly [number, number]> = new Map([
  [100, [324, 1190]],
  [500, [466, 1492]],
  [1000, [675, 2101]],
]);

function makeFleet(addresses: readonly string[]): Fleet {
  const shards = addresses.map((data) => [{ data, control: data, group: 'default' }]);
  return { bundles: new Map([[BUNDLE, [{ shardNum: SHARDS, shards }]]]) };
}

/** Makes a call that looks up other keys each time, and fails unless all are found. */
function makeCaller(client: CubeClient, manifest: Manifest, count: number): () => Promise<void> {
  const drawn = drawKeys(1 << 18, ROWS);
  let at = 0;
  return async () => {
    at = at + 4 * count > drawn.length ? 0 : at + 2 * count;
    const group = {
      table: TABLE,
      count,
      keys: drawn.subarray(at, at + 2 * count),
      rows: new Float32Array(count * DIM),
      outcomes: new Uint8Array(count),
    };
    const { unseen, unavailable } = await client.lookup(manifest, [group], 2000);
    if (unseen + unavailable > 0) throw new Error(`${unseen} unseen, ${unavailable} unavailable`);
  };
}

/**
 * Calls at full speed for a while, so that V8 compiles the code of ten processes: 100 calls per
 * second would not.
 */
async function warmUp(call: () => Promise<void>): Promise<void> {
  const startMs = performance.now();
  while (performance.now() - startMs < WARM_MS) await Promise.all(Array.from({ length: 8 }, call));
}

async function runClient(folder: string, addresses: readonly string[]): Promise<void> {
  const path = `${folder}/${manifestPath(BUNDLE, '1')}`;
  const manifest = parseManifest(readText(path), path);
  const fleet = makeFleet(addresses);
  const client = new CubeClient({ fleet: () => fleet });
  process.stdout.write(
    'Lookups in ten shards on one core, ' +
      'against the figures that Cube publishes for ten machines.\n' +
      'keys a batch   avg µs   p50   p80   p99   p99.9   Cube published avg, p99\n',
  );
  for (const [count, [avgPublished, p99Published]] of PUBLISHED) {
    const call = makeCaller(client, manifest, count);
    await warmUp(call);
    const sorted = await openLoop(call, {
      perSecond: PER_SECOND,
      forMs: MEASURE_MS,
      waitBy: 'spin',
    });
    const average = sorted.reduce((sum, ms) => sum + ms, 0) / sorted.length;
    const figures = [average, ...[0.5, 0.8, 0.99, 0.999].map((share) => percentile(sorted, share))];
    const text = figures.map((ms) => String(Math.round(1000 * ms)).padStart(6)).join(' ');
    process.stdout.write(
      `${String(count).padStart(12)} ${text}   ${avgPublished}, ${p99Published}\n`,
    );
  }
  client.close();
}

async function run(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    writeVersion(folder, { version: '1', rows: ROWS, shardNum: SHARDS });
    const servers = await Promise.all(
      Array.from({ length: SHARDS }, (_, shard) =>
        startServer(folder, { shard, shardNum: SHARDS, core: 0 }),
      ),
    );
    for (const server of servers) await loadAndActivate(server, '1');
    const addresses = servers.map(({ address }) => address);
    const command = [process.execPath, import.meta.filename, 'client', folder, ...addresses];
    const client = spawnPinned(1, command);
    client.stderr?.pipe(process.stderr);
    await new Promise((resolve) => client.on('close', resolve));
    for (const server of servers) await server.stop();
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [mode, folder = '', ...addresses] = process.argv.slice(2);
  if (mode === 'client') await runClient(folder, addresses);
  else await run();
}
