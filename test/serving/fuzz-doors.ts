/**
 * Hostile requests on every door of a serving process for a bounded time, from a seed, while honest callers beside them must get
 * every score right. No request may be a fault of the server, and nothing of them may stay behind.
 */
import assert from 'node:assert/strict';
import { connect } from 'node:net';
import type { TestContext } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Random } from '../rpc/fuzz.ts';
import { RawGrpc } from '../rpc/grpc-client.ts';
import { reset } from '../rpc/reset.ts';
import { DOORS } from './door-callers.ts';
import { hostileBytes, hostileGrpc, hostileHttp } from './fuzz-requests.ts';
import type { ServingProcess } from './serving-process.ts';
import { ToyBundle, toyRows } from './toy-bundle.ts';
import { startLocal } from './toy-service.ts';

const LANES = 6;
/** However slow the machine: fewer would show nothing. */
const LANE_REQUESTS_MIN = 20;
const TOLERANCE = 1e-5;
/** UNKNOWN, INTERNAL, DATA_LOSS. */
const GRPC_FAULTS = [2, 13, 15];
const GROWTH_BYTES_MAX = 192 << 20;

interface Attack {
  readonly serving: ServingProcess;
  readonly grpc: RawGrpc;
  readonly random: Random;
}

async function sendHttp({ serving, random }: Attack): Promise<void> {
  const { path, headers, body } = hostileHttp(random);
  const sent = { method: 'POST', body: body as unknown as string, headers };
  const response = await fetch(serving.url + path, sent);
  const text = await response.text();
  const isFault = [500, 502].includes(response.status) || text.includes('"INTERNAL"');
  assert.ok(!isFault, `${path} ${body.toString('latin1')}: ${response.status} ${text}`);
}

async function sendGrpc({ grpc, random }: Attack): Promise<void> {
  const [path, bytes] = hostileGrpc(random);
  const { code, details } = await grpc.call(path, bytes);
  assert.ok(!GRPC_FAULTS.includes(code), `${path} ${bytes.toString('hex')}: ${code} ${details}`);
}

/** Bytes in pieces; the caller waits, closes its half, leaves or resets. */
async function sendBytes({ serving, random }: Attack): Promise<void> {
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
  if (end === 0) reset(socket);
  else if (end === 1) socket.end();
  await sleep(random.below(5));
  socket.destroy();
}

async function attack(lane: Attack, untilMs: number): Promise<number> {
  let count = 0;
  for (; performance.now() < untilMs || count < LANE_REQUESTS_MIN; count++) {
    const kind = lane.random.below(5);
    if (kind < 2) await sendHttp(lane);
    else if (kind < 4) await sendGrpc(lane);
    else await sendBytes(lane);
  }
  return count;
}

async function askHonestly(
  serving: ServingProcess,
  toy: ToyBundle,
  untilMs: number,
): Promise<number> {
  let count = 0;
  while (performance.now() < untilMs) {
    for (const [name, ask] of DOORS) {
      const rows = toyRows(1 + (count % 40), count + 1);
      const clicks = await ask(serving, rows);
      rows.forEach((row, i) => {
        const difference = Math.abs(clicks[i]! - toy.score(row)[1]);
        assert.ok(difference < TOLERANCE, `${name}, row ${i}: off by ${difference}`);
      });
      count++;
    }
  }
  return count;
}

async function measure(serving: ServingProcess, name: string): Promise<number> {
  const { body } = await serving.get('/metrics');
  return Number(new RegExp(`^${name} (\\S+)`, 'm').exec(body)![1]);
}

/** @returns how many hostile requests were sent, and how many honest ones were answered */
export async function fuzzDoors(
  t: Pick<TestContext, 'after'>,
  { seed, seconds }: { seed: number; seconds: number },
): Promise<{ hostile: number; answered: number }> {
  const toy = new ToyBundle({ version: '7', seed: 41 });
  const { serving } = await startLocal(t as TestContext, [toy]);
  const grpc = new RawGrpc(Number(new URL(serving.url).port));
  const run = async (fromSeed: number, untilMs: number) => {
    const lanes = Array.from({ length: LANES }, (_, i) =>
      attack({ serving, grpc, random: new Random(fromSeed + i) }, untilMs),
    );
    const [answered = 0, ...counts] = await Promise.all([
      askHonestly(serving, toy, untilMs),
      ...lanes,
    ]);
    return { hostile: counts.reduce((sum, count) => sum + count, 0), answered };
  };
  // What a process comes to hold for its work: connections, pools, compiled code.
  await run(seed + LANES, performance.now() + 200 * seconds);
  const before = await measure(serving, 'process_resident_memory_bytes');
  const done = await run(seed, performance.now() + 800 * seconds);
  grpc.close();
  const replay = `npm run fuzz -- --seed ${seed}`;
  await serving.until('/v1/status', ({ body }) => body.inFlight === 0);
  const grown = (await measure(serving, 'process_resident_memory_bytes')) - before;
  assert.ok(grown < GROWTH_BYTES_MAX, `${grown} bytes more than before; ${replay}`);
  const faults = serving.log.filter((line) => line.includes('"level":50'));
  assert.deepEqual(faults, [], replay);
  assert.equal(await serving.stop(), 0, replay);
  return done;
}
