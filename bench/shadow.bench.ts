/**
 * What shadowing costs callers: p99 and the server's CPU time per request without a shadow (twice,
 * for the spread), with every request copied to a process that never answers, and with every
 * request copied to another version of the same process. In turns within one run; the service is on
 * one core, the open-loop generator on the other. Run it with `npm run bench -- shadow`.
 */
import { createServer } from 'node:net';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, removePath, replaceFile } from '../lib/platform/files.ts';
import { openRepository } from '../lib/repository/repository.ts';
import { percentile, pinSelf } from './support/cube-server-process.ts';
import { BUNDLE, publishModel, readBodies } from './support/demo-model.ts';
import { runOverload } from './support/open-loop-http.ts';
import { postBytes } from './support/raw-http.ts';
import { type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const ROWS = 40;
const ROUNDS = 5;
const PER_SECOND = 100;
const MEASURE_MS = 4_000;
/** Longer than the interval at which the traffic file is read. */
const WARM_MS = 1_500;
const MODES = ['none', 'none again', 'hung process', 'other version'] as const;

type Mode = (typeof MODES)[number];

interface Figures {
  readonly p50: number;
  readonly p99: number;
  readonly cpuMicros: number;
}

async function measure(
  service: Service,
  requests: readonly Uint8Array[],
): Promise<Figures & { readonly requests: number }> {
  let before: Promise<number> | undefined;
  const { good, late, goodLatencies } = await runOverload({
    url: service.url,
    requests,
    perSecond: PER_SECOND,
    forMs: MEASURE_MS,
    connectionsMax: 200,
    timeoutMs: 1_000,
    warmMs: WARM_MS,
    onWarm: () => {
      before = service.cpuSeconds();
    },
  });
  const seconds = (await service.cpuSeconds()) - ((await before) ?? Number.NaN);
  const answered = good + late;
  return {
    requests: answered,
    p50: percentile(goodLatencies, 0.5),
    p99: percentile(goodLatencies, 0.99),
    cpuMicros: (1e6 * seconds) / answered,
  };
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  const hung = createServer((socket) => socket.on('error', () => undefined).resume());
  await new Promise<void>((resolve) => hung.listen(0, '127.0.0.1', resolve));
  const { port } = hung.address() as { port: number };
  let service: Service | undefined;
  try {
    await publishModel(folder, 2);
    const second = { version: '2', by: 'bench', reason: 'bench' };
    await openRepository(join(folder, 'repo')).activate(BUNDLE, 'canary', second);
    const trafficFile = join(folder, 'traffic.yaml');
    const write = (mode: Mode): void => {
      const target =
        mode === 'hung process'
          ? { endpoint: `http://127.0.0.1:${port}` }
          : mode === 'other version'
            ? { channel: 'canary' }
            : undefined;
      const shadows = target && [{ name: 'copy', model: BUNDLE, share: 1, ...target }];
      replaceFile(trafficFile, JSON.stringify({ shadows: shadows ?? [] }));
    };
    write('none');
    const channels = ['--channel', 'stable', '--channel', 'canary'];
    service = await startServing(folder, ['--traffic-file', trafficFile, ...channels]);
    const headers = { 'content-type': 'text/tab-separated-values' };
    const requests = readBodies(folder, ROWS)
      .slice(0, 200)
      .map((body) => postBytes('/v1/ctr:predict', headers, body));
    await measure(service, requests);
    const figures = new Map<Mode, Figures[]>(MODES.map((mode) => [mode, []]));
    for (let round = 0; round < ROUNDS; round++) {
      for (const mode of MODES) {
        write(mode);
        figures.get(mode)?.push(await measure(service, requests));
      }
    }
    process.stdout.write(
      `${ROWS} rows per request, ${PER_SECOND} requests/s; median of ${ROUNDS}\n`,
    );
    for (const [mode, all] of figures) {
      const of = (name: keyof Figures): string => median(all.map((one) => one[name])).toFixed(2);
      const spread = all.map(({ p99 }) => p99.toFixed(1)).join(', ');
      process.stdout.write(
        `${mode.padEnd(14)} p50 ${of('p50')} ms, p99 ${of('p99')} ms (${spread}), ` +
          `${of('cpuMicros')} µs of CPU per request\n`,
      );
    }
  } finally {
    await service?.stop();
    hung.close();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  await main();
  // Connections of the server that never answers stay open.
  process.exit();
}
