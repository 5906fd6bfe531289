/**
 * The gRPC side of the one port: a grpc-js server that never listens and is handed its sockets. Methods work on raw
 * bytes; health (grpc.health.v1) follows readiness, reflection (v1, v1alpha) knows the .proto files beside the codecs.
 */
import type { Socket } from 'node:net';
import { join } from 'node:path';
import { type ConnectionInjector, Server, ServerCredentials } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { ReflectionService } from '@grpc/reflection';
import { protoPath as HEALTH_PROTO, HealthImplementation } from 'grpc-health-check';
import { CubeError } from '../core/errors.ts';
import type { ServerLimits } from '../core/limits.ts';
import { systemClock } from '../platform/clock.ts';
import type { Logger } from '../platform/logs.ts';
import { GrpcAdmission } from './grpc-admission.ts';
import { type GrpcHandler, GrpcOutbox, GrpcRoute, grpcStatus } from './grpc-calls.ts';

const PROTO_FOLDER: string = join(import.meta.dirname, '..', '..', 'proto');
const HEALTH_SERVICE = 'grpc.health.v1.Health';
/** How soon those who watch the health of a service learn of a change. */
const HEALTH_MS = 250;
/** When the last call has ended its answer may still be on its way out. */
const LAST_BYTES_MS = 500;
/** What one connection may make the HTTP/2 layer hold, in megabytes, as that layer wants it. */
const SESSION_MEMORY_MB = 64;

export interface GrpcFrontOptions {
  readonly limits: ServerLimits;
  readonly logger: Logger;
  /** Names in proto/, for reflection. */
  readonly protoFiles: readonly string[];
  readonly ready: () => boolean;
  /** Names beside the services' whose health may be asked for: those of models. */
  readonly health?: () => readonly NamedHealth[];
}

export interface NamedHealth {
  readonly name: string;
  readonly serving: boolean;
}

export class GrpcFront {
  /** Calls, errors and times by method. */
  readonly routes: GrpcRoute[] = [];
  /** Connections closed because their peer took too little of its answers. */
  slowReaders = 0;
  readonly #options: GrpcFrontOptions;
  readonly #outbox: GrpcOutbox;
  readonly #admission: GrpcAdmission;
  readonly #server: Server;
  readonly #injector: ConnectionInjector;
  readonly #health = new HealthImplementation({ '': 'NOT_SERVING' });
  readonly #sockets = new Map<string, Socket>();
  #serving = false;
  readonly #named = new Map<string, boolean>();
  #stopping = false;
  #healthTimer: NodeJS.Timeout | undefined;

