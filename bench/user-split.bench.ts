/**
 * Ranking requests through the port: one user with 40 candidates, 20 of 26 slots of the user. The
 * user's features are in each row or sent once, and the user side of the graph runs for each row or
 * once, at last in batches that hold several requests. All alternate in rounds; rates are requests
 * for each second of the service's CPU time. Before, their scores are compared. Bare onnxruntime
 * and a bare node:http server, which reads the same requests, show what is left for the rest.
 */
import { loadavg } from 'node:os';
import { pathToFileURL } from 'node:url';
import { parseArgs } from 'node:util';
import { makeTemporaryFolder, removePath } from '../lib/platform/files.ts';
import { measureBareGraphs } from './support/bare-split.ts';
import { startCountedServer } from './support/counted-server.ts';
import { pinSelf } from './support/cube-server-process.ts';
import { createRequestRows } from './support/demo-model.ts';
import {
  type Caller,
  connectHttp,
  encodeInferRequest,
  encodeStrings,
  makeDenseTensor,
  type ProtocolConnector,
  readLines,
  SLOT_NUM,
  type TextRows,
} from './support/protocol-callers.ts';
import {
  publishRankingModel,
  RANKING_MODELS,
  type RankingModel,
  USER_SLOTS,
} from './support/ranking-models.ts';
import { postBytes } from './support/raw-http.ts';
import { type LoggingService, type Service, startServing } from './support/serving-process.ts';

const CLIENT_CORE = 1;
const IN_FLIGHT = 8;
const CANDIDATES = 40;
/** Requests encoded before the measurement; clients send them in turn. */
const REQUESTS_MAX = 500;
/** Requests whose scores are compared before the measurement. */
const COMPARED = 20;
/** Only the order of additions differs. */
const TOLERANCE = 1e-5;
const ROUNDS = 5;
/** A busy machine answers late, and this is no test of deadlines. */
const FLAGS = ['--store', 'memory', '--timeout-ms', '60000'];
/** Rows of a batch that holds three requests; the default holds one and a part. */
const LARGE_BATCH = 128;
const WARM_MS = 2_000;
const MEASURE_MS = 1_500;

/** Requests of candidates of one user: the user's features once, or in every row. */
interface CandidateProtocol {
  readonly title: string;
  connect(isShared: boolean): ProtocolConnector;
  /** The scores in a response. */
  readScores(response: Buffer): Float32Array;
}

/** Binary tensors, slot by slot. */
function connectTensors(isShared: boolean): ProtocolConnector {
  return connectHttp(({ lines }) => {
    const text = readCandidates(lines);
    const slots = Array.from({ length: SLOT_NUM }, (_, slot) => {
      const column = text.categorical.map((row) => row[slot] ?? '');
      const values = isShared && slot < USER_SLOTS ? column.slice(0, 1) : column;
      const raw = encodeStrings(values);
      return { name: `C${slot + 1}`, datatype: 'BYTES', shape: [values.length, 1], raw };
    });
    return encodeInferRequest([...slots, makeDenseTensor(text)]);
  });
}

/** Rows by position; with `shared`, the user's features by name. */
function connectJson(isShared: boolean): ProtocolConnector {
  return connectHttp(({ lines }) => {
    const { dense, categorical } = readCandidates(lines);
    const [user = []] = categorical;
    const first = isShared ? USER_SLOTS : 0;
    const rows = dense.map((values, i) => {
      return { dense: values, categorical: categorical[i]?.slice(first) };
    });
    const shared = Object.fromEntries(user.slice(0, first).map((text, i) => [`C${i + 1}`, text]));
    const body = JSON.stringify(isShared ? { shared, rows } : { rows });
    const headers = { 'content-type': 'application/json' };
    return postBytes('/v1/ctr:predict', headers, Buffer.from(body));
  });
}

/** Rows whose first slots are those of the first one. */
function readCandidates(lines: Uint8Array): TextRows {
  const { dense, categorical } = readLines(lines);
  const [user = []] = categorical;
  const withUser = categorical.map((row) => [
    ...user.slice(0, USER_SLOTS),
    ...row.slice(USER_SLOTS),
  ]);
  return { dense, categorical: withUser };
}

