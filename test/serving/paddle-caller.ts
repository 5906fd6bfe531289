/** A caller of the general model service that knows nothing of our codec: protobuf's own messages over each way in. */
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { CubeError } from '../../lib/core/errors.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { RawGrpc } from '../rpc/grpc-client.ts';

const PROTO = join(import.meta.dirname, '..', '..', '..', 'proto', 'general-model.proto');
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

export type Ask = (request: PlainRequest, method?: string) => Promise<PlainResponse>;

export function encodeRequest(request: PlainRequest): Buffer {
  return requestSerialize(request);
}

function decodeResponse(bytes: Uint8Array): PlainResponse {
  return responseDeserialize(Buffer.from(bytes)) as PlainResponse;
}

/** Ways in to a server at `url`, by name. */
export function waysIn(t: TestContext, url: string): ReadonlyMap<string, Ask> {
  const { host, port } = new URL(url);
  const channel = new Channel(host);
  const grpc = new RawGrpc(Number(port));
  t.after(() => {
    channel.close();
    grpc.close();
  });
  const post = (path: string, body: string | Buffer, type?: string): Promise<Response> =>
    fetch(`${url}/${path}`, {
      method: 'POST',
      body: body as string,
      ...(type === undefined ? {} : { headers: { 'content-type': type } }),
    });
  const baidu =
    (name: string, options = {}): Ask =>
    async (request, method = 'inference') => {
      const none = new Uint8Array(0);
      const { payload } = await channel.call(
        ...[name, method, encodeRequest(request), none, 10_000, options],
      );
      return decodeResponse(payload);
    };
  return new Map<string, Ask>([
    ['baidu_std', baidu(GENERAL_MODEL_SERVICE)],
    ['baidu_std, short name, gzip', baidu('GeneralModelService', { compressType: 2 })],
    ['baidu_std, snappy and checksum', baidu('GeneralModelService', SNAPPY_CHECKED)],
    [
      'gRPC',
      async (request, method = 'inference') => {
        const path = `/${GENERAL_MODEL_SERVICE}/${method}`;
        const { bytes, code, details } = await grpc.call(path, encodeRequest(request));
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

const SNAPPY_CHECKED = { compressType: 1, checksum: true };
