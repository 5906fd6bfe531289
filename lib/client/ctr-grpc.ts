/** Calls a serving process over gRPC (hypercube.CtrService). */
import { createSecureContext } from 'node:tls';
import {
  type ChannelCredentials,
  Client,
  type ClientUnaryCall,
  credentials,
  Metadata,
  type ServiceError,
} from '@grpc/grpc-js';
import {
  CTR_PREDICT,
  CTR_SERVICE,
  decodeCtrResponse,
  EXPERIMENT_KEY,
  EXPERIMENTS_KEY,
  encodeCtrRequest,
  parseVariants,
  type Variants,
} from '../../proto/ctr.ts';
import { CubeError } from '../core/errors.ts';
import { LiveEntry, LiveList } from '../core/live-list.ts';
import { PROFILE_KEY, parseProfile, type RequestProfile } from '../core/request-profile.ts';
import { wallClockMs } from '../platform/clock.ts';
import type { Credentials } from '../rpc/credentials.ts';
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

interface GrpcAnswer {
  readonly bytes: Buffer;
  readonly variants: Variants | undefined;
  readonly profile: RequestProfile | undefined;
}

export class CtrGrpc implements CtrTransport {
  readonly #client: Client;
  readonly #host: string;
  readonly #credentials: Credentials;
  readonly #calls = new LiveList<LiveEntry<ClientUnaryCall>>();

  /** @throws CubeError when a certificate file is invalid */
  constructor(host: string, isSecure: boolean, caller: Credentials) {
    this.#host = host;
    this.#credentials = caller;
    const { servername } = caller.tlsOptions ?? {};
    this.#client = new Client(host, isSecure ? createTls(caller) : credentials.createInsecure(), {
      'grpc.max_receive_message_length': RESPONSE_BYTES_MAX,
      ...(servername !== undefined && {
        'grpc.ssl_target_name_override': servername,
        'grpc.default_authority': servername,
      }),
    });
  }

  async predict(rows: CtrRows, call: CtrCallOptions, timeoutMs: number): Promise<CtrPrediction> {
    const request = Buffer.from(encodeCtrRequest(createCtrRequest(rows, call)));
    const deadline = wallClockMs() + timeoutMs;
    const metadata = new Metadata();
    const { token } = this.#credentials;
    if (token !== undefined) metadata.set('authorization', `Bearer ${token}`);
    if (call.experimentKey !== undefined) {
      metadata.set(EXPERIMENT_KEY, requireAscii(call.experimentKey));
    }
    if (call.profile === true) metadata.set(PROFILE_KEY, 'true');
    const { bytes, variants, profile } = await this.#send(request, metadata, deadline);
    return {
      ...decodeCtrResponse(bytes),
      ...(variants !== undefined && { variants }),
      ...(profile !== undefined && { profile }),
    };
  }

  close(): void {
    // Client.close() alone lets calls run until their deadlines.
    this.#calls.forEach(({ value }) => {
      value.cancel();
    });
    this.#client.close();
  }

  #send(request: Buffer, metadata: Metadata, deadline: number): Promise<GrpcAnswer> {
    return new Promise((resolve, reject) => {
      let result: ServiceError | Buffer = NO_BYTES;
      const unaryCall = this.#client.makeUnaryRequest(
        PATH,
        identity,
        identity,
        request,
        metadata,
        { deadline },
        (error, response = NO_BYTES) => {
          result = error ?? response;
        },
      );
      const entry = new LiveEntry(unaryCall);
      this.#calls.add(entry);
      // The last event, after the response; it has the trailers.
      unaryCall.on('status', ({ metadata: trailers }) => {
        this.#calls.delete(entry);
        if (!Buffer.isBuffer(result)) {
          reject(fromServiceError(result, this.#host));
          return;
        }
        try {
          const [text] = trailers.get(EXPERIMENTS_KEY);
          const [json] = trailers.get(PROFILE_KEY);
          const profile = parseProfile(json?.toString());
          resolve({ bytes: result, variants: parseVariants(text?.toString()), profile });
        } catch (error) {
          reject(error);
        }
      });
    });
  }
}

function createTls({ tlsOptions = {} }: Credentials): ChannelCredentials {
  return credentials.createFromSecureContext(createSecureContext(tlsOptions));
}

/** The serializer of messages that are bytes already. */
function identity(bytes: Buffer): Buffer {
  return bytes;
}

/** gRPC has no other text in metadata. @throws CubeError INVALID_ARGUMENT */
function requireAscii(experimentKey: string): string {
  if (/^[\x20-\x7e]*$/.test(experimentKey)) return experimentKey;
  throw new CubeError(
    'INVALID_ARGUMENT',
    'an experiment key over gRPC is printable ASCII; send others over http:// or https://',
  );
}
