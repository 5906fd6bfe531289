/**
 * Inference requests and answers over HTTP: JSON, and behind it, when the header Inference-Header-Content-Length says where the
 * JSON ends, the elements of the tensors that are announced there with `binary_data_size` (the binary tensor extension).
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { DATATYPE_BYTES, type Datatype, type OipParameter } from '../../proto/oip.ts';
import type { InferAnswer, InferRequest, ModelMetadata, OutputWish } from './infer.ts';
import { InputTensor, type TensorHead } from './tensors.ts';

/** Of tensors, outputs and parameters in one request. */
const ITEMS_MAX = 20_000;

/** A body to send, and the length of its JSON when elements follow. */
export interface JsonAnswer {
  readonly body: Buffer;
  readonly headerLength: number | undefined;
}

/** @param header Inference-Header-Content-Length as sent @throws CubeError INVALID_ARGUMENT naming the field */
export function readJsonInfer(
  body: Uint8Array,
  header: string | undefined,
  metadata: () => ModelMetadata,
): InferRequest {
  const length = jsonLength(body, header);
  if (length === 0) return rawRequest(body, metadata());
  const json = JsonReader.parse(textOf(body.subarray(0, length)), 'body');
  const parameters = readParameters(json);
  const elements = new ElementBytes(body.subarray(length), header);
  const inputs = json
    .field('inputs')
    .items({ min: 1, max: ITEMS_MAX })
    .map((input) => readInput(input, elements));
  elements.checkEnd();
  const isBinary = parameters.get('binary_data_output') === true;
  const outputs =
    json.optional('outputs', (field) =>
      field.items({ max: ITEMS_MAX }).map((output) => readOutput(output, isBinary)),
    ) ?? [];
  return {
    id: json.optional('id', (field) => field.string()) ?? '',
    parameters,
    inputs,
    // Without a list all outputs are meant, as the request's parameter says.
    outputs:
      outputs.length > 0 || !isBinary
        ? outputs
        : metadata().outputs.map(({ name }) => ({ name, isBinary })),
  };
}

function jsonLength(body: Uint8Array, header: string | undefined): number {
  if (body.length === 0) refuse('the body is empty: send at least one row');
  if (header === undefined) return body.length;
  const length = /^\d{1,10}$/.test(header) ? Number(header) : -1;
  if (length >= 0 && length <= body.length) return length;
  refuse(
    `header Inference-Header-Content-Length: expected an integer up to the body's ${body.length} bytes, got ${JSON.stringify(header.slice(0, 40))}`,
  );
}

function textOf(bytes: Uint8Array): string {
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    refuse('the body is not UTF-8 text');
  }
}

/** The whole body is the elements of the model's only input: as many rows as they make. */
function rawRequest(body: Uint8Array, { name: model, inputs }: ModelMetadata): InferRequest {
  const [input, ...others] = inputs;
  if (input === undefined || others.length > 0) {
    const names = inputs.map(({ name }) => name).join(', ');
    refuse(`a request without JSON is for models of one input; ${model} takes ${names}`);
  }
  const { name, datatype } = input;
  const columns = input.shape[1]!;
  const size = DATATYPE_BYTES[datatype as Datatype];
  const rowCount = size === 0 ? 1 : Math.ceil(body.length / (size * columns));
  if (size === 0 && columns > 1) {
    refuse(`a request without JSON is one BYTES element; ${model} takes ${columns} in a row`);
  }
  const shape = [rowCount, columns];
  const tensor = InputTensor.ofBytes(
    { name, datatype, shape },
    size === 0 ? withLength(body) : body,
  );
  return { id: '', parameters: new Map(), inputs: [tensor], outputs: [] };
}

function withLength(element: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(4 + element.length);
  new DataView(bytes.buffer).setUint32(0, element.length, true);
  bytes.set(element, 4);
  return bytes;
}

