/** A client of TensorFlow Serving's gRPC service, made from proto/tensorflow-serving.proto. */
import { fileURLToPath } from 'node:url';
import { type Client, credentials, loadPackageDefinition } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import protobuf from 'protobufjs';
import type { Json } from './kserve-client.ts';

export const TFS_PROTO: string = fileURLToPath(
  new URL('../../../proto/tensorflow-serving.proto', import.meta.url),
);
const TIMEOUT_MS = 30_000;

export class TfsClient {
  readonly #client: Client;

  constructor(url: string) {
    const options = { keepCase: true, longs: String, enums: String, defaults: true } as const;
    const packages = loadPackageDefinition(loadSync(TFS_PROTO, options)) as Json;
    const Service = packages.tensorflow.serving.PredictionService;
    this.#client = new Service(new URL(url).host, credentials.createInsecure());
  }

  predict(request: object): Promise<Json> {
    return this.#call('Predict', request);
  }

  /** GetModelMetadata: the model and its signatures, taken out of their Any. */
  async getSignature(request: object): Promise<Json> {
    const { model_spec, metadata } = await this.#call('GetModelMetadata', request);
    const root = new protobuf.Root();
    root.loadSync(TFS_PROTO, { keepCase: true });
    const type = root.lookupType('tensorflow.serving.SignatureDefMap');
    const map = type.toObject(type.decode(metadata.signature_def.value), {
      longs: String,
      enums: String,
    });
    return { model_spec, signature_def: map['signature_def'] };
  }

  #call(method: string, request: object): Promise<Json> {
    const client = this.#client as Json;
    return new Promise((resolve, reject) => {
      const deadline = { deadline: Date.now() + TIMEOUT_MS };
      client[method](request, deadline, (error: Error | null, answer: Json) =>
        error === null ? resolve(answer) : reject(error),
      );
    });
  }

  close(): void {
    this.#client.close();
  }
}
