/**
 * A cube-server with one and with two threads: keys per second of the server's CPU time, in rounds
 * that alternate. Eight connections with eight packed lookups in flight each, so that both threads
 * have some. First nothing is pinned, and the client shares the cores: two threads then wait more
 * often than one, and read fewer requests each time they wake. Then the server has one core and the
 * client the other, so that two threads are as busy as one. Needs Node 22.12.
 */
import { pathToFileURL } from 'node:url';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { Channel } from '../lib/rpc/channel.ts';
import { encodeLookupRequest, LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';
import { findMedian } from './support/alternating-rounds.ts';
import {
  type BenchServer,
  BUNDLE,
  DIM,
  drawKeys,
  loadAndActivate,
  pinSelf,
  startServer,
  TABLE,
  writeVersion,
} from './support/cube-server-process.ts';

const ROWS = 1_000_000;
const KEY_COUNTS = [26, 260] as const;
const THREAD_COUNTS = [1, 2] as const;
const SERVER_CORE = 0;
const CLIENT_CORE = 1;
const CONNECTIONS = 8;
const IN_FLIGHT = 64;
const WARM_ROUNDS = 2;
const ROUNDS = 7;
const ROUND_MS = 1_500;

interface Subject {
  readonly threads: number;
  readonly server: BenchServer;
  readonly channels: readonly Channel[];
  /** Keys per CPU second of each round. */
  rates: number[];
}

async function startSubject(
  folder: string,
  threads: number,
  core: number | undefined,
): Promise<Subject> {
  const flags = ['--threads', String(threads)];
  const server = await startServer(folder, {
    shard: 0,
    shardNum: 1,
    flags,
    ...(core !== undefined && { core }),
  });
  await loadAndActivate(server, '1');
  const channels = Array.from({ length: CONNECTIONS }, () => new Channel(server.address));
  return { threads, server, channels, rates: [] };
}

/** Keeps lookups in flight. @returns keys per second of the server's CPU time */
async function runRound({ server, channels }: Subject, keys: number): Promise<number> {
  const drawn = new Uint8Array(drawKeys(1 << 19, ROWS).buffer);
  const groups = [{ table: TABLE, count: keys }];
  const head = encodeLookupRequest({
    bundle: BUNDLE,
    version: '1',
    shardIndex: 0,
    shardNum: 1,
    groups,
  });
  const beforeSeconds = await server.cpuSeconds();
  const endMs = performance.now() + ROUND_MS;
  let at = 0;
  let answered = 0;
  const callAgain = async (channel: Channel): Promise<void> => {
    while (performance.now() < endMs) {
      at = at + 16 * keys > drawn.length ? 0 : at + 8 * keys;
      const sent = drawn.subarray(at, at + 8 * keys);
      const answer = await channel.call(LOOKUP_SERVICE, LOOKUP_METHOD, head, sent, 5_000);
      if (answer.attachment.length < 4 * DIM * keys) throw new Error('the answer is too short');
      answered++;
    }
  };
  await Promise.all(
    channels.flatMap((channel) =>
      Array.from({ length: IN_FLIGHT / CONNECTIONS }, () => callAgain(channel)),
    ),
  );
  return (answered * keys) / ((await server.cpuSeconds()) - beforeSeconds);
}

async function compare(subjects: readonly Subject[], keys: number): Promise<void> {
  for (let round = 0; round < WARM_ROUNDS + ROUNDS; round++) {
    for (const subject of subjects) {
      const rate = await runRound(subject, keys);
      if (round === WARM_ROUNDS) subject.rates = [];
      subject.rates.push(rate);
    }
  }
  const [one, ...others] = subjects;
  if (one === undefined) return;
  const show = (rate: number): string => (rate / 1e6).toFixed(1);
  process.stdout.write(`${keys} keys, 1 thread: ${show(findMedian(one.rates))} M keys/CPU s\n`);
  for (const { threads, rates } of others) {
    const ratios = rates.map((rate, round) => rate / (one.rates[round] ?? Number.NaN));
    const all = ratios.map((ratio) => ratio.toFixed(2)).join(', ');
    process.stdout.write(
      `${keys} keys, ${threads} threads: ${show(findMedian(rates))} M keys/CPU s, ` +
        `${findMedian(ratios).toFixed(2)} of one thread's (${all}); goal 0.9\n`,
    );
  }
}

/** @param core of the servers, if they have one */
async function measure(folder: string, core?: number): Promise<void> {
  const subjects: Subject[] = [];
  try {
    for (const threads of THREAD_COUNTS) {
      subjects.push(await startSubject(folder, threads, core));
    }
    for (const keys of KEY_COUNTS) await compare(subjects, keys);
  } finally {
    for (const { channels, server } of subjects) {
      for (const channel of channels) channel.close();
      await server.stop();
    }
  }
}

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  try {
    writeVersion(folder, { version: '1', rows: ROWS, shardNum: 1 });
    process.stdout.write(`Lookups by one and two threads, Node ${process.versions.node}\n`);
    process.stdout.write('Nothing is pinned:\n');
    await measure(folder);
    process.stdout.write('The server has one core, the client the other:\n');
    pinSelf(CLIENT_CORE);
    await measure(folder, SERVER_CORE);
  } finally {
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
