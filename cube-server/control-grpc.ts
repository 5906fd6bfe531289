/**
 * Control calls over gRPC (proto/control.proto). Each is converted to the HTTP call of the same
 * name, so that access control, logs, responses and errors are the same, and any thread can receive
 * it.
 */
import { join } from 'node:path';
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import { defineGrpcService } from '../lib/rpc/grpc-libraries.ts';
import type { GrpcServer } from '../lib/rpc/grpc-server.ts';
import { readCallError } from './http-routes.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

export const CONTROL_PROTO = 'control.proto';
const SERVICE = 'hypercube.ControlService';
const METHODS = ['load', 'activate', 'unload', 'drain', 'undrain', 'status'];

/** @param answer handles an HTTP call */
export function addGrpcControlCalls(
  grpc: GrpcServer,
  answer: (call: HttpCall) => Promise<HttpResult>,
): void {
  const path = join(import.meta.dirname, '..', 'proto', CONTROL_PROTO);
  const getService = defineGrpcService(path, SERVICE, { longs: Number });
  for (const name of METHODS) {
    grpc.addUnary(SERVICE, name, async (request, call) => {
      const method = getService()[name];
      if (method === undefined) throw new Error(`${path}: no method ${name}`);
      const authorization = call.getMetadata('authorization');
      const apiKey = call.getMetadata('x-api-key');
      const { forwardedFor } = call;
      const isStatus = name === 'status';
      const result = await answer({
        method: isStatus ? 'GET' : 'POST',
        url: `/${SERVICE}/${name}`,
        // Browsers cannot speak gRPC to a plain port, so DNS rebinding needs no check of the host
        // name.
        headers: {
          host: 'localhost',
          'content-type': 'application/json',
          ...(authorization === undefined ? {} : { authorization }),
          ...(apiKey === undefined ? {} : { 'x-api-key': apiKey }),
          ...(forwardedFor === undefined ? {} : { 'x-forwarded-for': forwardedFor }),
        },
        body: isStatus ? undefined : encodeJson(method.requestDeserialize, request),
        remoteAddress: call.peer.replace(/:\d+$/, ''),
        certificate: call.certificate,
      });
      return method.responseSerialize(decodeFields(result));
    });
  }
}

function encodeJson(decode: (bytes: Buffer) => object, request: Uint8Array): Uint8Array {
  try {
    return new TextEncoder().encode(JSON.stringify(decode(Buffer.from(request))));
  } catch (error) {
    throw new CubeError('INVALID_ARGUMENT', `request: ${(error as Error).message}`);
  }
}

/** @throws CubeError the error of the HTTP call */
function decodeFields(result: HttpResult): object {
  if (result.status >= 400) throw readCallError(result);
  return JsonReader.parse(new TextDecoder().decode(result.body), 'answer').value as object;
}
