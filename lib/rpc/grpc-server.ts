/**
 * The gRPC server of the shared port: a grpc-js server that never listens and receives its sockets
 * from OnePortServer. It is opened by the first HTTP/2 connection, or some seconds after the start,
 * in small steps: most servers start faster without it. Methods work on raw bytes. Health
 * (grpc.health.v1) reflects readiness; reflection (v1, v1alpha) serves the .proto files of proto/.
 */
import type { ServerHttp2Session } from 'node:http2';
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { TLSSocket } from 'node:tls';
import type { ConnectionInjector, Server } from '@grpc/grpc-js';
import type { HealthImplementation } from 'grpc-health-check';
import type { AccessGate } from '../access/access-gate.ts';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { shortenInput } from '../core/shown-input.ts';
import { systemClock } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import { GrpcAdmission } from './grpc-admission.ts';
import {
  type GrpcAdmit,
  type GrpcHandler,
  GrpcRoute,
  toGrpcStatus,
  UnsentResponses,
} from './grpc-calls.ts';
import { GRPC_LIBRARIES, loadGrpcLibrary } from './grpc-libraries.ts';
import { Http2Streams, type PlainRequestListener } from './http2-streams.ts';

type RespondWithError = (error: { readonly details: string }, ...rest: unknown[]) => void;

/** Bytes of the library's errors. */
const ERROR_BYTES_MAX = 160;
const PROTO_FOLDER: string = join(import.meta.dirname, '..', '..', 'proto');
const HEALTH_SERVICE = 'grpc.health.v1.Health';
const HEALTH_PATH = `/${HEALTH_SERVICE}/`;
/** Maximum delay until watchers of a service's health are notified. */
const HEALTH_INTERVAL_MS = 250;
/** The time for flushing the last responses after all calls have ended. */
const FLUSH_MS = 500;
/** Memory limit of one HTTP/2 session in megabytes, the unit of Node's option. */
const SESSION_MEMORY_MB = 64;
/** The value by which grpc-js means no limit. */
const UNLIMITED_MS = 0x7fff_ffff;
/**
 * From the start to the first step of opening, and from step to step. Most servers are ready before
 * the first one, and those that have no gRPC callers then save its 200 ms of CPU.
 */
const OPEN_AFTER_MS = 10_000;
const OPEN_STEP_MS = 100;

export interface GrpcServerOptions {
  readonly limits: ServerLimits;
  readonly logger: Logger;
  /** File names in proto/, for reflection. */
  readonly protoFiles: readonly string[];
  /** Further definitions in protobufjs' JSON form. */
  readonly definitions?: object | undefined;
  readonly isReady: () => boolean;
  /** The health of further names besides the services: the models. */
  readonly health?: () => readonly ServiceHealth[];
  /** Checks every call; absent: every caller may call every method. */
  readonly gate?: AccessGate | undefined;
}

export interface ServiceHealth {
  readonly name: string;
  readonly serving: boolean;
}

/** grpc-js and what belongs to it. */
interface OpenServer {
  readonly server: Server;
  readonly injector: ConnectionInjector;
  readonly health: HealthImplementation;
  readonly streams: Http2Streams;
}

export class GrpcServer {
  /** Calls, errors and durations per method. */
  readonly routes: GrpcRoute[] = [];
  /** Connections closed because the peer read its responses too slowly. */
  slowReaders = 0;
  readonly #options: GrpcServerOptions;
  readonly #unsent: UnsentResponses;
  readonly #admission: GrpcAdmission;
  readonly #kinds = new Map<GrpcRoute, 'unary' | 'bidi'>();
  #open: OpenServer | undefined;
  #openTimer: NodeJS.Timeout | undefined;
  #onPlainRequest: PlainRequestListener | undefined;
  /** By peer, as the next one. */
  readonly #sockets = new Map<string, Socket>();
  readonly #sessions = new Map<string, ServerHttp2Session>();
  #isServing = false;
  readonly #modelHealth = new Map<string, boolean>();
  #isStopping = false;
  #healthTimer: NodeJS.Timeout | undefined;

  constructor(options: GrpcServerOptions) {
    const { limits } = options;
    this.#options = options;
    this.#unsent = new UnsentResponses(limits);
    const onCall = (path: string): void => {
      if (path.startsWith(HEALTH_PATH)) this.#updateHealth();
    };
    this.#admission = new GrpcAdmission(limits, onCall, options.gate);
  }

  get callsInFlight(): number {
    return this.#admission.callsInFlight;
  }

  /** Bytes of responses that their callers have not received yet. */
  get unsentBytes(): number {
    return this.#unsent.unsentBytes;
  }