  constructor(options: GrpcFrontOptions) {
    const { limits } = options;
    this.#options = options;
    this.#outbox = new GrpcOutbox(limits);
    this.#admission = new GrpcAdmission(limits, () => this.#updateHealth());
    this.#server = new Server({
      interceptors: [this.#admission.interceptor],
      'grpc.enable_channelz': 0,
      'grpc.max_receive_message_length': limits.grpcMessageBytes,
      'grpc.max_concurrent_streams': limits.grpcStreams,
      'grpc.max_connection_idle_ms': limits.idleMs,
      'grpc.keepalive_time_ms': limits.grpcPingMs,
      'grpc.keepalive_timeout_ms': limits.grpcPingMs,
      'grpc-node.max_session_memory': SESSION_MEMORY_MB,
    });
    this.#injector = this.#server.createConnectionInjector(ServerCredentials.createInsecure());
  }

  get callsInFlight(): number {
    return this.#admission.callsInFlight;
  }

  /** Of answers that their callers have not taken yet. */
  get unsentBytes(): number {
    return this.#outbox.unsentBytes;
  }

  /** One message in, one out. */
  addUnary(service: string, method: string, handler: GrpcHandler): GrpcRoute {
    const route = this.#route(service, method, handler);
    this.#register(route, route.unary, 'unary');
    return route;
  }

  /** A stream of messages each way: each is answered by one, in order. The first error ends the stream. */
  addBidi(service: string, method: string, handler: GrpcHandler): GrpcRoute {
    const route = this.#route(service, method, handler);
    this.#register(route, route.bidi, 'bidi');
    return route;
  }

  /** Call once all methods are there. */
  start(): void {
    const services = new Set(this.routes.map(({ service }) => service));
    for (const service of services) this.#health.setStatus(service, 'NOT_SERVING');
    this.#health.addToServer(this.#server);
    const files = this.#options.protoFiles.map((name) => join(PROTO_FOLDER, name));
    const definitions = loadSync([...files, HEALTH_PROTO], { keepCase: true });
    const reflection = new ReflectionService(definitions, {
      services: [...services, HEALTH_SERVICE],
    });
    reflection.addToServer(this.#server);
    this.#updateHealth();
    this.#healthTimer = setInterval(() => this.#updateHealth(), HEALTH_MS);
    this.#healthTimer.unref();
  }

  /** @param socket with nothing read from it, or what was read put back */
  serve(socket: Socket): void {
    const peer = `${socket.remoteAddress}:${socket.remotePort}`;
    this.#sockets.set(peer, socket);
    socket.once('close', () => {
      if (this.#sockets.get(peer) === socket) this.#sockets.delete(peer);
    });
    this.#injector.injectConnection(socket);
  }

  /** Called now and then: closes connections whose peers leave their answers untaken. */
  sweep(nowMs: number): void {
    const { slowReaderMs, slowReaderBytes } = this.#options.limits;
    for (const { peer, byteCount, sinceMs } of this.#outbox.answers) {
      if (nowMs - sinceMs < slowReaderMs * (1 + byteCount / slowReaderBytes)) continue;
      const socket = this.#sockets.get(peer);
      if (socket === undefined || socket.destroyed) continue;
      this.slowReaders++;
      socket.destroy();
    }
  }

  /** Tells peers to go elsewhere; calls in flight are answered, streams end with UNAVAILABLE after their current message. */
  async stop(answerMs: number): Promise<void> {
    this.#stopping = true;
    this.#updateHealth();
    clearInterval(this.#healthTimer);
    if (this.#sockets.size > 0) await systemClock.sleep(answerMs);
    this.#outbox.stopping = true;
    const stopping = new CubeError('STOPPING', 'the server is stopping; call another replica');
    for (const stream of this.#outbox.idleStreams) stream.emit('error', grpcStatus(stopping));
    const closed = new Promise<void>((resolve) => this.#server.tryShutdown(() => resolve()));
    await this.#admission.drain(this.#options.limits.drainMs);
    await Promise.race([closed, systemClock.sleep(LAST_BYTES_MS)]);
    // What is left watches the health of a service, or never ends.
    this.#server.forceShutdown();
    for (const socket of this.#sockets.values()) socket.destroySoon();
  }

  #route(service: string, method: string, handler: GrpcHandler): GrpcRoute {
    const { limits, logger } = this.#options;
    const shared = { outbox: this.#outbox, limits, logger };
    const route = new GrpcRoute({ service, method }, handler, shared);
    this.routes.push(route);
    return route;
  }

  #register(route: GrpcRoute, handler: GrpcRoute['unary'] | GrpcRoute['bidi'], type: string): void {
    const same = (bytes: Buffer): Buffer => bytes;
    const path = `/${route.service}/${route.method}`;
    if (!this.#server.register(path, handler as GrpcRoute['unary'], same, same, type)) {
      throw new Error(`${path} is there already`);
    }
  }

  #updateHealth(): void {
    for (const { name, serving } of this.#options.health?.() ?? []) {
      const known = this.#named.get(name);
      const now = serving && !this.#stopping;
      if (known === now) continue;
      this.#named.set(name, now);
      this.#health.setStatus(name, statusOf(now));
    }
    const serving = !this.#stopping && this.#options.ready();
    if (serving === this.#serving) return;
    this.#serving = serving;
    for (const service of new Set(['', ...this.routes.map((route) => route.service)])) {
      this.#health.setStatus(service, statusOf(serving));
    }
  }
}

function statusOf(serving: boolean): 'SERVING' | 'NOT_SERVING' {
  return serving ? 'SERVING' : 'NOT_SERVING';
}
