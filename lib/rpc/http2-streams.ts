/**
 * The streams of the gRPC server's HTTP/2 connections: gRPC calls go to grpc-js, and plain requests
 * (brpc's `h2` protocol, browsers and curl over TLS) to the HTTP handlers. Counts the open streams
 * of each connection.
 */
import type {
  Http2Server,
  Http2ServerRequest,
  Http2ServerResponse,
  IncomingHttpHeaders,
  ServerHttp2Session,
  ServerHttp2Stream,
} from 'node:http2';
import type { Server as GrpcJsServer } from '@grpc/grpc-js';
import { replaceStreamMap } from './stream-table.ts';

/**
 * NGHTTP2_CANCEL of node:http2, which is loaded with the first HTTP/2 connection: it takes a tenth
 * of a server's start.
 */
export const HTTP2_CANCEL = 8;

export type PlainRequestListener = (
  request: Http2ServerRequest,
  response: Http2ServerResponse,
) => void;

type StreamListener = (this: Http2Server, ...args: unknown[]) => void;

const GRPC_TYPE = 'application/grpc';

export class Http2Streams {
  readonly #server: Http2Server;
  readonly #onCall: readonly StreamListener[];
  /** Listeners of streams without a gRPC content type; grpc-js refuses them with status 415. */
  #onPlainRequest: readonly StreamListener[];
  readonly #openStreams = new WeakMap<ServerHttp2Session, number>();

  /** @param grpc with exactly one connection injector, whose HTTP/2 server this takes over */
  constructor(grpc: GrpcJsServer) {
    this.#server = findHttp2Server(grpc);
    this.#onCall = this.#takeListeners();
    this.#onPlainRequest = this.#onCall;
    this.#server.on('stream', this.#dispatch);
    this.#server.on('session', replaceStreamMap);
  }

  handlePlainRequests(listener: PlainRequestListener): void {
    this.#server.off('stream', this.#dispatch);
    // With it, Node adds a listener of streams that creates request and response.
    this.#server.on('request', listener);
    this.#onPlainRequest = this.#takeListeners();
    this.#server.on('stream', this.#dispatch);
  }

  /** Whether the connection has an open stream. */
  isBusy(session: ServerHttp2Session | undefined): boolean {
    return session !== undefined && (this.#openStreams.get(session) ?? 0) > 0;
  }

  /** Whether the connection has had a request. */
  wasUsed(session: ServerHttp2Session | undefined): boolean {
    return session !== undefined && this.#openStreams.has(session);
  }

  /** Calls `listener` with each new connection. */
  onSession(listener: (session: ServerHttp2Session) => void): void {
    this.#server.on('session', listener);
  }

  #takeListeners(): StreamListener[] {
    const listeners = this.#server.listeners('stream') as StreamListener[];
    this.#server.removeAllListeners('stream');
    return listeners;
  }

  readonly #dispatch = (
    stream: ServerHttp2Stream,
    headers: IncomingHttpHeaders,
    ...others: unknown[]
  ): void => {
    const { session } = stream;
    if (session !== undefined) this.#countUntilClosed(stream, session as ServerHttp2Session);
    const isCall = headers['content-type']?.startsWith(GRPC_TYPE) ?? false;
    for (const listener of isCall ? this.#onCall : this.#onPlainRequest) {
      listener.call(this.#server, stream, headers, ...others);
    }
  };

  #countUntilClosed(stream: ServerHttp2Stream, session: ServerHttp2Session): void {
    const open = this.#openStreams;
    open.set(session, (open.get(session) ?? 0) + 1);
    stream.once('close', () => open.set(session, (open.get(session) ?? 1) - 1));
  }
}

/** The HTTP/2 server of the injector, which grpc-js keeps private. */
function findHttp2Server(grpc: GrpcJsServer): Http2Server {
  const { http2Servers } = grpc as unknown as { http2Servers?: Map<Http2Server, unknown> };
  const [server] = http2Servers?.keys() ?? [];
  if (server !== undefined) return server;
  throw new Error('this version of @grpc/grpc-js keeps its HTTP/2 servers elsewhere');
}
