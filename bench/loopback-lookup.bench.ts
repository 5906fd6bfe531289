/**
 * Lookups over loopback: cube-server against Redis MGET with the same rows (where redis-server is
 * on the PATH). The server is on one core, the client on another, with one pipelined connection.
 * Cold keys are uniform over a table larger than the last-level cache, hot keys are drawn from a
 * thousand.
 *
 *     node dist/bench/loopback-lookup.bench.js
 */

import { pathToFileURL } from 'node:url';
import { CubeClient } from '../lib/client/cube-client.ts';
import { requireDefined } from '../lib/core/errors.ts';
import type { LookupGroup } from '../lib/core/lookup-group.ts';
import { type Manifest, parseManifest } from '../lib/core/manifest.ts';
import { makeTemporaryFolder, readText, removePath } from '../lib/platform/files.ts';
import { manifestPath } from '../lib/repository/layout.ts';
import { Channel } from '../lib/rpc/channel.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import {
  decodeLookupResponse,
  encodeLookupRequest,
  LOOKUP_METHOD,
  LOOKUP_SERVICE,
} from '../proto/lookup.ts';
import { WireWriter } from '../proto/wire.ts';
import {
  BUNDLE,
  DIM,
  drawKeys,
  loadAndActivate,
  spawnPinned,
  startServer,
  TABLE,
  writeVersion,
} from './support/cube-server-process.ts';
import { fillRedis, type MgetClient, openMget, startRedis } from './support/redis-baseline.ts';

const ROWS = 1_000_000;
const IN_FLIGHT = 64;
const HOT_KEYS = 1000;
const WARM_MS = 1500;
const MEASURE_MS = 3000;
const NOTHING = new Uint8Array(0);

interface Scenario {
  /**
   * `packed` uses a channel directly; `client` uses CubeClient, which scatters, checks and gathers.
   */
  readonly call: 'packed' | 'client' | 'seek' | 'MGET';
  readonly keys: number;
  readonly hot: boolean;
  /** Requests and responses carry a checksum. */
  readonly checksum?: boolean;
}

const SCENARIOS: readonly Scenario[] = [
  { call: 'packed', keys: 26, hot: false },
  { call: 'packed', keys: 26, hot: false, checksum: true },
  { call: 'packed', keys: 26, hot: true },
  { call: 'packed', keys: 260, hot: false },
  { call: 'packed', keys: 260, hot: false, checksum: true },
  { call: 'packed', keys: 260, hot: true },
  { call: 'seek', keys: 26, hot: false },
  { call: 'seek', keys: 260, hot: false },
  { call: 'seek', keys: 260, hot: true },
];

const CLIENT_SCENARIOS: readonly Scenario[] = [
  { call: 'client', keys: 26, hot: false },
  { call: 'client', keys: 26, hot: false, checksum: true },
  { call: 'client', keys: 260, hot: false },
  { call: 'client', keys: 260, hot: false, checksum: true },
];

const REDIS_SCENARIOS: readonly Scenario[] = [
  { call: 'MGET', keys: 26, hot: false },
  { call: 'MGET', keys: 260, hot: false },
];

/** Makes one call, with other keys than the last one. */
type Caller = () => Promise<void>;

function packedCaller(channel: Channel, { keys, hot, checksum }: Scenario): Caller {
  const options = checksum === true ? ({ checksum: 'xxh64' } as const) : undefined;
  const drawn = new Uint8Array(drawKeys(1 << 20, hot ? HOT_KEYS : ROWS).buffer);
  const groups = [{ table: TABLE, count: keys }];
  const head = encodeLookupRequest({
    bundle: BUNDLE,
    version: '1',
    shardIndex: 0,
    shardNum: 1,
    groups,
  });
  let at = 0;
  return async () => {
    at = at + keys * 16 > drawn.length ? 0 : at + keys * 8;
    const attachment = drawn.subarray(at, at + keys * 8);
    const answer = await channel.call(
      LOOKUP_SERVICE,
      LOOKUP_METHOD,
      head,
      attachment,
      5000,
      options,
    );
    if (answer.attachment.length < keys * DIM * 4) throw new Error('the answer is too short');
    if (at === 0 && decodeLookupResponse(answer.payload).groups[0]?.hits !== keys) {
      throw new Error('not all keys were found');
    }
  };
}

function clientCaller(client: CubeClient, manifest: Manifest, { keys, hot }: Scenario): Caller {
  const drawn = drawKeys(1 << 20, hot ? HOT_KEYS : ROWS);
  const free: Pick<LookupGroup, 'rows' | 'outcomes'>[] = [];
  let at = 0;
  return async () => {
    at = at + 4 * keys > drawn.length ? 0 : at + 2 * keys;
    const { rows, outcomes } = free.pop() ?? {
      rows: new Float32Array(keys * DIM),
      outcomes: new Uint8Array(keys),
    };
    const words = drawn.subarray(at, at + 2 * keys);
    const group = { table: TABLE, keys: words, count: keys, rows, outcomes };
    const { unseen, unavailable } = await client.lookup(manifest, [group], 5000);
    if (unseen + unavailable > 0) throw new Error('not all keys were found');
    free.push(group);
  };
}

