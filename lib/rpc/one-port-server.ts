/**
 * One port for every protocol, or several with the same services. The first bytes of a connection
 * select its protocol: "PRPC" is baidu_std; an HTTP/2 preface is gRPC; a TLS handshake is TLS when
 * the server has a certificate, and the first decrypted bytes select again; everything else is
 * HTTP/1.1. A connection of a protocol that the server does not have is closed.
 *
 * Connections stay open while their peers live, which TCP's keep-alive probes check. At the limit
 * on connections the longest idle one makes room for the next.
 *
 * Stopping: the port closes at once. Calls that arrive in the first moments are still answered,
 * because they were sent before. Later calls are rejected with STOPPING, so that callers try
 * another replica. Deferred responses are waited for; then the connections end.
 */
import { createServer, type Server, type Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import type { AccessGate } from '../access/access-gate.ts';
import type { ServerLimits } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import { BaiduConnection } from './baidu-connection.ts';
import { BaiduServerState } from './baidu-server-state.ts';
import { type Connection, ConnectionTable } from './connection-table.ts';
import type { GrpcServer } from './grpc-server.ts';
import type { HttpServer } from './http-server.ts';
import { listenOn } from './listen.ts';
import { RpcRoutes } from './rpc-routes.ts';
import { pushTo, readIntoSharedBuffer } from './shared-read-buffer.ts';
import type { TlsIdentity } from './tls-identity.ts';
import { TlsServer } from './tls-server.ts';

const SNIFF_BYTES = 4;
const BAIDU_STD = 'PRPC';
const HTTP2_PREFACE = 'PRI ';
/** The type of a TLS handshake record; no other protocol here begins with it. */
const TLS_HANDSHAKE = 0x16;
/** How long calls are still answered after stopping began. */
const STOP_ANSWER_MS = 100;
/** How long calls are then rejected with STOPPING. */
const STOP_REFUSE_MS = 300;
/** Idle time after which TCP asks whether the peer lives: once a second, ten times. */
const KEEP_ALIVE_MS = 60_000;
/** The time for peers to read the rest of their responses. */
const STOP_CLOSE_MS = 2000;

export interface OnePortServerOptions {
  /** Absent: the server has no baidu_std. */
  readonly routes?: RpcRoutes | undefined;
  readonly http: HttpServer;
  /** Absent: the server has no gRPC. */
  readonly grpc?: GrpcServer | undefined;
  /** Absent: the server has no TLS. */
  readonly tls?: TlsIdentity | undefined;
  /** Close connections without TLS. Default false. */
  readonly tlsOnly?: boolean | undefined;
  /** Checks addresses and calls of baidu_std; HTTP and gRPC have their own reference to it. */
  readonly gate?: AccessGate | undefined;
  readonly limits: ServerLimits;
  readonly logger: Logger;
}

export class OnePortServer {
  readonly baidu: BaiduServerState;
  /** Connections closed because they used HTTP/2 and the server has no gRPC. */
  http2Refused = 0;
  /** Connections rejected above the limit, where no other connection was idle. */
  connectionsRefused = 0;
  /** Connections closed because they did not use TLS. */
  plainRefused = 0;
  /** Connections rejected because of the address rules. */
  addressesRefused = 0;
  readonly #hasBaidu: boolean;
  readonly #tlsOnly: boolean;
  /** One for each port. */
  readonly #servers: Server[] = [];
  readonly #adopted: Set<Socket> = new Set();
  readonly #http: HttpServer;
  readonly #grpc: GrpcServer | undefined;
  readonly #tls: TlsServer | undefined;
  readonly #gate: AccessGate | undefined;
  readonly #limits: ServerLimits;
  readonly #logger: Logger;
  readonly #connections: ConnectionTable;
  #slowReaders = 0;
  readonly #baiduConnections = new Set<BaiduConnection>();
  #sweeper: NodeJS.Timeout | undefined;

  constructor(options: OnePortServerOptions) {
    const { routes, http, grpc, tls, tlsOnly = false, gate, limits, logger } = options;
    this.baidu = new BaiduServerState(routes ?? new RpcRoutes(), limits, logger, gate);
    this.#gate = gate;
    this.#tlsOnly = tlsOnly;
    this.#hasBaidu = routes !== undefined;
    this.#http = http;
    this.#grpc = grpc;
    if (tls !== undefined) {
      this.#tls = new TlsServer({
        identity: tls,
        limits,
        logger,
        http2: grpc !== undefined,
      });
    }
    this.#limits = limits;
    this.#logger = logger;
    this.#connections = new ConnectionTable(limits.connections);
    grpc?.handlePlainRequests((request, response) => http.serveHttp2(request, response));
  }

  /** Failed TLS handshakes. */
  get tlsRefused(): number {
    return this.#tls?.failedHandshakes ?? 0;
  }

  get connections(): number {
    return this.#connections.size;
  }

  /** Idle connections closed to make room for others. */
  get connectionsEvicted(): number {
    return this.#connections.evicted;
  }

  /** Connections closed because their peers read too slowly. */
  get slowReaders(): number {
    return this.#slowReaders + (this.#grpc?.slowReaders ?? 0);
  }

  /** Bytes of responses over all protocols that their callers have not received yet. */
  get unsentBytes(): number {
    return this.baidu.unsentBytes + this.#http.unsentBytes + (this.#grpc?.unsentBytes ?? 0);
  }

  /**
   * Starts listening, and returns the address. Call it again for each further port.
   * @param reusePort other threads of this process listen on the same port
   * @throws CubeError IO when the port is taken or not allowed
   */
  async listen(host: string, port: number, reusePort = false): Promise<string> {
    if (this.#servers.length === 0) await this.open();
    const server = createServer(
      { noDelay: true, keepAlive: true, keepAliveInitialDelay: KEEP_ALIVE_MS },
      (socket) => this.#accept(socket),
    );
    const address = await listenOn(server, host, port, reusePort);
    server.on('error', (error) => this.#logger.error({ err: error }, 'accept failed'));
    this.#servers.push(server);
    return address;
  }

  /** Prepares for connections. Only a server that listens nowhere needs the call. */
  async open(): Promise<void> {
    await this.#http.start();
    this.#grpc?.start();
    if (this.#sweeper !== undefined) return;
    const { idleMs, slowReaderMs } = this.#limits;
    const shortestMs = Math.min(idleMs || slowReaderMs, slowReaderMs);
    const sweepMs = Math.max(50, Math.min(5000, shortestMs / 4));
    this.#sweeper = setInterval(() => this.#sweep(), sweepMs);
    this.#sweeper.unref();
  }

  /** Accepts a connection of another process's port. */
  adopt(socket: Socket): void {
    socket.setNoDelay(true);
    socket.setKeepAlive(true, KEEP_ALIVE_MS);
    this.#adopted.add(socket);
    socket.once('close', () => this.#adopted.delete(socket));
    this.#accept(socket);
  }

  /** Resolves when every connection has ended, at the latest when the time limits have passed. */
  async stop(): Promise<void> {
    const closed = Promise.all([
      ...this.#servers.map((server) => new Promise<void>((done) => server.close(() => done()))),
      ...[...this.#adopted].map((socket) => new Promise((done) => socket.once('close', done))),
    ]);
    const httpStopped = this.#http.stop();
    const grpcStopped = this.#grpc?.stop(STOP_ANSWER_MS, httpStopped);
    if (this.#baiduConnections.size > 0) {
      await systemClock.sleep(STOP_ANSWER_MS);
      this.baidu.isStopping = true;
      await systemClock.sleep(STOP_REFUSE_MS);
      await this.baidu.drain(this.#limits.drainMs);
      for (const connection of this.#baiduConnections) connection.end();
    }
    await Promise.all([httpStopped, grpcStopped]);
    const timer = setTimeout(() => {
      for (const { socket } of this.#connections) socket.destroy();
    }, STOP_CLOSE_MS);
    await closed;
    clearTimeout(timer);
    clearInterval(this.#sweeper);
  }

  /**
   * Closes the baidu_std connections on which a call was refused with STOPPING. brpc's clients send
   * nothing more on such a connection, but a new one shows them that the server answers again.
   */
  closeRefusedConnections(): void {
    for (const connection of this.#baiduConnections) {
      if (connection.hasRefusedStopping) connection.end();
    }
  }

  #accept(socket: Socket): void {
    if (this.#gate?.refusesPeer(socket.remoteAddress)) {
      this.addressesRefused++;
      socket.destroy();
      return;
    }
    const connection = this.#connections.add(socket, systemClock.nowMs());
    if (connection === undefined) {
      this.connectionsRefused++;
      socket.destroy();
      return;
    }
    // A connection reset by its peer needs no handling; 'close' follows.
    socket.on('error', () => socket.destroy());
    this.#sniff(socket, connection);
  }

  /** Accepts the decrypted stream of a TLS connection, which ends with it. */
  readonly #acceptSecure = (socket: Socket, connection: Connection): void => {
    socket.on('error', () => socket.destroy());
    this.#sniff(socket, connection);
  };

  /** Waits for the bytes that identify the protocol, at most `sniffMs`. */
  #sniff(socket: Socket, connection: Connection): void {
    const onTimeout = (): void => {
      socket.destroy();
    };
    let head: Buffer = Buffer.alloc(0);
    const onReadable = (): void => {
      const chunk: Buffer | null = socket.read();
      if (chunk !== null) take(chunk);
    };
    const onRead = (count: number, buffer: Buffer): boolean => {
      take(buffer.subarray(0, count));
      return true;
    };
    const isShared = this.#http.readsDirectly && readIntoSharedBuffer(socket, onRead);
    const take = (chunk: Buffer): void => {
      const bytes = head.length === 0 ? chunk : Buffer.concat([head, chunk]);
      if (bytes.length < SNIFF_BYTES && isProtocolPrefix(bytes)) {
        head = Buffer.from(bytes);
        return;
      }
      socket.off('readable', onReadable);
      socket.off('timeout', onTimeout);
      socket.setTimeout(0);
      if (isShared) {
        readIntoSharedBuffer(socket, pushTo(socket));
        this.#dispatch(socket, bytes, connection);
      } else {
        // Removing the listener may resume the stream at the next tick. Dispatched earlier, a pause
        // would be undone by it.
        process.nextTick(() => this.#dispatch(socket, bytes, connection));
      }
    };
    socket.setTimeout(this.#limits.sniffMs);
    socket.on('timeout', onTimeout);
    if (!isShared) socket.on('readable', onReadable);
  }

  /** @param head valid until it returns */
  #dispatch(socket: Socket, head: Buffer, connection: Connection): void {
    const magic = head.toString('latin1', 0, SNIFF_BYTES);
    if (head[0] === TLS_HANDSHAKE && this.#tls !== undefined && !(socket instanceof TLSSocket)) {
      socket.unshift(Buffer.from(head));
      this.#tls.serve(socket, (secure) => this.#acceptSecure(secure, connection));
      return;
    }
    // Node counts what was written into a TLS stream, without handshakes.
    connection.wasAnswered = () => socket.bytesWritten > 0;
    if (this.#tlsOnly && !(socket instanceof TLSSocket)) {
      this.plainRefused++;
      socket.destroy();
    } else if (magic === BAIDU_STD) {
      if (!this.#hasBaidu) {
        socket.destroy();
        return;
      }
      const calls = new BaiduConnection(socket, this.baidu);
      connection.isBusy = () => calls.isBusy;
      this.#baiduConnections.add(calls);
      socket.on('close', () => this.#baiduConnections.delete(calls));
      calls.start(Buffer.from(head));
    } else if (magic === HTTP2_PREFACE) {
      if (this.#grpc === undefined) {
        this.http2Refused++;
        socket.destroy();
        return;
      }
      socket.unshift(Buffer.from(head));
      const { isBusy, wasUsed } = this.#grpc.serve(socket);
      connection.isBusy = isBusy;
      // HTTP/2 begins with frames of the server.
      connection.wasAnswered = wasUsed;
    } else {
      // An HTTP caller may half-close its connection and wait for the response. With the other
      // protocols, closing ends the call.
      socket.allowHalfOpen = true;
      connection.isBusy = this.#http.serve(socket, head);
    }
  }

  #sweep(): void {
    const nowMs = systemClock.nowMs();
    const crowded = this.unsentBytes > this.#limits.outputTotalBytes / 2;
    for (const connection of this.#baiduConnections) connection.sweep(nowMs);
    for (const connection of this.#connections) {
      connection.update(nowMs);
      if (!connection.isSlowReader(nowMs, this.#limits, crowded)) continue;
      this.#slowReaders++;
      connection.socket.destroy();
    }
    this.#grpc?.sweep(nowMs);
  }
}

/** Whether fewer than four bytes are a prefix of "PRPC" or of the HTTP/2 preface. */
function isProtocolPrefix(head: Buffer): boolean {
  const text = head.toString('latin1');
  return BAIDU_STD.startsWith(text) || HTTP2_PREFACE.startsWith(text);
}
