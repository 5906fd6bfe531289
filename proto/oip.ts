/**
 * Codec of the Open Inference Protocol's ModelInfer over gRPC (oip.proto): a request becomes tensors whose elements are raw bytes,
 * whichever of the two forms they came in, and a response is written from raw bytes. Views where the wire has the elements as they
 * are (raw contents, packed floats), so that a large tensor is not touched here.
 */
import { CubeError } from '../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_FIXED32, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

/** Bytes of an element; 0: BYTES, each with a u32 length before it. */
export const DATATYPE_BYTES: Readonly<Record<Datatype, number>> = {
  ...{ BOOL: 1, UINT8: 1, UINT16: 2, UINT32: 4, UINT64: 8, INT8: 1, INT16: 2, INT32: 4, INT64: 8 },
  ...{ FP16: 2, FP32: 4, FP64: 8, BYTES: 0 },
};

export type Datatype = `${'' | 'U'}INT${8 | 16 | 32 | 64}` | `FP${16 | 32 | 64}` | 'BOOL' | 'BYTES';

export type OipParameter = string | number | bigint | boolean;
export type OipParameters = ReadonlyMap<string, OipParameter>;

export interface OipInput {
  readonly name: string;
  /** Any string: the caller's. */
  readonly datatype: string;
  readonly shape: readonly number[];
  readonly parameters: OipParameters;
  /** Elements, little-endian and row-major, of BYTES each with its length before it; undefined: none were sent. */
  readonly contents: Uint8Array | undefined;
}

export interface OipRequest {
  readonly modelName: string;
  readonly modelVersion: string;
  readonly id: string;
  readonly parameters: OipParameters;
  readonly inputs: readonly OipInput[];
  readonly outputs: readonly { readonly name: string; readonly parameters: OipParameters }[];
  /** Whether the inputs came as raw_input_contents: the answer then goes raw too. */
  readonly isRaw: boolean;
}

export interface OipOutput {
  readonly name: string;
  readonly shape: readonly number[];
  readonly data: Float32Array;
}

export interface OipResponse {
  readonly modelName: string;
  readonly modelVersion: string;
  readonly id: string;
  readonly parameters: Readonly<Record<string, OipParameter>>;
  readonly outputs: readonly OipOutput[];
  /** raw_output_contents rather than fp32_contents. */
  readonly isRaw: boolean;
}

/** Tensors, outputs, parameters and dims that one message may have: more is no request for a model. */
const ITEMS_MAX = 20_000;
const WIRE_FIXED64 = 1;

/** The field of InferTensorContents that has a datatype's elements. */
const CONTENTS_FIELD: Readonly<Record<string, number>> = {
  ...{ BOOL: 1, INT8: 2, INT16: 2, INT32: 2, INT64: 3, UINT8: 4, UINT16: 4, UINT32: 4, UINT64: 5 },
  ...{ FP32: 6, FP64: 7, BYTES: 8 },
};

/** @param bytes stay in use: tensors are views on them @throws CubeError INVALID_ARGUMENT */
export function readOipRequest(bytes: Uint8Array): OipRequest {
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
    else if (field === 5) inputs.push(readInput(reader.message()));
    else if (field === 6) outputs.push(readOutput(reader.message()));
    else raw.push(reader.view());
    if (Math.max(inputs.length, outputs.length, raw.length) > ITEMS_MAX) tooMany('tensors');
  }
  const [modelName = '', modelVersion = '', id = ''] = names;
  const isRaw = raw.length > 0;
  return {
    ...{ modelName, modelVersion, id, parameters, outputs, isRaw },
    inputs: isRaw ? withRaw(inputs, raw) : inputs,
  };
}

function withRaw(inputs: readonly OipInput[], raw: readonly Uint8Array[]): OipInput[] {
  if (raw.length !== inputs.length) {
    const counts = `${raw.length} for ${inputs.length} inputs`;
    fail(`raw_input_contents: expected one for each input, got ${counts}`);
  }
  return inputs.map((input, i) => {
    if (input.contents !== undefined) {
      fail(`input ${shown(input.name)}: either contents or raw_input_contents, not both`);
    }
    return { ...input, contents: raw[i] };
  });
}

