/**
 * What the console costs a serving process: CPU time of an idle process with no, one and a hundred
 * open pages, and CPU time per request without a page (twice: the spread of equal measurements) and
 * with one, in alternating rounds. Run it with `npm run bench -- console`.
 */
import { once } from 'node:events';
import { get, type IncomingMessage } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { publishModel, readBodies } from './support/demo-model.ts';
import { type Service, startServing } from './support/serving-process.ts';

const IDLE_MS = 8_000;
const WARM_UP_ROUNDS = 2;
const ROUNDS = 9;
/** A round takes longer than a second, in which an open page costs one sample. */
const REQUESTS = 3_000;
const ROWS = 8;
const IN_FLIGHT = 4;
const PAGES_MAX = 100;

function print(line: string): void {
  process.stdout.write(`${line}\n`);
}

/** What a page reads; it discards it. */
async function openPages(url: URL, count: number): Promise<IncomingMessage[]> {
  return Promise.all(
    Array.from({ length: count }, async () => {
      const call = get(new URL('/v1/console/events', url), { agent: false });
      const [response] = (await once(call, 'response')) as [IncomingMessage];
      return response.on('error', () => undefined).resume();
    }),
  );
}

/** Runs `work` while pages are open. @returns CPU seconds of the process */
async function measure(service: Service, pages: number, work: () => Promise<unknown>) {
  const opened = await openPages(service.url, pages);
  const before = await service.cpuSeconds();
  await work();
  const seconds = (await service.cpuSeconds()) - before;
  for (const page of opened) page.destroy();
  return seconds;
}

async function sendRequests(url: URL, bodies: readonly Uint8Array[]): Promise<void> {
  let sent = 0;
  const send = async (): Promise<void> => {
    while (sent < REQUESTS) {
      const body = bodies[sent++ % bodies.length] ?? new Uint8Array(0);
      const headers = { 'content-type': 'text/tab-separated-values' };
      const call = { method: 'POST', headers, body };
      const response = await fetch(new URL('/v1/ctr:predict', url), call);
      await response.arrayBuffer();
      if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    }
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, send));
}

function findMedian(values: readonly number[]): number {
  return values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

async function compareIdle(service: Service): Promise<void> {
  for (const pages of [0, 1, PAGES_MAX]) {
    const seconds = await measure(service, pages, () => sleep(IDLE_MS));
    const percent = ((100_000 * seconds) / IDLE_MS).toFixed(2);
    print(`idle, ${String(pages).padStart(3)} pages: ${percent.padStart(6)} % of a core`);
  }
}

async function compareRequests(service: Service, bodies: readonly Uint8Array[]): Promise<void> {
  const kinds = [
    ['no page', 0],
    ['no page again', 0],
    ['one page', 1],
  ] as const;
  const times = kinds.map(() => [] as number[]);
  for (let i = 0; i < WARM_UP_ROUNDS; i++) await sendRequests(service.url, bodies);
  for (let round = 0; round < ROUNDS; round++) {
    for (let k = 0; k < kinds.length; k++) {
      // Each kind is at each place of a round equally often.
      const i = (round + k) % kinds.length;
      const [, pages = 0] = kinds[i] ?? [];
      const seconds = await measure(service, pages, () => sendRequests(service.url, bodies));
      times[i]?.push((1e6 * seconds) / REQUESTS);
    }
  }
  const [base = Number.NaN] = times.map(findMedian);
  for (const [i, [name]] of kinds.entries()) {
    const micros = findMedian(times[i] ?? []);
    const share = ((100 * micros) / base).toFixed(1);
    print(`${name.padEnd(14)} ${micros.toFixed(0).padStart(5)} µs of CPU per request, ${share} %`);
  }
}

const folder = makeTemporaryFolder('hypercube-bench-');
try {
  await publishModel(folder, 1);
  const service = await startServing(folder, ['--store', 'memory']);
  try {
    await compareIdle(service);
    await compareRequests(service, readBodies(folder, ROWS));
  } finally {
    await service.stop();
  }
} finally {
  removePath(folder);
}
