/** Calls a serving process over gRPC (hypercube.CtrService). */
import {
  Client,
  type ClientUnaryCall,
  credentials,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { CTR_PREDICT, CTR_SERVICE, decodeCtrResponse, encodeCtrRequest } from '../../proto/ctr.ts';
import { decodeErrorDetails, ERROR_DETAILS_KEY } from '../core/error-details.ts';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';
import { wallClockMs } from '../platform/clock.ts';
import {
  type CtrCallOptions,
  type CtrPrediction,
  type CtrRows,
  type CtrTransport,
  createCtrRequest,
} from './ctr-rows.ts';

const PATH = `/${CTR_SERVICE}/${CTR_PREDICT}`;
const NO_BYTES = Buffer.alloc(0);
const RESPONSE_BYTES_MAX = 64 << 20;
/** The trailer with the error's own code, which is more exact than gRPC's status. */
const CODE_KEY = 'hypercube-code';

/** The error code for a gRPC status without that trailer. */
const CODE_BY_STATUS: Readonly<Record<number, ErrorCode>> = {
  [status.INVALID_ARGUMENT]: 'INVALID_ARGUMENT',
  [status.NOT_FOUND]: 'NOT_FOUND',
  [status.DEADLINE_EXCEEDED]: 'DEADLINE_EXCEEDED',
  [status.RESOURCE_EXHAUSTED]: 'OVERLOADED',
  [status.UNIMPLEMENTED]: 'UNSUPPORTED',
  [status.UNAVAILABLE]: 'UNAVAILABLE',
  [status.CANCELLED]: 'UNAVAILABLE',
};

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
          else reject(this.#toCubeError(error));
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

  #toCubeError(error: ServiceError): CubeError {
    const own = String(error.metadata?.get(CODE_KEY)[0] ?? '');
    const code = Object.hasOwn(ERROR_STATUS, own)
      ? (own as ErrorCode)
      : (CODE_BY_STATUS[error.code] ?? 'INTERNAL');
    const details = decodeErrorDetails(String(error.metadata?.get(ERROR_DETAILS_KEY)[0] ?? ''));
    return new CubeError(code, `${this.#host}: ${error.details}`, { cause: error, details });
  }
}

/** The serializer of messages that are bytes already. */
function identity(bytes: Buffer): Buffer {
  return bytes;
}
