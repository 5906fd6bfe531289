/**
 * Codec of ModelInfer of the Open Inference Protocol over gRPC (oip.proto). A request becomes
 * tensors of raw element bytes, whichever of the two forms it has; a response is written from raw
 * bytes. Raw contents and packed floats stay views, so that a large tensor is not copied.
 */

import { CubeError } from '../lib/core/errors.ts';
import type { TensorType } from '../lib/core/graph-signature.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import type { NamedTensor } from '../lib/core/tensor.ts';
import { addElements, encodeElements, toRawElements, writeElements } from './tensor-elements.ts';
import { WIRE_BYTES, WIRE_FIXED64, WireReader, WireWriter } from './wire.ts';

export type OipParameter = string | number | bigint | boolean;
export type OipParameters = ReadonlyMap<string, OipParameter>;

export interface OipInput {
  readonly name: string;
  /** As sent: any string. */
  readonly datatype: string;
  readonly shape: readonly number[];
  readonly parameters: OipParameters;
  /**
   * Elements, little-endian and row-major; BYTES elements with their lengths; undefined when none
   * were sent.
   */
  readonly contents: Uint8Array | undefined;
}

export interface OipRequest {
  readonly modelName: string;
  readonly modelVersion: string;
  readonly id: string;
  readonly parameters: OipParameters;
  readonly inputs: readonly OipInput[];
  readonly outputs: readonly { readonly name: string; readonly parameters: OipParameters }[];
}

