/**
 * What a load costs the lookups beside it: latency of an open-loop load at a quarter of what the server can do,
 * first quiet, then while versions of the same size are loaded, activated and unloaded one after another. The server is not
 * pinned; keys are cold. Percentiles of both and their ratio, with Cube's way beside it: the same load at the disk's full speed.
 */
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { Channel } from '../lib/rpc/channel.ts';
import { CONTROL_UNLOAD } from '../proto/control.ts';
import { encodeLookupRequest, LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';
import {
  type BenchServer,
  BUNDLE,
  DIM,
  drawKeys,
  openLoop,
  percentile,
  serveVersion,
  startServer,
  TABLE,
  writeVersion,
} from './bench-server.ts';

const ROWS = 4_000_000;
const KEYS = 260;
const IN_FLIGHT = 64;
/** Of the open loop: what has to wait is to be measured, not refused. */
const IN_FLIGHT_MAX = 16_384;
const CAPACITY_MS = 2000;
const PHASE_MS = 8000;
const ROUNDS = 3;
const SHARES: readonly number[] = [0.5, 0.9, 0.99, 0.999];

type Call = () => Promise<void>;

function lookupCall(channel: Channel): Call {
  const drawn = new Uint8Array(drawKeys(1 << 20, ROWS).buffer);
  const head = encodeLookupRequest({
    ...{ bundle: BUNDLE, version: '', shardIndex: 0, shardNum: 1 },
    groups: [{ table: TABLE, count: KEYS }],
  });
  let at = 0;
  return async () => {
    at = at + 16 * KEYS > drawn.length ? 0 : at + 8 * KEYS;
    const keys = drawn.subarray(at, at + 8 * KEYS);
    const answer = await channel.call(LOOKUP_SERVICE, LOOKUP_METHOD, head, keys, 5000);
    if (answer.attachment.length < KEYS * DIM * 4) throw new Error('a short answer');
  };
}

/** Calls a second with IN_FLIGHT under way all the time. */
async function capacity(call: Call): Promise<number> {
  let calls = 0;
  const startMs = performance.now();
  const one = async (): Promise<void> => {
    while (performance.now() - startMs < CAPACITY_MS) {
      await call();
      calls++;
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, one));
  return (1000 * calls) / (performance.now() - startMs);
}

/** Versions in and out until told to stop. @returns how many */
async function keepSwitching(server: BenchServer, until: { done: boolean }): Promise<number> {
  let switches = 0;
  let active = '1';
  while (!until.done) {
    const next = active === '1' ? '2' : '1';
    await serveVersion(server, next);
    await server.control(CONTROL_UNLOAD, active, { force: true });
    active = next;
    switches++;
  }
  return switches;
}

function print(name: string, sorted: Float64Array, quiet?: Float64Array): void {
  const figures = SHARES.map((share) => {
    const ms = percentile(sorted, share);
    const ratio = quiet === undefined ? '' : ` (${(ms / percentile(quiet, share)).toFixed(2)})`;
    return `${ms.toFixed(3)}${ratio}`.padStart(15);
  });
  process.stdout.write(`${name.padEnd(34)}${figures.join('')}\n`);
}

async function measure(folder: string, name: string, flags: readonly string[]): Promise<void> {
  const server = await startServer(folder, { shard: 0, shardNum: 1, flags });
  const channel = new Channel(server.address, { maxInFlight: IN_FLIGHT_MAX });
  try {
    await serveVersion(server, '1');
    const call = lookupCall(channel);
    await capacity(call);
    const perSecond = Math.floor((await capacity(call)) / 4);
    process.stdout.write(
      `\n${name}: ${perSecond.toLocaleString('en')} requests/s of ${KEYS} keys\n`,
    );
    for (let round = 1; round <= ROUNDS; round++) {
      const quiet = await openLoop(call, { perSecond, forMs: PHASE_MS, between: 'sleep' });
      const until = { done: false };
      const switching = keepSwitching(server, until);
      const busy = await openLoop(call, { perSecond, forMs: PHASE_MS, between: 'sleep' });
      until.done = true;
      const switches = await switching;
      print('quiet, ms', quiet);
      print(`during ${switches} loads and switches, ms`, busy, quiet);
    }
  } finally {
    channel.close();
    await server.stop();
  }
}

async function run(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    for (const version of ['1', '2']) {
      writeVersion(folder, { version, rows: ROWS, shardNum: 1, salt: Number(version) });
    }
    const shares = SHARES.map((share) => `p${100 * share}`.padStart(15)).join('');
    process.stdout.write(`${' '.repeat(34)}${shares}\n`);
    await measure(folder, 'loads at the default rate', []);
    await measure(folder, 'loads at 1 GiB/s', ['--load-rate', '1GiB']);
    await measure(folder, 'loads unthrottled', ['--load-rate', '0']);
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await run();
