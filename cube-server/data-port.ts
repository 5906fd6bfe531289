/**
 * The data port of one thread: lookups over every protocol, answered from the thread's loaded
 * versions.
 */
import type { AccessGate } from '../lib/access/access-gate.ts';
import type { ServerLimits } from '../lib/core/limits.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { getControlCaller } from '../lib/rpc/control-caller.ts';
import { GrpcServer } from '../lib/rpc/grpc-server.ts';
import { HttpServer } from '../lib/rpc/http-server.ts';
import { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import type { TlsIdentity } from '../lib/rpc/tls-identity.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE, LOOKUP_STREAM_METHOD } from '../proto/lookup.ts';
import { addGrpcControlCalls, CONTROL_PROTO } from './control-grpc.ts';
import { addCubeCommandCall } from './cube-commands-baidu.ts';
import { type CubeTable, DictService } from './dict-service.ts';
import { addLookupRoutes } from './http-routes.ts';
import type { LoadedVersions } from './loaded-versions.ts';
import { LookupService } from './lookup-service.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

/** Route of requests that another thread answers. */
export const FORWARDED_ROUTE = '/*';

const GRPC_PROTO_FILES = ['lookup.proto', 'dict.proto', CONTROL_PROTO];

export interface DataPortOptions {
  readonly versions: LoadedVersions;
  readonly tls: TlsIdentity | undefined;
  readonly gate: AccessGate | undefined;
  readonly limits: ServerLimits;
  readonly cubeTable: CubeTable | undefined;
  readonly ready: () => boolean;
  readonly logger: Logger;
}

export class DataPort {
  readonly versions: LoadedVersions;
  readonly routes: RpcRoutes = new RpcRoutes();
  readonly http: HttpServer;
  readonly grpc: GrpcServer;
  readonly server: OnePortServer;

  constructor({ versions, tls, gate, limits, cubeTable, ready, logger }: DataPortOptions) {
    const { routes } = this;
    const protoFiles = GRPC_PROTO_FILES;
    const grpc = new GrpcServer({ limits, logger, protoFiles, isReady: ready, gate });
    this.grpc = grpc;
    this.versions = versions;
    this.http = new HttpServer(limits, logger, '', { gate });
    const lookup = new LookupService(versions, limits);
    const dict = new DictService(versions, limits, cubeTable);
    routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, lookup.handleFrame);
    routes.add(DICT_SERVICE, DICT_METHOD, dict.handleFrame, (body) => dict.handleJson(body));
    grpc.addUnary(LOOKUP_SERVICE, LOOKUP_METHOD, (request) => lookup.handleMessage(request));
    grpc.addBidi(LOOKUP_SERVICE, LOOKUP_STREAM_METHOD, (request) => lookup.handleMessage(request));
    grpc.addUnary(DICT_SERVICE, DICT_METHOD, (request) => dict.handleProtobuf(request));
    addLookupRoutes(this.http.app, lookup, dict, limits.frameBytes);
    this.server = new OnePortServer({ routes, http: this.http, grpc, tls, gate, limits, logger });
    versions.onDrainEnd = () => this.server.closeRefusedConnections();
  }

  /** @param answer handles control calls over gRPC and Cube's commands over baidu_std */
  addControlCalls(answer: (call: HttpCall) => Promise<HttpResult>): void {
    addGrpcControlCalls(this.grpc, answer);
    addCubeCommandCall(this.routes, answer);
  }

  /** Forwards all other requests to the main thread. */
  forwardOtherRoutes(answer: (call: HttpCall) => Promise<HttpResult>): void {
    this.addControlCalls(answer);
    this.http.app.all(FORWARDED_ROUTE, async (request, reply) => {
      const { method, url, headers, body } = request;
      const bytes = body instanceof Uint8Array ? body : undefined;
      const { remoteAddress = '', certificate } = getControlCaller(request);
      const call = { method, url, headers, body: bytes, remoteAddress, certificate };
      const result = await answer(call);
      return reply.status(result.status).headers(result.headers).send(Buffer.from(result.body));
    });
  }
}
