/**
 * Serving above its capacity: answers that are still in time, the latency of refusals, and the
 * share of the core that refusing takes. The service is on one core, the open-loop generator on the
 * other. First the capacity is measured with a few requests in flight; loads are multiples of it.
 */
import { loadavg } from 'node:os';
import { pathToFileURL } from 'node:url';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { type OverloadResult, runOverload } from './support/open-loop-http.ts';
import { postBytes, RawHttp } from './support/raw-http.ts';
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

interface Scenario {
  readonly name: string;
  readonly rows: number;
  readonly inFlight: number;
  readonly multiples: readonly number[];
}

const SCENARIOS: readonly Scenario[] = [
  { name: '500 rows as TSV', rows: 500, inFlight: 8, multiples: [1, 2, 5, 10, 20] },
  { name: '1 row as TSV', rows: 1, inFlight: 64, multiples: [1, 2, 3, 5] },
];

interface Capacity {
  readonly perSecond: number;
  readonly cpuSecondsEach: number;
}

function print(name: string, text: string): void {
  process.stdout.write(`${name.padEnd(26)}${text}\n`);
}

/** Requests answered per second with a constant number in flight. */
async function measureCapacity(
  service: Service,
  requests: readonly Uint8Array[],
  { inFlight, warmMs }: { inFlight: number; warmMs: number },
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
  const answered = await run(CAPACITY_MS);
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

async function runScenario(service: Service, folder: string, scenario: Scenario): Promise<void> {
  const { name, rows, inFlight, multiples } = scenario;
  const requests = readBodies(folder, rows)
    .slice(0, REQUESTS_MAX)
    .map((body) =>
      postBytes('/v1/ctr:predict', { 'content-type': 'text/tab-separated-values' }, body),
    );
  process.stdout.write(`\n${name}\n`);
  await measureCapacity(service, requests, { inFlight, warmMs: WARM_MS });
  for (const multiple of multiples) {
    const capacity = await measureCapacity(service, requests, { inFlight, warmMs: PAUSE_MS });
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
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
  }
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  process.stdout.write('Serving above its capacity, over HTTP.\n');
  let service: Service | undefined;
  try {
    await publishModel(folder, 2);
    print('machine load', loadavg()[0]?.toFixed(1) ?? '');
    service = await startServing(folder, ['--store', 'memory']);
    for (const scenario of SCENARIOS) await runScenario(service, folder, scenario);
  } finally {
    await service?.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
