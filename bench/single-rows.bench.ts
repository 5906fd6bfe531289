/**
 * Requests of one row through each protocol, against bare servers that read a request and answer
 * with constant bytes, and against each other: CPU time of the server for each request, in rounds
 * that alternate between the servers. The servers share one core, the client is on the other.
 */
import { loadavg } from 'node:os';
import { pathToFileURL } from 'node:url';
import { requireDefined } from '../lib/core/errors.ts';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import {
  createSubject,
  findMedian,
  type MeasuredServer,
  runRounds,
  type Subject,
} from './support/alternating-rounds.ts';
import { type CountedServer, startCountedServer } from './support/counted-server.ts';
import { pinSelf } from './support/cube-server-process.ts';
import { createRequestRows, publishModel } from './support/demo-model.ts';
import { KEYS_PROTOCOL, PROTOCOLS, TSV_PROTOCOL } from './support/protocol-callers.ts';
import { startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const SHARD_NUM = 2;
const IN_FLIGHT = 64;
const REQUESTS_MAX = 1_000;

const GRPC = 'CTR, gRPC';
const PADDLE = 'Paddle, baidu_std';
const BARE_HTTP = 'bare node:http, TSV';
const BARE_GRPC = 'bare grpc-js, CTR';

/** Protocols, and the share of the baseline's requests per CPU second that is the goal. */
const GOALS: readonly [protocol: string, baseline: string, percent: number][] = [
  [TSV_PROTOCOL, BARE_HTTP, 65],
  [KEYS_PROTOCOL, BARE_HTTP, 65],
  [GRPC, BARE_GRPC, 70],
  [PADDLE, TSV_PROTOCOL, 60],
];

async function main(): Promise<void> {
  const folder = makeTemporaryFolder('hypercube-bench-');
  pinSelf(CLIENT_CORE);
  const bare: CountedServer[] = [];
  let stop: (() => Promise<void>) | undefined;
  try {
    await publishModel(folder, SHARD_NUM);
    const rows = createRequestRows(folder, 1, REQUESTS_MAX);
    const connect = (name: string, protocol: string, server: MeasuredServer): Subject => {
      const connector = requireDefined(PROTOCOLS.get(protocol), protocol);
      return createSubject(name, server, { connector, rows, inFlight: IN_FLIGHT });
    };
    const connectBare = async (name: string, protocol: string, kind: string): Promise<Subject> => {
      const server = await startCountedServer('bare-server.js', kind);
      bare.push(server);
      const cpuSeconds = async (): Promise<number> => (await server.cpuMicros()) / 1e6;
      return connect(name, protocol, { url: server.url, cpuSeconds });
    };
    const service = await startServing(folder, ['--store', 'memory']);
    stop = () => service.stop();
    process.stdout.write(`Requests of one row; load ${loadavg()[0]?.toFixed(1)}\n`);
    const subjects = [
      await connectBare(BARE_HTTP, TSV_PROTOCOL, 'node-http'),
      ...[TSV_PROTOCOL, KEYS_PROTOCOL, PADDLE].map((name) => connect(name, name, service)),
      await connectBare(BARE_GRPC, GRPC, 'grpc-js'),
      connect(GRPC, GRPC, service),
    ];
    await runRounds(subjects);
    const micros = new Map(subjects.map((one) => [one.name, findMedian(one.micros)]));
    for (const subject of subjects) {
      const all = subject.micros.map((value) => value.toFixed(0)).join(', ');
      process.stdout.write(
        `${subject.name.padEnd(24)}${micros.get(subject.name)?.toFixed(1)} µs (${all})\n`,
      );
    }
    for (const [protocol, baseline, goal] of GOALS) {
      const share = (100 * (micros.get(baseline) ?? 0)) / (micros.get(protocol) ?? 1);
      process.stdout.write(`${protocol}: ${share.toFixed(0)} % of ${baseline} (goal ${goal} %)\n`);
    }
  } finally {
    await stop?.();
    for (const server of bare) server.stop();
    removePath(folder);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
