/**
 * Serving above its capacity: answers that are still in time, the latency of refusals, and the
 * share of the core that refusing takes. The service is on one core, the open-loop generator on the
 * other. First the capacity is measured with a few requests in flight; loads are multiples of it.
 * Then bare servers show what is possible: one refuses the same load on the service's core while
 * the service is offered only what it can answer, and refusals alone are compared by CPU time,
 * which other work on the machine changes little.
 */
import { loadavg } from 'node:os';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { startCountedServer } from './support/counted-server.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { waitForFullCores } from './support/full-cores.ts';
import { type OverloadResult, runOverload } from './support/open-loop-http.ts';
import { postBytes, RawHttp } from './support/raw-http.ts';
import { measureRefusals, REFUSING_SERVERS } from './support/refusal-costs.ts';
import { type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const TIMEOUT_MS = 1_000;
const WARM_MS = 3_000;
/** The capacity is measured before each load, because other work on the machine changes it. */
const PAUSE_MS = 500;
const CAPACITY_MS = 1_500;
const MEASURE_MS = 3_000;
const CONNECTIONS_MAX = 2_000;
const REQUESTS_MAX = 100;
/** The share of the core that answers should keep. */
const GOODPUT_GOAL = 0.85;

interface Scenario {
  readonly name: string;
  readonly rows: number;
  readonly inFlight: number;
  readonly multiples: readonly number[];
  /** The length of a body, about. */
  readonly bodyBytes: number;
}

const SCENARIOS: readonly Scenario[] = [
  {
    name: '500 rows as TSV',
    rows: 500,
    inFlight: 8,
    multiples: [1, 2, 5, 10, 20],
    bodyBytes: 120_000,
  },
  { name: '1 row as TSV', rows: 1, inFlight: 64, multiples: [1, 2, 3, 5], bodyBytes: 240 },
];

interface Capacity {
  readonly perSecond: number;
  readonly cpuSecondsEach: number;
}

function print(name: string, text: string): void {
  process.stdout.write(`${name.padEnd(34)}${text}\n`);
}

/** Requests answered per second with a constant number in flight. */
async function measureCapacity(
  service: Service,
  requests: readonly Uint8Array[],
  { inFlight, warmMs, forMs = CAPACITY_MS }: { inFlight: number; warmMs: number; forMs?: number },
): Promise<Capacity> {
  const connections = Array.from({ length: inFlight }, () => new RawHttp(service.url));
  let next = 0;
  const run = async (forMs: number): Promise<number> => {
    const endMs = performance.now() + forMs;
    let answered = 0;
    const callAgain = async (connection: RawHttp): Promise<void> => {
      while (performance.now() < endMs) {
        const request = requireDefined(requests[next++ % requests.length], 'a request');
        await connection.call(request).then(
          () => answered++,
          () => undefined,
        );
      }
    };
    await Promise.all(connections.map(callAgain));
    return answered;
  };
  await run(warmMs);
  const [cpuSeconds, startMs] = [await service.cpuSeconds(), performance.now()];
  const answered = await run(forMs);
  const perSecond = (1_000 * answered) / (performance.now() - startMs);
  const cpuSecondsEach = ((await service.cpuSeconds()) - cpuSeconds) / answered;
  for (const connection of connections) connection.close();
  return { perSecond, cpuSecondsEach };
}

function percent(part: number, whole: number): string {
  return `${((100 * part) / whole).toFixed(0)} %`;
}

function describe(result: OverloadResult, capacity: Capacity, cpuSeconds: number): string {
  const { good, late, refused, failures, notSent, seconds } = result;
  const refusalCpu = Math.max(0, cpuSeconds - (good + late) * capacity.cpuSecondsEach);
  const others = [...failures].map(([status, count]) => `${count} × ${status}`).join(', ');
  const microsEach = refused === 0 ? 0 : (1e6 * refusalCpu) / refused;
  return (
    `of ${Math.round(capacity.perSecond)}/s (${(1e6 * capacity.cpuSecondsEach).toFixed(0)} µs): ` +
    `good ${percent(good / seconds, capacity.perSecond)} of capacity, ` +
    `${percent(good * capacity.cpuSecondsEach, cpuSeconds)} of the CPU time, p99 ` +
    `${percentile(result.goodLatencies, 0.99).toFixed(0)} ms; refused ${refused}, p99 ` +
    `${percentile(result.refusedLatencies, 0.99).toFixed(1)} ms, ` +
    `${percent(refusalCpu, seconds)} of the core (${microsEach.toFixed(0)} µs each); ` +
    `late ${late}; not sent ${notSent}; others ${others || 0}; CPU ${percent(cpuSeconds, seconds)}`
  );
}

/**
 * The part of its capacity that the service keeps while a bare server on its core refuses the rest
 * of the load: no server could keep more.
 */
async function measureBound(
  service: Service,
  requests: readonly Uint8Array[],
  { inFlight, multiples }: Scenario,
): Promise<void> {
  const bare = await startCountedServer('refusal-server.js', 'net-shared');
  try {
    for (const multiple of multiples.filter((one) => one > 1)) {
      await waitForFullCores();
      const capacity = await measureCapacity(service, requests, { inFlight, warmMs: PAUSE_MS });
      const refusals = runOverload({
        url: bare.url,
        requests,
        perSecond: (multiple - 1) * capacity.perSecond,
        forMs: MEASURE_MS,
        connectionsMax: CONNECTIONS_MAX,
        timeoutMs: TIMEOUT_MS,
        warmMs: PAUSE_MS,
        onWarm: () => undefined,
      });
      const kept = { inFlight, warmMs: PAUSE_MS, forMs: MEASURE_MS };
      const { perSecond } = await measureCapacity(service, requests, kept);
      const { refused, seconds, refusedLatencies } = await refusals;
      const text =
        `${percent(perSecond, capacity.perSecond)} of capacity left; ` +
        `${Math.round(refused / seconds)} refused/s, ` +
        `p99 ${percentile(refusedLatencies, 0.99).toFixed(1)} ms`;
      print(`a bare server refuses ${multiple - 1} times`, text);
    }
  } finally {
    bare.stop();
  }
}

/** @returns the least CPU seconds that an answered request took */
async function runScenario(service: Service, folder: string, scenario: Scenario): Promise<number> {
  const { name, rows, inFlight, multiples } = scenario;
  const requests = readBodies(folder, rows)
    .slice(0, REQUESTS_MAX)
    .map((body) =>
      postBytes('/v1/ctr:predict', { 'content-type': 'text/tab-separated-values' }, body),
    );
  process.stdout.write(`\n${name}\n`);
  await measureCapacity(service, requests, { inFlight, warmMs: WARM_MS });
  let cpuSecondsEach = Number.POSITIVE_INFINITY;
  for (const multiple of multiples) {
    await waitForFullCores();
    const capacity = await measureCapacity(service, requests, { inFlight, warmMs: PAUSE_MS });
    cpuSecondsEach = Math.min(cpuSecondsEach, capacity.cpuSecondsEach);
    let cpuBefore: Promise<number> = Promise.resolve(0);
    const result = await runOverload({
      url: service.url,
      requests,
      perSecond: multiple * capacity.perSecond,
      forMs: MEASURE_MS,
      connectionsMax: CONNECTIONS_MAX,
      timeoutMs: TIMEOUT_MS,
      warmMs: PAUSE_MS,
      onWarm: () => {
        cpuBefore = service.cpuSeconds();
      },
    });
    const cpuSeconds = (await service.cpuSeconds()) - (await cpuBefore);
    print(`offered ${multiple} times`, describe(result, capacity, cpuSeconds));
  }
  await measureBound(service, requests, scenario);
  return cpuSecondsEach;
}

/**
 * Prints the cost of a refusal in each server, and the load at which refusing leaves the goal's
 * share of the core to answers: `load × cost of a refusal` is then the rest.
 */
async function compareRefusals({ bodyBytes }: Scenario, cpuSecondsEach: number): Promise<void> {
  const answerMicros = 1e6 * cpuSecondsEach;
  process.stdout.write(
    `\nRefusing ${bodyBytes} bytes; an answer takes ${answerMicros.toFixed(0)} µs\n`,
  );
  for (const [kind, micros] of await measureRefusals(bodyBytes)) {
    const times = GOODPUT_GOAL + ((1 - GOODPUT_GOAL) * answerMicros) / micros;
    const text = `${micros.toFixed(1)} µs; takes 15 % of the core at ${times.toFixed(1)} times`;
    print(REFUSING_SERVERS.get(kind) ?? kind, `${text} the capacity`);
  }
}

/** All scenarios and loads by default. */
function readOptions(): { scenarios: readonly Scenario[]; isWhole: boolean } {
  const { values } = parseArgs({
    options: { 'request-rows': { type: 'string' }, load: { type: 'string' } },
  });
  const { 'request-rows': rows, load } = values;
  const chosen = SCENARIOS.filter((one) => rows === undefined || one.rows === Number(rows));
  if (load === undefined) return { scenarios: chosen, isWhole: true };
  const scenarios = chosen.map((one) => ({ ...one, multiples: [Number(load)] }));
  return { scenarios, isWhole: false };
}

async function main(): Promise<void> {
  const { scenarios, isWhole } = readOptions();
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  process.stdout.write('Serving above its capacity, over HTTP.\n');
  let service: Service | undefined;
  try {
    await publishModel(folder, 2);
    print('machine load', loadavg()[0]?.toFixed(1) ?? '');
    service = await startServing(folder, ['--store', 'memory']);
    const costs: [Scenario, number][] = [];
    for (const scenario of scenarios) {
      costs.push([scenario, await runScenario(service, folder, scenario)]);
    }
    if (!isWhole) return;
    for (const [scenario, seconds] of costs) await compareRefusals(scenario, seconds);
  } finally {
    await service?.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