const PROTOCOLS: Readonly<Record<string, CandidateProtocol>> = {
  kserve: { title: 'KServe, binary strings', connect: connectTensors, readScores: readTensor },
  json: { title: 'CTR, JSON', connect: connectJson, readScores: readProbabilities },
};

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

/** Keeps requests in flight. @returns how many were answered */
async function callFor(callers: readonly Caller[], forMs: number): Promise<number> {
  const endMs = performance.now() + forMs;
  let calls = 0;
  await Promise.all(
    callers.map(async (caller) => {
      while (performance.now() < endMs) await caller.call(calls++);
    }),
  );
  return calls;
}

/** @returns requests per second of the service's CPU time */
async function runFor({ service, callers }: Variant, forMs: number): Promise<number> {
  const before = await service.cpuSeconds();
  const calls = await callFor(callers, forMs);
  return calls / ((await service.cpuSeconds()) - before);
}

/** @returns CPU microseconds in which node:http reads a request sent once, and answers */
async function measureBareHttp(folder: string, protocol: CandidateProtocol): Promise<number> {
  const server = await startCountedServer('bare-server.js', 'node-http');
  const connect = protocol.connect(true)(createRequestRows(folder, CANDIDATES, REQUESTS_MAX));
  const callers = Array.from({ length: IN_FLIGHT }, () => connect(server.url));
  try {
    await callFor(callers, WARM_MS);
    const micros: number[] = [];
    for (let round = 0; round < ROUNDS; round++) {
      const before = await server.cpuMicros();
      const calls = await callFor(callers, MEASURE_MS);
      micros.push(((await server.cpuMicros()) - before) / calls);
    }
    return median(micros);
  } finally {
    for (const caller of callers) caller.close();
    server.stop();
  }
}

function median(values: readonly number[]): number {
  return [...values].sort((a, b) => a - b)[values.length >> 1] ?? Number.NaN;
}

function readProbabilities(response: Buffer): Float32Array {
  const body = JSON.parse(response.toString('utf8', response.indexOf('\r\n\r\n') + 4));
  if (body.probabilities?.length === CANDIDATES) return Float32Array.from(body.probabilities);
  throw new Error(`expected ${CANDIDATES} scores: ${JSON.stringify(body)}`);
}

/** The scores in binary outputs of KServe. */
function readTensor(response: Buffer): Float32Array {
  const bodyAt = response.indexOf('\r\n\r\n') + 4;
  const head = response.toString('latin1', 0, bodyAt);
  const jsonLength = Number(/inference-header-content-length: (\d+)/i.exec(head)?.[1]);
  const jsonEnd = bodyAt + jsonLength;
  const { outputs } = JSON.parse(response.toString('utf8', bodyAt, jsonEnd));
  const [{ datatype, shape, parameters }] = outputs;
  if (datatype !== 'FP32' || outputs.length !== 1 || shape[0] !== CANDIDATES) {
    throw new Error(`expected ${CANDIDATES} scores: ${JSON.stringify(outputs)}`);
  }
  const bytes = new Uint8Array(response.subarray(jsonEnd, jsonEnd + parameters.binary_data_size));
  const width = shape[1] ?? 1;
  // The last column is the probability of a click.
  return new Float32Array(bytes.buffer).filter((_, i) => i % width === width - 1);
}

/** @throws Error unless all variants give the same scores, which differ within a request */
async function compareScores(
  variants: readonly Variant[],
  { readScores }: CandidateProtocol,
): Promise<void> {
  for (let i = 0; i < COMPARED; i++) {
    const scores: Float32Array[] = [];
    for (const { callers } of variants) {
      scores.push(readScores((await callers[0]?.call(i)) as Buffer));
    }
    const [expected = new Float32Array()] = scores;
    if (Math.max(...expected) - Math.min(...expected) < 100 * TOLERANCE) {
      throw new Error(`request ${i}: all candidates have the score ${expected[0]}`);
    }
    for (const [v, actual] of scores.entries()) {
      const difference = Math.max(
        ...actual.map((score, row) => Math.abs(score - (expected[row] ?? 0))),
      );
      if (difference <= TOLERANCE) continue;
      throw new Error(`request ${i}: scores differ by ${difference} (${variants[v]?.name})`);
    }
  }
}

