/** Calls of one gRPC server, as the connections of a replica. */
import { createSecureContext } from 'node:tls';
import {
  type ChannelCredentials,
  Client,
  type ClientUnaryCall,
  compressionAlgorithms,
  credentials,
  Metadata,
  type ServiceError,
} from '@grpc/grpc-js';
import { LiveEntry, LiveList } from '../core/live-list.ts';
import { wallClockMs } from '../platform/clock.ts';
import type { CallOptions, CallResult } from '../rpc/channel.ts';
import { COMPRESSION_GZIP } from '../rpc/compression.ts';
import { type Credentials, NO_CREDENTIALS } from '../rpc/credentials.ts';
import type { Connections } from './connections.ts';
import { fromServiceError } from './grpc-errors.ts';

const NO_BYTES = Buffer.alloc(0);
const MESSAGE_BYTES_MAX = 256 << 20;

export interface GrpcOptions {
  /** Of requests: 0 none, 2 gzip. Default 0. */
  readonly compressType?: number;
  readonly credentials?: Credentials | undefined;
  /** Maximum size of requests and responses. */
  readonly messageBytesMax?: number | undefined;
  /** The trailer whose value is the attachment of responses. Default: they have none. */
  readonly trailer?: string | undefined;
}

export class GrpcConnections implements Connections {
  readonly #client: Client;
  readonly #endpoint: string;
  readonly #credentials: Credentials;
  readonly #trailer: string | undefined;
  readonly #calls = new LiveList<LiveEntry<ClientUnaryCall>>();

  /**
   * @param endpoint host:port
   * @throws CubeError when a certificate file is invalid
   */
  constructor(endpoint: string, options: GrpcOptions = {}) {
    const { credentials: caller = NO_CREDENTIALS, messageBytesMax = MESSAGE_BYTES_MAX } = options;
    this.#endpoint = endpoint;
    this.#credentials = caller;
    this.#trailer = options.trailer;
    const { servername } = caller.tlsOptions ?? {};
    const isGzip = options.compressType === COMPRESSION_GZIP;
    this.#client = new Client(endpoint, createChannelCredentials(caller), {
      'grpc.max_receive_message_length': messageBytesMax,
      'grpc.max_send_message_length': messageBytesMax,
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
      let result: ServiceError | Buffer = NO_BYTES;
      const cancel = (): void => call.cancel();
      const call = this.#client.makeUnaryRequest(
        `/${service}/${method}`,
        identity,
        identity,
        Buffer.from(payload.buffer, payload.byteOffset, payload.length),
        this.#createMetadata(options),
        { deadline: wallClockMs() + timeoutMs },
        (error, response = NO_BYTES) => {
          result = error ?? response;
        },
      );
      const entry = new LiveEntry(call);
      this.#calls.add(entry);
      // The last event, after the response; it has the trailers.
      call.on('status', ({ metadata }) => {
        this.#calls.delete(entry);
        signal?.removeEventListener('abort', cancel);
        if (Buffer.isBuffer(result)) {
          resolve({ payload: result, attachment: this.#readTrailer(metadata) });
        } else reject(fromServiceError(result, this.#endpoint));
      });
      if (signal?.aborted) cancel();
      else signal?.addEventListener('abort', cancel);
    });
  }

  close(): void {
    // Client.close() alone lets calls run until their deadlines.
    this.#calls.forEach(({ value }) => {
      value.cancel();
    });
    this.#client.close();
  }

  #readTrailer(trailers: Metadata): Buffer {
    if (this.#trailer === undefined) return NO_BYTES;
    return Buffer.from(trailers.get(this.#trailer)[0]?.toString() ?? '');
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
