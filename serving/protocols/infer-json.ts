/**
 * Bodies of KServe inference over HTTP: JSON, optionally followed by binary tensor data (the binary
 * tensor extension). The header Inference-Header-Content-Length gives the length of the JSON, and
 * `binary_data_size` in it the size of each tensor's data.
 */

import { CubeError } from '../../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../lib/core/graph-signature.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { formatJsonElements } from '../../lib/core/json-elements.ts';
import type { SlicedWork } from '../../lib/core/json-slices.ts';
import { parseNonFiniteJson } from '../../lib/core/non-finite-json.ts';
import { quoteInput, shortenInput } from '../../lib/core/shown-input.ts';
import { type OipOutput, type OipParameter, toNamedTensor } from '../../proto/oip.ts';
import { encodeElements } from '../../proto/tensor-elements.ts';
import {
  type InferRequest,
  type InferResponse,
  type ModelMetadata,
  type RequestedOutput,
  readBooleanParameter,
} from './infer.ts';
import { InputTensor, type TensorHeader } from './input-tensor.ts';

const strictDecoder = new TextDecoder('utf-8', { fatal: true });
/** Maximum tensors, outputs or parameters in one request. */
const ITEMS_MAX = 20_000;

/** A response body, and the length of its JSON when binary data follows. */
export interface InferBody {
  readonly body: Buffer;
  readonly headerLength: number | undefined;
}

/**
 * Parses a body in slices: large JSON, and each input.
 * @param header Inference-Header-Content-Length as sent
 * @throws CubeError INVALID_ARGUMENT naming the field
 */
export function* parseInferBody(
  body: Uint8Array,
  header: string | undefined,
  metadata: () => ModelMetadata,
): SlicedWork<InferRequest> {
  const length = parseJsonLength(body, header);
  if (length === 0) return parseRawRequest(body, metadata());
  const json = yield* JsonReader.parseInSlices(
    decodeJsonText(body.subarray(0, length)),
    'body',
    parseNonFiniteJson,
  );
  const parameters = parseParameters(json);
  const elements = new BinaryElements(body.subarray(length), header);
  const inputs: InputTensor[] = [];
  for (const input of json.field('inputs').items({ min: 1, max: ITEMS_MAX })) {
    inputs.push(parseInput(input, elements));
    yield;
  }
  elements.checkEnd();
  const outputs =
    json.optional('outputs', (field) => field.items({ max: ITEMS_MAX }).map(parseOutput)) ?? [];
  return {
    id: json.optional('id', (field) => field.string()) ?? '',
    parameters,
    inputs,
    outputs,
  };
}

/** The length of the JSON. @throws CubeError INVALID_ARGUMENT */
export function parseJsonLength(body: Uint8Array, header: string | undefined): number {
  if (body.length === 0) rejectRequest('the body is empty: send at least one row');
  if (header === undefined) return body.length;
  const length = /^\d{1,10}$/.test(header) ? Number(header) : -1;
  if (length >= 0 && length <= body.length) return length;
  rejectRequest(
    `header Inference-Header-Content-Length: expected an integer up to the body's ` +
      `${body.length} bytes, got ${quoteInput(header)}`,
  );
}

function decodeJsonText(bytes: Uint8Array): string {
  try {
    return strictDecoder.decode(bytes);
  } catch {
    rejectRequest('the body is not UTF-8 text');
  }
}

/**
 * Parses a body that is only the data of the model's single input; its length gives the number of
 * rows.
 */
function parseRawRequest(body: Uint8Array, { name: model, inputs }: ModelMetadata): InferRequest {
  const [input, ...others] = inputs;
  if (input === undefined || others.length > 0) {
    const names = inputs.map(({ name }) => name).join(', ');
    rejectRequest(`a request without JSON needs a model with one input; ${model} takes ${names}`);
  }
  const { name, datatype } = input;
  const [first, ...rest] = input.shape;
  if (rest.includes(-1)) {
    rejectRequest(`a request without JSON needs a fixed shape; ${model} takes [${input.shape}]`);
  }
  const columns = rest.reduce((product, dim) => product * dim, 1);
  const size = TENSOR_TYPE_BYTES[datatype as TensorType];
  if (size === 0 && columns > 1) {
    rejectRequest(`a request without JSON is one BYTES element; ${model} takes ${columns} per row`);
  }
  const rowCount = size === 0 ? 1 : Math.ceil(body.length / (size * columns));
  const shape = first === -1 ? [rowCount, ...rest] : input.shape;
  const tensor = InputTensor.fromBytes(
    { name, datatype, shape },
    size === 0 ? prefixLength(body) : body,
  );
  return { id: '', parameters: new Map(), inputs: [tensor], outputs: [] };
}

function prefixLength(element: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(4 + element.length);
  new DataView(bytes.buffer).setUint32(0, element.length, true);
  bytes.set(element, 4);
  return bytes;
}

