/**
 * The stores of serving against each other: a table of 10 × f32 in four shards, batches of 260
 * distinct keys of a Zipf 1.0 distribution (as ten Criteo rows have), eight lookups in flight,
 * everything on this machine. Prints keys per second, the p99 of a batch, and the size of a row.
 * REDIS needs redis-server on the PATH.
 */

import { spawnSync } from 'node:child_process';
import { join } from 'node:path';
import { CubeClient } from '../lib/client/cube-client.ts';
import { requireDefined } from '../lib/core/errors.ts';
import type { LookupGroup } from '../lib/core/lookup-group.ts';
import type { Manifest } from '../lib/core/manifest.ts';
import type { EmbeddingStore } from '../serving/stores/embedding-store.ts';
import { HotRowsStore } from '../serving/stores/hot-rows-store.ts';
import { LocalStore } from '../serving/stores/local-store.ts';
import { RedisStore } from '../serving/stores/redis-store.ts';
import { RemoteStore } from '../serving/stores/remote-store.ts';
import { createOracleTable } from '../test/client/support/oracle.ts';
import { CubeServers } from '../test/serving/stores/support/cube-servers.ts';
import { RedisServers, redisMissing } from '../test/serving/stores/support/redis-servers.ts';
import { TestRepository } from '../test/serving/stores/support/test-repository.ts';

const ROWS = 200_000;
const DIM = 10;
const BATCH_KEYS = 260;
const BATCHES = 3_000;
const IN_FLIGHT = 8;
const HOT_BYTES = 4 << 20;

/** Draws distinct keys from about a Zipf 1.0 distribution over the rows. */
function drawBatch(random: () => number): LookupGroup {
  const drawn = new Set<number>();
  while (drawn.size < BATCH_KEYS) drawn.add(Math.floor(ROWS ** random()));
  const keys = new Uint32Array(2 * BATCH_KEYS);
  let at = 0;
  for (const key of drawn) {
    keys[at] = key;
    at += 2;
  }
  const [rows, outcomes] = [new Float32Array(BATCH_KEYS * DIM), new Uint8Array(BATCH_KEYS)];
  return { table: 't', keys, count: BATCH_KEYS, rows, outcomes };
}

async function measure(name: string, store: EmbeddingStore, manifest: Manifest): Promise<void> {
  const fillStartMs = performance.now();
  await store.prepare(manifest);
  const fillSeconds = (performance.now() - fillStartMs) / 1_000;
  let state = 7;
  const random = (): number => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return state / 2 ** 32;
  };
  const groups = Array.from({ length: 256 }, () => drawBatch(random));
  const run = async (batches: number): Promise<number[]> => {
    const latencies: number[] = [];
    let next = 0;
    const lookUpAgain = async (): Promise<void> => {
      while (next < batches) {
        const group = requireDefined(groups[next++ % groups.length], 'a group');
        const startMs = performance.now();
        const { unavailable } = await store.lookup(manifest, [group], 10_000);
        if (unavailable > 0) throw new Error(`${name}: ${unavailable} keys unavailable`);
        latencies.push(performance.now() - startMs);
      }
    };
    await Promise.all(Array.from({ length: IN_FLIGHT }, lookUpAgain));
    return latencies;
  };
  await run(BATCHES / 4);
  const startMs = performance.now();
  const latencies = (await run(BATCHES)).sort((a, b) => a - b);
  const seconds = (performance.now() - startMs) / 1_000;
  const keys = (BATCHES * BATCH_KEYS) / seconds / 1_000;
  const p99 = latencies[Math.floor(0.99 * latencies.length)] ?? Number.NaN;
  const filled = fillSeconds > 0.2 ? `${(ROWS / fillSeconds / 1_000).toFixed(0)} k rows/s` : '–';
  process.stdout.write(
    `${name.padEnd(22)} ${keys.toFixed(0).padStart(7)} k keys/s   ` +
      `p99 ${p99.toFixed(2).padStart(6)} ms   filled at ${filled}\n`,
  );
}

process.stdout.write(
  'The stores of serving against each other: lookups of 260 keys, 8 in flight.\n',
);
const storage = await TestRepository.create();
const keys = Array.from({ length: ROWS }, (_, i) => BigInt(i));
const version = {
  bundle: 'ctr',
  version: '1',
  shardNum: 4,
  tables: [createOracleTable('t', DIM, keys)],
};
const manifest = await storage.publish(version);
const { repository } = storage;

const local = await LocalStore.open({ repository, folder: join(storage.folder, 'local') });
await measure('local (disk)', local, manifest);
await local.close();
const { stdout } = spawnSync('du', ['-sk', join(storage.folder, 'local')], { encoding: 'utf8' });
const perRow = (1_024 * Number.parseInt(stdout, 10)) / ROWS;
process.stdout.write(`${''.padEnd(22)} ${perRow.toFixed(0)} bytes per row on disk\n`);

const servers = new CubeServers('ctr', join(storage.folder, 'repo'));
await servers.load(manifest);
const remote = (): RemoteStore => new RemoteStore(new CubeClient({ fleet: () => servers.fleet }));
for (const store of [remote(), new HotRowsStore(remote(), HOT_BYTES)]) {
  await measure(
    store instanceof HotRowsStore ? 'remote with row cache' : 'remote',
    store,
    manifest,
  );
  await store.close();
}
await servers.stop();

if (redisMissing === undefined) {
  const redis = await RedisServers.one();
  const open = (): RedisStore =>
    new RedisStore({ kind: 'redis', urls: redis.urls, fill: true }, { repository });
  for (const store of [open(), new HotRowsStore(open(), HOT_BYTES)]) {
    await measure(
      store instanceof HotRowsStore ? 'redis with row cache' : 'redis',
      store,
      manifest,
    );
    await store.close();
  }
  const used = /used_memory_dataset:(\d+)/.exec(String(await redis.send(0, 'INFO', 'memory')));
  const bytes = (Number(used?.[1]) / ROWS).toFixed(0);
  process.stdout.write(`${''.padEnd(22)} ${bytes} bytes per row in Redis\n`);
  await redis.stop();
} else process.stdout.write(`redis: ${redisMissing}\n`);
await storage.remove();
