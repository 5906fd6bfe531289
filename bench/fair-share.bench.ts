/**
 * A key that sends ten times its share of the capacity, seen by another key: the latency of the
 * other key with it, as a ratio to its latency while the first key sends just its share. In turns
 * within one run; the service is on one core, the open-loop generator on the other.
 */
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { type ApiKey, formatKeyFile, generateKey } from '../lib/access/api-keys.ts';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { type OverloadResult, runOverload } from './support/open-loop-http.ts';
import { postBytes, RawHttp } from './support/raw-http.ts';
import { type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const ROWS = 64;
const ROUNDS = 5;
const MEASURE_MS = 1_500;
const WARM_MS = 700;
const CAPACITY_MS = 1_500;
const IN_FLIGHT = 4;
/** Both keys have the same weight: half of the capacity is the share of each. */
const QUIET_LOAD = 0.25;
const LOADS = [0.5, 5];

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

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  process.stdout.write('Two keys of the same weight, over HTTP.\n');
  let service: Service | undefined;
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
    const { url } = service;
    const bodies = readBodies(folder, ROWS).slice(0, 50);
    const [quiet = [], greedy = []] = secrets.map(({ key }) => {
      const headers = { 'content-type': 'text/tab-separated-values', 'x-api-key': key };
      return bodies.map((body) => postBytes('/v1/ctr:predict', headers, body));
    });
    await measureCapacity(url, quiet);
    const ratios: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const capacity = await measureCapacity(url, quiet);
      const p99: number[] = [];
      for (const multiple of LOADS) {
        const [seen, other] = await Promise.all([
          load(url, quiet, capacity * QUIET_LOAD),
          load(url, greedy, capacity * multiple),
        ]);
        p99.push(percentile(seen.goodLatencies, 0.99));
        const share = `${(multiple / 0.5).toFixed(0)} × its share`;
        process.stdout.write(`${share}: ${describe(seen)}; the other: ${describe(other)}\n`);
      }
      const [usual = 0, flooded = 0] = p99;
      ratios.push(flooded / usual);
    }
    process.stdout.write(`p99 of the quiet key, ratio: ${median(ratios).toFixed(2)}\n`);
  } finally {
    await service?.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
