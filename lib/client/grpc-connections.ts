/** Calls of one gRPC server, as the connections of a replica. */
import { Client, type ClientUnaryCall, credentials } from '@grpc/grpc-js';
import { wallClockMs } from '../platform/clock.ts';
import type { CallOptions, CallResult } from '../rpc/channel.ts';
import type { Connections } from './connections.ts';
import { fromServiceError } from './grpc-errors.ts';

const NO_BYTES = Buffer.alloc(0);
const RESPONSE_BYTES_MAX = 256 << 20;

export class GrpcConnections implements Connections {
  readonly #client: Client;
  readonly #endpoint: string;
  readonly #calls = new Set<ClientUnaryCall>();

  /** @param endpoint host:port */
  constructor(endpoint: string) {
    this.#endpoint = endpoint;
    this.#client = new Client(endpoint, credentials.createInsecure(), {
      'grpc.max_receive_message_length': RESPONSE_BYTES_MAX,
      'grpc.max_send_message_length': RESPONSE_BYTES_MAX,
    });
  }

  call(
    service: string,
    method: string,
    payload: Uint8Array,
    _attachment: Uint8Array,
    timeoutMs: number,
    _options?: CallOptions,
    signal?: AbortSignal,
  ): Promise<CallResult> {
    return new Promise((resolve, reject) => {
      const cancel = (): void => call.cancel();
      const call = this.#client.makeUnaryRequest(
        `/${service}/${method}`,
        identity,
        identity,
        Buffer.from(payload.buffer, payload.byteOffset, payload.length),
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
}

/** The serializer of messages that are bytes already. */
function identity(bytes: Buffer): Buffer {
  return bytes;
}