/** An output of floats. */
export interface OipScores {
  readonly name: string;
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export type OipOutput = OipScores | NamedTensor;

export interface OipResponse {
  readonly modelName: string;
  readonly modelVersion: string;
  readonly id: string;
  readonly parameters: Readonly<Record<string, OipParameter>>;
  readonly outputs: readonly OipOutput[];
  /** True for raw_output_contents, false for the contents of each output. */
  readonly isRaw: boolean;
}

/** Maximum number of tensors, outputs, parameters and dims in one message. */
const ITEMS_MAX = 20_000;

/** The field of InferTensorContents for each datatype. */
const CONTENTS_FIELD: Readonly<Record<string, number>> = {
  BOOL: 1,
  INT8: 2,
  INT16: 2,
  INT32: 2,
  INT64: 3,
  UINT8: 4,
  UINT16: 4,
  UINT32: 4,
  UINT64: 5,
  FP32: 6,
  FP64: 7,
  BYTES: 8,
};

/**
 * @param bytes must not change afterwards: tensors are views of them @throws CubeError
 * INVALID_ARGUMENT
 */
export function decodeOipRequest(bytes: Uint8Array): OipRequest {
  const reader = new WireReader(bytes);
  const names = ['', '', ''];
  const parameters = new Map<string, OipParameter>();
  const inputs: OipInput[] = [];
  const outputs: { name: string; parameters: OipParameters }[] = [];
  const raw: Uint8Array[] = [];
  while (reader.next()) {
    const { field } = reader;
    if (field < 1 || field > 7) {
      reader.skip();
      continue;
    }
    reader.expect(WIRE_BYTES);
    if (field <= 3) names[field - 1] = reader.string();
    else if (field === 4) readParameter(reader.message(), parameters);
    else if (field === 5) inputs.push(readOipTensor(reader.message()));
    else if (field === 6) outputs.push(readOutput(reader.message()));
    else raw.push(reader.view());
    if (Math.max(inputs.length, outputs.length, raw.length) > ITEMS_MAX) failTooMany('tensors');
  }
  const [modelName = '', modelVersion = '', id = ''] = names;
  return {
    modelName,
    modelVersion,
    id,
    parameters,
    outputs,
    inputs: raw.length > 0 ? attachRawContents(inputs, raw) : inputs,
  };
}

/** @throws CubeError INVALID_ARGUMENT when there is not one for each tensor */
export function attachRawContents(
  inputs: readonly OipInput[],
  raw: readonly Uint8Array[],
): OipInput[] {
  if (raw.length !== inputs.length) {
    const counts = `${raw.length} for ${inputs.length} inputs`;
    fail(`raw_input_contents: expected one for each input, got ${counts}`);
  }
  return inputs.map((input, i) => {
    if (input.contents !== undefined) {
      fail(`input ${quoteShortened(input.name)}: either contents or raw_input_contents, not both`);
    }
    return { ...input, contents: raw[i] };
  });
}

/** An input of a request, or an output of a response: they have the same fields. */
export function readOipTensor(reader: WireReader): OipInput {
  let name = '';
  let datatype = '';
  let contents: Uint8Array | undefined;
  const shape: number[] = [];
  const parameters = new Map<string, OipParameter>();
  while (reader.next()) {
    if (reader.field === 1) name = reader.string();
    else if (reader.field === 2) datatype = reader.string();
    else if (reader.field === 3) readDims(reader, shape);
    else if (reader.field === 4) readParameter(reader.message(), parameters);
    else if (reader.field === 5) contents = reader.view();
    else reader.skip();
  }
  const elements = contents && readContents(contents, datatype, name);
  return { name, datatype, shape, parameters, contents: elements };
}

function readOutput(reader: WireReader): { name: string; parameters: OipParameters } {
  let name = '';
  const parameters = new Map<string, OipParameter>();
  while (reader.next()) {
    if (reader.field === 1) name = reader.string();
    else if (reader.field === 2) readParameter(reader.message(), parameters);
    else reader.skip();
  }
  return { name, parameters };
}

/** Reads packed or unpacked numbers, both of which protobuf allows. */
function readDims(reader: WireReader, shape: number[]): void {
  const packed = reader.wireType === WIRE_BYTES ? reader.message() : undefined;
  const source = packed ?? reader;
  do {
    if (packed !== undefined && packed.position >= packed.end) return;
    shape.push(Number(source.int64()));
    if (shape.length > ITEMS_MAX) failTooMany('dims');
  } while (packed !== undefined);
}

function readParameter(entry: WireReader, parameters: Map<string, OipParameter>): void {
  let key = '';
  let value: OipParameter | undefined;
  while (entry.next()) {
    if (entry.field === 1) key = entry.string();
    else if (entry.field === 2) value = readChoice(entry.message());
    else entry.skip();
  }
  if (value !== undefined) parameters.set(key, value);
  if (parameters.size > ITEMS_MAX) failTooMany('parameters');
}

function readChoice(reader: WireReader): OipParameter | undefined {
  let value: OipParameter | undefined;
  while (reader.next()) {
    if (reader.field === 1) value = reader.bool();
    else if (reader.field === 2) value = toSafeNumber(reader.int64());
    else if (reader.field === 3) value = reader.string();
    else if (reader.field === 4) value = readDouble(reader);
    else if (reader.field === 5) value = toSafeNumber(reader.uint64());
    else reader.skip();
  }
  return value;
}

function toSafeNumber(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function readDouble(reader: WireReader): number {
  reader.expect(WIRE_FIXED64);
  const at = reader.position;
  reader.skip();
  return new DataView(reader.bytes.buffer, reader.bytes.byteOffset + at, 8).getFloat64(0, true);
}

/** Converts InferTensorContents to raw elements. */
function readContents(message: Uint8Array, datatype: string, input: string): Uint8Array {
  const wanted = CONTENTS_FIELD[datatype];
  const reader = new WireReader(message);
  const pieces: Uint8Array[] = [];
  while (reader.next()) {
    if (reader.field !== wanted) {
      fail(
        `input ${quoteShortened(input)}: contents of field ${reader.field} do not fit ${datatype}`,
      );
    }
    addElements(pieces, reader);
  }
  return toRawElements(pieces, datatype as TensorType);
}

export function encodeOipResponse(response: OipResponse): Uint8Array {
  const { modelName, modelVersion, id, parameters, outputs, isRaw } = response;
  const tensors = outputs.map(toNamedTensor);
  const raws = isRaw ? tensors.map(encodeElements) : [];
  const writer = new WireWriter(512 + raws.reduce((sum, { length }) => sum + length, 0));
  writer.string(1, modelName).string(2, modelVersion);
  if (id !== '') writer.string(3, id);
  for (const [name, value] of Object.entries(parameters)) {
    writer.message(4, (entry) =>
      entry.string(1, name).message(2, (choice) => writeParameter(choice, value)),
    );
  }
  for (const tensor of tensors) {
    writer.message(5, (output) => {
      output.string(1, tensor.name).string(2, tensor.dataType);
      output.message(3, (dims) => {
        for (const dim of tensor.shape) dims.varint(dim);
      });
      if (!isRaw) output.message(5, (contents) => writeContents(contents, tensor));
    });
  }
  for (const raw of raws) writer.bytes(6, raw);
  return writer.finish();
}

export function toNamedTensor(output: OipOutput): NamedTensor {
  if ('dataType' in output) return output;
  const { name, shape, data } = output;
  return { name, shape, dataType: 'FP32', data: viewBytes(data) };
}

/** @throws CubeError INVALID_ARGUMENT for 16-bit floats, which the message has no field for */
function writeContents(writer: WireWriter, { name, dataType, data }: NamedTensor): void {
  const field = CONTENTS_FIELD[dataType];
  if (field === undefined) {
    fail(`output ${quoteShortened(name)}: ${dataType} needs raw contents (binary_data_output)`);
  }
  writeElements(writer, field, { dataType, data });
}

/**
 * Encodes a response of ModelStreamInfer. @param error empty when the request succeeded
 */
export function encodeOipStreamResponse(response: Uint8Array, error = ''): Uint8Array {
  const writer = new WireWriter(16 + response.length + error.length);
  if (error !== '') writer.string(1, error);
  return writer.bytes(2, response).finish();
}

/** The id of an encoded request, as far as it can be read; empty without one. */
export function readOipRequestId(bytes: Uint8Array): string {
  try {
    const reader = new WireReader(bytes);
    while (reader.next()) {
      if (reader.field === 3) return reader.string();
      reader.skip();
    }
  } catch {
    // The error of the request itself says what is wrong with it.
  }
  return '';
}

function writeParameter(writer: WireWriter, value: OipParameter): void {
  if (typeof value === 'boolean') writer.uint(1, value ? 1 : 0);
  else if (typeof value === 'string') writer.string(3, value);
  else if (typeof value === 'bigint' || Number.isSafeInteger(value)) writer.uint(2, BigInt(value));
  else writer.tag(4, WIRE_FIXED64).raw(new Uint8Array(Float64Array.of(value).buffer));
}

function viewBytes(data: Float32Array): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

function quoteShortened(name: string): string {
  return quoteInput(name);
}

function failTooMany(what: string): never {
  fail(`more than ${ITEMS_MAX} ${what} in one message`);
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
