/**
 * A proxy that delays, loses, repeats, reorders, truncates and corrupts the frames between client
 * and server.
 */
import { connect, createServer, type Server, type Socket } from 'node:net';
import type { SeededRandom } from '../../rpc/support/fuzz.ts';

const HEADER_BYTES = 12;

export class FaultyProxy {
  /** Frames forwarded with flipped bits. */
  damagedFrames = 0;
  endpoint = '';
  readonly #port: number;
  readonly #random: SeededRandom;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  /** @param port of the server behind it */
  constructor(port: number, random: SeededRandom) {
    this.#port = port;
    this.#random = random;
    this.#server = createServer({ noDelay: true }, (socket) => this.#accept(socket));
  }

  async start(): Promise<this> {
    await new Promise<void>((resolve) => {
      this.#server.listen(0, '127.0.0.1', resolve);
    });
    this.endpoint = `127.0.0.1:${(this.#server.address() as { port: number }).port}`;
    return this;
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  #accept(near: Socket): void {
    const far = connect({ port: this.#port, host: '127.0.0.1', noDelay: true });
    for (const [from, to] of [
      [near, far],
      [far, near],
    ] as const) {
      this.#sockets.add(from);
      from.on('error', () => undefined);
      from.on('close', () => {
        this.#sockets.delete(from);
        to.destroy();
      });
      this.#forward(from, to);
    }
  }

  /** Forwards frame by frame, with faults. */
  #forward(from: Socket, to: Socket): void {
    let pending: Buffer = Buffer.alloc(0);
    let delayed: Buffer | undefined;
    from.on('data', (chunk: Buffer) => {
      pending = Buffer.concat([pending, chunk]);
      while (pending.length >= HEADER_BYTES) {
        const total = HEADER_BYTES + pending.readUInt32BE(4);
        if (pending.length < total) break;
        const frame = Buffer.from(pending.subarray(0, total));
        pending = pending.subarray(total);
        const previous = delayed;
        delayed = undefined;
        if (previous === undefined && this.#random.below(40) === 0) delayed = frame;
        else this.#send(to, frame);
        if (previous !== undefined) this.#send(to, previous);
      }
    });
  }

  #send(to: Socket, frame: Buffer): void {
    const random = this.#random;
    switch (random.below(120)) {
      case 0: // lost
        return;
      case 1: // twice
        to.write(frame);
        break;
      case 2: {
        setTimeout(() => to.writable && to.write(frame), random.below(60));
        return;
      }
      case 3: // byte by byte
        for (const byte of frame) to.write(Buffer.of(byte));
        return;
      case 4: // truncated
        to.end(frame.subarray(0, random.below(frame.length)));
        return;
      case 5:
      case 6:
      case 7: {
        this.damagedFrames++;
        // Corrupted magic and sizes are detected at once, so most faults come after them.
        const from = random.below(8) === 0 ? 0 : HEADER_BYTES;
        for (let i = random.below(3); i >= 0; i--) {
          const at = from + random.below(frame.length - from);
          frame[at]! ^= 1 << random.below(8);
        }
      }
    }
    to.write(frame);
  }
}
