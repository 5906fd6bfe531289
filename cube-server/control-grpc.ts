/**
 * The control calls over gRPC (proto/control.proto): each is turned into the call over HTTP of the same name, so that
 * access, logs, answers and errors are the same, and so that any thread can take it.
 */
import { join } from 'node:path';
import { loadSync, type ServiceDefinition } from '@grpc/proto-loader';
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import type { GrpcFront } from '../lib/rpc/grpc-front.ts';
import { callFailure } from './http-routes.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

export const CONTROL_PROTO = 'control.proto';
const SERVICE = 'hypercube.ControlService';
const METHODS = ['load', 'activate', 'unload', 'drain', 'undrain', 'status'];

/** @param answer answers a call over HTTP */
export function addControlCalls(
  grpc: GrpcFront,
  answer: (call: HttpCall) => Promise<HttpResult>,
): void {
  const path = join(import.meta.dirname, '..', 'proto', CONTROL_PROTO);
  const service = loadSync(path, { longs: Number })[SERVICE] as ServiceDefinition;
  for (const name of METHODS) {
    const method = service[name];
    if (method === undefined) throw new Error(`${path}: no method ${name}`);
    grpc.addUnary(SERVICE, name, async (request, call) => {
      const authorization = call.metadata('authorization');
      const isStatus = name === 'status';
      const result = await answer({
        method: isStatus ? 'GET' : 'POST',
        url: `/${SERVICE}/${name}`,
        // No page in a browser can speak gRPC to a plain port: there is no name to hold against rebinding.
        headers: {
          ...{ host: 'localhost', 'content-type': 'application/json' },
          ...(authorization === undefined ? {} : { authorization }),
        },
        body: isStatus ? undefined : jsonOf(method.requestDeserialize, request),
        remoteAddress: call.peer.replace(/:\d+$/, ''),
        certificate: call.certificate,
      });
      return method.responseSerialize(fieldsOf(result));
    });
  }
}

function jsonOf(decode: (bytes: Buffer) => object, request: Uint8Array): Uint8Array {
  try {
    return new TextEncoder().encode(JSON.stringify(decode(Buffer.from(request))));
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', `request: ${(error as Error).message}`);
  }
}

/** @throws CubeError what the call over HTTP failed with */
function fieldsOf(result: HttpResult): object {
  if (result.status >= 400) throw callFailure(result);
  return JsonReader.parse(new TextDecoder().decode(result.body), 'answer').value as object;
}
