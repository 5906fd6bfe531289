/**
 * The open connections of a port, and when each was last used. When the limit on connections is
 * reached, the one that was idle for longest makes room for the next. Connections that have not got
 * an answer yet, such as half-open TLS handshakes and beginnings of requests, have half of the
 * places: beyond that the oldest of them makes room, so that a flood of them neither shuts out
 * callers, whose first requests take milliseconds, nor closes their connections.
 */
import type { Socket } from 'node:net';
import type { ServerLimits } from '../core/limits.ts';
import { SlowReaderDetector } from './slow-reader-detector.ts';

/** A connection that was used more recently is never closed for another one. */
const EVICTED_IDLE_MS = 1000;
/** Fewer connections without an answer are never closed for others of the kind. */
const STARTING_MIN = 16;
/** Connections with a first request in flight that are passed over in a search. */
const BUSY_MAX = 64;
/** A scan of all connections costs about a millisecond; connections may arrive much faster. */
const SCAN_INTERVAL_MS = 100;

export class Connection {
  readonly socket: Socket;
  readonly #slowReader: SlowReaderDetector;
  #writtenBytes = 0;
  #activeMs: number;
  /** Whether a call or request that has arrived is in flight. */
  isBusy: () => boolean = () => false;
  /** Whether a call or request has been answered. */
  wasAnswered: () => boolean = () => false;

  constructor(socket: Socket, nowMs: number) {
    this.socket = socket;
    this.#slowReader = new SlowReaderDetector(socket);
    this.#activeMs = nowMs;
  }

  /** When it was last seen to be used: never earlier than it was used. */
  get activeMs(): number {
    return this.#activeMs;
  }

  /**
   * Checks for use since the last call. Bytes of a request that is still arriving are none: a flood
   * of slow requests must not keep its places. Returns whether there was any.
   */
  update(nowMs: number): boolean {
    const { bytesWritten } = this.socket;
    const isUsed = bytesWritten !== this.#writtenBytes || this.isBusy();
    if (isUsed) {
      this.#writtenBytes = bytesWritten;
      this.#activeMs = nowMs;
    }
    return isUsed;
  }

  /** @param crowded as for `SlowReaderDetector` */
  isSlowReader(nowMs: number, limits: ServerLimits, crowded: boolean): boolean {
    return this.#slowReader.isSlow(nowMs, limits, crowded);
  }
}

export class ConnectionTable {
  /** Connections closed to make room for others. */
  evicted = 0;
  readonly #max: number;
  readonly #startingMax: number;
  readonly #connections = new Map<Socket, Connection>();
  /** Connections that have not shown their protocol yet, the oldest first. */
  readonly #starting = new Set<Connection>();
  /** The idle connections at the last scan, the longest idle last. */
  #idle: Connection[] = [];
  #scannedMs = Number.NEGATIVE_INFINITY;

  /** @param max number of connections */
  constructor(max: number) {
    this.#max = max;
    this.#startingMax = Math.max(STARTING_MIN, Math.floor(max / 2));
  }

  get size(): number {
    return this.#connections.size;
  }

  /**
   * Adds a connection until it is closed.
   * @returns undefined when the limit is reached and no other connection is idle
   */
  add(socket: Socket, nowMs: number): Connection | undefined {
    if (this.#starting.size >= this.#startingMax) this.#evictStarting();
    if (this.size >= this.#max && !this.#evict(nowMs)) return undefined;
    const connection = new Connection(socket, nowMs);
    this.#connections.set(socket, connection);
    this.#starting.add(connection);
    socket.on('close', () => this.#remove(connection));
    return connection;
  }

  [Symbol.iterator](): IterableIterator<Connection> {
    return this.#connections.values();
  }

  /** Closes the longest idle connection. Returns whether there is one. */
  #evict(nowMs: number): boolean {
    if (this.#idle.length === 0) this.#scan(nowMs);
    for (let found = this.#idle.pop(); found !== undefined; found = this.#idle.pop()) {
      if (found.socket.destroyed || found.update(nowMs)) continue;
      this.#close(found);
      return true;
    }
    return false;
  }

  /** Closes the oldest connection that waits for its first request. */
  #evictStarting(): void {
    let busyCount = 0;
    for (const connection of this.#starting) {
      if (connection.wasAnswered()) this.#starting.delete(connection);
      else if (!connection.isBusy()) {
        this.#close(connection);
        return;
      } else if (++busyCount > BUSY_MAX) return;
      else {
        // Behind the others, so that the next call finds it last.
        this.#starting.delete(connection);
        this.#starting.add(connection);
      }
      if (this.#starting.size < this.#startingMax) return;
    }
  }

  #close(connection: Connection): void {
    this.evicted++;
    this.#remove(connection);
    connection.socket.destroy();
  }

  #remove(connection: Connection): void {
    this.#connections.delete(connection.socket);
    this.#starting.delete(connection);
  }

  #scan(nowMs: number): void {
    if (nowMs - this.#scannedMs < SCAN_INTERVAL_MS) return;
    this.#scannedMs = nowMs;
    this.#idle = [...this]
      .filter((each) => !each.update(nowMs) && nowMs - each.activeMs >= EVICTED_IDLE_MS)
      .sort((a, b) => b.activeMs - a.activeMs);
  }
}