function readInput(reader: WireReader): OipInput {
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
  const elements = contents && contentsOf(contents, datatype, name);
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

/** Packed or not, as every repeated number may come. */
function readDims(reader: WireReader, shape: number[]): void {
  const packed = reader.wireType === WIRE_BYTES ? reader.message() : undefined;
  const source = packed ?? reader;
  do {
    if (packed !== undefined && packed.position >= packed.end) return;
    shape.push(Number(source.int64()));
    if (shape.length > ITEMS_MAX) tooMany('dims');
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
  if (parameters.size > ITEMS_MAX) tooMany('parameters');
}

function readChoice(reader: WireReader): OipParameter | undefined {
  let value: OipParameter | undefined;
  while (reader.next()) {
    if (reader.field === 1) value = reader.bool();
    else if (reader.field === 2) value = plain(reader.int64());
    else if (reader.field === 3) value = reader.string();
    else if (reader.field === 4) value = readDouble(reader);
    else if (reader.field === 5) value = plain(reader.uint64());
    else reader.skip();
  }
  return value;
}

function plain(value: bigint): number | bigint {
  const number = Number(value);
  return Number.isSafeInteger(number) ? number : value;
}

function readDouble(reader: WireReader): number {
  reader.expect(WIRE_FIXED64);
  const at = reader.position;
  reader.skip();
  return new DataView(reader.bytes.buffer, reader.bytes.byteOffset + at, 8).getFloat64(0, true);
}

/** InferTensorContents as raw elements. */
function contentsOf(message: Uint8Array, datatype: string, input: string): Uint8Array {
  const wanted = CONTENTS_FIELD[datatype];
  const reader = new WireReader(message);
  const pieces: Uint8Array[] = [];
  while (reader.next()) {
    if (reader.field !== wanted) {
      fail(`input ${shown(input)}: contents of field ${reader.field} do not go with ${datatype}`);
    }
    pieces.push(reader.wireType === WIRE_BYTES ? reader.view() : lonely(reader));
  }
  if (datatype === 'BYTES') return withLengths(pieces);
  const packed = pieces.length === 1 ? pieces[0]! : joined(pieces);
  if (datatype.startsWith('FP')) return packed;
  return fixedWidth(packed, DATATYPE_BYTES[datatype as Datatype]);
}

/** The bytes of an element that is not packed with others. */
function lonely(reader: WireReader): Uint8Array {
  const { wireType, position } = reader;
  if (![WIRE_VARINT, WIRE_FIXED32, WIRE_FIXED64].includes(wireType)) reader.expect(WIRE_BYTES);
  reader.skip();
  return reader.bytes.subarray(position, reader.position);
}

function joined(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function withLengths(elements: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(elements.reduce((sum, { length }) => sum + 4 + length, 0));
  const view = new DataView(whole.buffer);
  let at = 0;
  for (const element of elements) {
    view.setUint32(at, element.length, true);
    whole.set(element, at + 4);
    at += 4 + element.length;
  }
  return whole;
}

/** Varints as little-endian integers of `width` bytes; what is beyond them is cut, as every protobuf reader does. */
function fixedWidth(packed: Uint8Array, width: number): Uint8Array {
  let count = 0;
  for (const byte of packed) if (byte < 0x80) count++;
  const words = new Uint8Array(count * width);
  let to = 0;
  for (let at = 0; at < packed.length; to += width) {
    let bits = 0;
    let held = 0;
    let written = 0;
    let byte = 0x80;
    for (let length = 0; byte >= 0x80; length++) {
      if (at >= packed.length || length === 10) fail('contents: a varint without an end');
      byte = packed[at++]!;
      held |= (byte & 0x7f) << bits;
      bits += 7;
      for (; bits >= 8; bits -= 8, held >>>= 8) {
        if (written < width) words[to + written++] = held;
      }
    }
    if (written < width) words[to + written] = held;
  }
  return words;
}

export function writeOipResponse(response: OipResponse): Uint8Array {
  const { modelName, modelVersion, id, parameters, outputs, isRaw } = response;
  const dataBytes = outputs.reduce((sum, { data }) => sum + data.byteLength, 0);
  const writer = new WireWriter(512 + dataBytes);
  writer.string(1, modelName).string(2, modelVersion);
  if (id !== '') writer.string(3, id);
  for (const [name, value] of Object.entries(parameters)) {
    writer.message(4, (entry) =>
      entry.string(1, name).message(2, (choice) => writeParameter(choice, value)),
    );
  }
  for (const { name, shape, data } of outputs) {
    writer.message(5, (output) => {
      output.string(1, name).string(2, 'FP32');
      output.message(3, (dims) => {
        for (const dim of shape) dims.varint(dim);
      });
      if (!isRaw) output.message(5, (contents) => contents.bytes(6, bytesOf(data)));
    });
  }
  if (isRaw) for (const { data } of outputs) writer.bytes(6, bytesOf(data));
  return writer.finish();
}

/** An answer of ModelStreamInfer. */
export function writeOipStreamResponse(answer: Uint8Array | string): Uint8Array {
  const writer = new WireWriter(16 + answer.length);
  return (typeof answer === 'string' ? writer.string(1, answer) : writer.bytes(2, answer)).finish();
}

function writeParameter(writer: WireWriter, value: OipParameter): void {
  if (typeof value === 'boolean') writer.uint(1, value ? 1 : 0);
  else if (typeof value === 'string') writer.string(3, value);
  else if (typeof value === 'bigint' || Number.isSafeInteger(value)) writer.uint(2, BigInt(value));
  else writer.tag(4, WIRE_FIXED64).raw(new Uint8Array(Float64Array.of(value).buffer));
}

function bytesOf(data: Float32Array): Uint8Array {
  return new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
}

function shown(name: string): string {
  return JSON.stringify(name.slice(0, 128));
}

function tooMany(what: string): never {
  fail(`more than ${ITEMS_MAX} ${what} in one message`);
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
