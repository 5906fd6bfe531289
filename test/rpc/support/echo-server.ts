/** Shared by network tests: an echo server, a raw connection to it, and `waitUntil`. */
import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { Readable } from 'node:stream';
import { setTimeout as sleep } from 'node:timers/promises';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../../../lib/core/limits.ts';
import { createLogger } from '../../../lib/platform/logs.ts';
import { getControlCaller } from '../../../lib/rpc/control-caller.ts';
import { GrpcServer } from '../../../lib/rpc/grpc-server.ts';
import { HttpServer } from '../../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../../lib/rpc/one-port-server.ts';
import { type RpcHandler, RpcRoutes } from '../../../lib/rpc/rpc-routes.ts';
import type { TlsIdentity } from '../../../lib/rpc/tls-identity.ts';
import { FrameDecoder, readCorrelationId } from '../../../proto/baidu-std.ts';
import { OutputBuffer } from '../../../proto/output-buffer.ts';
import { RequestEncoder } from '../../../proto/request-encoder.ts';

const TIMEOUT_MS = 60_000;

/**
 * Waits for a condition, up to a minute: far longer than anything takes even on a busy machine. An
 * error of the condition counts as false.
 */
export async function waitUntil(condition: () => boolean | Promise<boolean>): Promise<void> {
  const endMs = performance.now() + TIMEOUT_MS;
  const holds = (): Promise<boolean> =>
    Promise.resolve()
      .then(condition)
      .catch(() => false);
  while (!(await holds())) {
    assert.ok(performance.now() < endMs, 'the condition was not met within a minute');
    await sleep(10);
  }
}

/** Returns the request's payload and attachment. */
const echo: RpcHandler = (frame, response) => {
  const { bytes, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = frame;
  response.begin(attachmentEnd - attachmentStart);
  response.output.append(bytes.subarray(payloadStart, payloadEnd));
  response.output.append(bytes.subarray(attachmentStart, attachmentEnd));
};

async function* endless(): AsyncGenerator<string> {
  for (;;) {
    yield 'on and on ';
    await sleep(5);
  }
}

export interface EchoServer {
  readonly server: OnePortServer;
  readonly http: HttpServer;
  readonly routes: RpcRoutes;
  readonly grpc: GrpcServer | undefined;
  readonly address: string;
  readonly port: number;
  /** Answers all pending requests of /held. */
  releaseHeldRequests(): void;
}

export async function startEchoServer(
  limits: Partial<ServerLimits> = {},
  handlers: Record<string, RpcHandler> = {},
  port = 0,
  addGrpc?: (grpc: GrpcServer) => void,
  ready = () => true,
  tls?: TlsIdentity,
  addHttp?: (http: HttpServer) => void,
): Promise<EchoServer> {
  const all = { ...DEFAULT_SERVER_LIMITS, ...limits };
  const logger = createLogger('test', { level: 'silent' });
  const http = new HttpServer(all, logger);
  http.app.get('/hello', async () => 'hello');
  http.app.get('/who', async (request) => ({ certificate: getControlCaller(request).certificate }));
  http.app.post('/echo', async (request) => request.body);
  http.app.post('/lines', { config: { streams: true } }, async (request) => {
    return Buffer.concat(await (request.body as Readable).toArray());
  });
  http.app.post('/endless', { config: { streams: true } }, (_request, reply) => {
    reply.type('text/plain').send(Readable.from(endless()));
  });
  http.app.get('/large', async () => Buffer.alloc(64 << 20));
  http.app.get('/slow', async () => {
    await new Promise((resolve) => setTimeout(resolve, 300));
    return 'slow';
  });
  let heldResponses: (() => void)[] = [];
  http.app.get('/held', async () => {
    await new Promise<void>((resolve) => heldResponses.push(resolve));
    return 'held';
  });
  addHttp?.(http);
  const routes = new RpcRoutes();
  routes.add('test.Echo', 'echo', echo);
  for (const [method, handler] of Object.entries(handlers))
    routes.add('test.Echo', method, handler);
  const protoFiles = ['lookup.proto', 'dict.proto'];
  const grpc = addGrpc && new GrpcServer({ limits: all, logger, protoFiles, isReady: ready });
  if (grpc !== undefined) addGrpc?.(grpc);
  const server = new OnePortServer({ routes, http, grpc, tls, limits: all, logger });
  const address = await server.listen('127.0.0.1', port);
  return {
    server,
    http,
    routes,
    grpc,
    address,
    port: Number(address.slice(address.lastIndexOf(':') + 1)),
    releaseHeldRequests: () => {
      for (const answer of heldResponses) answer();
      heldResponses = [];
    },
  };
}

export interface RawResponse {
  readonly correlation: number;
  readonly errorCode: number;
  readonly errorText: string;
  readonly payload: string;
  readonly attachment: string;
}

/** A raw connection that sends any bytes and collects the received frames. */
export class RawConnection {
  readonly socket: Socket;
  readonly responses: RawResponse[] = [];
  readonly closed: Promise<void>;
  readonly #decoder = new FrameDecoder();
  #waiting: (() => void)[] = [];

  constructor(port: number, socket: Socket = connect({ port, host: '127.0.0.1', noDelay: true })) {
    this.socket = socket;
    this.socket.on('error', () => undefined);
    this.socket.on('data', (chunk) => this.#receive(chunk));
    this.closed = new Promise((resolve) => {
      this.socket.on('close', () => {
        resolve();
        this.#wake();
      });
    });
  }

  send(bytes: Uint8Array): void {
    this.socket.write(bytes);
  }

  /** Resolves when `count` responses are received, or the connection has ended. */
  async receive(count: number): Promise<RawResponse[]> {
    while (this.responses.length < count && !this.socket.destroyed) {
      await new Promise<void>((resolve) => {
        this.#waiting.push(resolve);
      });
    }
    return this.responses;
  }

  #receive(chunk: Uint8Array): void {
    this.#decoder.push(chunk);
    while (this.#decoder.next()) {
      const { frame } = this.#decoder;
      const text = (from: number, to: number): string =>
        Buffer.from(frame.bytes.slice(from, to)).toString('latin1');
      this.responses.push({
        correlation: readCorrelationId(frame),
        errorCode: frame.errorCode,
        errorText: frame.errorText,
        payload: text(frame.payloadStart, frame.payloadEnd),
        attachment: text(frame.attachmentStart, frame.attachmentEnd),
      });
    }
    this.#wake();
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }
}

const NO_BYTES = new Uint8Array(0);

/** Encodes one request frame. */
export function encodeRequestFrame(
  correlation: number,
  payload: Uint8Array,
  options: { service?: string; method?: string; attachment?: Uint8Array; timeoutMs?: number } = {},
): Uint8Array {
  const { service = 'test.Echo', method = 'echo', attachment = NO_BYTES } = options;
  const { timeoutMs = 0 } = options;
  const output = new OutputBuffer(payload.length + attachment.length + 64);
  const call = { correlation, timeoutMs, payload, attachment };
  new RequestEncoder(service, method).write(output, call);
  return output.writtenBytes();
}
