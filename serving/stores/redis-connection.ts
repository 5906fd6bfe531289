/**
 * The connection to Redis or Valkey, one server or a Cluster: the only import of the redis package.
 * It reconnects by itself. While it, or a node, is not connected, commands fail at once instead of
 * waiting, so that a server that is down never makes a lookup miss its deadline. The package
 * follows MOVED, ASK and failovers.
 */
import { createClient, createCluster, ErrorReply, RESP_TYPES } from 'redis';
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { RedisAddress, RedisEndpoint } from './redis-endpoint.ts';

const CONNECT_TIMEOUT_MS = 2_000;
const RECONNECT_MAX_MS = 1_000;
const PING_INTERVAL_MS = 1_000;
/** A server that does not answer anything, pings included, for this time is disconnected. */
const SOCKET_TIMEOUT_MS = 5_000;
/** The most commands that may wait for a node that hangs; further commands fail at once. */
const QUEUE_MAX = 20_000;
/** At most one warning is logged in this time. */
const WARN_INTERVAL_MS = 10_000;

export type RedisArgument = string | Buffer;
export type RedisValue = Buffer | number | null;

/** Whether an error of `send` is the reply of a server, which therefore answers. */
export function isErrorReply(error: unknown): boolean {
  return error instanceof Error && error.cause instanceof ErrorReply;
}

interface Client {
  /** The address of the node that has a hash slot, as far as known. */
  findNode(slot: number): string;
  connect(): Promise<unknown>;
  destroy(): void;
  send(key: string, readOnly: boolean, args: RedisArgument[]): Promise<unknown>;
}

export class RedisConnection {
  /** host:port of the given servers. */
  readonly name: string;
  readonly #address: RedisAddress;
  readonly #logger: Logger | undefined;
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  #client: Client | undefined;
  #problem = 'the first connection attempt is still in progress';
  #warnAtMs = Number.NEGATIVE_INFINITY;
  /** Settles when the first attempt to connect has ended, with or without success. */
  readonly #firstAttempt: Promise<void>;

  constructor(address: RedisAddress, logger?: Logger, clock: Clock = systemClock) {
    this.name = address.name;
    this.#address = address;
    this.#logger = logger;
    this.#clock = clock;
    this.#firstAttempt = new Promise((resolve) => {
      void this.#connect(resolve);
    });
  }

  /**
   * Waits for the first attempt to connect. @throws CubeError UNAVAILABLE with the reason, when no
   * server answers
   */
  async ready(): Promise<void> {
    await this.#firstAttempt;
    if (this.#client === undefined) throw this.#unreachable();
  }

  /**
   * Sends a command for one key. Values are Buffers.
   * @throws CubeError UNAVAILABLE when no server is connected, or the server returns an error
   */
  async send<T = RedisValue>(key: string, readOnly: boolean, args: RedisArgument[]): Promise<T> {
    if (this.#client === undefined) throw this.#unreachable();
    try {
      return (await this.#client.send(key, readOnly, args)) as T;
    } catch (error) {
      const { message } = error as Error;
      throw new CubeError('UNAVAILABLE', `redis ${this.name}: ${message}`, { cause: error });
    }
  }

  /** The address of the node that has a hash slot; the same for all slots of a single server. */
  findNode(slot: number): string {
    return this.#client?.findNode(slot) ?? this.name;
  }

  close(): void {
    this.#stopping.abort();
    this.#client?.destroy();
    this.#client = undefined;
    this.#problem = 'the connection is closed';
  }

  /** Tries until the first success; from then on the client reconnects by itself. */
  async #connect(onFirstAttempt: () => void): Promise<void> {
    const { signal } = this.#stopping;
    for (let attempt = 0; !signal.aborted; attempt++) {
      const makeClient = this.#address.cluster ? makeClusterClient : makeServerClient;
      const client = makeClient(this.#address, (error) => this.#warn(error));
      try {
        await client.connect();
        if (signal.aborted) client.destroy();
        else this.#client = client;
        onFirstAttempt();
        return;
      } catch (error) {
        client.destroy();
        this.#warn(error as Error);
        onFirstAttempt();
      }
      await this.#clock.sleep(computePauseMs(attempt), signal);
    }
  }

  #warn({ message }: Error): void {
    this.#problem = message;
    const nowMs = this.#clock.nowMs();
    if (nowMs < this.#warnAtMs || this.#stopping.signal.aborted) return;
    this.#warnAtMs = nowMs + WARN_INTERVAL_MS;
    this.#logger?.warn({ redis: this.name, error: message }, 'redis cannot be reached');
  }

  #unreachable(): CubeError {
    return new CubeError('UNAVAILABLE', `redis ${this.name} cannot be reached: ${this.#problem}`);
  }
}

function computePauseMs(attempt: number): number {
  return Math.min(RECONNECT_MAX_MS, 25 * 2 ** Math.min(attempt, 10));
}

const VALUES_AS_BUFFERS = { [RESP_TYPES.BLOB_STRING]: Buffer };

function makeConnectionOptions({ user, password }: RedisAddress) {
  return {
    ...(user !== undefined && { username: user }),
    ...(password !== undefined && { password }),
    disableOfflineQueue: true,
    pingInterval: PING_INTERVAL_MS,
    commandsQueueMaxLength: QUEUE_MAX,
    socket: {
      connectTimeout: CONNECT_TIMEOUT_MS,
      socketTimeout: SOCKET_TIMEOUT_MS,
      reconnectStrategy: computePauseMs,
    },
  };
}

function makeSocketOptions({ host, port, tls }: RedisEndpoint) {
  return tls ? ({ host, port, tls: true } as const) : { host, port };
}

function makeServerClient(address: RedisAddress, onError: (error: Error) => void): Client {
  const [endpoint] = address.endpoints;
  const { socket, ...options } = makeConnectionOptions(address);
  let wasConnected = false;
  // Before the first connection, RedisConnection reports failures and retries.
  const reconnectStrategy = (attempt: number): number | false =>
    wasConnected ? socket.reconnectStrategy(attempt) : false;
  const client = createClient({
    ...options,
    RESP: 2,
    database: endpoint.database,
    socket: { ...socket, ...makeSocketOptions(endpoint), reconnectStrategy },
    commandOptions: { typeMapping: VALUES_AS_BUFFERS },
  });
  client.on('error', onError).on('ready', () => {
    wasConnected = true;
  });
  return {
    findNode: () => address.name,
    connect: () => client.connect(),
    destroy: () => {
      if (client.isOpen) client.destroy();
    },
    send: (_key, _readOnly, args) => client.sendCommand(args),
  };
}

function makeClusterClient(address: RedisAddress, onError: (error: Error) => void): Client {
  const { endpoints } = address;
  const { socket, ...options } = makeConnectionOptions(address);
  const { tls } = endpoints[0];
  const cluster = createCluster({
    RESP: 2,
    rootNodes: endpoints.map((endpoint) => ({ socket: makeSocketOptions(endpoint) })),
    defaults: { ...options, socket: tls ? { ...socket, tls: true } : socket },
    commandOptions: { typeMapping: VALUES_AS_BUFFERS },
  });
  cluster.on('error', onError).on('node-error', onError);
  return {
    findNode: (slot) => cluster.slots[slot]?.master.address ?? address.name,
    connect: () => cluster.connect(),
    destroy: () => cluster.destroy(),
    send: (key, readOnly, args) => cluster.sendCommand(key, readOnly, args),
  };
}
