/**
 * How much loading a version slows lookups of a cube-server: latency of an open loop at a quarter
 * of the server's capacity, quiet, while versions of the same size are loaded, activated and
 * unloaded one after another, and quiet again. The three take turns of two seconds, because the
 * machine may change within one round. Switches are ordered from a process in idle time, as by an
 * agent. The server is not pinned; keys are cold. Prints percentiles and their ratio to the first
 * quiet phases, for several load rates. The ratio of the second quiet phases says how much the
 * machine alone makes of it. A round in which other virtual machines took CPU time from this one is
 * shown and made again.
 */
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { Channel } from '../lib/rpc/channel.ts';
import { encodeLookupRequest, LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';
import {
  BUNDLE,
  DIM,
  drawKeys,
  loadAndActivate,
  openLoop,
  percentile,
  startServer,
  TABLE,
  writeVersion,
} from './support/cube-server-process.ts';
import { readStolenMs, waitForFullCores } from './support/full-cores.ts';
import { SwitchProcess } from './support/switch-process.ts';

const ROWS = 4_000_000;
const KEYS = 260;
const IN_FLIGHT = 64;
/** For the open loop: calls that wait must be measured, not refused. */
const IN_FLIGHT_MAX = 16_384;
const CAPACITY_MS = 2000;
const PHASE_MS = 2000;
/** Phases of each kind in a round. */
const TURNS = 4;
/** Switches before the first round: the memory of two versions is new to the server only once. */
const WARM_MS = 6000;
const ROUNDS_DEFAULT = 10;
const ROUNDS = 3;
/** A round whose phases of a kind lose more CPU time is not counted. */
const STOLEN_MS_MAX = 50;
/** Rounds that are not counted, for each rate. */
const REPEATS_MAX = 30;
const P99 = 0.99;
const SHARES: readonly number[] = [0.5, 0.9, 0.99, 0.999];

type Call = () => Promise<void>;

function lookupCall(channel: Channel): Call {
  const drawn = new Uint8Array(drawKeys(1 << 20, ROWS).buffer);
  const head = encodeLookupRequest({
    bundle: BUNDLE,
    version: '',
    shardIndex: 0,
    shardNum: 1,
    groups: [{ table: TABLE, count: KEYS }],
  });
  let at = 0;
  return async () => {
    at = at + 16 * KEYS > drawn.length ? 0 : at + 8 * KEYS;
    const keys = drawn.subarray(at, at + 8 * KEYS);
    const answer = await channel.call(LOOKUP_SERVICE, LOOKUP_METHOD, head, keys, 5000);
    if (answer.attachment.length < KEYS * DIM * 4) throw new Error('the answer is too short');
  };
}

/** Measures calls per second with IN_FLIGHT calls in flight. */
async function measureCapacity(call: Call): Promise<number> {
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

function print(name: string, sorted: Float64Array, quiet?: Float64Array): void {
  const figures = SHARES.map((share) => {
    const ms = percentile(sorted, share);
    const ratio = quiet === undefined ? '' : ` (${(ms / percentile(quiet, share)).toFixed(2)})`;
    return `${ms.toFixed(3)}${ratio}`.padStart(15);
  });
  process.stdout.write(`${name.padEnd(34)}${figures.join('')}\n`);
}

function printRatios(name: string, ratios: readonly number[]): void {
  const sorted = [...ratios].sort((a, b) => a - b).map((ratio) => ratio.toFixed(2));
  process.stdout.write(`${name}: median ${sorted[sorted.length >> 1]} (${sorted.join(', ')})\n`);
}

/** The phases of one kind in a round. */
class Phases {
  readonly #latencies: Float64Array[] = [];
  /** CPU time that other virtual machines took from them. */
  stolenMs = 0;

  async measure(call: Call, perSecond: number): Promise<void> {
    const beforeMs = readStolenMs();
    const latencies = await openLoop(call, { perSecond, forMs: PHASE_MS, waitBy: 'sleep' });
    this.stolenMs += readStolenMs() - beforeMs;
    this.#latencies.push(latencies);
  }

  /** @returns latencies of all phases, sorted */
  merge(): Float64Array {
    return Float64Array.from(this.#latencies.flatMap((list) => [...list])).sort();
  }
}

interface Round {
  /** Sorted latencies. */
  readonly quiet: Float64Array;
  readonly busy: Float64Array;
  readonly again: Float64Array;
  /** CPU time that other virtual machines took in the phases of each kind. */
  readonly stolenMs: readonly number[];
}

async function measureRound(
  switching: SwitchProcess,
  call: Call,
  perSecond: number,
): Promise<Round> {
  await waitForFullCores();
  const [quiet, busy, again] = [new Phases(), new Phases(), new Phases()];
  let switches = 0;
  for (let turn = 0; turn < TURNS; turn++) {
    await quiet.measure(call, perSecond);
    switching.start();
    await busy.measure(call, perSecond);
    switches += await switching.stop();
    await again.measure(call, perSecond);
  }
  const round = { quiet: quiet.merge(), busy: busy.merge(), again: again.merge() };
  print('quiet, ms', round.quiet);
  print(`during ${switches} loads and switches, ms`, round.busy, round.quiet);
  print('quiet again, ms', round.again, round.quiet);
  return { ...round, stolenMs: [quiet, busy, again].map((phases) => phases.stolenMs) };
}

async function measure(
  folder: string,
  name: string,
  rounds: number,
  flags: readonly string[],
): Promise<void> {
  const server = await startServer(folder, { shard: 0, shardNum: 1, flags });
  const channel = new Channel(server.address, { maxInFlight: IN_FLIGHT_MAX });
  const switching = new SwitchProcess(server.address);
  try {
    await loadAndActivate(server, '1');
    const call = lookupCall(channel);
    await measureCapacity(call);
    const perSecond = Math.floor((await measureCapacity(call)) / 4);
    process.stdout.write(
      `\n${name}: ${perSecond.toLocaleString('en')} requests/s of ${KEYS} keys\n`,
    );
    switching.start();
    await new Promise((resolve) => setTimeout(resolve, WARM_MS));
    await switching.stop();
    const ratios = { loads: [] as number[], quiet: [] as number[] };
    for (let repeats = 0; ratios.loads.length < rounds; ) {
      const { quiet, busy, again, stolenMs } = await measureRound(switching, call, perSecond);
      if (Math.max(...stolenMs) > STOLEN_MS_MAX && repeats < REPEATS_MAX) {
        repeats++;
        process.stdout.write(`not counted, other machines took ${stolenMs.join(', ')} ms\n`);
        continue;
      }
      ratios.loads.push(percentile(busy, P99) / percentile(quiet, P99));
      ratios.quiet.push(percentile(again, P99) / percentile(quiet, P99));
    }
    printRatios('p99 during loads / quiet', ratios.loads);
    printRatios('p99 quiet again / quiet', ratios.quiet);
  } finally {
    switching.end();
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
    process.stdout.write('Latency of lookups while versions are loaded, against quiet periods.\n');
    const shares = SHARES.map((share) => `p${100 * share}`.padStart(15)).join('');
    process.stdout.write(`${' '.repeat(34)}${shares}\n`);
    await measure(folder, 'loads at the default rate', ROUNDS_DEFAULT, []);
    await measure(folder, 'loads at 1 GiB/s', ROUNDS, ['--load-rate', '1GiB']);
    await measure(folder, 'loads unthrottled', ROUNDS, ['--load-rate', '0']);
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await run();
