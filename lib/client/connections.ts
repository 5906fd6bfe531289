/**
 * How calls share connections to one replica. `single`: all calls share one pipelined connection
 * (the default, and the fastest). `pooled`: each call has a connection of its own, which later
 * calls reuse; no call waits behind another's response. `short`: a new connection for every call,
 * for servers that require it.
 */
import { CubeError } from '../core/errors.ts';
import { type CallOptions, type CallResult, Channel } from '../rpc/channel.ts';
import type { Credentials } from '../rpc/credentials.ts';

export const CONNECTION_TYPES = ['single', 'pooled', 'short'] as const;
export type ConnectionType = (typeof CONNECTION_TYPES)[number];

export interface Connections {
  /** As `Channel.call`: the result's views are valid until the continuation ends. */
  call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    options?: CallOptions,
    signal?: AbortSignal,
  ): Promise<CallResult>;
  /** Fails pending calls; later calls are rejected. */
  close(): void;
}

/** Maximum idle connections kept for one replica; a burst's surplus is closed. */
export const IDLE_CONNECTIONS_MAX = 100;
/**
 * Maximum open connections to one replica: the same as the calls in flight of one pipelined
 * connection.
 */
const OPEN_CONNECTIONS_MAX = 1024;
/** Small: such a connection receives one response at a time, and there are many of them. */
const DEDICATED_READ_BUFFER_BYTES = 16 << 10;

/** @throws CubeError INVALID_ARGUMENT for an unknown type */
export function checkConnectionType(type: ConnectionType): void {
  if (CONNECTION_TYPES.includes(type)) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `connectionType: expected one of ${CONNECTION_TYPES.join(', ')}, got ${JSON.stringify(type)}`,
  );
}

export interface ConnectionLimits {
  /** Maximum wait before a broken connection is opened again, in milliseconds. */
  readonly backoffMaxMs: number;
  /** Milliseconds until a connection attempt fails; default: that of channels. */
  readonly connectTimeoutMs?: number;
  /** For `pooled`. Default IDLE_CONNECTIONS_MAX. */
  readonly idleConnectionsMax?: number;
}

export function openConnections(
  endpoint: string,
  type: ConnectionType,
  { idleConnectionsMax = IDLE_CONNECTIONS_MAX, ...limits }: ConnectionLimits,
  credentials?: Credentials,
): Connections {
  if (type === 'single') return new Channel(endpoint, limits, credentials);
  const dedicated = { ...limits, readBufferBytes: DEDICATED_READ_BUFFER_BYTES };
  const open = (): Channel => new Channel(endpoint, dedicated, credentials);
  return new DedicatedConnections(endpoint, open, type === 'pooled' ? idleConnectionsMax : 0);
}

/** A connection for each call; up to `idleMax` idle ones are kept for later calls. */
class DedicatedConnections implements Connections {
  readonly #endpoint: string;
  readonly #open: () => Channel;
  readonly #idleMax: number;
  readonly #idle: Channel[] = [];
  readonly #busy = new Set<Channel>();
  #closed = false;

  constructor(endpoint: string, open: () => Channel, idleMax: number) {
    this.#endpoint = endpoint;
    this.#open = open;
    this.#idleMax = idleMax;
  }

  async call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    options?: CallOptions,
  ): Promise<CallResult> {
    if (this.#closed) throw this.#createError('UNAVAILABLE', 'the connections were closed');
    if (this.#busy.size >= OPEN_CONNECTIONS_MAX) {
      throw this.#createError(
        'OVERLOADED',
        `${OPEN_CONNECTIONS_MAX} connections are in use; send fewer calls at once`,
      );
    }
    const channel = this.#takeIdle() ?? this.#open();
    this.#busy.add(channel);
    let reusable = false;
    try {
      const result = await channel.call(service, method, payload, attachment, timeoutMs, options);
      reusable = true;
      return result;
    } finally {
      this.#busy.delete(channel);
      // A failed connection may still receive a late response, so it is not reused.
      if (reusable && !this.#closed && this.#idle.length < this.#idleMax) this.#idle.push(channel);
      else channel.close();
    }
  }

  close(): void {
    this.#closed = true;
    for (const channel of [...this.#idle, ...this.#busy]) channel.close();
    this.#idle.length = 0;
  }

  /** Returns an idle connection that is still open; peers close long-idle ones. */
  #takeIdle(): Channel | undefined {
    for (let channel = this.#idle.pop(); channel !== undefined; channel = this.#idle.pop()) {
      if (channel.isConnected) return channel;
      channel.close();
    }
    return undefined;
  }

  #createError(code: 'UNAVAILABLE' | 'OVERLOADED', text: string): CubeError {
    const details = { server: this.#endpoint };
    return new CubeError(code, `${this.#endpoint}: ${text}`, { details });
  }
}
