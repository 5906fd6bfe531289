/**
 * A serving process on one core, asked through its port from the other, against the bare run of its graph on the same core. Rates are
 * for each second of CPU time that the service's processes took, which holds on a machine with other work; the clock's are beside
 * them. Budgets are printed with what was reached.
 */
import { loadavg } from 'node:os';
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { percentile, pinSelf } from './bench-server.ts';
import {
  DOORS,
  type Door,
  denseTensor,
  inferBytes,
  KEYS_DOOR,
  overHttp,
  rawStrings,
  readLines,
  SLOT_NUM,
  TSV_DOOR,
} from './serving-callers.ts';
import { type DoorRows, doorRows, publishModel } from './serving-model.ts';
import { SERVICE_CORE, type Service, startRemote, startServing } from './serving-process.ts';
import { bareRunOn, type Measured } from './serving-runs.ts';

const SHARD_NUM = 2;
const CLIENT_CORE = 1;
const BATCH = 64;
const BATCHES_IN_FLIGHT = 8;
const SINGLES_IN_FLIGHT = 64;
const CANDIDATES = 40;
/** Of a user; the others are of each candidate. */
const USER_SLOTS = 20;
/** Requests made before; a server that has seen them all has seen enough. */
const REQUESTS_MAX = 1_000;
const WARM_MS = 3_000;
const MEASURE_MS = 3_000;
const QUICK_MS = 1_500;

interface Asked {
  readonly door: Door;
  readonly rows: number;
  readonly inFlight: number;
  readonly measureMs?: number;
}

type Rows = (rowCount: number) => readonly DoorRows[];

/** Keeps requests under way, first to warm up, then to measure. */
async function ask(service: Service, rows: Rows, asked: Asked): Promise<Measured> {
  const connect = asked.door(rows(asked.rows));
  const callers = Array.from({ length: asked.inFlight }, () => connect(service.url));
  let next = 0;
  const run = async (forMs: number): Promise<number[]> => {
    const latencies: number[] = [];
    const endMs = performance.now() + forMs;
    await Promise.all(
      callers.map(async (caller) => {
        for (let nowMs = performance.now(); nowMs < endMs; ) {
          await caller.call(next++);
          const doneMs = performance.now();
          latencies.push(doneMs - nowMs);
          nowMs = doneMs;
        }
      }),
    );
    return latencies;
  };
  await run(WARM_MS);
  const cpuSeconds = await service.cpuSeconds();
  const startMs = performance.now();
  const latencies = await run(asked.measureMs ?? MEASURE_MS);
  const seconds = (performance.now() - startMs) / 1_000;
  const perCpuSecond = latencies.length / ((await service.cpuSeconds()) - cpuSeconds);
  for (const caller of callers) caller.close();
  const sorted = Float64Array.from(latencies).sort();
  return { perSecond: latencies.length / seconds, perCpuSecond, latencies: sorted };
}

function print(name: string, text: string, budget = ''): void {
  const end = budget === '' ? '' : `   (budget ${budget})`;
  process.stdout.write(`${name.padEnd(46)}${text}${end}\n`);
}

function count(value: number): string {
  return Math.round(value).toLocaleString('en');
}

function ms(value: number): string {
  return `${value.toFixed(2)} ms`;
}

/** Rows of batches against those of the bare run. */
async function printShare(
  service: Service,
  rows: Rows,
  line: { name: string; door: string; bare: Measured; budget: string },
): Promise<void> {
  const door = DOORS.get(line.door)!;
  const measured = await ask(service, rows, { door, rows: BATCH, inFlight: BATCHES_IN_FLIGHT });
  const { perCpuSecond, perSecond } = measured;
  const share = (of: number, bare: number): string => `${((100 * of) / bare).toFixed(0)} %`;
  print(
    line.name,
    `${count(BATCH * perCpuSecond)} rows a CPU second: ${share(perCpuSecond, line.bare.perCpuSecond)} of bare ` +
      `(${share(perSecond, line.bare.perSecond)} by the clock), p99 ${ms(percentile(measured.latencies, 0.99))}`,
    line.budget,
  );
}