/** @throws Error when the log says something else than the flag */
function checkSplit(service: LoggingService, splitUser: string): void {
  const isSplit = service.readLog().includes('the user side of the graph runs once per user');
  if (isSplit === (splitUser === 'auto')) return;
  throw new Error(`--split-user ${splitUser}: split is ${isSplit}\n${service.readLog()}`);
}

function report(variants: readonly Variant[]): void {
  const [baseline] = variants;
  process.stdout.write(
    'features of the user                       requests per CPU s   ratio   of each round\n',
  );
  for (const { name, rates } of variants) {
    const ratios = rates.map((rate, round) => rate / (baseline?.rates[round] ?? 1));
    process.stdout.write(
      `${name.padEnd(42)}${Math.round(median(rates)).toLocaleString('en').padStart(19)}` +
        `${median(ratios).toFixed(2).padStart(8)}   ` +
        `${ratios.map((ratio) => ratio.toFixed(2)).join(' ')}\n`,
    );
  }
}

async function reportBareGraphs(
  folder: string,
  variants: readonly Variant[],
  protocol: CandidateProtocol,
): Promise<void> {
  const options = { candidates: CANDIDATES, userSlots: USER_SLOTS };
  const { whole, split } = await measureBareGraphs(folder, options);
  const http = await measureBareHttp(folder, protocol);
  const micros = variants.map(({ rates }) => 1e6 / median(rates));
  const [slowest = Number.NaN, , , fastest = Number.NaN] = micros;
  process.stdout.write(
    `CPU µs of a request: ${Math.round(slowest)} in each row, ${Math.round(fastest)} once; ` +
      `graph alone: ${Math.round(whole)} whole, ${Math.round(split)} split; if requests cost ` +
      `nothing else: ${(slowest / split).toFixed(2)} x; node:http alone: ${Math.round(http)}\n`,
  );
}

async function measureModel(
  model: RankingModel,
  folder: string,
  protocol: CandidateProtocol,
): Promise<void> {
  const services: Service[] = [];
  const variants: Variant[] = [];
  try {
    await publishRankingModel(folder, model);
    const start = async (splitUser: string, flags: readonly string[] = []): Promise<Service> => {
      const service = await startServing(folder, [...FLAGS, '--split-user', splitUser, ...flags]);
      services.push(service);
      checkSplit(service, splitUser);
      return service;
    };
    for (const splitUser of ['off', 'auto']) {
      const service = await start(splitUser);
      for (const isShared of [false, true]) {
        const runs = splitUser === 'off' ? 'for each row' : 'once';
        const name = `${isShared ? 'sent once' : 'in each row'}, user side runs ${runs}`;
        variants.push(openVariant(name, service, protocol.connect(isShared), folder));
      }
    }
    const largeBatches = await start('auto', ['--max-batch', String(LARGE_BATCH)]);
    const name = `the same, --max-batch ${LARGE_BATCH}`;
    variants.push(openVariant(name, largeBatches, protocol.connect(true), folder));
    await compareScores(variants, protocol);
    for (const variant of variants) await runFor(variant, WARM_MS);
    for (let round = 0; round < ROUNDS; round++) {
      for (const variant of variants) variant.rates.push(await runFor(variant, MEASURE_MS));
    }
    report(variants);
    await reportBareGraphs(folder, variants, protocol);
  } finally {
    for (const { callers } of variants) for (const caller of callers) caller.close();
    for (const service of services) await service.stop();
  }
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: { graph: { type: 'string' }, protocol: { type: 'string', default: 'kserve' } },
  });
  const protocol = PROTOCOLS[values.protocol];
  if (protocol === undefined) {
    throw new Error(`--protocol: expected ${Object.keys(PROTOCOLS).join(' or ')}`);
  }
  pinSelf(CLIENT_CORE);
  process.stdout.write(
    `${CANDIDATES} candidates of one user, ${USER_SLOTS} of ${SLOT_NUM} slots of the user; ` +
      `${protocol.title}\n`,
  );
  for (const [name, model] of Object.entries(RANKING_MODELS)) {
    if (values.graph !== undefined && values.graph !== name) continue;
    const folder = makeTemporaryFolder('hypercube-bench-');
    try {
      process.stdout.write(`\n${model.title}; load ${loadavg()[0]?.toFixed(1)}\n`);
      await measureModel(model, folder, protocol);
    } finally {
      removePath(folder);
    }
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) await main();