  /** Adds a unary method. @param admit called for each call before its message is read */
  addUnary(service: string, method: string, handler: GrpcHandler, admit?: GrpcAdmit): GrpcRoute {
    const route = this.#route(service, method, handler, admit);
    this.#kinds.set(route, 'unary');
    return route;
  }

  /**
   * Adds a bidirectional stream: one response per message, in order. The first error ends the
   * stream.
   */
  addBidi(service: string, method: string, handler: GrpcHandler): GrpcRoute {
    const route = this.#route(service, method, handler);
    this.#kinds.set(route, 'bidi');
    return route;
  }

  /**
   * Call after all methods are added. The packages are loaded while the server is not ready: each
   * step holds the event loop, which would delay lookups. A server that is ready loads them at its
   * first gRPC connection.
   */
  start(): void {
    const { isReady } = this.#options;
    const steps = [
      ...GRPC_LIBRARIES.map((name) => () => void loadGrpcLibrary(name)),
      () => void this.#requireOpen(),
    ];
    const runNext = (): void => {
      if (isReady()) return;
      steps.shift()?.();
      if (steps.length > 0 && this.#open === undefined) {
        this.#openTimer = setTimeout(runNext, OPEN_STEP_MS).unref();
      }
    };
    this.#openTimer = setTimeout(runNext, OPEN_AFTER_MS).unref();
  }

