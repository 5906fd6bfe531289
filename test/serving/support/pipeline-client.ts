/** A client of the pipeline service with the protobuf library instead of the product's codec. */
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import { Channel } from '../../../lib/rpc/channel.ts';
import { PIPELINE_SERVICE } from '../../../proto/pipeline.ts';
import { type GrpcResult, RawGrpcClient } from '../../rpc/support/grpc-client.ts';

const PROTO = join(import.meta.dirname, '..', '..', '..', '..', 'proto', 'pipeline.proto');
const OPTIONS = { keepCase: true, longs: String, bytes: Buffer, defaults: true };
const service = loadSync(PROTO, OPTIONS)[PIPELINE_SERVICE] as ServiceDefinition;
const { requestSerialize, responseDeserialize } = service['inference'] as MethodDefinition<
  object,
  object
>;

export interface PipelineTensorMessage {
  readonly name?: string;
  readonly elem_type?: number;
  readonly shape?: readonly number[];
  readonly lod?: readonly number[];
  readonly int64_data?: readonly (number | string)[];
  readonly int_data?: readonly number[];
  readonly float_data?: readonly number[];
  readonly float64_data?: readonly number[];
  readonly uint32_data?: readonly number[];
  readonly bool_data?: readonly boolean[];
  readonly str_data?: readonly string[];
  readonly byte_data?: Buffer;
}

export interface PipelineMessage {
  readonly key?: readonly string[];
  readonly value?: readonly string[];
  readonly tensors?: readonly PipelineTensorMessage[];
  readonly name?: string;
  readonly method?: string;
  readonly logid?: string;
  readonly clientip?: string;
}

export interface PipelineReply {
  readonly err_no: number;
  readonly err_msg: string;
  readonly key: string[];
  readonly value: string[];
  readonly tensors: PipelineTensorMessage[];
}

/** @param name of the service in the path of HTTP */
export type PipelineCall = (request: PipelineMessage, name?: string) => Promise<PipelineReply>;

export function encodePipelineMessage(request: PipelineMessage): Buffer {
  return requestSerialize(request);
}

export function decodePipelineReply(bytes: Uint8Array): PipelineReply {
  return responseDeserialize(Buffer.from(bytes)) as PipelineReply;
}

/** Sends bytes over gRPC. */
export type RawCall = (bytes: Uint8Array) => Promise<GrpcResult>;

/** Calls to the server at host:port over each transport, by name; `raw` sends bytes over gRPC. */
export function connectPipelineClients(
  t: TestContext,
  address: string,
): { readonly calls: ReadonlyMap<string, PipelineCall>; readonly raw: RawCall } {
  const grpc = new RawGrpcClient(Number(address.split(':').at(-1)));
  const channel = new Channel(address);
  t.after(() => {
    grpc.close();
    channel.close();
  });
  const raw: RawCall = (bytes) => grpc.call(`/${PIPELINE_SERVICE}/inference`, bytes, 60_000);
  const calls = new Map<string, PipelineCall>([
    [
      'grpc',
      async (request) => decodePipelineReply((await raw(encodePipelineMessage(request))).bytes),
    ],
    [
      'baidu_std',
      async (request) => {
        const bytes = encodePipelineMessage(request);
        const none = new Uint8Array(0);
        const { payload } = await channel.call(PIPELINE_SERVICE, 'inference', bytes, none, 60_000);
        return decodePipelineReply(payload);
      },
    ],
    [
      'http',
      async (request, name = 'toy') => {
        const tensors = request.tensors?.map((tensor) => ({
          ...tensor,
          ...(tensor.byte_data && { byte_data: tensor.byte_data.toString('base64') }),
        }));
        const response = await fetch(`http://${address}/${name}/prediction`, {
          method: 'POST',
          headers: { 'content-type': 'application/json' },
          body: JSON.stringify({ ...request, ...(tensors && { tensors }) }),
        });
        return (await response.json()) as PipelineReply;
      },
    ],
  ]);
  return { calls, raw };
}
