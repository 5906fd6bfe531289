/**
 * A client of the general model service that uses the protobuf library instead of the product's
 * codec.
 */
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { CubeError } from '../../../lib/core/errors.ts';
import { Channel } from '../../../lib/rpc/channel.ts';
import { DEGRADED_KEY } from '../../../proto/ctr.ts';
import { GENERAL_MODEL_SERVICE } from '../../../proto/general-model.ts';
import { RawGrpcClient } from '../../rpc/support/grpc-client.ts';

const PROTO = join(import.meta.dirname, '..', '..', '..', '..', 'proto', 'general-model.proto');
const definition = loadSync(PROTO, {
  keepCase: true,
  longs: String,
  bytes: Buffer,
  defaults: true,
});
const service = definition[GENERAL_MODEL_SERVICE] as ServiceDefinition;
const { requestSerialize, responseDeserialize } = service['inference'] as MethodDefinition<
  object,
  object
>;

export interface PlainTensor {
  readonly name?: string;
  readonly alias_name?: string;
  readonly elem_type?: number;
  readonly shape?: readonly number[];
  readonly lod?: readonly number[];
  readonly int64_data?: readonly (number | string)[];
  readonly int_data?: readonly number[];
  readonly float_data?: readonly number[];
  readonly float64_data?: readonly number[];
  readonly uint32_data?: readonly number[];
  readonly bool_data?: readonly boolean[];
  readonly data?: readonly string[];
  readonly tensor_content?: Buffer;
}

export interface PlainRequest {
  readonly tensor: readonly PlainTensor[];
  readonly fetch_var_names?: readonly string[];
  readonly profile_server?: boolean;
  readonly log_id?: string;
}

export interface PlainResponse {
  readonly outputs: { tensor: Required<PlainTensor>[]; engine_name: string }[];
  readonly profile_time: (number | string)[];
  readonly log_id: string;
  readonly err_no: number;
  readonly err_msg: string;
}

export type PaddleCall = (request: PlainRequest, method?: string) => Promise<PlainResponse>;

export function encodeRequest(request: PlainRequest): Buffer {
  return requestSerialize(request);
}

function decodeResponse(bytes: Uint8Array): PlainResponse {
  return responseDeserialize(Buffer.from(bytes)) as PlainResponse;
}

/**
 * Calls to the server at `url` over each transport, by name.
 * @param onMetadata called with the HTTP header or gRPC trailer `hypercube-degraded` of each
 *   response; not over baidu_std, which has no metadata
 */
export function connectClients(
  t: TestContext,
  url: string,
  onMetadata: (degraded: string | undefined) => void = () => undefined,
): ReadonlyMap<string, PaddleCall> {
  const { host, port } = new URL(url);
  const channel = new Channel(host);
  const grpc = new RawGrpcClient(Number(port));
  t.after(() => {
    channel.close();
    grpc.close();
  });
  const post = async (path: string, body: string | Buffer, type?: string): Promise<Response> => {
    const response = await fetch(`${url}/${path}`, {
      method: 'POST',
      body: body as string,
      ...(type === undefined ? {} : { headers: { 'content-type': type } }),
    });
    onMetadata(response.headers.get(DEGRADED_KEY) ?? undefined);
    return response;
  };
  const baidu =
    (name: string, options = {}): PaddleCall =>
    async (request, method = 'inference') => {
      const none = new Uint8Array(0);
      const { payload } = await channel.call(
        name,
        method,
        encodeRequest(request),
        none,
        10_000,
        options,
      );
      return decodeResponse(payload);
    };
  return new Map<string, PaddleCall>([
    ['baidu_std', baidu(GENERAL_MODEL_SERVICE)],
    ['baidu_std, short name, gzip', baidu('GeneralModelService', { compressType: 2 })],
    ['baidu_std, snappy and checksum', baidu('GeneralModelService', SNAPPY_CHECKED)],
    [
      'gRPC',
      async (request, method = 'inference') => {
        const path = `/${GENERAL_MODEL_SERVICE}/${method}`;
        const { bytes, code, details, trailers } = await grpc.call(path, encodeRequest(request));
        onMetadata(trailers.get(DEGRADED_KEY)[0]?.toString());
        if (code !== 0) throw new CubeError('INTERNAL', `gRPC ${code}: ${details}`);
        return decodeResponse(bytes);
      },
    ],
    [
      'HTTP, JSON',
      async (request, method = 'inference') => {
        const path = `GeneralModelService/${method}`;
        return (await (await post(path, JSON.stringify(request))).json()) as PlainResponse;
      },
    ],
    [
      'HTTP, protobuf',
      async (request, method = 'inference') => {
        const path = `${GENERAL_MODEL_SERVICE}/${method}`;
        const response = await post(path, encodeRequest(request), 'application/proto');
        return decodeResponse(new Uint8Array(await response.arrayBuffer()));
      },
    ],
  ]);
}

const SNAPPY_CHECKED = { compressType: 1, checksum: 'crc32c' };
