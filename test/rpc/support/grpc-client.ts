/**
 * gRPC from the outside: raw bytes to any method, and clients of health and reflection made from
 * their own .proto.
 */
import {
  type ChannelCredentials,
  Client,
  type ClientDuplexStream,
  credentials,
  loadPackageDefinition,
  type Metadata,
  type ServiceError,
} from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { protoPath as HEALTH_PROTO } from 'grpc-health-check';

const identity = (bytes: Buffer): Buffer => bytes;

export interface GrpcResult {
  /** Empty after an error. */
  readonly bytes: Buffer;
  /** 0: no error. */
  readonly code: number;
  readonly details: string;
  readonly cubeCode: string;
  /** JSON of the error's details; empty: none. */
  readonly cubeDetails: string;
  /** The trailers of the response. */
  readonly trailers: Metadata;
}

export class RawGrpcClient {
  readonly client: Client;

  constructor(port: number, channel: ChannelCredentials = credentials.createInsecure()) {
    this.client = new Client(`127.0.0.1:${port}`, channel, {
      'grpc.use_local_subchannel_pool': 1,
      'grpc.max_receive_message_length': -1,
      'grpc.max_send_message_length': -1,
    });
  }

  call(path: string, request: Uint8Array, timeoutMs = 10_000): Promise<GrpcResult> {
    const deadline = Date.now() + timeoutMs;
    return new Promise((resolve) => {
      let result: Omit<GrpcResult, 'trailers'>;
      const call = this.client.makeUnaryRequest(
        path,
        identity,
        identity,
        Buffer.from(request),
        { deadline },
        (error: ServiceError | null, answer?: Buffer) => {
          result = toGrpcResult(error, answer);
        },
      );
      call.on('status', ({ metadata }) => resolve({ ...result, trailers: metadata }));
    });
  }

  stream(path: string): ClientDuplexStream<Buffer, Buffer> {
    const stream = this.client.makeBidiStreamRequest(path, identity, identity);
    stream.on('error', () => undefined);
    return stream;
  }

  close(): void {
    this.client.close();
  }
}

function toGrpcResult(error: ServiceError | null, answer?: Buffer): Omit<GrpcResult, 'trailers'> {
  if (error === null) {
    return { bytes: answer!, code: 0, details: '', cubeCode: '', cubeDetails: '' };
  }
  const metadata = error.metadata as Metadata | undefined;
  return {
    bytes: Buffer.alloc(0),
    code: error.code,
    details: error.details,
    cubeCode: String(metadata?.get('hypercube-code')[0] ?? ''),
    cubeDetails: String(metadata?.get('hypercube-details')[0] ?? ''),
  };
}

interface GenericClient {
  close(): void;
  [method: string]: unknown;
}

type GenericConstructor = new (address: string, creds: unknown) => GenericClient;

function createServiceClient(port: number, protoFile: string, name: string): GenericClient {
  let definition = loadPackageDefinition(loadSync(protoFile, { enums: String })) as never;
  for (const part of name.split('.')) definition = definition[part];
  const Constructor = definition as GenericConstructor;
  return new Constructor(`127.0.0.1:${port}`, credentials.createInsecure());
}

/** Returns the health status of a service, or the gRPC code of the error. */
export async function checkGrpcHealth(port: number, service: string): Promise<string | number> {
  const client = createServiceClient(port, HEALTH_PROTO, 'grpc.health.v1.Health');
  const check = client['check'] as (
    request: { service: string },
    done: (error: ServiceError | null, answer: { status: string }) => void,
  ) => void;
  const status = await new Promise<string | number>((resolve) => {
    check.call(client, { service }, (error, answer) => resolve(error?.code ?? answer.status));
  });
  client.close();
  return status;
}

const REFLECTION_PROTOS = '../../../../node_modules/@grpc/reflection/build/proto/grpc/reflection';

interface ReflectionResponse {
  readonly listServicesResponse?: { service: { name: string }[] };
  readonly fileDescriptorResponse?: { fileDescriptorProto: Buffer[] };
}

/** Sends one request to the reflection service of a version ("v1", "v1alpha"). */
export async function callReflection(
  port: number,
  version: string,
  request: object,
): Promise<ReflectionResponse> {
  const file = new URL(`${REFLECTION_PROTOS}/${version}/reflection.proto`, import.meta.url)
    .pathname;
  const client = createServiceClient(port, file, `grpc.reflection.${version}.ServerReflection`);
  const open = client['ServerReflectionInfo'] as () => ClientDuplexStream<
    object,
    ReflectionResponse
  >;
  const stream = open.call(client);
  const answer = await new Promise<ReflectionResponse>((resolve, reject) => {
    stream.once('data', resolve);
    stream.once('error', reject);
    stream.write(request);
  });
  stream.end();
  client.close();
  return answer;
}
