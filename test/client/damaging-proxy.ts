/** A network between client and server that does to frames what networks and their boxes do: late, lost, twice, out of order, damaged. */
import { connect, createServer, type Server, type Socket } from 'node:net';
import type { Random } from '../rpc/fuzz.ts';

const HEADER_BYTES = 12;

export class DamagingProxy {
  /** Frames that came through with bits turned over. */
  damaged = 0;
  endpoint = '';
  readonly #port: number;
  readonly #random: Random;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();

  /** @param port of the server behind it */
  constructor(port: number, random: Random) {
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
      this.#carry(from, to);
    }
  }

  /** Frame by frame: sound ones come in, other ones may go out. */
  #carry(from: Socket, to: Socket): void {
    let waiting: Buffer = Buffer.alloc(0);
    let held: Buffer | undefined;
    from.on('data', (chunk: Buffer) => {
      waiting = Buffer.concat([waiting, chunk]);
      while (waiting.length >= HEADER_BYTES) {
        const total = HEADER_BYTES + waiting.readUInt32BE(4);
        if (waiting.length < total) break;
        const frame = Buffer.from(waiting.subarray(0, total));
        waiting = waiting.subarray(total);
        const before = held;
        held = undefined;
        if (before === undefined && this.#random.below(40) === 0) held = frame;
        else this.#send(to, frame);
        if (before !== undefined) this.#send(to, before);
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
      case 4: // the half of it
        to.end(frame.subarray(0, random.below(frame.length)));
        return;
      case 5:
      case 6:
      case 7: {
        this.damaged++;
        // Sizes and magic are seen at once: mostly behind them.
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
