/**
 * Hostile bytes against a server for a bounded time, from a seed that is printed: random and
 * damaged frames, splits, pipelines, other protocols, on many connections, while a well-behaved
 * caller beside them must get every answer right.
 */
import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { compress } from '../../../lib/rpc/compression.ts';
import { encodeRequestFrame, RawConnection } from './echo-server.ts';
import { resetSocket } from './reset.ts';

const CONNECTIONS = 16;

/** Mulberry32: the same seed, the same bytes. */
export class SeededRandom {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  below(limit: number): number {
    this.#state = (this.#state + 0x6d2b_79f5) >>> 0;
    let word = this.#state;
    word = Math.imul(word ^ (word >>> 15), word | 1);
    word ^= word + Math.imul(word ^ (word >>> 7), word | 61);
    return Math.floor((((word ^ (word >>> 14)) >>> 0) / 2 ** 32) * limit);
  }

  bytes(count: number): Buffer {
    return Buffer.from(Array.from({ length: count }, () => this.below(256)));
  }

  pick<T>(items: readonly T[]): T {
    return items[this.below(items.length)]!;
  }
}

/** Creates a frame with any meta and body. */
function createRawFrame(meta: Uint8Array, body: Uint8Array): Buffer {
  const head = Buffer.alloc(12);
  head.write('PRPC');
  head.writeUInt32BE(meta.length + body.length, 4);
  head.writeUInt32BE(meta.length, 8);
  return Buffer.concat([head, meta, body]);
}

/** Changes, removes, inserts or repeats some bytes. */
export function mutate(random: SeededRandom, bytes: Buffer): Buffer {
  let damaged = Buffer.from(bytes);
  for (let i = random.below(4); i >= 0; i--) {
    const at = random.below(damaged.length + 1);
    const kind = random.below(4);
    if (kind === 0 && at < damaged.length) damaged[at] = random.below(256);
    else if (kind === 1)
      damaged = Buffer.concat([damaged.subarray(0, at), damaged.subarray(at + 1)]);
    else if (kind === 2) {
      const more = random.bytes(random.below(12));
      damaged = Buffer.concat([damaged.subarray(0, at), more, damaged.subarray(at)]);
    } else damaged = Buffer.concat([damaged, damaged.subarray(0, at)]);
  }
  return damaged;
}

/** Returns the bytes that one hostile connection sends. */
function createHostileBytes(random: SeededRandom, golden: readonly Buffer[]): Buffer {
  const meta = Buffer.from('0a110a09746573742e4563686f12046563686f', 'hex');
  switch (random.below(9)) {
    case 0:
      return random.bytes(random.below(200));
    case 1:
      return Buffer.concat([Buffer.from('PRPC'), random.bytes(random.below(60))]);
    case 2:
      return createRawFrame(random.bytes(random.below(60)), random.bytes(random.below(60)));
    case 3: // a valid service and method, then random fields
      return createRawFrame(
        Buffer.concat([meta, random.bytes(random.below(30))]),
        random.bytes(20),
      );
    case 4: {
      const type = 1 + random.below(4);
      const packed = mutate(random, Buffer.from(compress(type, random.bytes(random.below(300)))));
      return createRawFrame(Buffer.concat([meta, Buffer.of(0x18, type, 0x20, 7)]), packed);
    }
    case 5:
      return Buffer.concat(Array.from({ length: random.below(30) }, () => random.pick(golden)));
    case 6:
      return Buffer.from(
        random.pick([
          'GET /hello HTTP/1.1\r\nhost: x\r\n\r\n',
          'POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 99999\r\n\r\nx',
          'POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n',
          'GET / HTTP/9.9\r\n\r\n',
          `GET /${'a'.repeat(3000)} HTTP/1.1\r\n${'x: y\r\n'.repeat(200)}\r\n`,
        ]),
      );
    case 7:
      return Buffer.concat([
        Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'),
        random.below(2) === 0 ? Buffer.from('000000040000000000', 'hex') : random.bytes(9),
        random.bytes(random.below(100)),
      ]);
    default:
      return mutate(random, random.pick(golden));
  }
}

async function attack(
  port: number,
  random: SeededRandom,
  golden: readonly Buffer[],
  beginConnection: () => boolean,
): Promise<void> {
  while (beginConnection()) {
    const socket: Socket = connect({ port, host: '127.0.0.1', noDelay: true });
    socket.on('error', () => undefined);
    socket.resume();
    for (let i = 1 + random.below(3); i > 0 && !socket.destroyed; i--) {
      const bytes = createHostileBytes(random, golden);
      const piece = random.pick([1, 3, 17, 1000, 1 << 20]);
      // Single bytes are sent for the beginning only.
      for (let at = 0; at < Math.min(bytes.length, piece * 60); at += piece) {
        socket.write(bytes.subarray(at, at + piece));
        if (piece < bytes.length) await new Promise(setImmediate);
      }
    }
    await sleep(random.below(4));
    if (random.below(2) === 0) resetSocket(socket);
    else socket.destroySoon();
  }
}

/** A busy machine gets as many hostile connections and regular calls as this, in more time. */
const COUNT_MIN = 20;

/**
 * Runs for the seconds at least, and until there were enough hostile connections and regular calls.
 * @returns the number of hostile connections, and of answered calls of the regular caller
 */
export async function fuzz(options: {
  port: number;
  seed: number;
  seconds: number;
  golden: readonly Buffer[];
}): Promise<{ connections: number; answered: number }> {
  const { port, seed, seconds, golden } = options;
  const untilMs = performance.now() + seconds * 1000;
  let connections = 0;
  let answered = 0;
  const isOver = (): boolean =>
    performance.now() >= untilMs && connections > COUNT_MIN && answered > COUNT_MIN;
  const beginConnection = (): boolean => {
    if (isOver()) return false;
    connections++;
    return true;
  };
  const attacks = Array.from({ length: CONNECTIONS }, (_, i) =>
    attack(port, new SeededRandom(seed + i), golden, beginConnection),
  );
  const regularCaller = new RawConnection(port);
  while (!isOver()) {
    const payload = `call ${answered}`;
    regularCaller.send(encodeRequestFrame(answered + 1, Buffer.from(payload)));
    const answers = await regularCaller.receive(answered + 1);
    assert.equal(answers[answered]?.payload, payload, `seed ${seed}`);
    answered++;
    await new Promise(setImmediate);
  }
  await Promise.all(attacks);
  regularCaller.socket.destroy();
  return { connections, answered };
}
