/**
 * One port for every protocol: the first bytes of a connection decide who gets it. "PRPC" → baidu_std; an HTTP/2
 * preface → gRPC, or closed and counted where none is served; a TLS handshake → TLS, where the server has a certificate, and what it
 * says inside decides again; anything else → HTTP/1.1.
 *
 * Stopping: the port closes at once; calls that arrive in the first moment are still answered (they were on their way),
 * later ones are refused with STOPPING so that callers turn to another replica; deferred answers are waited for; then
 * the connections end.
 */
import { createServer, type ListenOptions, type Server, type Socket } from 'node:net';
import { TLSSocket } from 'node:tls';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import { BaiduConnection } from './baidu-connection.ts';
import { BaiduHost } from './baidu-host.ts';
import { DrainWatch } from './drain-watch.ts';
import { formatEndpoint } from './endpoint.ts';
import type { GrpcFront } from './grpc-front.ts';
import type { HttpFront } from './http-front.ts';
import type { RpcRoutes } from './rpc-routes.ts';
import { TlsFront } from './tls-front.ts';
import type { TlsIdentity } from './tls-identity.ts';

const SNIFF_BYTES = 4;
const BAIDU_STD = 'PRPC';
const HTTP2_PREFACE = 'PRI ';
/** The type of a handshake record: no other protocol here begins with it. */
const TLS_HANDSHAKE = 0x16;
/** Calls that were on their way when stopping began are answered. */
const STOP_ANSWER_MS = 100;
/** Then, for as long, they are refused with STOPPING. */
const STOP_REFUSE_MS = 300;
/** What a peer gets to read the rest of its answers. */
const STOP_CLOSE_MS = 2000;

export interface OnePortServerOptions {
  readonly routes: RpcRoutes;
  readonly http: HttpFront;
  readonly grpc?: GrpcFront | undefined;
  /** Absent: TLS is not spoken. */
  readonly tls?: TlsIdentity | undefined;
  readonly limits: ServerLimits;
  readonly logger: Logger;
}

export class OnePortServer {
  readonly host: BaiduHost;
  /** Connections closed because they spoke HTTP/2. */
  http2Refused = 0;
  /** Connections refused over the limit. */
  connectionsRefused = 0;
  readonly #server: Server;
  readonly #http: HttpFront;
  readonly #grpc: GrpcFront | undefined;
  readonly #tls: TlsFront | undefined;
  readonly #limits: ServerLimits;
  readonly #logger: Logger;
  readonly #sockets = new Map<Socket, DrainWatch>();
  #slowReaders = 0;
  readonly #calls = new Set<BaiduConnection>();
  #sweeper: NodeJS.Timeout | undefined;