  #requireOpen(): OpenServer {
    this.#open ??= this.#createServer();
    return this.#open;
  }

  #createServer(): OpenServer {
    const { limits } = this.#options;
    const { Server, ServerCredentials } = loadGrpcLibrary('@grpc/grpc-js');
    const { HealthImplementation } = loadGrpcLibrary('grpc-health-check');
    const server = new Server({
      interceptors: [this.#admission.interceptor],
      'grpc.enable_channelz': 0,
      'grpc.max_receive_message_length': limits.grpcMessageBytes,
      'grpc.max_concurrent_streams': limits.grpcStreams,
      'grpc.max_connection_idle_ms': limits.idleMs || UNLIMITED_MS,
      'grpc.keepalive_time_ms': limits.grpcPingMs,
      'grpc.keepalive_timeout_ms': limits.grpcPingMs,
      'grpc-node.max_session_memory': SESSION_MEMORY_MB,
    });
    shortenErrors(server);
    const injector = server.createConnectionInjector(ServerCredentials.createInsecure());
    const streams = new Http2Streams(server);
    streams.onSession((session) => this.#sessions.set(formatPeer(session.socket), session));
    if (this.#onPlainRequest !== undefined) streams.handlePlainRequests(this.#onPlainRequest);
    for (const [route, kind] of this.#kinds) {
      const path = `/${route.service}/${route.method}`;
      const isNew = server.register(path, route[kind] as GrpcRoute['unary'], same, same, kind);
      if (!isNew) throw new Error(`the gRPC method ${path} is registered already`);
    }
    const services = new Set(this.routes.map(({ service }) => service));
    const health = new HealthImplementation({ '': 'NOT_SERVING' });
    for (const service of services) health.setStatus(service, 'NOT_SERVING');
    health.addToServer(server);
    this.#addReflection(server, services);
    this.#open = { server, injector, health, streams };
    this.#updateHealth();
    this.#healthTimer = setInterval(() => this.#updateHealth(), HEALTH_INTERVAL_MS);
    this.#healthTimer.unref();
    return this.#open;
  }

  #addReflection(server: Server, services: ReadonlySet<string>): void {
    const { fromJSON, loadSync } = loadGrpcLibrary('@grpc/proto-loader');
    const { ReflectionService } = loadGrpcLibrary('@grpc/reflection');
    const { protoPath } = loadGrpcLibrary('grpc-health-check');
    const files = this.#options.protoFiles.map((name) => join(PROTO_FOLDER, name));
    const own = loadSync([...files, protoPath], { keepCase: true });
    const further = this.#options.definitions;
    const definitions = {
      ...own,
      ...(further !== undefined &&
        fromJSON(further as Parameters<typeof fromJSON>[0], { keepCase: true })),
    };
    const options = { services: [...services, HEALTH_SERVICE] };
    new ReflectionService(definitions, options).addToServer(server);
  }

  /** Handles the HTTP/2 requests that are not gRPC calls. */
  handlePlainRequests(listener: PlainRequestListener): void {
    this.#onPlainRequest = listener;
  }

  /**
   * @param socket unread, or with the bytes read put back
   * @returns whether the connection has a call or request in flight, and whether it has had one
   */
  serve(socket: Socket): { isBusy(): boolean; wasUsed(): boolean } {
    const { injector, streams } = this.#requireOpen();
    const peer = formatPeer(socket);
    this.#sockets.set(peer, socket);
    socket.once('close', () => {
      if (this.#sockets.get(peer) !== socket) return;
      this.#sockets.delete(peer);
      this.#sessions.delete(peer);
    });
    // Node refuses HTTP/2 where TLS has not negotiated it; brpc's callers negotiate nothing.
    if (socket instanceof TLSSocket) socket.alpnProtocol = 'h2';
    injector.injectConnection(socket);
    return {
      isBusy: () => streams.isBusy(this.#sessions.get(peer)),
      wasUsed: () => streams.wasUsed(this.#sessions.get(peer)),
    };
  }

  /** Closes connections whose peers read too slowly. Call it periodically. */
  sweep(nowMs: number): void {
    const { slowReaderMs, slowReaderBytes } = this.#options.limits;
    this.#unsent.pending.forEach(({ call, byteCount, sinceMs }) => {
      if (nowMs - sinceMs < slowReaderMs * (1 + byteCount / slowReaderBytes)) return;
      const socket = this.#sockets.get(call.getPeer());
      if (socket === undefined || socket.destroyed) return;
      this.slowReaders++;
      socket.destroy();
    });
  }

  /**
   * Reports NOT_SERVING, answers the calls in flight, and ends streams with UNAVAILABLE after their
   * current message.
   * @param plainRequests resolves when no plain request is in flight
   */
  async stop(answerMs: number, plainRequests: Promise<void>): Promise<void> {
    this.#isStopping = true;
    clearTimeout(this.#openTimer);
    this.#updateHealth();
    clearInterval(this.#healthTimer);
    const server = this.#open?.server;
    if (server === undefined) return plainRequests;
    if (this.#sockets.size > 0) await systemClock.sleep(answerMs);
    this.#unsent.isStopping = true;
    const stopping = new CubeError('STOPPING', 'the server is stopping; call another replica');
    for (const stream of this.#unsent.idleStreams) stream.emit('error', toGrpcStatus(stopping));
    const closed = Promise.all([...this.#sessions.values()].map(waitForClose));
    // Its callback comes at once on Node 24, where closing the server closes the sessions too.
    server.tryShutdown(() => undefined);
    await this.#admission.drain(this.#options.limits.drainMs);
    await plainRequests;
    await Promise.race([closed, systemClock.sleep(FLUSH_MS)]);
    // The remaining calls watch the health of a service or never end.
    server.forceShutdown();
    for (const socket of this.#sockets.values()) socket.destroySoon();
  }

  #route(service: string, method: string, handler: GrpcHandler, admit?: GrpcAdmit): GrpcRoute {
    const { limits, logger } = this.#options;
    const shared = { unsent: this.#unsent, limits, logger };
    const route = new GrpcRoute({ service, method }, handler, shared, admit);
    this.routes.push(route);
    if (admit !== undefined) this.#admission.addRoute(`/${service}/${method}`, route);
    return route;
  }

  #updateHealth(): void {
    const health = this.#open?.health;
    if (health === undefined) return;
    for (const { name, serving } of this.#options.health?.() ?? []) {
      const known = this.#modelHealth.get(name);
      const now = serving && !this.#isStopping;
      if (known === now) continue;
      this.#modelHealth.set(name, now);
      health.setStatus(name, toHealthStatus(now));
    }
    const serving = !this.#isStopping && this.#options.isReady();
    if (serving === this.#isServing) return;
    this.#isServing = serving;
    for (const service of new Set(['', ...this.routes.map((route) => route.service)])) {
      health.setStatus(service, toHealthStatus(serving));
    }
  }
}

function waitForClose(session: ServerHttp2Session): Promise<void> | undefined {
  if (session.destroyed) return undefined;
  return new Promise((resolve) => session.once('close', resolve));
}

function same(bytes: Buffer): Buffer {
  return bytes;
}

function formatPeer({ remoteAddress, remotePort }: Socket | TLSSocket): string {
  return `${remoteAddress}:${remotePort}`;
}

/** The library's error for an unknown method repeats the whole path. */
function shortenErrors(server: Server): void {
  const inner = server as unknown as { _respondWithError?: RespondWithError };
  const respond = inner._respondWithError?.bind(server);
  if (respond === undefined) return;
  inner._respondWithError = ({ details, ...error }, ...rest) =>
    respond({ ...error, details: shortenInput(details, ERROR_BYTES_MAX) }, ...rest);
}

function toHealthStatus(serving: boolean): 'SERVING' | 'NOT_SERVING' {
  return serving ? 'SERVING' : 'NOT_SERVING';
}