function readInput(json: JsonReader, elements: ElementBytes): InputTensor {
  const head: TensorHead = {
    name: json.field('name').string(),
    datatype: json.field('datatype').string(),
    shape: json
      .field('shape')
      .items({ max: 16 })
      .map((dim) => dim.integer(0)),
  };
  const parameters = json.field('parameters');
  if (!parameters.missing) {
    if (!parameters.field('shared_memory_region').missing) {
      refuse(`input ${head.name}: shared memory is not supported: send the data itself`);
    }
    const size = parameters.optional('binary_data_size', (field) => field.integer(0));
    if (size !== undefined) {
      if (!json.field('data').missing) json.field('data').fail('nothing beside binary_data_size');
      return InputTensor.ofBytes(head, elements.take(size, head.name));
    }
  }
  return InputTensor.ofJson(head, json.field('data'));
}

/** What lies behind the JSON: the elements of each binary input, one after the other. */
class ElementBytes {
  readonly #bytes: Uint8Array;
  readonly #isAnnounced: boolean;
  #taken = 0;

  constructor(bytes: Uint8Array, header: string | undefined) {
    this.#bytes = bytes;
    this.#isAnnounced = header !== undefined;
  }

  take(size: number, input: string): Uint8Array {
    if (!this.#isAnnounced) {
      refuse(
        `input ${input}: binary_data_size needs the header Inference-Header-Content-Length, the length of the JSON`,
      );
    }
    const left = this.#bytes.length - this.#taken;
    if (size > left) {
      refuse(
        `input ${input}: binary_data_size is ${size}, but only ${left} bytes are left of the body`,
      );
    }
    this.#taken += size;
    return this.#bytes.subarray(this.#taken - size, this.#taken);
  }

  checkEnd(): void {
    const left = this.#bytes.length - this.#taken;
    if (left > 0) {
      refuse(
        `${left} bytes of the body belong to no input: is Inference-Header-Content-Length right?`,
      );
    }
  }
}

function readParameters(json: JsonReader): Map<string, OipParameter> {
  const read = json.optional('parameters', (field) =>
    field.entries().map(([name, value]): [string, OipParameter] => [name, readScalar(value)]),
  );
  return new Map(read);
}

function readScalar(json: JsonReader): OipParameter {
  const { value } = json;
  if (typeof value === 'string' || typeof value === 'boolean') return value;
  return typeof value === 'number' ? value : json.fail('a string, a number or a boolean');
}

function readOutput(json: JsonReader, isBinary: boolean): OutputWish {
  const name = json.field('name').string();
  const parameters = json.field('parameters');
  if (parameters.missing) return { name, isBinary };
  for (const unsupported of ['classification', 'shared_memory_region']) {
    const field = parameters.field(unsupported);
    if (!field.missing && field.value !== 0) field.fail('nothing: it is not supported');
  }
  const own = parameters.optional('binary_data', (field) => field.boolean());
  return { name, isBinary: own ?? isBinary };
}

export function writeJsonInfer(answer: InferAnswer, wishes: readonly OutputWish[]): JsonAnswer {
  const { modelName, modelVersion, id, parameters, outputs } = answer;
  const pieces: Uint8Array[] = [];
  const listed = outputs.map(({ name, shape, data }) => {
    const head = { name, datatype: 'FP32', shape };
    if (!wishes.some((wish) => wish.name === name && wish.isBinary)) {
      return { ...head, data: Array.from(data) };
    }
    pieces.push(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
    return { ...head, parameters: { binary_data_size: data.byteLength } };
  });
  const json = Buffer.from(
    JSON.stringify({
      ...{ model_name: modelName, model_version: modelVersion },
      ...(id === '' ? {} : { id }),
      parameters,
      outputs: listed,
    }),
  );
  if (pieces.length === 0) return { body: json, headerLength: undefined };
  return { body: Buffer.concat([json, ...pieces]), headerLength: json.length };
}

function refuse(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
