/** Calls of one gRPC server, as the connections of a replica. */
import { createSecureContext } from 'node:tls';
import {
  type ChannelCredentials,
  Client,
  type ClientUnaryCall,
  compressionAlgorithms,
  credentials,
  Metadata,
} from '@grpc/grpc-js';
import { wallClockMs } from '../platform/clock.ts';
import type { CallOptions, CallResult } from '../rpc/channel.ts';
import { COMPRESSION_GZIP } from '../rpc/compression.ts';
import { type Credentials, NO_CREDENTIALS } from '../rpc/credentials.ts';
import type { Connections } from './connections.ts';
import { fromServiceError } from './grpc-errors.ts';

const NO_BYTES = Buffer.alloc(0);
const RESPONSE_BYTES_MAX = 256 << 20;

export class GrpcConnections implements Connections {
  readonly #client: Client;
  readonly #endpoint: string;
  readonly #credentials: Credentials;
  readonly #calls = new Set<ClientUnaryCall>();

  /**
   * @param endpoint host:port
   * @param compressType of requests: 0 none, 2 gzip
   * @throws CubeError when a certificate file is invalid
   */
  constructor(endpoint: string, compressType = 0, caller: Credentials = NO_CREDENTIALS) {
    this.#endpoint = endpoint;
    this.#credentials = caller;
    const { servername } = caller.tlsOptions ?? {};
    const isGzip = compressType === COMPRESSION_GZIP;
    this.#client = new Client(endpoint, createChannelCredentials(caller), {
      'grpc.max_receive_message_length': RESPONSE_BYTES_MAX,
      'grpc.max_send_message_length': RESPONSE_BYTES_MAX,
      ...(isGzip && { 'grpc.default_compression_algorithm': compressionAlgorithms.gzip }),
      ...(servername !== undefined && {
        'grpc.ssl_target_name_override': servername,
        'grpc.default_authority': servername,
      }),
    });
  }

  call(
    service: string,
    method: string,
    payload: Uint8Array,
    _attachment: Uint8Array,
    timeoutMs: number,
    options?: CallOptions,
    signal?: AbortSignal,
  ): Promise<CallResult> {
    return new Promise((resolve, reject) => {
      const cancel = (): void => call.cancel();
      const call = this.#client.makeUnaryRequest(
        `/${service}/${method}`,
        identity,
        identity,
        Buffer.from(payload.buffer, payload.byteOffset, payload.length),
        this.#createMetadata(options),
        { deadline: wallClockMs() + timeoutMs },
        (error, response = NO_BYTES) => {
          this.#calls.delete(call);
          signal?.removeEventListener('abort', cancel);
          if (error === null) resolve({ payload: response, attachment: NO_BYTES });
          else reject(fromServiceError(error, this.#endpoint));
        },
      );
      this.#calls.add(call);
      if (signal?.aborted) cancel();
      else signal?.addEventListener('abort', cancel);
    });
  }

  close(): void {
    // Client.close() alone lets calls run until their deadlines.
    for (const call of this.#calls) call.cancel();
    this.#client.close();
  }

  #createMetadata(options: CallOptions | undefined): Metadata {
    const metadata = new Metadata();
    const { token } = this.#credentials;
    if (token !== undefined) metadata.set('authorization', `Bearer ${token}`);
    if (options?.traceparent !== undefined) metadata.set('traceparent', options.traceparent);
    return metadata;
  }
}

function createChannelCredentials({ tlsOptions }: Credentials): ChannelCredentials {
  if (tlsOptions === undefined) return credentials.createInsecure();
  return credentials.createFromSecureContext(createSecureContext(tlsOptions));
}

/** The serializer of messages that are bytes already. */
function identity(bytes: Buffer): Buffer {
  return bytes;
}
