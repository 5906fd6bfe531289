/**
 * Lookups over loopback: a real cube-server process on one core, a client process on another, one pipelined
 * connection. Reports requests per second and keys per second of server CPU, cold keys (uniform over a table larger
 * than the last-level cache) and hot ones (a thousand keys). Run by `npm run bench`, or alone:
 *
 *     node dist/bench/loopback-lookup.bench.js
 */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { availableParallelism } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { formatManifest, type Manifest } from '../lib/core/manifest.ts';
import { makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { layerPath, manifestPath } from '../lib/repository/layout.ts';
import { Channel } from '../lib/rpc/channel.ts';
import { writeLayer } from '../lib/store/layer-file.ts';
import { CONTROL_ACTIVATE, CONTROL_LOAD } from '../proto/control.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import {
  decodeLookupResponse,
  encodeLookupRequest,
  LOOKUP_METHOD,
  LOOKUP_SERVICE,
} from '../proto/lookup.ts';
import { WireWriter } from '../proto/wire.ts';

const ROWS = 1_000_000;
const DIM = 10;
const IN_FLIGHT = 64;
const HOT_KEYS = 1000;
const WARM_MS = 1500;
const MEASURE_MS = 3000;
const BUNDLE = 'bench';
const TABLE = 'table';

interface Scenario {
  readonly call: 'packed' | 'seek';
  readonly keys: number;
  readonly hot: boolean;
}

const SCENARIOS: readonly Scenario[] = [
  { call: 'packed', keys: 26, hot: false },
  { call: 'packed', keys: 26, hot: true },
  { call: 'packed', keys: 260, hot: false },
  { call: 'packed', keys: 260, hot: true },
  { call: 'seek', keys: 26, hot: false },
  { call: 'seek', keys: 260, hot: false },
  { call: 'seek', keys: 260, hot: true },
];

/** Key i of the table: an odd multiplier of two words, so that keys are spread and distinct. */
function writeKey(words: Uint32Array, at: number, i: number): void {
  words[at] = Math.imul(i + 1, 0x9e37_79b1);
  words[at + 1] = Math.imul(i + 1, 0x85eb_ca6b) ^ (i >>> 3);
}

function writeTable(folder: string): void {
  const keys = new Uint32Array(2 * ROWS);
  for (let i = 0; i < ROWS; i++) writeKey(keys, 2 * i, i);
  const rows = new Float32Array(ROWS * DIM).map((_, i) => i % 1000);
  const layer = {
    ...{ table: TABLE, dtype: 'f32' as const, dim: DIM, shardIndex: 0, shardNum: 1, keys },
    rows: new Uint8Array(rows.buffer),
  };
  const written = writeLayer(layer, (id) => join(folder, layerPath(BUNDLE, TABLE, id)));
  const { contentId, bytes, sha256 } = written;
  const ref = { contentId, kind: 'base', bytes, sha256, rows: ROWS } as const;
  const table = { name: TABLE, dim: DIM, dtype: 'f32', rows: ROWS, defaultRow: [] } as const;
  const manifest: Manifest = {
    ...{ bundle: BUNDLE, version: '1', files: [], slots: [] },
    hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    tables: [{ ...table, shardNum: 1, shards: [[ref]] }],
  };
  replaceFile(join(folder, manifestPath(BUNDLE, '1')), formatManifest(manifest));
}

/** On its own core where the machine lets us choose. */
function spawnPinned(core: number, args: readonly string[]): ChildProcess {
  const pinned = availableParallelism() > 1 && spawnSync('taskset', ['-V']).status === 0;
  const command = pinned ? ['taskset', '-c', String(core), process.execPath] : [process.execPath];
  const stdio = ['ignore', 'inherit', 'pipe'] as const;
  return spawn(command[0]!, [...command.slice(1), ...args], { stdio: [...stdio] });
}

