/** KServe from the outside: bodies of the binary tensor extension, and a gRPC client made from proto/oip.proto alone. */
import { fileURLToPath } from 'node:url';
import { type Client, credentials, loadPackageDefinition, type Metadata } from '@grpc/grpc-js';
import { loadSync, type MethodDefinition, type ServiceDefinition } from '@grpc/proto-loader';
import type { ServingProcess } from './serving-process.ts';

const PROTO = fileURLToPath(new URL('../../proto/oip.proto', import.meta.url));

export interface Tensor {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
  /** Elements as they go raw; of BYTES with their lengths. */
  readonly raw: Uint8Array;
}

// biome-ignore lint/suspicious/noExplicitAny: whatever the server answers is looked at by the tests
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

export function rawOf(values: Float32Array | Float64Array | BigUint64Array): Uint8Array {
  return new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
}

/** A body with the elements behind its JSON. @param pad blanks before the JSON, so that elements lie at any alignment */
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

/** Reads an answer as Triton's Python client does: the JSON's length from the header, buffers in the order of the outputs. */
export async function postBinary(
  serving: ServingProcess,
  path: string,
  { body, headers }: { body: Buffer; headers: Record<string, string> },
): Promise<{ status: number; json: Json; outputs: Map<string, Buffer> }> {
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
  return { status: response.status, json, outputs };
}

/** A ModelInferRequest by the protobuf library. */
export function encodeInfer(request: object): Buffer {
  const service = loadSync(PROTO, { keepCase: true })['inference.GRPCInferenceService'];
  const method = (service as ServiceDefinition)['ModelInfer'] as MethodDefinition<object, object>;
  return method.requestSerialize(request);
}

/** A client as its generated stubs would be: requests are encoded by the protobuf library, not by our codec. */
export class OipClient {
  readonly #client: Client;

  constructor(url: string) {
    const options = { keepCase: true, longs: String, enums: String, defaults: true } as const;
    const definition = loadSync(PROTO, options);
    const packages = loadPackageDefinition(definition) as Json;
    const Service = packages.inference.GRPCInferenceService;
    this.#client = new Service(new URL(url).host, credentials.createInsecure());
  }

  call(method: string, request: object, metadata?: Metadata): Promise<Json> {
    const client = this.#client as Json;
    return new Promise((resolve, reject) => {
      const done = (error: Error | null, answer: Json): void =>
        error === null ? resolve(answer) : reject(error);
      const deadline = { deadline: Date.now() + 10_000 };
      if (metadata === undefined) client[method](request, deadline, done);
      else client[method](request, metadata, deadline, done);
    });
  }

  /** Sends all requests at once, and collects as many answers. */
  stream(requests: readonly object[]): Promise<Json[]> {
    const call = (this.#client as Json).ModelStreamInfer();
    const answers: Json[] = [];
    return new Promise((resolve, reject) => {
      call.on('data', (answer: Json) => answers.push(answer));
      call.on('error', reject);
      call.on('end', () => resolve(answers));
      for (const request of requests) call.write(request);
      call.end();
    });
  }

  close(): void {
    this.#client.close();
  }
}
