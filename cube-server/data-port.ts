/** The data side of one thread: lookups over every protocol on one port, from the versions that the thread holds. */
import type { ServerLimits } from '../lib/core/limits.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { callerOf } from '../lib/rpc/control-caller.ts';
import { GrpcFront } from '../lib/rpc/grpc-front.ts';
import { HttpFront } from '../lib/rpc/http-front.ts';
import { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../lib/rpc/rpc-routes.ts';
import type { TlsIdentity } from '../lib/rpc/tls-identity.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE, LOOKUP_STREAM_METHOD } from '../proto/lookup.ts';
import { addCmdCall } from './control-baidu.ts';
import { addControlCalls, CONTROL_PROTO } from './control-grpc.ts';
import { type CubeTable, DictService } from './dict-service.ts';
import type { HeldVersions } from './held-versions.ts';
import { addLookupRoutes } from './http-routes.ts';
import { LookupService } from './lookup-service.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

/** The route of what another thread answers. */
export const HANDED_ON = '/*';

const GRPC_PROTO_FILES = ['lookup.proto', 'dict.proto', CONTROL_PROTO];

export interface DataPortOptions {
  readonly held: HeldVersions;
  readonly tls: TlsIdentity | undefined;
  readonly limits: ServerLimits;
  readonly cubeTable: CubeTable | undefined;
  readonly ready: () => boolean;
  readonly logger: Logger;
}

export class DataPort {
  readonly held: HeldVersions;
  readonly routes: RpcRoutes = new RpcRoutes();
  readonly http: HttpFront;
  readonly grpc: GrpcFront;
  readonly server: OnePortServer;

  constructor({ held, tls, limits, cubeTable, ready, logger }: DataPortOptions) {
    const { routes } = this;
    const grpc = new GrpcFront({ limits, logger, protoFiles: GRPC_PROTO_FILES, ready });
    this.grpc = grpc;
    this.held = held;
    this.http = new HttpFront(limits, logger);
    const lookup = new LookupService(held, limits);
    const dict = new DictService(held, limits, cubeTable);
    routes.add(LOOKUP_SERVICE, LOOKUP_METHOD, lookup.handle);
    routes.add(DICT_SERVICE, DICT_METHOD, dict.handle, (text) => dict.answerJson(text));
    grpc.addUnary(LOOKUP_SERVICE, LOOKUP_METHOD, (request) => lookup.answer(request));
    grpc.addBidi(LOOKUP_SERVICE, LOOKUP_STREAM_METHOD, (request) => lookup.answer(request));
    grpc.addUnary(DICT_SERVICE, DICT_METHOD, (request) => dict.answer(request));
    addLookupRoutes(this.http.app, lookup, dict);
    this.server = new OnePortServer({ routes, http: this.http, grpc, tls, limits, logger });
  }

  /** @param answer answers control calls that came over gRPC, and Cube's commands over baidu_std */
  answerControl(answer: (call: HttpCall) => Promise<HttpResult>): void {
    addControlCalls(this.grpc, answer);
    addCmdCall(this.routes, answer);
  }

  /** What this thread does not answer itself goes to the main one. */
  handOn(answer: (call: HttpCall) => Promise<HttpResult>): void {
    this.answerControl(answer);
    this.http.app.all(HANDED_ON, async (request, reply) => {
      const { method, url, headers, body } = request;
      const bytes = body instanceof Uint8Array ? body : undefined;
      const { remoteAddress = '', certificate } = callerOf(request);
      const call = { method, url, headers, body: bytes, remoteAddress, certificate };
      const result = await answer(call);
      return reply.status(result.status).headers(result.headers).send(Buffer.from(result.body));
    });
  }
}
