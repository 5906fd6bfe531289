/**
 * A key that sends ten times its share of the capacity, seen by another key: the latency of the
 * other key with it, as a ratio to its latency while the first key sends just its share. In turns
 * within one run; the service is on one core, the open-loop generator on the other.
 *
 * Two floors say which part of the ratio is the service's own. In both, the first key sends its
 * share to the service and nine times that to a bare server, which reads and refuses. On the
 * generator's core it shows what the generator adds. On the service's core it shows what any server
 * on that core adds that has to read and refuse so many requests.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type ApiKey, formatKeyFile, generateKey } from '../lib/access/api-keys.ts';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { type CountedServer, startCountedServer } from './support/counted-server.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { waitForFullCores } from './support/full-cores.ts';
import { type OverloadResult, runOverload } from './support/open-loop-http.ts';
import { postBytes, RawHttp } from './support/raw-http.ts';
import { SERVICE_CORE, type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const ROWS = 64;
const ROUNDS = 5;
const MEASURE_MS = 1_500;
const WARM_MS = 700;
const CAPACITY_MS = 1_500;
const IN_FLIGHT = 4;
/** Both keys have the same weight: half of the capacity is the share of each. */
const QUIET_LOAD = 0.25;
const SHARE = 0.5;
const EXCESS = 4.5;

/** Requests answered per second with a constant number in flight. */
async function measureCapacity(url: URL, requests: readonly Uint8Array[]): Promise<number> {
  const endMs = performance.now() + CAPACITY_MS;
  let answered = 0;
  const run = async (connection: RawHttp): Promise<void> => {
    while (performance.now() < endMs) {
      const request = requests[answered % requests.length];
      await connection.call(requireDefined(request, 'a request')).then(
        () => answered++,
        () => undefined,
      );
    }
    connection.close();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, () => run(new RawHttp(url))));
  return (1_000 * answered) / CAPACITY_MS;
}

function load(url: URL, requests: readonly Uint8Array[], perSecond: number) {
  return runOverload({
    url,
    requests,
    perSecond,
    forMs: MEASURE_MS,
    connectionsMax: 2_000,
    timeoutMs: 1_000,
    warmMs: WARM_MS,
    onWarm: () => undefined,
  });
}

function describe({ good, late, refused, goodLatencies }: OverloadResult): string {
  const p99 = percentile(goodLatencies, 0.99).toFixed(1);
  return `${good} in time, ${late} late, ${refused} refused, p99 ${p99} ms`;
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

interface Callers {
  readonly url: URL;
  readonly quiet: readonly Uint8Array[];
  readonly greedy: readonly Uint8Array[];
}

/** @returns the p99 of the quiet key. @param bareUrl where the excess goes; default: the service */
async function measure(
  name: string,
  { url, quiet, greedy }: Callers,
  capacity: number,
  [excess, bareUrl]: readonly [number, URL | undefined],
): Promise<number> {
  const toService = bareUrl === undefined ? SHARE + excess : SHARE;
  const [seen, other] = await Promise.all([
    load(url, quiet, capacity * QUIET_LOAD),
    load(url, greedy, capacity * toService),
    ...(bareUrl === undefined ? [] : [load(bareUrl, greedy, capacity * excess)]),
  ]);
  const answered = (100 * (seen.good + other.good)) / other.seconds / capacity;
  process.stdout.write(
    `${name}: ${describe(seen)}; the other: ${describe(other)}; ` +
      `${answered.toFixed(0)} % of the capacity\n`,
  );
  return percentile(seen.goodLatencies, 0.99);
}

async function measureRounds(callers: Callers, bare: readonly CountedServer[]): Promise<void> {
  const [beside, sharing] = bare.map(({ url }) => url);
  const cases = new Map<string, readonly [number, URL | undefined]>([
    ['its share', [0, undefined]],
    ['excess to a bare server on the core of the generator', [EXCESS, beside]],
    ['excess to a bare server on the core of the service', [EXCESS, sharing]],
    ['ten times its share', [EXCESS, undefined]],
  ]);
  const results = new Map<string, number[]>();
  await measureCapacity(callers.url, callers.quiet);
  for (let round = 0; round < ROUNDS; round++) {
    await waitForFullCores();
    const capacity = await measureCapacity(callers.url, callers.quiet);
    for (const [name, excess] of cases) {
      const p99 = await measure(name, callers, capacity, excess);
      results.set(name, [...(results.get(name) ?? []), p99]);
    }
  }
  const usual = median(results.get('its share') ?? []);
  process.stdout.write('\nMedian p99 of the quiet key\n');
  for (const [name, all] of results) {
    const p99 = median(all);
    process.stdout.write(`${name}: ${p99.toFixed(1)} ms, ${(p99 / usual).toFixed(2)} ×\n`);
  }
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  process.stdout.write('Two keys of the same weight, over HTTP.\n');
  let service: Service | undefined;
  const bare: CountedServer[] = [];
  try {
    await publishModel(folder, 2);
    const secrets = ['quiet', 'greedy'].map((id) => ({ id, ...generateKey() }));
    const createdAt = new Date().toISOString();
    const keys = secrets.map(
      ({ id, secret }): ApiKey => ({ id, scopes: ['predict'], limits: {}, createdAt, ...secret }),
    );
    const keyFile = join(folder, 'keys.json');
    replaceFile(keyFile, formatKeyFile({ keys }));
    const open = ['--key-file', keyFile, '--anonymous-scopes', 'metrics'];
    service = await startServing(folder, ['--store', 'memory', ...open]);
    for (const core of [CLIENT_CORE, SERVICE_CORE]) {
      bare.push(await startCountedServer('refusal-server.js', 'net-shared', core));
    }
    const bodies = readBodies(folder, ROWS).slice(0, 50);
    const [quiet = [], greedy = []] = secrets.map(({ key }) => {
      const headers = { 'content-type': 'text/tab-separated-values', 'x-api-key': key };
      return bodies.map((body) => postBytes('/v1/ctr:predict', headers, body));
    });
    await measureRounds({ url: service.url, quiet, greedy }, bare);
  } finally {
    for (const server of bare) server.stop();
    await service?.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
