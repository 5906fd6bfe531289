/**
 * A KServe client: bodies of the binary tensor extension, and a gRPC client made from
 * proto/oip.proto.
 */
import type { Duplex } from 'node:stream';
import { fileURLToPath } from 'node:url';
import {
  type Client,
  credentials,
  loadPackageDefinition,
  Metadata,
  type StatusObject,
} from '@grpc/grpc-js';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import type { ServingProcess } from './serving-process.ts';

const PROTO = fileURLToPath(new URL('../../../proto/oip.proto', import.meta.url));

export interface Tensor {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
  /** Raw elements; BYTES elements with their lengths. */
  readonly raw: Uint8Array;
}

// biome-ignore lint/suspicious/noExplicitAny: tests inspect arbitrary responses
export type Json = any;

export function rawStrings(strings: readonly string[]): Uint8Array {
  return Buffer.concat(
    strings.flatMap((text) => {
      const bytes = Buffer.from(text);
      const length = Buffer.alloc(4);
      length.writeUInt32LE(bytes.length);
      return [length, bytes];
    }),
  );
}

export function toRawBytes(values: Float32Array | Float64Array | BigUint64Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/**
 * A body with binary data after its JSON. @param pad blanks before the JSON, to vary the alignment
 */
export function binaryBody(
  inputs: readonly Tensor[],
  more: object = {},
  pad = 0,
): { body: Buffer; headers: Record<string, string> } {
  const json = Buffer.from(
    ' '.repeat(pad) +
      JSON.stringify({
        ...more,
        inputs: inputs.map(({ raw, ...head }) => {
          return { ...head, parameters: { binary_data_size: raw.length } };
        }),
      }),
  );
  const headers = {
    'content-type': 'application/octet-stream',
    'inference-header-content-length': String(json.length),
  };
  return { body: Buffer.concat([json, ...inputs.map(({ raw }) => raw)]), headers };
}

/**
 * Reads a response like Triton's Python client: JSON by its length, then the data of each output.
 */
export async function postBinary(
  serving: ServingProcess,
  path: string,
  { body, headers }: { body: Buffer; headers: Record<string, string> },
): Promise<{ status: number; headers: Headers; json: Json; outputs: Map<string, Buffer> }> {
  const response = await fetch(serving.url + path, { method: 'POST', body, headers });
  const bytes = Buffer.from(await response.arrayBuffer());
  const length = Number(response.headers.get('inference-header-content-length') ?? bytes.length);
  const json = JSON.parse(bytes.toString('utf8', 0, length));
  const outputs = new Map<string, Buffer>();
  let at = length;
  for (const { name, parameters } of json.outputs ?? []) {
    const size = parameters?.binary_data_size;
    if (size === undefined) continue;
    outputs.set(name, bytes.subarray(at, at + size));
    at += size;
  }
  return { status: response.status, headers: response.headers, json, outputs };
}

/** A ModelInferRequest encoded by the protobuf library. */
export function encodeInfer(request: object): Buffer {
  const service = loadSync(PROTO, { keepCase: true })['inference.GRPCInferenceService'];
  const method = (service as ServiceDefinition)['ModelInfer'] as MethodDefinition<object, object>;
  return method.requestSerialize(request);
}

/**
 * A client like generated stubs: the protobuf library encodes requests, not the product's codec.
 */
export class OipClient {
  readonly #client: Client;

  constructor(url: string) {
    const options = { keepCase: true, longs: String, enums: String, defaults: true } as const;
    const definition = loadSync(PROTO, options);
    const packages = loadPackageDefinition(definition) as Json;
    const Service = packages.inference.GRPCInferenceService;
    this.#client = new Service(new URL(url).host, credentials.createInsecure());
  }

  async call(method: string, request: object, metadata?: Metadata): Promise<Json> {
    return (await this.callForTrailers(method, request, metadata)).answer;
  }

  /** Calls a method and returns the trailers too. */
  callForTrailers(
    method: string,
    request: object,
    metadata: Metadata = new Metadata(),
  ): Promise<{ answer: Json; trailers: Metadata }> {
    const client = this.#client as Json;
    return new Promise((resolve, reject) => {
      let received: Json;
      const done = (error: Error | null, answer: Json): void => {
        received = answer;
        if (error !== null) reject(error);
      };
      const deadline = { deadline: Date.now() + 10_000 };
      client[method](request, metadata, deadline, done).on('status', (status: StatusObject) =>
        resolve({ answer: received, trailers: status.metadata }),
      );
    });
  }

  /** Sends all requests at once and collects the responses. */
  stream(requests: readonly object[]): Promise<Json[]> {
    const call = this.openStream();
    const answers: Json[] = [];
    return new Promise((resolve, reject) => {
      call.on('data', (answer: Json) => answers.push(answer));
      call.on('error', reject);
      call.on('end', () => resolve(answers));
      for (const request of requests) call.write(request);
      call.end();
    });
  }

  openStream(): Duplex {
    return (this.#client as Json).ModelStreamInfer();
  }

  close(): void {
    this.#client.close();
  }
}
