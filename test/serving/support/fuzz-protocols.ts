/**
 * Sends hostile requests over every protocol for a bounded time, from a seed, while valid requests
 * must get correct scores. No request may cause a server fault or a leak.
 */
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { SeededRandom } from '../../rpc/support/fuzz.ts';
import { RawGrpcClient } from '../../rpc/support/grpc-client.ts';
import { resetSocket } from '../../rpc/support/reset.ts';
import { hostileBytes, hostileGrpc, hostileHttp } from './fuzz-requests.ts';
import { PROTOCOL_CLIENTS } from './protocol-clients.ts';
import type { ServingProcess } from './serving-process.ts';
import { ToyBundle, toyRows } from './toy-bundle.ts';
import { startLocal } from './toy-service.ts';

const ATTACKER_COUNT = 6;
/** A minimum for slow machines. */
const ATTACKER_REQUESTS_MIN = 20;
const TOLERANCE = 1e-5;
/** UNKNOWN, INTERNAL, DATA_LOSS. */
const GRPC_FAULTS = [2, 13, 15];
const GROWTH_BYTES_MAX = 192 << 20;

interface Attacker {
  readonly serving: ServingProcess;
  readonly grpc: RawGrpcClient;
  readonly random: SeededRandom;
}

async function sendHttp({ serving, random }: Attacker): Promise<void> {
  const { path, headers, body } = hostileHttp(random);
  const sent = { method: 'POST', body: body as unknown as string, headers };
  const response = await fetch(serving.url + path, sent);
  const text = await response.text();
  const isFault = [500, 502].includes(response.status) || text.includes('"INTERNAL"');
  assert.ok(!isFault, `${path} ${body.toString('latin1')}: ${response.status} ${text}`);
}

async function sendGrpc({ grpc, random }: Attacker): Promise<void> {
  const [path, bytes] = hostileGrpc(random);
  const { code, details } = await grpc.call(path, bytes);
  assert.ok(!GRPC_FAULTS.includes(code), `${path} ${bytes.toString('hex')}: ${code} ${details}`);
}

/** Sends bytes in pieces; then waits, half-closes, closes or resets the connection. */
async function sendBytes({ serving, random }: Attacker): Promise<void> {
  const { hostname, port } = new URL(serving.url);
  const socket = connect({ port: Number(port), host: hostname, noDelay: true });
  socket.on('error', () => undefined);
  socket.resume();
  const bytes = hostileBytes(random);
  const cut = random.below(bytes.length + 1);
  socket.write(bytes.subarray(0, cut));
  await new Promise(setImmediate);
  socket.write(bytes.subarray(cut));
  const end = random.below(3);
  if (end === 0) resetSocket(socket);
  else if (end === 1) socket.end();
  await sleep(random.below(5));
  socket.destroy();
}

async function attack(attacker: Attacker, untilMs: number): Promise<number> {
  let count = 0;
  for (; performance.now() < untilMs || count < ATTACKER_REQUESTS_MIN; count++) {
    const kind = attacker.random.below(5);
    if (kind < 2) await sendHttp(attacker);
    else if (kind < 4) await sendGrpc(attacker);
    else await sendBytes(attacker);
  }
  return count;
}

async function sendValidRequests(
  serving: ServingProcess,
  toy: ToyBundle,
  untilMs: number,
): Promise<number> {
  let count = 0;
  while (performance.now() < untilMs) {
    for (const [name, ask] of PROTOCOL_CLIENTS) {
      const rows = toyRows(1 + (count % 40), count + 1);
      const { clicks } = await ask(serving, rows);
      rows.forEach((row, i) => {
        const difference = Math.abs(clicks[i]! - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `${name}, row ${i}: off by ${difference}`);
      });
      count++;
    }
  }
  return count;
}

async function readMetric(serving: ServingProcess, name: string): Promise<number> {
  const { body } = await serving.get('/metrics');
  return Number(new RegExp(`^${name} (\\S+)`, 'm').exec(body)![1]);
}

/** @returns the numbers of hostile requests sent and of valid requests answered */
export async function fuzzProtocols(
  t: Pick<TestContext, 'after'>,
  { seed, seconds }: { seed: number; seconds: number },
): Promise<{ hostile: number; answered: number }> {
  const toy = new ToyBundle({ version: '7', seed: 41 });
  const { serving } = await startLocal(t as TestContext, [toy]);
  const grpc = new RawGrpcClient(Number(new URL(serving.url).port));
  const run = async (fromSeed: number, untilMs: number) => {
    const attackers = Array.from({ length: ATTACKER_COUNT }, (_, i) =>
      attack({ serving, grpc, random: new SeededRandom(fromSeed + i) }, untilMs),
    );
    const [answered = 0, ...counts] = await Promise.all([
      sendValidRequests(serving, toy, untilMs),
      ...attackers,
    ]);
    return { hostile: counts.reduce((sum, count) => sum + count, 0), answered };
  };
  // Warm up first: connections, pools and compiled code take memory.
  await run(seed + ATTACKER_COUNT, performance.now() + 200 * seconds);
  const before = await readMetric(serving, 'process_resident_memory_bytes');
  const done = await run(seed, performance.now() + 800 * seconds);
  grpc.close();
  const replay = `npm run fuzz -- --seed ${seed}`;
  await serving.waitFor('/v1/status', ({ body }) => body.inFlight === 0);
  const grown = (await readMetric(serving, 'process_resident_memory_bytes')) - before;
  assert.ok(grown < GROWTH_BYTES_MAX, `${grown} bytes more than before; ${replay}`);
  const faults = serving.log.filter((line) => line.includes('"level":50'));
  assert.deepEqual(faults, [], replay);
  assert.equal(await serving.stop(), 0, replay);
  return done;
}
