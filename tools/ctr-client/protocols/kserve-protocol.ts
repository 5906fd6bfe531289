/** KServe v2 over HTTP: JSON tensors, or binary tensors both ways. */
import type { JsonReader } from '../../../lib/core/json.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import { type Output, selectClickScores } from './click-output.ts';
import {
  type HttpBody,
  HttpEndpoint,
  type HttpResponse,
  invalidResponseError,
  parseJsonBody,
  readMetadata,
  withReadErrors,
} from './http-endpoint.ts';
import type {
  PredictionResponse,
  ProtocolClient,
  ProtocolClientOptions,
  SendRequest,
} from './protocol-client.ts';
import type { FeatureTensor, FeatureTensors } from './tensors.ts';

const HEADER_LENGTH = 'inference-header-content-length';

export class KserveProtocolClient implements ProtocolClient {
  readonly #endpoint: HttpEndpoint;
  readonly #path: string;
  readonly #tensors: FeatureTensors;
  readonly #spec: FeatureSpec;
  readonly #encode: (tensors: readonly FeatureTensor[]) => HttpBody;

  constructor(
    target: ProtocolClientOptions,
    tensors: FeatureTensors,
    spec: FeatureSpec,
    isBinary: boolean,
  ) {
    this.#endpoint = new HttpEndpoint(target);
    this.#path = `/v2/models/${encodeURIComponent(target.shape.name)}/infer`;
    this.#tensors = tensors;
    this.#spec = spec;
    this.#encode = isBinary ? encodeBinary : encodeJson;
  }

  prepareRequest(start: number, end: number, experimentKey: string): SendRequest {
    const body = this.#encode(this.#tensors.sliceRows(start, end));
    return async () => {
      const response = await this.#endpoint.post(this.#path, body, experimentKey);
      return withReadErrors(() => readResponse(response, end - start, this.#spec));
    };
  }

  close(): void {
    this.#endpoint.close();
  }
}

function encodeJson(tensors: readonly FeatureTensor[]): HttpBody {
  const inputs = tensors.map(({ name, shape, values }) => {
    const datatype = findDatatype(values);
    if (values instanceof BigUint64Array) {
      return { name, shape, datatype, data: Array.from(values, String) };
    }
    // NaN becomes null.
    return { name, shape, datatype, data: Array.from<string | number>(values) };
  });
  return { type: 'application/json', bytes: Buffer.from(JSON.stringify({ inputs })) };
}

function findDatatype(values: FeatureTensor['values']): string {
  if (values instanceof BigUint64Array) return 'UINT64';
  return values instanceof Float64Array ? 'FP64' : 'BYTES';
}

/** Sends dense values as FP32, the datatype in the model's metadata. */
function encodeBinary(tensors: readonly FeatureTensor[]): HttpBody {
  const raws: Uint8Array[] = [];
  const inputs = tensors.map(({ name, shape, values }) => {
    const isDense = values instanceof Float64Array;
    const raw = encodeValues(values);
    raws.push(raw);
    const parameters = { binary_data_size: raw.length };
    return { name, shape, datatype: isDense ? 'FP32' : findDatatype(values), parameters };
  });
  const json = Buffer.from(JSON.stringify({ inputs, parameters: { binary_data_output: true } }));
  return {
    type: 'application/octet-stream',
    bytes: Buffer.concat([json, ...raws]),
    headers: { [HEADER_LENGTH]: json.length },
  };
}

function encodeValues(values: FeatureTensor['values']): Uint8Array {
  if (values instanceof BigUint64Array) return new Uint8Array(values.buffer);
  if (values instanceof Float64Array) return new Uint8Array(Float32Array.from(values).buffer);
  const pieces: Buffer[] = [];
  for (const text of values as readonly string[]) {
    const bytes = Buffer.from(text);
    const length = Buffer.alloc(4);
    length.writeUInt32LE(bytes.length);
    pieces.push(length, bytes);
  }
  return Buffer.concat(pieces);
}

/** @throws CubeError when the response does not have `rowCount` rows */
function readResponse(
  response: HttpResponse,
  rowCount: number,
  spec: FeatureSpec,
): PredictionResponse {
  const { bytes, source } = response;
  const jsonBytes = Number(response.headers[HEADER_LENGTH] ?? bytes.length);
  const json = parseJsonBody({ bytes: bytes.subarray(0, jsonBytes), source });
  const outputs = readOutputs(json, bytes.subarray(jsonBytes), source);
  const parameters = json.field('parameters');
  return {
    version: json.field('model_version').string(),
    tablesVersion: parameters.field('tables_version').string(),
    probabilities: selectClickScores(outputs, rowCount, source, spec),
    unseen: parameters.field('unseen').integer(0),
    unavailable: parameters.field('unavailable').integer(0),
    degraded: parameters.field('degraded').boolean(),
    ...readMetadata(response),
  };
}

function readOutputs(json: JsonReader, raw: Uint8Array, source: string): Output[] {
  let at = 0;
  return json
    .field('outputs')
    .items()
    .map((output) => {
      const name = output.field('name').string();
      const size = output.optional('parameters', (field) =>
        field.optional('binary_data_size', (bytes) => bytes.integer(0)),
      );
      if (size === undefined) return { name, data: output.field('data').list() as number[] };
      if (at + size > raw.length || size % 4 !== 0) {
        throw invalidResponseError(
          `${source}: output ${name} has ${size} bytes, but ${raw.length - at} remain`,
        );
      }
      const data = new Float32Array(Uint8Array.from(raw.subarray(at, at + size)).buffer);
      at += size;
      return { name, data };
    });
}
