/** Unary gRPC calls to one server with raw messages. */
import {
  Client,
  type ClientUnaryCall,
  credentials,
  type Metadata,
  type ServiceError,
} from '@grpc/grpc-js';
import { wallClockMs } from '../platform/clock.ts';
import { fromServiceError } from './grpc-errors.ts';

const NO_BYTES = Buffer.alloc(0);
interface UnaryAnswer {
  readonly bytes: Uint8Array;
  readonly trailers: Metadata;
}

export class GrpcUnaryClient {
  readonly #host: string;
  readonly #client: Client;
  readonly #calls = new Set<ClientUnaryCall>();

  /** @param host host:port; connects at the first call */
  constructor(host: string, responseBytesMax: number) {
    this.#host = host;
    this.#client = new Client(host, credentials.createInsecure(), {
      'grpc.max_receive_message_length': responseBytesMax,
      'grpc.max_send_message_length': -1,
    });
  }

  /**
   * @param signal cancels the call
   * @throws CubeError with the server's own code; UNAVAILABLE, DEADLINE_EXCEEDED
   */
  call(
    path: string,
    request: Uint8Array,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<UnaryAnswer> {
    const deadline = wallClockMs() + timeoutMs;
    return new Promise((resolve, reject) => {
      let result: ServiceError | Uint8Array = NO_BYTES;
      const call = this.#client.makeUnaryRequest(
        path,
        identity,
        identity,
        Buffer.from(request.buffer, request.byteOffset, request.byteLength),
        { deadline },
        (error: ServiceError | null, response = NO_BYTES) => {
          result = error ?? response;
        },
      );
      const cancel = (): void => call.cancel();
      this.#calls.add(call);
      if (signal?.aborted === true) cancel();
      signal?.addEventListener('abort', cancel);
      // The last event, after the response.
      call.on('status', ({ metadata }) => {
        this.#calls.delete(call);
        signal?.removeEventListener('abort', cancel);
        if (result instanceof Uint8Array) resolve({ bytes: result, trailers: metadata });
        else reject(fromServiceError(result, this.#host));
      });
    });
  }

  close(): void {
    // Client.close() alone lets calls run until their deadlines.
    for (const call of this.#calls) call.cancel();
    this.#client.close();
  }
}

/** The serializer of messages that are bytes already. */
function identity(bytes: Buffer): Buffer {
  return bytes;
}
