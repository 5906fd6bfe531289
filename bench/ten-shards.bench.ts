/**
 * Ten shards, batches of a thousand keys, a hundred batches a second: the row that Cube's own performance page
 * publishes (average 675 µs, p99 2.1 ms over a network of 0.06 ms ping, ten machines). Here ten cube-server processes share
 * this machine's first core, the client has the second. Cold keys: uniform over the whole table.
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
  openLoop,
  percentile,
  serveVersion,
  spawnPinned,
  startServer,
  TABLE,
  writeVersion,
} from './bench-server.ts';

const SHARDS = 10;
const ROWS = 1_000_000;
const PER_SECOND = 100;
const WARM_MS = 4000;
const MEASURE_MS = 10_000;
/** Cube's page, of 10 shards at 100 batches a second: average and p99 in microseconds. */
const PUBLISHED: ReadonlyMap<number, readonly [number, number]> = new Map([
  [100, [324, 1190]],
  [500, [466, 1492]],
  [1000, [675, 2101]],
]);

function fleetOf(addresses: readonly string[]): Fleet {
  const shards = addresses.map((data) => [{ data, control: data, group: 'default' }]);
  return { bundles: new Map([[BUNDLE, [{ shardNum: SHARDS, shards }]]]) };
}

/** A call of a thousand keys, other ones each time, that checks that all were found. */
function caller(client: CubeClient, manifest: Manifest, count: number): () => Promise<void> {
  const drawn = drawKeys(1 << 18, ROWS);
  let at = 0;
  return async () => {
    at = at + 4 * count > drawn.length ? 0 : at + 2 * count;
    const group = {
      ...{ table: TABLE, count, keys: drawn.subarray(at, at + 2 * count) },
      rows: new Float32Array(count * DIM),
      outcomes: new Uint8Array(count),
    };
    const { unseen, unavailable } = await client.lookup(manifest, [group], 2000);
    if (unseen + unavailable > 0) throw new Error(`${unseen} unseen, ${unavailable} unavailable`);
  };
}

/** A hundred calls a second do not bring ten processes to their compiled code: sends one after another for a while. */
async function warm(call: () => Promise<void>): Promise<void> {
  const startMs = performance.now();
  while (performance.now() - startMs < WARM_MS) await Promise.all(Array.from({ length: 8 }, call));
}

async function runClient(folder: string, addresses: readonly string[]): Promise<void> {
  const path = `${folder}/${manifestPath(BUNDLE, '1')}`;
  const manifest = parseManifest(readText(path), path);
  const fleet = fleetOf(addresses);
  const client = new CubeClient({ fleet: () => fleet });
  process.stdout.write(
    'keys a batch   avg µs   p50   p80   p99   p99.9   Cube published avg, p99\n',
  );
  for (const [count, [avgPublished, p99Published]] of PUBLISHED) {
    const call = caller(client, manifest, count);
    await warm(call);
    const sorted = await openLoop(call, {
      perSecond: PER_SECOND,
      forMs: MEASURE_MS,
      between: 'spin',
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
    for (const server of servers) await serveVersion(server, '1');
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
