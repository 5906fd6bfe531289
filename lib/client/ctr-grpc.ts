/** Calls a serving process over gRPC (hypercube.CtrService). */
import { Client, type ClientUnaryCall, credentials } from '@grpc/grpc-js';
import { CTR_PREDICT, CTR_SERVICE, decodeCtrResponse, encodeCtrRequest } from '../../proto/ctr.ts';
import { wallClockMs } from '../platform/clock.ts';
import {
  type CtrCallOptions,
  type CtrPrediction,
  type CtrRows,
  type CtrTransport,
  createCtrRequest,
} from './ctr-rows.ts';
import { fromServiceError } from './grpc-errors.ts';

const PATH = `/${CTR_SERVICE}/${CTR_PREDICT}`;
const NO_BYTES = Buffer.alloc(0);
const RESPONSE_BYTES_MAX = 64 << 20;
export class CtrGrpc implements CtrTransport {
  readonly #client: Client;
  readonly #host: string;
  readonly #calls = new Set<ClientUnaryCall>();

  constructor(host: string) {
    this.#host = host;
    this.#client = new Client(host, credentials.createInsecure(), {
      'grpc.max_receive_message_length': RESPONSE_BYTES_MAX,
    });
  }

  async predict(rows: CtrRows, call: CtrCallOptions, timeoutMs: number): Promise<CtrPrediction> {
    const request = Buffer.from(encodeCtrRequest(createCtrRequest(rows, call)));
    const deadline = wallClockMs() + timeoutMs;
    const bytes = await new Promise<Buffer>((resolve, reject) => {
      const unaryCall = this.#client.makeUnaryRequest(
        PATH,
        identity,
        identity,
        request,
        { deadline },
        (error, response = NO_BYTES) => {
          this.#calls.delete(unaryCall);
          if (error === null) resolve(response);
          else reject(fromServiceError(error, this.#host));
        },
      );
      this.#calls.add(unaryCall);
    });
    return decodeCtrResponse(bytes);
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
