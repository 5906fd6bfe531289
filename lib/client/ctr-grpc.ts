/** A serving process over gRPC: hypercube.CtrService. */
import {
  Client,
  type ClientUnaryCall,
  credentials,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { CTR_PREDICT, CTR_SERVICE, decodeCtrResponse, encodeCtrRequest } from '../../proto/ctr.ts';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../core/errors.ts';
import { wallClockMs } from '../platform/clock.ts';
import {
  type CtrCall,
  type CtrPrediction,
  type CtrRows,
  type CtrTransport,
  ctrRequestOf,
} from './ctr-rows.ts';

const PATH = `/${CTR_SERVICE}/${CTR_PREDICT}`;
const ANSWER_BYTES_MAX = 64 << 20;
/** More exact than gRPC's own, in the trailers of an error. */
const CODE_KEY = 'hypercube-code';

/** What a status means where no code of ours came with it. */
const CODE_OF_STATUS: Readonly<Record<number, ErrorCode>> = {
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
      'grpc.max_receive_message_length': ANSWER_BYTES_MAX,
    });
  }

  async predict(rows: CtrRows, call: CtrCall, timeoutMs: number): Promise<CtrPrediction> {
    const request = Buffer.from(encodeCtrRequest(ctrRequestOf(rows, call)));
    const deadline = wallClockMs() + timeoutMs;
    let sent: ClientUnaryCall | undefined;
    const answer = new Promise<Buffer>((resolve, reject) => {
      sent = this.#client.makeUnaryRequest(
        PATH,
        same,
        same,
        request,
        { deadline },
        (error, bytes) => (error === null ? resolve(bytes!) : reject(this.#failure(error))),
      );
    });
    this.#calls.add(sent!);
    try {
      return decodeCtrResponse(await answer);
    } finally {
      this.#calls.delete(sent!);
    }
  }

  close(): void {
    // gRPC's own close lets calls go on until their deadlines.
    for (const call of this.#calls) call.cancel();
    this.#client.close();
  }

  #failure(error: ServiceError): CubeError {
    const own = String(error.metadata?.get(CODE_KEY)[0] ?? '');
    const code = Object.hasOwn(ERROR_STATUS, own)
      ? (own as ErrorCode)
      : (CODE_OF_STATUS[error.code] ?? 'INTERNAL');
    return new CubeError(code, `${this.#host}: ${error.details}`, { cause: error });
  }
}

/** What is sent and received is bytes already. */
function same(bytes: Buffer): Buffer {
  return bytes;
}
