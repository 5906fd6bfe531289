/** KServe v2 over HTTP: tensors as JSON, or with the binary tensor extension both ways. */
import type { JsonReader } from '../../../lib/core/json.ts';
import type { FeatureSpec } from '../../../lib/core/slots.ts';
import type { Answer, Caller, CallTarget, Send } from './caller.ts';
import { clickScores, type Output } from './click-output.ts';
import {
  type HttpAnswer,
  type HttpBody,
  HttpEndpoint,
  jsonOf,
  notServing,
  readingAnswer,
} from './http-endpoint.ts';
import type { FeatureTensor, FeatureTensors } from './tensors.ts';

const HEADER_LENGTH = 'inference-header-content-length';

export class KserveCaller implements Caller {
  readonly #endpoint: HttpEndpoint;
  readonly #path: string;
  readonly #tensors: FeatureTensors;
  readonly #spec: FeatureSpec | undefined;
  readonly #encode: (tensors: readonly FeatureTensor[]) => HttpBody;

  constructor(
    target: CallTarget,
    tensors: FeatureTensors,
    spec: FeatureSpec | undefined,
    isBinary: boolean,
  ) {
    this.#endpoint = new HttpEndpoint(target);
    this.#path = `/v2/models/${encodeURIComponent(target.shape.name)}/infer`;
    this.#tensors = tensors;
    this.#spec = spec;
    this.#encode = isBinary ? binaryBody : jsonBody;
  }

  prepare(start: number, end: number): Send {
    const body = this.#encode(this.#tensors.of(start, end));
    return async () => {
      const answer = await this.#endpoint.post(this.#path, body);
      return readingAnswer(() => readAnswer(answer, end - start, this.#spec));
    };
  }

  close(): void {
    this.#endpoint.close();
  }
}

function jsonBody(tensors: readonly FeatureTensor[]): HttpBody {
  const inputs = tensors.map(({ name, shape, values }) => {
    const datatype = typeOf(values);
    if (values instanceof BigUint64Array) {
      return { name, shape, datatype, data: Array.from(values, String) };
    }
    // NaN becomes null.
    return { name, shape, datatype, data: Array.from<string | number>(values) };
  });
  return { type: 'application/json', bytes: Buffer.from(JSON.stringify({ inputs })) };
}

function typeOf(values: FeatureTensor['values']): string {
  if (values instanceof BigUint64Array) return 'UINT64';
  return values instanceof Float64Array ? 'FP64' : 'BYTES';
}

/** Dense values go as the 32 bits that the model's metadata say. */
function binaryBody(tensors: readonly FeatureTensor[]): HttpBody {
  const raws: Uint8Array[] = [];
  const inputs = tensors.map(({ name, shape, values }) => {
    const isDense = values instanceof Float64Array;
    const raw = rawOf(values);
    raws.push(raw);
    const parameters = { binary_data_size: raw.length };
    return { name, shape, datatype: isDense ? 'FP32' : typeOf(values), parameters };
  });
  const json = Buffer.from(JSON.stringify({ inputs, parameters: { binary_data_output: true } }));
  return {
    type: 'application/octet-stream',
    bytes: Buffer.concat([json, ...raws]),
    headers: { [HEADER_LENGTH]: json.length },
  };
}

function rawOf(values: FeatureTensor['values']): Uint8Array {
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

/** @throws CubeError when it is no answer to so many rows */
function readAnswer(answer: HttpAnswer, rowCount: number, spec: FeatureSpec | undefined): Answer {
  const { bytes, source } = answer;
  const jsonBytes = Number(answer.headers[HEADER_LENGTH] ?? bytes.length);
  const json = jsonOf({ bytes: bytes.subarray(0, jsonBytes), source });
  const outputs = readOutputs(json, bytes.subarray(jsonBytes), source);
  const parameters = json.field('parameters');
  return {
    version: json.field('model_version').string(),
    tablesVersion: parameters.field('tables_version').string(),
    probabilities: clickScores(outputs, rowCount, source, spec),
    unseen: parameters.field('unseen').integer(0),
    unavailable: parameters.field('unavailable').integer(0),
    degraded: parameters.field('degraded').boolean(),
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
        throw notServing(`${source}: output ${name} of ${size} bytes, ${raw.length - at} are left`);
      }
      const data = new Float32Array(Uint8Array.from(raw.subarray(at, at + size)).buffer);
      at += size;
      return { name, data };
    });
}
