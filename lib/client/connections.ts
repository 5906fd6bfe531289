/**
 * How calls share connections to one replica. `single`: all calls on one pipelined connection (the default, and the fastest).
 * `pooled`: each call has a connection to itself, which later calls use again: no call waits behind another's answer. `short`: a
 * new connection for every call, for peers that insist on it.
 */
import { CubeError } from '../core/errors.ts';
import { type CallOptions, type CallResult, Channel } from '../rpc/channel.ts';

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
  ): Promise<CallResult>;
  /** Fails what is pending; later calls are refused. */
  close(): void;
}

/** Idle connections kept for one replica; a burst's surplus is closed. */
const POOLED_MAX = 100;
/** Connections open at once to one replica; as many calls as one pipelined connection has. */
const OPEN_MAX = 1024;
/** One answer at a time, and many connections. */
const OWN_READ_BUFFER_BYTES = 16 << 10;

/** @throws CubeError INVALID_ARGUMENT for a type that does not exist */
export function checkConnectionType(type: ConnectionType): void {
  if (CONNECTION_TYPES.includes(type)) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `connectionType: expected one of ${CONNECTION_TYPES.join(', ')}, got ${JSON.stringify(type)}`,
  );
}

export function openConnections(
  endpoint: string,
  type: ConnectionType,
  backoffMaxMs: number,
): Connections {
  if (type === 'single') return new Channel(endpoint, { backoffMaxMs });
  const limits = { backoffMaxMs, readBufferBytes: OWN_READ_BUFFER_BYTES };
  const open = (): Channel => new Channel(endpoint, limits);
  return new OwnConnections(endpoint, open, type === 'pooled' ? POOLED_MAX : 0);
}

/** A connection for each call, of which up to `keptMax` are kept for later ones. */
class OwnConnections implements Connections {
  readonly #endpoint: string;
  readonly #open: () => Channel;
  readonly #keptMax: number;
  readonly #idle: Channel[] = [];
  readonly #busy = new Set<Channel>();
  #closed = false;

  constructor(endpoint: string, open: () => Channel, keptMax: number) {
    this.#endpoint = endpoint;
    this.#open = open;
    this.#keptMax = keptMax;
  }

  async call(
    service: string,
    method: string,
    payload: Uint8Array,
    attachment: Uint8Array,
    timeoutMs: number,
    options?: CallOptions,
  ): Promise<CallResult> {
    if (this.#closed) throw this.#refused('UNAVAILABLE', 'the connections were closed');
    if (this.#busy.size >= OPEN_MAX) {
      throw this.#refused('OVERLOADED', `${OPEN_MAX} connections are in use; send fewer at once`);
    }
    const channel = this.#idleOne() ?? this.#open();
    this.#busy.add(channel);
    let reusable = false;
    try {
      const result = await channel.call(service, method, payload, attachment, timeoutMs, options);
      reusable = true;
      return result;
    } finally {
      this.#busy.delete(channel);
      // One that failed may still get an answer that nobody waits for: the next call does not wait behind it.
      if (reusable && !this.#closed && this.#idle.length < this.#keptMax) this.#idle.push(channel);
      else channel.close();
    }
  }

  close(): void {
    this.#closed = true;
    for (const channel of [...this.#idle, ...this.#busy]) channel.close();
    this.#idle.length = 0;
  }

  /** An idle connection that still is one: peers close what rests for long. */
  #idleOne(): Channel | undefined {
    for (let channel = this.#idle.pop(); channel !== undefined; channel = this.#idle.pop()) {
      if (channel.connected) return channel;
      channel.close();
    }
    return undefined;
  }

  #refused(code: 'UNAVAILABLE' | 'OVERLOADED', text: string): CubeError {
    return new CubeError(code, `${this.#endpoint}: ${text}`);
  }
}
