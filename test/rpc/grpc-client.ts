/** gRPC from the outside: raw bytes to any method, and clients of health and reflection made from their own .proto. */
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

const same = (bytes: Buffer): Buffer => bytes;

export interface GrpcAnswer {
  /** Empty after an error. */
  readonly bytes: Buffer;
  /** 0: no error. */
  readonly code: number;
  readonly details: string;
  readonly ownCode: string;
}

export class RawGrpc {
  readonly client: Client;

  constructor(port: number, channel: ChannelCredentials = credentials.createInsecure()) {
    this.client = new Client(`127.0.0.1:${port}`, channel, {
      'grpc.use_local_subchannel_pool': 1,
      'grpc.max_receive_message_length': -1,
      'grpc.max_send_message_length': -1,
    });
  }

  call(path: string, request: Uint8Array, timeoutMs = 10_000): Promise<GrpcAnswer> {
    const deadline = Date.now() + timeoutMs;
    return new Promise((resolve) => {
      this.client.makeUnaryRequest(
        path,
        same,
        same,
        Buffer.from(request),
        { deadline },
        (error: ServiceError | null, answer?: Buffer) => resolve(outcome(error, answer)),
      );
    });
  }

  stream(path: string): ClientDuplexStream<Buffer, Buffer> {
    const stream = this.client.makeBidiStreamRequest(path, same, same);
    stream.on('error', () => undefined);
    return stream;
  }

  close(): void {
    this.client.close();
  }
}

function outcome(error: ServiceError | null, answer?: Buffer): GrpcAnswer {
  if (error === null) return { bytes: answer!, code: 0, details: '', ownCode: '' };
  return {
    bytes: Buffer.alloc(0),
    code: error.code,
    details: error.details,
    ownCode: String((error.metadata as Metadata | undefined)?.get('hypercube-code')[0] ?? ''),
  };
}

interface GenericClient {
  close(): void;
  [method: string]: unknown;
}

type GenericConstructor = new (address: string, creds: unknown) => GenericClient;

function serviceClient(port: number, protoFile: string, name: string): GenericClient {
  let definition = loadPackageDefinition(loadSync(protoFile, { enums: String })) as never;
  for (const part of name.split('.')) definition = definition[part];
  const Constructor = definition as GenericConstructor;
  return new Constructor(`127.0.0.1:${port}`, credentials.createInsecure());
}

/** Status of a service, or the gRPC code of the refusal. */
export async function healthOf(port: number, service: string): Promise<string | number> {
  const client = serviceClient(port, HEALTH_PROTO, 'grpc.health.v1.Health');
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

interface ReflectionAnswer {
  readonly listServicesResponse?: { service: { name: string }[] };
  readonly fileDescriptorResponse?: { fileDescriptorProto: Buffer[] };
}

/** One question to the reflection service of a version ("v1", "v1alpha"). */
export async function reflect(
  port: number,
  version: string,
  question: object,
): Promise<ReflectionAnswer> {
  const file = new URL(
    `../../../node_modules/@grpc/reflection/build/proto/grpc/reflection/${version}/reflection.proto`,
    import.meta.url,
  ).pathname;
  const client = serviceClient(port, file, `grpc.reflection.${version}.ServerReflection`);
  const open = client['ServerReflectionInfo'] as () => ClientDuplexStream<object, ReflectionAnswer>;
  const stream = open.call(client);
  const answer = await new Promise<ReflectionAnswer>((resolve, reject) => {
    stream.once('data', resolve);
    stream.once('error', reject);
    stream.write(question);
  });
  stream.end();
  client.close();
  return answer;
}
