/**
 * Ranking requests through the port: one user with 40 candidates, 20 of 26 slots of the user. The
 * user's features are in each row or sent once, and the user side of the graph runs for each row or
 * once. The four alternate in rounds; rates are per second of the service's CPU time.
 */
import { loadavg } from 'node:os';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, readText, removePath, replaceFile } from '../lib/platform/files.ts';
import { pinSelf } from './support/cube-server-process.ts';
import { createRequestRows, DEMO, publishModel } from './support/demo-model.ts';
import {
  type Caller,
  connectHttp,
  encodeInferRequest,
  encodeStrings,
  makeDenseTensor,
  type ProtocolConnector,
  readLines,
  SLOT_NUM,
} from './support/protocol-callers.ts';
import { type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const IN_FLIGHT = 8;
const CANDIDATES = 40;
/** Slots with features of the user; the other slots have features of each candidate. */
const USER_SLOTS = 20;
/** Requests encoded before the measurement; clients send them in turn. */
const REQUESTS_MAX = 500;
const ROUNDS = 5;
/** A busy machine answers late, and this is no test of deadlines. */
const FLAGS = ['--store', 'memory', '--timeout-ms', '60000'];
const WARM_MS = 2_000;
const MEASURE_MS = 1_500;

/** Requests of candidates of one user, slot by slot: the user's features once, or in every row. */
function connectCandidates(isShared: boolean): ProtocolConnector {
  return connectHttp(({ lines }) => {
    const text = readLines(lines);
    const slots = Array.from({ length: SLOT_NUM }, (_, slot) => {
      const isUser = slot < USER_SLOTS;
      const [user = []] = text.categorical;
      const column = text.categorical.map((row) => (isUser ? user : row)[slot] ?? '');
      const values = isShared && isUser ? column.slice(0, 1) : column;
      const raw = encodeStrings(values);
      return { name: `C${slot + 1}`, datatype: 'BYTES', shape: [values.length, 1], raw };
    });
    return encodeInferRequest([...slots, makeDenseTensor(text)]);
  });
}

/** A way to send and run the requests. */
interface Variant {
  readonly name: string;
  readonly service: Service;
  readonly callers: readonly Caller[];
  /** Requests per CPU second, one for each round. */
  readonly rates: number[];
}

function openVariant(name: string, service: Service, connector: ProtocolConnector, folder: string) {
  const connect = connector(createRequestRows(folder, CANDIDATES, REQUESTS_MAX));
  const callers = Array.from({ length: IN_FLIGHT }, () => connect(service.url));
  return { name, service, callers, rates: [] };
}

/** Keeps requests in flight. @returns requests per second of the service's CPU time */
async function runFor({ service, callers }: Variant, forMs: number): Promise<number> {
  const before = await service.cpuSeconds();
  const endMs = performance.now() + forMs;
  let calls = 0;
  await Promise.all(
    callers.map(async (caller) => {
      while (performance.now() < endMs) await caller.call(calls++);
    }),
  );
  return calls / ((await service.cpuSeconds()) - before);
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

/** Publishes the demo's model with the first slots declared user-side. */
async function publishRanker(folder: string): Promise<void> {
  const features = JSON.parse(readText(join(DEMO, 'features.json')));
  const slots = features.slots.map((slot: object, i: number) => {
    return i < USER_SLOTS ? { ...slot, side: 'user' } : slot;
  });
  const path = join(folder, 'features.json');
  replaceFile(path, JSON.stringify({ ...features, slots }));
  await publishModel(folder, 2, path);
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  const services: Service[] = [];
  try {
    await publishRanker(folder);
    for (const splitUser of ['off', 'auto']) {
      services.push(await startServing(folder, [...FLAGS, '--split-user', splitUser]));
    }
    const variants = services.flatMap((service, i): Variant[] =>
      [false, true].map((isShared) => {
        const name =
          `${isShared ? 'sent once' : 'in each row'}, ` +
          `user side runs ${i === 0 ? 'for each row' : 'once'}`;
        return openVariant(name, service, connectCandidates(isShared), folder);
      }),
    );
    for (const variant of variants) await runFor(variant, WARM_MS);
    for (let round = 0; round < ROUNDS; round++) {
      for (const variant of variants) variant.rates.push(await runFor(variant, MEASURE_MS));
    }
    const [baseline] = variants;
    process.stdout.write(
      `${CANDIDATES} candidates of one user, ${USER_SLOTS} of ${SLOT_NUM} slots of the user; ` +
        `load ${loadavg()[0]?.toFixed(1)}\n` +
        'features of the user                       requests per CPU s   ratio   of each round\n',
    );
    for (const { name, rates, callers } of variants) {
      for (const caller of callers) caller.close();
      const ratios = rates.map((rate, round) => rate / (baseline?.rates[round] ?? 1));
      process.stdout.write(
        `${name.padEnd(42)}${Math.round(median(rates)).toLocaleString('en').padStart(19)}` +
          `${median(ratios).toFixed(2).padStart(8)}   ` +
          `${ratios.map((ratio) => ratio.toFixed(2)).join(' ')}\n`,
      );
    }
  } finally {
    for (const service of services) await service.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
