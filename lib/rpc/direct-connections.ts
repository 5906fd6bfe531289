/** The connections of a server that are read without node:http, and their time limits. */
import type { Socket } from 'node:net';
import { BodyPool } from './body-pool.ts';
import { DirectConnection, type DirectConnectionOptions } from './direct-connection.ts';
import { ExpiryQueue } from './expiry-queue.ts';
import { TurnBudget } from './turn-budget.ts';
import { TurnQueue } from './turn-queue.ts';

/** The rest of a head comes in the next packet, or from a caller that node:http can deal with. */
const HEAD_REST_MS = 1_000;
/** About a millisecond of refusals. */
const REQUESTS_PER_TURN = 64;

export interface DirectConnectionsOptions
  extends Omit<
    DirectConnectionOptions,
    'bodies' | 'heads' | 'largeBodies' | 'bodyPool' | 'turns' | 'handOver'
  > {
  /** Serves a connection with node:http from now on. @param bytes read and not handled */
  handOver(socket: Socket, bytes: Buffer): void;
  /** Milliseconds from the head of a request until its body must have arrived. */
  readonly requestMs: number;
}

export class DirectConnections {
  readonly #connections = new Set<DirectConnection>();
  readonly #options: DirectConnectionOptions;

  constructor({ requestMs, handOver, ...options }: DirectConnectionsOptions) {
    this.#options = {
      ...options,
      bodies: new ExpiryQueue(requestMs, (connection) => connection.expireBody()),
      heads: new ExpiryQueue(HEAD_REST_MS, (connection) => connection.expireHead()),
      largeBodies: new TurnQueue(),
      bodyPool: new BodyPool(),
      turns: new TurnBudget(REQUESTS_PER_TURN),
      handOver: (connection, bytes) => {
        this.#connections.delete(connection);
        handOver(connection.socket, bytes);
      },
    };
  }

  /**
   * @param first the bytes read so far, valid until it returns
   * @returns whether the connection has a request in flight
   */
  serve(socket: Socket, first: Buffer): () => boolean {
    const connection = new DirectConnection(socket, this.#options);
    this.#connections.add(connection);
    socket.once('close', () => this.#connections.delete(connection));
    connection.start(first);
    return () => connection.isBusy;
  }

  /** Closes the connections without a request. */
  closeIdle(): void {
    for (const connection of this.#connections) {
      if (connection.isIdle) connection.socket.destroy();
    }
  }

  closeAll(): void {
    for (const { socket } of this.#connections) socket.destroy();
  }
}