  constructor(options: OnePortServerOptions) {
    const { routes, http, grpc, tls, limits, logger } = options;
    this.host = new BaiduHost(routes, limits, logger);
    this.#http = http;
    this.#grpc = grpc;
    if (tls !== undefined) {
      const onSecure = (socket: Socket): void => this.#acceptSecure(socket);
      this.#tls = new TlsFront({
        identity: tls,
        limits,
        logger,
        http2: grpc !== undefined,
        onSecure,
      });
    }
    this.#limits = limits;
    this.#logger = logger;
    this.#server = createServer({ noDelay: true }, (socket) => this.#accept(socket));
    this.#server.maxConnections = limits.connections;
    this.#server.on('drop', () => {
      this.connectionsRefused++;
    });
  }

  /** TLS handshakes that came to nothing. */
  get tlsRefused(): number {
    return this.#tls?.refused ?? 0;
  }

  get connections(): number {
    return this.#sockets.size;
  }

  /** Connections closed because their peers took too little of what waited for them. */
  get slowReaders(): number {
    return this.#slowReaders + (this.#grpc?.slowReaders ?? 0);
  }

  /** Of answers over any protocol that their callers have not taken yet. */
  get unsentBytes(): number {
    return this.host.unsentBytes + this.#http.unsentBytes + (this.#grpc?.unsentBytes ?? 0);
  }

  /**
   * @param reusePort other threads of this process listen there too
   * @returns the address it listens on
   * @throws CubeError IO when the port is taken or not allowed
   */
  async listen(host: string, port: number, reusePort = false): Promise<string> {
    await this.#http.start();
    this.#grpc?.start();
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', (error) => reject(listenError(error, host, port)));
      const options: ListenOptions & { reusePort: boolean } = {
        ...{ host, port, backlog: 1024, reusePort },
      };
      this.#server.listen(options, resolve);
    });
    this.#server.on('error', (error) => this.#logger.error({ err: error }, 'accept failed'));
    const { idleMs, slowReaderMs } = this.#limits;
    const sweepMs = Math.max(50, Math.min(5000, idleMs / 4, slowReaderMs / 4));
    this.#sweeper = setInterval(() => this.#sweep(), sweepMs);
    this.#sweeper.unref();
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('not listening on TCP');
    return formatEndpoint(address.address, address.port);
  }

  /** Resolves when every connection has ended; none is left waiting for long. */
  async stop(): Promise<void> {
    const closed = new Promise<void>((resolve) => {
      this.#server.close(() => resolve());
    });
    const othersStopped = Promise.all([this.#http.stop(), this.#grpc?.stop(STOP_ANSWER_MS)]);
    if (this.#calls.size > 0) {
      await systemClock.sleep(STOP_ANSWER_MS);
      this.host.stopping = true;
      await systemClock.sleep(STOP_REFUSE_MS);
      await this.host.drain(this.#limits.drainMs);
      for (const connection of this.#calls) connection.end();
    }
    await othersStopped;
    const timer = setTimeout(() => {
      for (const socket of this.#sockets.keys()) socket.destroy();
    }, STOP_CLOSE_MS);
    await closed;
    clearTimeout(timer);
    clearInterval(this.#sweeper);
  }

  #accept(socket: Socket): void {
    this.#sockets.set(socket, new DrainWatch(socket));
    socket.on('close', () => this.#sockets.delete(socket));
    // A peer that resets its connection is its own business; 'close' follows.
    socket.on('error', () => socket.destroy());
    this.#sniff(socket);
  }

  /** What is inside TLS: its connection is counted already, and ends with it. */
  #acceptSecure(socket: Socket): void {
    socket.on('error', () => socket.destroy());
    this.#sniff(socket);
  }

  /** Waits for the bytes that tell the protocols apart, and no longer than `sniffMs`. */
  #sniff(socket: Socket): void {
    const onTimeout = (): void => {
      socket.destroy();
    };
    let head: Buffer = Buffer.alloc(0);
    const onReadable = (): void => {
      const chunk: Buffer | null = socket.read();
      if (chunk === null) return;
      head = head.length === 0 ? chunk : Buffer.concat([head, chunk]);
      if (head.length < SNIFF_BYTES && isPrefix(head)) return;
      socket.off('readable', onReadable);
      socket.off('timeout', onTimeout);
      socket.setTimeout(0);
      this.#dispatch(socket, head);
    };
    socket.setTimeout(this.#limits.sniffMs);
    socket.on('timeout', onTimeout);
    socket.on('readable', onReadable);
  }

  #dispatch(socket: Socket, head: Buffer): void {
    const magic = head.toString('latin1', 0, SNIFF_BYTES);
    if (head[0] === TLS_HANDSHAKE && this.#tls !== undefined && !(socket instanceof TLSSocket)) {
      socket.unshift(head);
      this.#tls.serve(socket);
    } else if (magic === BAIDU_STD) {
      const connection = new BaiduConnection(socket, this.host);
      this.#calls.add(connection);
      socket.on('close', () => this.#calls.delete(connection));
      // Removing the listener resumes the stream at the next tick; started before, a pause would be undone.
      process.nextTick(() => connection.start(head));
    } else if (magic === HTTP2_PREFACE) {
      if (this.#grpc === undefined) {
        this.http2Refused++;
        socket.destroy();
        return;
      }
      socket.unshift(head);
      this.#grpc.serve(socket);
    } else {
      // Of HTTP a caller may say all, close its half and wait; of the others one that closes has gone.
      socket.allowHalfOpen = true;
      socket.unshift(head);
      this.#http.serve(socket);
    }
  }

  #sweep(): void {
    const nowMs = systemClock.nowMs();
    const crowded = this.unsentBytes > this.#limits.outputTotalBytes / 2;
    for (const connection of this.#calls) connection.sweep(nowMs);
    for (const [socket, watch] of this.#sockets) {
      if (!watch.isSlow(nowMs, this.#limits, crowded)) continue;
      this.#slowReaders++;
      socket.destroy();
    }
    this.#grpc?.sweep(nowMs);
  }
}

/** Whether fewer than four bytes may still become one of the two magics. */
function isPrefix(head: Buffer): boolean {
  const text = head.toString('latin1');
  return BAIDU_STD.startsWith(text) || HTTP2_PREFACE.startsWith(text);
}

function listenError(error: NodeJS.ErrnoException, host: string, port: number): CubeError {
  const where = formatEndpoint(host, port);
  const reason: Record<string, string> = {
    EADDRINUSE: 'it is in use by another process; stop that one or choose another --port',
    EACCES: 'not allowed; choose a port above 1023',
    EADDRNOTAVAIL: 'this machine has no such address; choose another --host',
    ENOTFOUND: 'no such host name; choose another --host',
  };
  const text = reason[error.code ?? ''] ?? error.message;
  return new CubeError('IO', `cannot listen on ${where}: ${text}`, { cause: error });
}