function seekCaller(channel: Channel, { keys, hot }: Scenario): Caller {
  const payloads = Array.from({ length: 2000 }, () => {
    const words = new BigUint64Array(drawKeys(keys, hot ? HOT_KEYS : ROWS).buffer);
    const writer = new WireWriter();
    for (const key of words) writer.uint(1, key);
    return writer.finish();
  });
  let next = 0;
  return async () => {
    next = (next + 1) % payloads.length;
    const answer = await channel.call(
      DICT_SERVICE,
      DICT_METHOD,
      requireDefined(payloads[next], 'a payload'),
      NOTHING,
      5000,
    );
    if (answer.payload.length !== keys * (6 + DIM * 4)) throw new Error('not all keys were found');
  };
}

function mgetCaller(redis: MgetClient, { keys, hot }: Scenario): Caller {
  const batches = Array.from({ length: 1000 }, () => {
    const drawn = drawKeys(keys, hot ? HOT_KEYS : ROWS);
    return Array.from({ length: keys }, (_, i) => Buffer.from(drawn.buffer, 8 * i, 8));
  });
  let next = 0;
  return async () => {
    next = (next + 1) % batches.length;
    const values = await redis.mget(requireDefined(batches[next], 'a batch'));
    if (values.at(-1)?.length !== DIM * 4) throw new Error('not all keys were found');
  };
}

/**
 * Keeps IN_FLIGHT calls in progress for some time. @returns the number of answered calls and the
 * time taken
 */
async function runCalls(call: Caller, forMs: number): Promise<{ calls: number; seconds: number }> {
  let calls = 0;
  const startMs = performance.now();
  const worker = async (): Promise<void> => {
    while (performance.now() - startMs < forMs) {
      await call();
      calls++;
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, worker));
  return { calls, seconds: (performance.now() - startMs) / 1000 };
}

async function measure(
  scenario: Scenario,
  call: Caller,
  cpuSeconds: () => Promise<number>,
): Promise<void> {
  await runCalls(call, WARM_MS);
  const before = await cpuSeconds();
  const ownBefore = process.cpuUsage();
  const { calls, seconds } = await runCalls(call, MEASURE_MS);
  const own = process.cpuUsage(ownBefore);
  const cpu = (await cpuSeconds()) - before;
  const keys = (calls * scenario.keys) / 1e6;
  const figures = [
    scenario.call.padEnd(7),
    String(scenario.keys).padStart(4),
    scenario.hot ? ' hot ' : ' cold',
    scenario.checksum === true ? 'yes     ' : 'no      ',
    Math.round(calls / seconds)
      .toLocaleString('en')
      .padStart(12),
    (keys / seconds).toFixed(1).padStart(10),
    (keys / cpu).toFixed(1).padStart(25),
    `${Math.round((100 * cpu) / seconds)} %`.padStart(12),
    ((own.user + own.system) / calls).toFixed(1).padStart(24),
  ];
  process.stdout.write(`${figures.join(' ')}\n`);
}

async function runClient(address: string, manifestFile: string): Promise<void> {
  const channel = new Channel(address);
  const cpuSeconds = async (): Promise<number> => {
    const text = await (await fetch(`http://${address}/metrics`)).text();
    return Number(/^process_cpu_seconds_total (\S+)/m.exec(text)?.[1]);
  };
  for (const scenario of SCENARIOS) {
    const make = scenario.call === 'packed' ? packedCaller : seekCaller;
    await measure(scenario, make(channel, scenario), cpuSeconds);
  }
  channel.close();
  const replica = { data: address, control: address, group: 'default' };
  const fleet = { bundles: new Map([[BUNDLE, [{ shardNum: 1, shards: [[replica]] }]]]) };
  const manifest = parseManifest(readText(manifestFile), manifestFile);
  for (const scenario of CLIENT_SCENARIOS) {
    const client = new CubeClient({ fleet: () => fleet, checksum: scenario.checksum === true });
    await measure(scenario, clientCaller(client, manifest, scenario), cpuSeconds);
    client.close();
  }
}

async function runRedisClient(port: number): Promise<void> {
  const redis = await openMget(port);
  await fillRedis(redis, ROWS);
  for (const scenario of REDIS_SCENARIOS) {
    await measure(scenario, mgetCaller(redis, scenario), () => redis.cpuSeconds());
  }
  redis.close();
}

/** Runs this file as the client on the second core. */
async function runPinned(...args: string[]): Promise<void> {
  const client = spawnPinned(1, [process.execPath, import.meta.filename, ...args]);
  client.stderr?.pipe(process.stderr);
  await new Promise((resolve) => client.on('close', resolve));
}

/** Prints the table of all scenarios. */
async function run(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    process.stdout.write(
      'Lookups over loopback: cube-server (packed lookup, client, seek) against Redis MGET.\n' +
        `${ROWS.toLocaleString('en')} rows × ${DIM * 4} B, ${IN_FLIGHT} requests in flight\n` +
        'call    keys  temp checksum   requests/s   M keys/s   M keys per server-CPU-s   ' +
        'server CPU   client-CPU µs/request\n',
    );
    writeVersion(folder, { version: '1', rows: ROWS, shardNum: 1 });
    const server = await startServer(folder, { shard: 0, shardNum: 1, core: 0 });
    await loadAndActivate(server, '1');
    await runPinned('client', server.address, `${folder}/${manifestPath(BUNDLE, '1')}`);
    await server.stop();
    const redis = await startRedis(folder);
    if (redis === undefined) {
      process.stdout.write('Redis MGET: skipped, because redis-server is not on the PATH\n');
      return;
    }
    await runPinned('redis', String(redis.port));
    await redis.stop();
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const [mode, where = '', manifestFile = ''] = process.argv.slice(2);
  if (mode === 'client') await runClient(where, manifestFile);
  else if (mode === 'redis') await runRedisClient(Number(where));
  else await run();
}