/** Requests of one row: many at a time, and one at a time. */
async function printSingles(service: Service, rows: Rows, bareMs: number): Promise<void> {
  for (const name of [KEYS_DOOR, TSV_DOOR]) {
    const door = DOORS.get(name)!;
    const many = await ask(service, rows, { door, rows: 1, inFlight: SINGLES_IN_FLIGHT });
    print(
      `${name}, 1 row, ${SINGLES_IN_FLIGHT} in flight`,
      `${count(many.perSecond)} requests/s, ${count(many.perCpuSecond)} a CPU second, p50 ${ms(percentile(many.latencies, 0.5))}, p99 ${ms(percentile(many.latencies, 0.99))}`,
      '15,000 a core, p99 10 ms',
    );
    const one = await ask(service, rows, { door, rows: 1, inFlight: 1 });
    const p50 = percentile(one.latencies, 0.5);
    print(
      `${name}, 1 row, one at a time`,
      `p50 ${ms(p50)}, ${ms(p50 - bareMs)} over the bare run`,
      '0.35 ms',
    );
  }
}

/** Candidates of one user, by slot: the user's features once, or with each. */
function candidates(isShared: boolean): Door {
  return overHttp(({ lines }) => {
    const text = readLines(lines);
    const slots = Array.from({ length: SLOT_NUM }, (_, slot) => {
      const isUser = slot < USER_SLOTS;
      const column = text.categorical.map((row) => (isUser ? text.categorical[0]! : row)[slot]!);
      const values = isShared && isUser ? column.slice(0, 1) : column;
      const raw = rawStrings(values);
      return { name: `C${slot + 1}`, datatype: 'BYTES', shape: [values.length, 1], raw };
    });
    return inferBytes([...slots, denseTensor(text)]);
  });
}

/** A process that has answered for a second only is still being compiled. */
async function warmUp(service: Service, rows: Rows): Promise<void> {
  for (const name of [KEYS_DOOR, TSV_DOOR]) {
    const door = DOORS.get(name)!;
    await ask(service, rows, { door, rows: BATCH, inFlight: BATCHES_IN_FLIGHT });
  }
}

async function printCandidates(service: Service, rows: Rows): Promise<void> {
  const asked = { rows: CANDIDATES, inFlight: BATCHES_IN_FLIGHT };
  const full = await ask(service, rows, { ...asked, door: candidates(false) });
  const shared = await ask(service, rows, { ...asked, door: candidates(true) });
  print(
    `${CANDIDATES} candidates, ${USER_SLOTS} of ${SLOT_NUM} slots the user's`,
    `${count(full.perCpuSecond)} requests a CPU second with all features in each row; ${count(shared.perCpuSecond)} with the user's once: ` +
      `${(shared.perCpuSecond / full.perCpuSecond).toFixed(2)} times as many`,
  );
}

async function printDoors(service: Service, rows: Rows): Promise<void> {
  process.stdout.write('\nfor each second of CPU time:\n');
  for (const [name, door] of DOORS) {
    const one = { door, rows: 1, inFlight: SINGLES_IN_FLIGHT, measureMs: QUICK_MS };
    const many = { door, rows: BATCH, inFlight: BATCHES_IN_FLIGHT, measureMs: QUICK_MS };
    const singles = await ask(service, rows, one);
    const batches = await ask(service, rows, many);
    print(
      name,
      `${count(singles.perCpuSecond).padStart(8)} requests of one row, ${count(BATCH * batches.perCpuSecond).padStart(8)} rows in requests of ${BATCH}`,
    );
  }
}

/** Stops the service whatever happens. */
async function using(service: Service, use: (service: Service) => Promise<void>): Promise<void> {
  try {
    await use(service);
  } finally {
    await service.stop();
  }
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  try {
    await publishModel(folder, SHARD_NUM);
    const rows: Rows = (rowCount) => doorRows(folder, rowCount, REQUESTS_MAX);
    const bare = bareRunOn(SERVICE_CORE, folder, BATCH);
    const bareMs = percentile(bareRunOn(SERVICE_CORE, folder, 1).latencies, 0.5);
    print('load of the machine', loadavg()[0]!.toFixed(1));
    print('bare run, 64 rows', `${count(BATCH * bare.perCpuSecond)} rows a CPU second`);
    await using(await startServing(folder, ['--store', 'memory']), async (memory) => {
      await warmUp(memory, rows);
      for (const door of [KEYS_DOOR, TSV_DOOR]) {
        await printShare(memory, rows, { name: `${door}, 64 rows`, door, bare, budget: '60 %' });
      }
      await printSingles(memory, rows, bareMs);
      await printCandidates(memory, rows);
      await printDoors(memory, rows);
    });
    await using(await startRemote(folder, SHARD_NUM), async (remote) => {
      await warmUp(remote, rows);
      process.stdout.write('\n');
      for (const door of [KEYS_DOOR, TSV_DOOR]) {
        const name = `two shards: ${door}, 64 rows`;
        await printShare(remote, rows, { name, door, bare, budget: '40 %' });
      }
    });
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
