/**
 * The connection to Redis or Valkey, one server or a Cluster: the one import of the redis package. It connects by itself, again and
 * again; while it is not connected, or a node is not, commands fail at once instead of waiting, so that a lookup is never later
 * than its deadline because a server is gone. MOVED, ASK and failovers are the package's business.
 */
import { createClient, createCluster, RESP_TYPES } from 'redis';
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { RedisAddress, RedisEndpoint } from './redis-endpoint.ts';

const CONNECT_TIMEOUT_MS = 2_000;
const RECONNECT_MAX_MS = 1_000;
/** A server that does not even answer pings for so long is given up, and connected to again. */
const PING_INTERVAL_MS = 1_000;
const SILENCE_MAX_MS = 5_000;
/** Commands waiting for a node that hangs: more are refused at once. */
const QUEUE_MAX = 20_000;
/** At most one line in the log about trouble in so long. */
const WARN_INTERVAL_MS = 10_000;

export type RedisArgument = string | Buffer;
export type RedisValue = Buffer | number | null;

interface Client {
  connect(): Promise<unknown>;
  destroy(): void;
  send(key: string, readOnly: boolean, args: RedisArgument[]): Promise<unknown>;
}

export class RedisLink {
  /** host:port of the servers given. */
  readonly name: string;
  readonly #address: RedisAddress;
  readonly #logger: Logger | undefined;
  readonly #clock: Clock;
  readonly #stopping = new AbortController();
  #client: Client | undefined;
  #problem = 'it is still connecting';
  #warnAtMs = Number.NEGATIVE_INFINITY;
  /** Settles when the first attempt to connect has ended, either way. */
  readonly #tried: Promise<void>;

  constructor(address: RedisAddress, logger?: Logger, clock: Clock = systemClock) {
    this.name = address.name;
    this.#address = address;
    this.#logger = logger;
    this.#clock = clock;
    this.#tried = new Promise((tried) => {
      void this.#connect(tried);
    });
  }

  /** Waits for the first attempt to connect. @throws CubeError UNAVAILABLE saying what is wrong, when no server answers */
  async ready(): Promise<void> {
    await this.#tried;
    if (this.#client === undefined) throw this.#unreachable();
  }

  /**
   * Sends a command about one key. Values are Buffers: valid until the caller lets them go.
   * @throws CubeError UNAVAILABLE when it cannot be asked now, or refuses
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

  close(): void {
    this.#stopping.abort();
    this.#client?.destroy();
    this.#client = undefined;
    this.#problem = 'the connection is closed';
  }

  /** Until it succeeds: from then on the client connects again by itself. */
  async #connect(tried: () => void): Promise<void> {
    const { signal } = this.#stopping;
    for (let attempt = 0; !signal.aborted; attempt++) {
      const client = this.#address.cluster
        ? clusterOf(this.#address, (error) => this.#warn(error))
        : serverOf(this.#address, (error) => this.#warn(error));
      try {
        await client.connect();
        if (signal.aborted) client.destroy();
        else this.#client = client;
        tried();
        return;
      } catch (error) {
        client.destroy();
        this.#warn(error as Error);
        tried();
      }
      await this.#clock.sleep(pauseMs(attempt), signal);
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

function pauseMs(attempt: number): number {
  return Math.min(RECONNECT_MAX_MS, 25 * 2 ** Math.min(attempt, 10));
}

const VALUES_AS_BUFFERS = { [RESP_TYPES.BLOB_STRING]: Buffer };

function connectionOptions({ user, password }: RedisAddress) {
  return {
    ...(user !== undefined && { username: user }),
    ...(password !== undefined && { password }),
    disableOfflineQueue: true,
    pingInterval: PING_INTERVAL_MS,
    commandsQueueMaxLength: QUEUE_MAX,
    socket: {
      connectTimeout: CONNECT_TIMEOUT_MS,
      socketTimeout: SILENCE_MAX_MS,
      reconnectStrategy: pauseMs,
    },
  };
}

function socketOf({ host, port, tls }: RedisEndpoint) {
  return tls ? ({ host, port, tls: true } as const) : { host, port };
}

function serverOf(address: RedisAddress, onError: (error: Error) => void): Client {
  const endpoint = address.endpoints[0]!;
  const { socket, ...options } = connectionOptions(address);
  let everConnected = false;
  // Before the first connection a failure is the link's to report and to repeat.
  const reconnectStrategy = (attempt: number): number | false =>
    everConnected ? socket.reconnectStrategy(attempt) : false;
  const client = createClient({
    ...options,
    RESP: 2,
    database: endpoint.database,
    socket: { ...socket, ...socketOf(endpoint), reconnectStrategy },
    commandOptions: { typeMapping: VALUES_AS_BUFFERS },
  });
  client.on('error', onError).on('ready', () => {
    everConnected = true;
  });
  return {
    connect: () => client.connect(),
    destroy: () => {
      if (client.isOpen) client.destroy();
    },
    send: (_key, _readOnly, args) => client.sendCommand(args),
  };
}

function clusterOf(address: RedisAddress, onError: (error: Error) => void): Client {
  const { endpoints } = address;
  const { socket, ...options } = connectionOptions(address);
  const { tls } = endpoints[0]!;
  const cluster = createCluster({
    RESP: 2,
    rootNodes: endpoints.map((endpoint) => ({ socket: socketOf(endpoint) })),
    defaults: { ...options, socket: tls ? { ...socket, tls: true } : socket },
    commandOptions: { typeMapping: VALUES_AS_BUFFERS },
  });
  cluster.on('error', onError).on('node-error', onError);
  return {
    connect: () => cluster.connect(),
    destroy: () => cluster.destroy(),
    send: (key, readOnly, args) => cluster.sendCommand(key, readOnly, args),
  };
}
