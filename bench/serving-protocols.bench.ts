/**
 * A serving process under load through each of its protocols, against the graph alone. The service
 * is on one core, the client on the other. Rates are per second of the service's CPU time, which
 * other work on the machine hardly changes; rates by wall-clock time are printed too, and budgets
 * where there are any.
 */
import { loadavg } from 'node:os';
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { type LoopResult, runGraphAloneOn } from './support/closed-loop.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { createRequestRows, publishModel, type RequestRows } from './support/demo-model.ts';
import {
  KEYS_PROTOCOL,
  PROTOCOLS,
  type ProtocolConnector,
  TSV_PROTOCOL,
} from './support/protocol-callers.ts';
import {
  SERVICE_CORE,
  type Service,
  startServing,
  startServingWithShards,
} from './support/serving-process.ts';

const SHARD_NUM = 2;
const CLIENT_CORE = 1;
const BATCH = 64;
const BATCHES_IN_FLIGHT = 8;
const SINGLES_IN_FLIGHT = 64;
/** Requests encoded before the measurement; clients send them in turn. */
const REQUESTS_MAX = 1_000;
const WARM_MS = 3_000;
const MEASURE_MS = 3_000;
const QUICK_MS = 1_500;

interface Load {
  readonly connector: ProtocolConnector;
  readonly rows: number;
  readonly inFlight: number;
  readonly measureMs?: number;
}

type Rows = (rowCount: number) => readonly RequestRows[];

/** Keeps requests in flight, first to warm up, then to measure. */
async function measure(service: Service, rows: Rows, load: Load): Promise<LoopResult> {
  const connect = load.connector(rows(load.rows));
  const callers = Array.from({ length: load.inFlight }, () => connect(service.url));
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
  const latencies = await run(load.measureMs ?? MEASURE_MS);
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

/** A protocol of the list, by its name. */
function findProtocol(name: string): ProtocolConnector {
  const connector = PROTOCOLS.get(name);
  if (connector === undefined) throw new Error(`no protocol is named ${name}`);
  return connector;
}

function count(value: number): string {
  return Math.round(value).toLocaleString('en');
}

function ms(value: number): string {
  return `${value.toFixed(2)} ms`;
}

/** Prints the rate of requests of 64 rows against that of the graph alone. */
async function printShare(
  service: Service,
  rows: Rows,
  line: { name: string; protocol: string; alone: LoopResult; budget: string },
): Promise<void> {
  const connector = findProtocol(line.protocol);
  const measured = await measure(service, rows, {
    connector,
    rows: BATCH,
    inFlight: BATCHES_IN_FLIGHT,
  });
  const { perCpuSecond, perSecond } = measured;
  const percent = (part: number, whole: number): string => `${((100 * part) / whole).toFixed(0)} %`;
  print(
    line.name,
    `${count(BATCH * perCpuSecond)} rows per CPU second: ` +
      `${percent(perCpuSecond, line.alone.perCpuSecond)} of the graph alone ` +
      `(${percent(perSecond, line.alone.perSecond)} by wall-clock time), ` +
      `p99 ${ms(percentile(measured.latencies, 0.99))}`,
    line.budget,
  );
}

/** Prints requests of one row: many in flight, then one at a time. */
async function printSingles(service: Service, rows: Rows, aloneMs: number): Promise<void> {
  for (const name of [KEYS_PROTOCOL, TSV_PROTOCOL]) {
    const connector = findProtocol(name);
    const many = await measure(service, rows, { connector, rows: 1, inFlight: SINGLES_IN_FLIGHT });
    print(
      `${name}, 1 row, ${SINGLES_IN_FLIGHT} in flight`,
      `${count(many.perSecond)} requests/s, ${count(many.perCpuSecond)} per CPU second, ` +
        `p50 ${ms(percentile(many.latencies, 0.5))}, p99 ${ms(percentile(many.latencies, 0.99))}`,
      '15,000 per core, p99 10 ms',
    );
    const one = await measure(service, rows, { connector, rows: 1, inFlight: 1 });
    const p50 = percentile(one.latencies, 0.5);
    print(
      `${name}, 1 row, one at a time`,
      `p50 ${ms(p50)}, ${ms(p50 - aloneMs)} more than the graph alone`,
      '0.35 ms',
    );
  }
}

/** Lets V8 compile the code of the service before the measurement. */
async function warmUp(service: Service, rows: Rows): Promise<void> {
  for (const name of [KEYS_PROTOCOL, TSV_PROTOCOL]) {
    const connector = findProtocol(name);
    await measure(service, rows, { connector, rows: BATCH, inFlight: BATCHES_IN_FLIGHT });
  }
}

async function printProtocols(service: Service, rows: Rows): Promise<void> {
  process.stdout.write('\nper CPU second:\n');
  for (const [name, connector] of PROTOCOLS) {
    const one = { connector, rows: 1, inFlight: SINGLES_IN_FLIGHT, measureMs: QUICK_MS };
    const many = { connector, rows: BATCH, inFlight: BATCHES_IN_FLIGHT, measureMs: QUICK_MS };
    const singles = await measure(service, rows, one);
    const batches = await measure(service, rows, many);
    print(
      name,
      `${count(singles.perCpuSecond).padStart(8)} requests of one row, ` +
        `${count(BATCH * batches.perCpuSecond).padStart(8)} rows in requests of ${BATCH}`,
    );
  }
}

/** Stops the service after its use, also when that fails. */
async function withService(
  service: Service,
  use: (service: Service) => Promise<void>,
): Promise<void> {
  try {
    await use(service);
  } finally {
    await service.stop();
  }
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  process.stdout.write(
    'Serving through each protocol against running its graph alone on the same core.\n',
  );
  try {
    await publishModel(folder, SHARD_NUM);
    const rows: Rows = (rowCount) => createRequestRows(folder, rowCount, REQUESTS_MAX);
    const alone = runGraphAloneOn(SERVICE_CORE, folder, BATCH);
    const aloneMs = percentile(runGraphAloneOn(SERVICE_CORE, folder, 1).latencies, 0.5);
    print('machine load', loadavg()[0]?.toFixed(1) ?? '');
    print('graph alone, 64 rows', `${count(BATCH * alone.perCpuSecond)} rows per CPU second`);
    await withService(await startServing(folder, ['--store', 'memory']), async (memory) => {
      await warmUp(memory, rows);
      for (const protocol of [KEYS_PROTOCOL, TSV_PROTOCOL]) {
        const name = `${protocol}, 64 rows`;
        await printShare(memory, rows, { name, protocol, alone, budget: '60 %' });
      }
      await printSingles(memory, rows, aloneMs);
      await printProtocols(memory, rows);
    });
    await withService(await startServingWithShards(folder, SHARD_NUM), async (remote) => {
      await warmUp(remote, rows);
      process.stdout.write('\n');
      for (const protocol of [KEYS_PROTOCOL, TSV_PROTOCOL]) {
        const name = `two shards: ${protocol}, 64 rows`;
        await printShare(remote, rows, { name, protocol, alone, budget: '40 %' });
      }
    });
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