function parseInput(json: JsonReader, elements: BinaryElements): InputTensor {
  const head: TensorHeader = {
    name: json.field('name').string(),
    datatype: json.field('datatype').string(),
    shape: json
      .field('shape')
      .items({ max: 16 })
      .map((dim) => dim.integer(0)),
  };
  const parameters = json.field('parameters');
  if (!parameters.isMissing) {
    if (!parameters.field('shared_memory_region').isMissing) {
      rejectRequest(
        `input ${shortenInput(head.name)}: shared memory is not supported: send the data itself`,
      );
    }
    const size = parameters.optional('binary_data_size', (field) => field.integer(0));
    if (size !== undefined) {
      if (!json.field('data').isMissing)
        json.field('data').fail('no data together with binary_data_size');
      return InputTensor.fromBytes(head, elements.take(size, head.name));
    }
  }
  return InputTensor.fromJson(head, json.field('data'));
}

/** The binary data after the JSON: the elements of each binary input, in order. */
class BinaryElements {
  readonly #bytes: Uint8Array;
  readonly #isAnnounced: boolean;
  #offset = 0;

  constructor(bytes: Uint8Array, header: string | undefined) {
    this.#bytes = bytes;
    this.#isAnnounced = header !== undefined;
  }

  take(size: number, input: string): Uint8Array {
    if (!this.#isAnnounced) {
      rejectRequest(
        `input ${shortenInput(input)}: binary_data_size needs the header ` +
          'Inference-Header-Content-Length, the length of the JSON',
      );
    }
    const remaining = this.#bytes.length - this.#offset;
    if (size > remaining) {
      rejectRequest(
        `input ${shortenInput(input)}: binary_data_size is ${size}, but only ${remaining} bytes ` +
          'of the body remain',
      );
    }
    this.#offset += size;
    return this.#bytes.subarray(this.#offset - size, this.#offset);
  }

  checkEnd(): void {
    const remaining = this.#bytes.length - this.#offset;
    if (remaining > 0) {
      rejectRequest(
        `${remaining} bytes at the end of the body belong to no input; ` +
          'check Inference-Header-Content-Length',
      );
    }
  }
}

function parseParameters(json: JsonReader): Map<string, OipParameter> {
  const read = json.optional('parameters', (field) =>
    field
      .entries()
      .map(([name, value]): [string, OipParameter] => [name, parseParameterValue(value)]),
  );
  return new Map(read);
}

function parseParameterValue(json: JsonReader): OipParameter {
  const { value } = json;
  if (typeof value === 'string' || typeof value === 'boolean') return value;
  if (typeof value === 'number' && Number.isFinite(value)) return value;
  return json.fail('a string, a finite number or a boolean');
}

function parseOutput(json: JsonReader): RequestedOutput {
  return { name: json.field('name').string(), parameters: parseParameters(json) };
}

/** Whether to return an output as binary data: as it says itself, else as the request says. */
export function createBinaryChoice({
  parameters,
  outputs,
}: Pick<InferRequest, 'parameters' | 'outputs'>): (output: string) => boolean {
  const byDefault = readBooleanParameter(parameters, 'binary_data_output') ?? false;
  const choices = new Map(
    outputs.map(({ name, parameters: own }, i) => {
      const place = `outputs[${i}].parameters`;
      return [name, readBooleanParameter(own, 'binary_data', place) ?? byDefault];
    }),
  );
  return (output) => choices.get(output) ?? byDefault;
}

export function formatInferBody(
  response: InferResponse,
  isBinary: (output: string) => boolean,
): InferBody {
  const { modelName, modelVersion, id, parameters, outputs } = response;
  const pieces: Uint8Array[] = [];
  const listed = outputs.map((output) => {
    const tensor = toNamedTensor(output);
    const { name, dataType, shape } = tensor;
    const head = JSON.stringify({ name, datatype: dataType, shape }).slice(0, -1);
    if (!isBinary(name)) return `${head},"data":[${formatElements(output)}]}`;
    const bytes = encodeElements(tensor);
    pieces.push(bytes);
    return `${head},"parameters":{"binary_data_size":${bytes.length}}}`;
  });
  const head = JSON.stringify({
    model_name: modelName,
    model_version: modelVersion,
    ...(id === '' ? {} : { id }),
    parameters,
  });
  const json = Buffer.from(`${head.slice(0, -1)},"outputs":[${listed.join()}]}`);
  if (pieces.length === 0) return { body: json, headerLength: undefined };
  return { body: Buffer.concat([json, ...pieces]), headerLength: json.length };
}

/** Scores are always finite. */
function formatElements(output: OipOutput): string {
  return 'dataType' in output ? formatJsonElements(output).join() : output.data.join();
}

function rejectRequest(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