async function startServer(folder: string): Promise<{ child: ChildProcess; address: string }> {
  const main = join(import.meta.dirname, '..', 'cube-server', 'main.js');
  const flags = ['--shard', '0', '--shard-num', '1', '--port', '0', '--data-dir', folder];
  const child = spawnPinned(0, [main, ...flags]);
  let log = '';
  const address = await new Promise<string>((resolve, reject) => {
    child.stderr?.on('data', (chunk) => {
      log += chunk;
      const found = /"address":"([^"]+)"/.exec(log)?.[1];
      if (found !== undefined) resolve(found);
    });
    child.on('close', () => reject(new Error(`the server ended: ${log}`)));
  });
  for (const path of [CONTROL_LOAD, CONTROL_ACTIVATE]) {
    const response = await fetch(`http://${address}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ bundle: BUNDLE, version: '1' }),
    });
    if (!response.ok) throw new Error(await response.text());
  }
  return { child, address };
}

async function cpuSeconds(address: string): Promise<number> {
  const text = await (await fetch(`http://${address}/metrics`)).text();
  return Number(/^process_cpu_seconds_total (\S+)/m.exec(text)?.[1]);
}

/** So many keys of the table, drawn at random, as u64 little-endian. */
function drawKeys(count: number, hot: boolean): Uint8Array {
  const words = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) {
    writeKey(words, 2 * i, Math.floor(Math.random() * (hot ? HOT_KEYS : ROWS)));
  }
  return new Uint8Array(words.buffer);
}

/** Makes one call after another, each with other keys. */
type Caller = () => Promise<void>;

function packedCaller(channel: Channel, { keys, hot }: Scenario): Caller {
  const drawn = drawKeys(1 << 20, hot);
  const groups = [{ table: TABLE, count: keys }];
  const head = encodeLookupRequest({
    ...{ bundle: BUNDLE, version: '1', shardIndex: 0, shardNum: 1, groups },
  });
  let at = 0;
  return async () => {
    at = at + keys * 16 > drawn.length ? 0 : at + keys * 8;
    const attachment = drawn.subarray(at, at + keys * 8);
    const answer = await channel.call(LOOKUP_SERVICE, LOOKUP_METHOD, head, attachment, 5000);
    if (answer.attachment.length < keys * DIM * 4) throw new Error('a short answer');
    if (at === 0 && decodeLookupResponse(answer.payload).groups[0]?.hits !== keys) {
      throw new Error('not all keys were found');
    }
  };
}

function seekCaller(channel: Channel, { keys, hot }: Scenario): Caller {
  const payloads = Array.from({ length: 2000 }, () => {
    const words = new BigUint64Array(drawKeys(keys, hot).buffer);
    const writer = new WireWriter();
    for (const key of words) writer.uint(1, key);
    return writer.finish();
  });
  let next = 0;
  return async () => {
    next = (next + 1) % payloads.length;
    const nothing = new Uint8Array(0);
    const answer = await channel.call(DICT_SERVICE, DICT_METHOD, payloads[next]!, nothing, 5000);
    if (answer.payload.length !== keys * (6 + DIM * 4)) throw new Error('not all keys were found');
  };
}

/** Keeps IN_FLIGHT calls under way for some time. @returns calls answered and seconds taken */
async function load(call: Caller, forMs: number): Promise<{ calls: number; seconds: number }> {
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

async function runClient(address: string): Promise<void> {
  const channel = new Channel(address);
  const print = (line: string): void => void process.stdout.write(`${line}\n`);
  print('call    keys  temp   requests/s   M keys/s   M keys per server-CPU-s   server CPU');
  for (const scenario of SCENARIOS) {
    const make = scenario.call === 'packed' ? packedCaller : seekCaller;
    const call = make(channel, scenario);
    await load(call, WARM_MS);
    const before = await cpuSeconds(address);
    const { calls, seconds } = await load(call, MEASURE_MS);
    const cpu = (await cpuSeconds(address)) - before;
    const keys = (calls * scenario.keys) / 1e6;
    print(
      [
        scenario.call.padEnd(7),
        String(scenario.keys).padStart(4),
        scenario.hot ? ' hot ' : ' cold',
        Math.round(calls / seconds)
          .toLocaleString('en')
          .padStart(12),
        (keys / seconds).toFixed(1).padStart(10),
        (keys / cpu).toFixed(1).padStart(25),
        `${Math.round((100 * cpu) / seconds)} %`.padStart(12),
      ].join(' '),
    );
  }
  channel.close();
}

/** Prints the table of all scenarios. */
async function run(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    process.stdout.write(
      `loopback lookup: ${ROWS.toLocaleString('en')} rows × ${DIM * 4} B, ${IN_FLIGHT} in flight\n`,
    );
    writeTable(folder);
    const { child, address } = await startServer(folder);
    const client = spawnPinned(1, [import.meta.filename, 'client', address]);
    client.stderr?.pipe(process.stderr);
    await new Promise((resolve) => client.on('close', resolve));
    child.kill('SIGTERM');
    await new Promise((resolve) => child.on('close', resolve));
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  if (process.argv[2] === 'client') await runClient(process.argv[3] ?? '');
  else await run();
}
