/**
 * The load tables of docs/performance.md, in Markdown: ctr-client in a closed loop against serving,
 * which has the demo's model and its tables in its memory. Run it with
 * `npm run bench -- load-tables`.
 */
import { spawn } from 'node:child_process';
import { cpus, loadavg } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { readLines } from './support/protocol-callers.ts';
import { postBytes, RawHttp } from './support/raw-http.ts';
import { SERVICE_CORE, type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const ROWS = 8_192;
const BATCHES = [1, 16, 64];
const CONCURRENCIES = [1, 4, 16];
const SECONDS = 2.5;
const WARM_UP_SECONDS = 0.5;
const FIRST_SECONDS = 3;
const STARTS = 5;
const FIRST_REQUESTS = 100;
/** The smallest warm-up that serving has. */
const WARM_UP_OFF = ['--warm-up', 'synthetic', '--warm-up-entries', 'zeros:1'];

const PROTOCOLS: readonly (readonly [name: string, flags: readonly string[]])[] = [
  ['CTR, TSV', ['--rows', 'rows.tsv']],
  ['CTR, JSON', ['--rows', 'rows.jsonl']],
  ['CTR, gRPC', ['--rows', 'rows.tsv', '--protocol', 'ctr-grpc']],
  ['KServe, binary', ['--rows', 'rows.tsv', '--protocol', 'kserve-binary']],
  [
    'Paddle, baidu_std',
    ['--rows', 'rows.tsv', '--protocol', 'paddle-rpc', '--slots', 'slots.json'],
  ],
];

const LATENCIES = ['avg', 'p50', 'p80', 'p90', 'p99', 'p999'] as const;
const LATENCY_HEAD = ['mean ms', 'p50', 'p80', 'p90', 'p99', 'p99.9'];

/** The fields of a report of ctr-client that the tables show. */
interface Cell {
  readonly batch: number;
  readonly concurrency: number;
  readonly requests: number;
  readonly failed: number;
  readonly requestsPerSecond: number;
  readonly rowsPerSecond: number;
  readonly latencyMs: Readonly<Record<(typeof LATENCIES)[number], number>>;
  readonly generator: { readonly busyShare: number };
}

interface ClientRun {
  readonly url: URL;
  readonly flags: readonly string[];
  readonly batches: readonly number[];
  readonly concurrencies: readonly number[];
  /** undefined: any. */
  readonly core: number | undefined;
}

class LoadTables {
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  async prepare(): Promise<void> {
    progress('pruning and publishing the model');
    await publishModel(this.#folder, 2);
    const [lines] = readBodies(this.#folder, ROWS);
    const { dense, categorical } = readLines(requireDefined(lines, 'rows'));
    const rows = dense.map((values, i) => ({ dense: values, categorical: categorical[i] }));
    const text = rows.map((row) => `${JSON.stringify(row)}\n`).join('');
    replaceFile(join(this.#folder, 'rows.jsonl'), text);
  }

  /** Batch × concurrency by each protocol; serving on one core, ctr-client on the other. */
  async compareProtocols(): Promise<void> {
    const columns = ['rows', 'in flight', 'client busy', 'requests/s', 'rows/s'];
    const service = await this.#startWarm([]);
    printTable('protocol', [...columns, ...LATENCY_HEAD]);
    for (const [name, protocol] of PROTOCOLS) {
      progress(`protocols: ${name}`);
      const run = { batches: BATCHES, concurrencies: CONCURRENCIES, core: CLIENT_CORE };
      const cells = await this.#runClient({ url: service.url, flags: protocol, ...run });
      for (const cell of cells) {
        const rates = [cell.requestsPerSecond, cell.rowsPerSecond].map(formatRate);
        const busy = `${Math.round(100 * cell.generator.busyShare)} %`;
        const load = [`${cell.batch}`, `${cell.concurrency}`, busy];
        printRow([name, ...load, ...rates, ...formatLatency(cell)]);
      }
    }
    await service.stop();
    progress(`load after: ${formatLoad()}`);
  }

  /** Requests of one row, each run alone or merged with those that wait. */
  async compareBatching(): Promise<void> {
    printTable('batching', ['in flight', 'requests/s', 'CPU µs', ...LATENCY_HEAD]);
    const modes = [
      ['off', ['--max-batch', '1']],
      ['on', []],
    ] as const;
    const services: Service[] = [];
    for (const [mode, flags] of modes) {
      progress(`batching ${mode}: start`);
      services.push(await this.#startWarm(flags));
    }
    for (const concurrency of [1, 16, 64]) {
      for (const [i, [mode]] of modes.entries()) {
        progress(`batching ${mode}, ${concurrency} in flight`);
        const load = { batch: 1, concurrency, core: CLIENT_CORE };
        const service = requireDefined(services[i], 'a service');
        const { cell, cpuMicros } = await this.#measure([service], load);
        const rates = [formatRate(cell.requestsPerSecond), formatRate(cpuMicros)];
        printRow([mode, `${concurrency}`, ...rates, ...formatLatency(cell)]);
      }
    }
    for (const service of services) await service.stop();
  }

  /** The first requests of new processes. */
  async compareWarmUp(): Promise<void> {
    printTable('warm-up', ['rows', 'start ms', 'first request ms', 'p50 of 100', 'p99 of 100']);
    pinSelf(CLIENT_CORE);
    const modes = [
      ['off', WARM_UP_OFF],
      ['on', []],
    ] as const;
    for (const rows of [1, 64]) {
      const figures = modes.map((): number[][] => []);
      for (let start = 0; start < STARTS; start++) {
        for (const [i, [mode, flags]] of modes.entries()) {
          progress(`warm-up ${mode}, ${rows} rows, start ${start + 1} of ${STARTS}`);
          figures[i]?.push(await this.#measureFirst(flags, rows));
        }
      }
      for (const [i, [mode]] of modes.entries()) {
        const all = requireDefined(figures[i], 'figures');
        const columns = [0, 1, 2, 3].map((at) => median(all.map((one) => one[at] ?? Number.NaN)));
        const [startMs = 0, ...latencies] = columns;
        printRow([mode, `${rows}`, startMs.toFixed(0), ...latencies.map((ms) => ms.toFixed(2))]);
      }
    }
  }

  /**
   * Serving and ctr-client share both cores; of two processes each has a ctr-client with half of
   * the requests in flight.
   */
  async compareInstances(): Promise<void> {
    printTable('serving', ['rows', 'in flight', 'requests/s', 'CPU µs', ...LATENCY_HEAD]);
    for (const instances of [1, 2]) {
      const name = instances === 1 ? 'one process, one instance' : 'one process, two instances';
      progress(name);
      await this.#printShared(name, [await this.#startWarm([], { core: undefined, instances })]);
    }
    const name = 'two processes, one instance each';
    progress(name);
    const services: Service[] = [];
    for (const core of [SERVICE_CORE, CLIENT_CORE]) {
      services.push(await this.#startWarm([], { core }));
    }
    await this.#printShared(name, services);
  }

  async #printShared(name: string, services: readonly Service[]): Promise<void> {
    for (const batch of [1, 64]) {
      const load = { batch, concurrency: 16, core: undefined };
      const { cell, cpuMicros } = await this.#measure(services, load);
      const rates = [formatRate(cell.requestsPerSecond), formatRate(cpuMicros)];
      printRow([name, `${batch}`, `${load.concurrency}`, ...rates, ...formatLatency(cell)]);
    }
    for (const service of services) await service.stop();
  }

  /** @returns the sums of all services, and the larger latencies */
  async #measure(
    services: readonly Service[],
    { batch, concurrency, core }: { batch: number; concurrency: number; core: number | undefined },
  ): Promise<{ cell: Cell; cpuMicros: number }> {
    const sumCpu = async (): Promise<number> => {
      const seconds = await Promise.all(services.map((service) => service.cpuSeconds()));
      return seconds.reduce((sum, one) => sum + one, 0);
    };
    const [[, flags] = ['', []]] = PROTOCOLS;
    const each = concurrency / services.length;
    const run = { flags, batches: [batch], concurrencies: [each], core };
    const before = await sumCpu();
    const cells = await Promise.all(
      services.map(async ({ url }) => (await this.#runClient({ ...run, url }))[0]),
    );
    const seconds = (await sumCpu()) - before;
    const all = cells.map((cell) => requireDefined(cell, 'a cell'));
    const sum = (of: (cell: Cell) => number): number =>
      all.reduce((total, one) => total + of(one), 0);
    const largest = LATENCIES.map((name) => Math.max(...all.map((one) => one.latencyMs[name])));
    const latencyMs = Object.fromEntries(LATENCIES.map((name, i) => [name, largest[i]]));
    const cell = {
      batch,
      concurrency,
      requests: sum(({ requests }) => requests),
      failed: 0,
      requestsPerSecond: sum((one) => one.requestsPerSecond),
      rowsPerSecond: sum((one) => one.rowsPerSecond),
      latencyMs: latencyMs as Cell['latencyMs'],
      generator: { busyShare: Math.max(...all.map(({ generator }) => generator.busyShare)) },
    };
    // The warm-up of ctr-client takes CPU time too, in proportion to its seconds.
    const share = SECONDS / (SECONDS + WARM_UP_SECONDS);
    return { cell, cpuMicros: (1e6 * seconds * share) / cell.requests };
  }

  /** @returns ms until ready, of the first request, p50 and p99 of the first hundred */
  async #measureFirst(flags: readonly string[], rows: number): Promise<number[]> {
    const headers = { 'content-type': 'text/tab-separated-values' };
    const requests = readBodies(this.#folder, rows)
      .slice(0, FIRST_REQUESTS)
      .map((body) => postBytes('/v1/ctr:predict', headers, body));
    const startMs = performance.now();
    const service = await this.start(flags);
    const readyMs = performance.now() - startMs;
    const connection = new RawHttp(service.url);
    const latencies: number[] = [];
    for (const request of requests) {
      const sentMs = performance.now();
      await connection.call(request);
      latencies.push(performance.now() - sentMs);
    }
    connection.close();
    await service.stop();
    const first = requireDefined(latencies[0], 'the first latency');
    const sorted = Float64Array.from(latencies).sort();
    return [readyMs, first, percentile(sorted, 0.5), percentile(sorted, 0.99)];
  }

  start(
    flags: readonly string[],
    options: { core?: number | undefined; instances?: number } = {},
  ): Promise<Service> {
    return startServing(this.#folder, ['--store', 'memory', ...flags], options);
  }

  /** Starts serving, and sends as many requests as it takes until its code is compiled. */
  async #startWarm(...start: Parameters<LoadTables['start']>): Promise<Service> {
    const service = await this.start(...start);
    const [[, flags] = ['', []]] = PROTOCOLS;
    const run = { url: service.url, flags, core: CLIENT_CORE };
    await this.#runClient({ ...run, batches: [1, 64], concurrencies: [64] }, FIRST_SECONDS);
    return service;
  }

  async #runClient(
    { url, flags, batches, concurrencies, core }: ClientRun,
    seconds: number = SECONDS,
  ): Promise<readonly Cell[]> {
    const main = join(import.meta.dirname, '..', 'tools', 'ctr-client', 'main.js');
    const files = flags.map((flag) => this.#findFile(flag));
    const matrix = ['--matrix', `batch=${batches}`, `concurrency=${concurrencies}`];
    const time = ['--duration', `${seconds}`, '--warm-up', `${WARM_UP_SECONDS}`];
    const command = [process.execPath, main, '--endpoint', url.host, '--limit', `${ROWS}`];
    const { cells } = JSON.parse(
      await readOutput(core, [...command, ...files, ...matrix, ...time, '--json']),
    ) as { cells: readonly Cell[] };
    const failed = cells.find((cell) => cell.failed > 0);
    if (failed === undefined) return cells;
    throw new Error(`${failed.failed} of ${failed.requests} requests failed: ${flags.join(' ')}`);
  }

  #findFile(flag: string): string {
    if (flag === 'slots.json') return join(this.#folder, 'pruned', flag);
    return flag.startsWith('rows.') ? join(this.#folder, flag) : flag;
  }
}

/** Runs a command to its end. @returns its standard output */
async function readOutput(core: number | undefined, command: readonly string[]): Promise<string> {
  const pin = core === undefined ? [] : ['taskset', '-c', String(core)];
  const [program = '', ...args] = [...pin, ...command];
  const child = spawn(program, args, { stdio: ['ignore', 'pipe', 'inherit'] });
  let text = '';
  child.stdout.on('data', (piece) => {
    text += piece;
  });
  const code = await new Promise((resolve) => child.on('close', resolve));
  if (code !== 0) throw new Error(`${command.join(' ')} ended with ${code}`);
  return text;
}

function progress(text: string): void {
  process.stderr.write(`${text}\n`);
}

function printRow(columns: readonly string[]): void {
  process.stdout.write(`| ${columns.join(' | ')} |\n`);
}

function printTable(first: string, columns: readonly string[]): void {
  const [cpu] = cpus();
  process.stdout.write(`\n${cpu?.model ?? 'unknown CPU'}, ${cpus().length} cores, Node `);
  process.stdout.write(`${process.versions.node}, load before ${formatLoad()}\n\n`);
  printRow([first, ...columns]);
  printRow(['---', ...columns.map(() => '---:')]);
}

function formatLoad(): string {
  return loadavg()[0]?.toFixed(1) ?? '';
}

function formatLatency({ latencyMs }: Cell): string[] {
  return LATENCIES.map((name) => latencyMs[name].toFixed(2));
}

function formatRate(value: number): string {
  return Math.round(value).toLocaleString('en');
}

function median(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function main(): Promise<void> {
  const { values } = parseArgs({ options: { part: { type: 'string' } } });
  const folder = makeTemporaryFolder('hypercube-bench-');
  const tables = new LoadTables(folder);
  const parts = [
    () => tables.compareProtocols(),
    () => tables.compareBatching(),
    () => tables.compareWarmUp(),
    () => tables.compareInstances(),
  ];
  try {
    await tables.prepare();
    for (const [i, part] of parts.entries()) {
      if (values.part === undefined || Number(values.part) === i + 1) await part();
    }
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
