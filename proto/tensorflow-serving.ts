/**
 * Codec of Predict and GetModelMetadata of TensorFlow Serving over gRPC
 * (tensorflow-serving.proto). A request's tensors become raw elements, as those of the Open
 * Inference Protocol.
 */
import { CubeError } from '../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../lib/core/graph-signature.ts';
import { REQUEST_VALUES_MAX } from '../lib/core/limits.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import type { NamedTensor } from '../lib/core/tensor.ts';
import { addElements, toRawElements, writeElements } from './tensor-elements.ts';
import { WireReader, WireWriter } from './wire.ts';

export interface PredictTensor {
  readonly name: string;
  readonly datatype: TensorType;
  /** Empty for a scalar. */
  readonly shape: readonly number[];
  /** Elements, little-endian and row-major; BYTES elements with their lengths. */
  readonly contents: Uint8Array;
}

export interface PredictRequest {
  readonly model: string;
  /** Empty: not given. */
  readonly version: string;
  /** Empty: not given. */
  readonly label: string;
  readonly signature: string;
  readonly inputs: readonly PredictTensor[];
  /** Names of outputs; empty: all. */
  readonly outputs: readonly string[];
}

export interface PredictResponse {
  readonly model: string;
  readonly version: string;
  readonly signature: string;
  readonly outputs: readonly NamedTensor[];
}

/** A tensor of a signature. */
export interface SignatureTensor {
  readonly name: string;
  readonly datatype: string;
  /** -1: a dynamic dimension. */
  readonly shape: readonly number[];
}

export interface MetadataRequest extends Pick<PredictRequest, 'model' | 'version' | 'label'> {
  readonly fields: readonly string[];
}

export interface MetadataResponse {
  readonly model: string;
  readonly version: string;
  /** The name of the only signature. */
  readonly signature: string;
  readonly inputs: readonly SignatureTensor[];
  readonly outputs: readonly SignatureTensor[];
}

/** Datatypes and the fields of their values, by TensorFlow's numbers. */
const DATATYPES: Readonly<Record<number, readonly [datatype: TensorType, field: number]>> = {
  1: ['FP32', 5],
  2: ['FP64', 6],
  3: ['INT32', 7],
  4: ['UINT8', 7],
  5: ['INT16', 7],
  6: ['INT8', 7],
  7: ['BYTES', 8],
  9: ['INT64', 10],
  10: ['BOOL', 11],
  14: ['BF16', 13],
  17: ['UINT16', 7],
  19: ['FP16', 13],
  22: ['UINT32', 16],
  23: ['UINT64', 17],
};
/** TensorFlow's number of each datatype. */
const DTYPES: ReadonlyMap<string, number> = new Map(
  Object.entries(DATATYPES).map(([dtype, [datatype]]) => [datatype, Number(dtype)]),
);
const TENSOR_CONTENT = 4;
/** Maximum inputs, output names or dims in one request. */
const ITEMS_MAX = 20_000;

/**
 * @param bytes must not change afterwards: tensors are views of them
 * @throws CubeError INVALID_ARGUMENT naming the input
 */
export function decodePredictRequest(bytes: Uint8Array): PredictRequest {
  const reader = new WireReader(bytes);
  let spec = { model: '', version: '', label: '', signature: '' };
  const inputs: PredictTensor[] = [];
  const outputs: string[] = [];
  while (reader.next()) {
    if (reader.field === 1) spec = readModelSpec(reader.message());
    else if (reader.field === 2) inputs.push(readInput(reader.message()));
    else if (reader.field === 3) outputs.push(reader.string());
    else reader.skip();
    if (Math.max(inputs.length, outputs.length) > ITEMS_MAX) fail(`more than ${ITEMS_MAX} tensors`);
  }
  return { ...spec, inputs, outputs };
}

function readModelSpec(reader: WireReader): Omit<PredictRequest, 'inputs' | 'outputs'> {
  const spec = { model: '', version: '', label: '', signature: '' };
  while (reader.next()) {
    if (reader.field === 1) spec.model = reader.string();
    else if (reader.field === 2) spec.version = String(readWrappedInteger(reader.message()));
    else if (reader.field === 3) spec.signature = reader.string();
    else if (reader.field === 4) spec.label = reader.string();
    else reader.skip();
  }
  return spec;
}

/** google.protobuf.Int64Value. */
function readWrappedInteger(reader: WireReader): bigint {
  let value = 0n;
  while (reader.next()) {
    if (reader.field === 1) value = reader.int64();
    else reader.skip();
  }
  return value;
}

/** An entry of the map of inputs. */
function readInput(reader: WireReader): PredictTensor {
  let name = '';
  let tensor: Uint8Array = new Uint8Array(0);
  while (reader.next()) {
    if (reader.field === 1) name = reader.string();
    else if (reader.field === 2) tensor = reader.view();
    else reader.skip();
  }
  return readTensor(name, new WireReader(tensor));
}

function readTensor(name: string, reader: WireReader): PredictTensor {
  let dtype = 0;
  let shape: number[] = [];
  let content: Uint8Array | undefined;
  const values = new Map<number, Uint8Array[]>();
  while (reader.next()) {
    const { field } = reader;
    if (field === 1) dtype = reader.int32();
    else if (field === 2) shape = readShape(reader.message(), name);
    else if (field === TENSOR_CONTENT) content = reader.view();
    else if (field > TENSOR_CONTENT) {
      const pieces = values.get(field) ?? [];
      addElements(pieces, reader);
      values.set(field, pieces);
    } else reader.skip();
  }
  const known = DATATYPES[dtype];
  if (known === undefined) {
    return failInput(name, `dtype ${dtype} is not supported: send strings, floats or integers`);
  }
  const [datatype, field] = known;
  const other = [...values.keys()].find((given) => given !== field);
  if (other !== undefined) failInput(name, `values of field ${other} do not fit ${datatype}`);
  if (content !== undefined && content.length > 0) {
    if (datatype === 'BYTES') failInput(name, 'strings in tensor_content: send string_val');
    return { name, datatype, shape, contents: content };
  }
  const contents = toRawElements(values.get(field) ?? [], datatype);
  return { name, datatype, shape, contents: repeatLast(contents, datatype, shape, name) };
}

function readShape(reader: WireReader, name: string): number[] {
  const shape: number[] = [];
  while (reader.next()) {
    if (reader.field === 3 && reader.bool()) failInput(name, 'its shape has no known rank');
    else if (reader.field === 2) shape.push(Number(readWrappedInteger(reader.message())));
    else if (reader.field !== 3) reader.skip();
    if (shape.length > ITEMS_MAX) failInput(name, `more than ${ITEMS_MAX} dims`);
  }
  return shape;
}

/** Repeats the last element to fill the shape. BYTES are as the caller sent them. */
function repeatLast(
  contents: Uint8Array,
  datatype: TensorType,
  shape: readonly number[],
  name: string,
): Uint8Array {
  const size = TENSOR_TYPE_BYTES[datatype];
  const count = shape.reduce((product, dim) => product * dim, 1);
  const missing = count * size - contents.length;
  if (size === 0 || contents.length === 0 || !(missing > 0)) return contents;
  if (count > REQUEST_VALUES_MAX) failInput(name, `shape: over ${REQUEST_VALUES_MAX} elements`);
  const whole = new Uint8Array(count * size);
  whole.set(contents);
  const last = contents.subarray(-size);
  for (let at = contents.length; at < whole.length; at += size) whole.set(last, at);
  return whole;
}

/** @throws CubeError INVALID_ARGUMENT */
export function decodeMetadataRequest(bytes: Uint8Array): MetadataRequest {
  const reader = new WireReader(bytes);
  let spec = { model: '', version: '', label: '', signature: '' };
  const fields: string[] = [];
  while (reader.next()) {
    if (reader.field === 1) spec = readModelSpec(reader.message());
    else if (reader.field === 2) fields.push(reader.string());
    else reader.skip();
    if (fields.length > ITEMS_MAX) fail(`more than ${ITEMS_MAX} fields`);
  }
  return { ...spec, fields };
}

export function encodeMetadataResponse(response: MetadataResponse): Uint8Array {
  const { model, version, signature, inputs, outputs } = response;
  const definition = new WireWriter();
  writeSignature(definition, 1, inputs);
  writeSignature(definition, 2, outputs);
  definition.string(3, 'tensorflow/serving/predict');
  const map = new WireWriter().message(1, (entry) =>
    entry.string(1, signature).bytes(2, definition.finish()),
  );
  return new WireWriter()
    .message(1, (spec) => writeModelSpec(spec, { model, version, signature: '' }))
    .message(2, (entry) =>
      entry.string(1, 'signature_def').message(2, (any) => {
        any.string(1, 'type.googleapis.com/tensorflow.serving.SignatureDefMap');
        any.bytes(2, map.finish());
      }),
    )
    .finish();
}

function writeSignature(
  writer: WireWriter,
  field: number,
  tensors: readonly SignatureTensor[],
): void {
  for (const { name, datatype, shape } of tensors) {
    writer.message(field, (entry) => {
      entry.string(1, name).message(2, (info) => {
        info.string(1, name).uint(2, DTYPES.get(datatype) ?? 0);
        info.message(3, (dims) => writeShape(dims, shape));
      });
    });
  }
}

export function encodePredictResponse(response: PredictResponse): Uint8Array {
  const { model, version, signature, outputs } = response;
  const writer = new WireWriter(256);
  for (const output of outputs) {
    writer.message(1, (entry) =>
      entry.string(1, output.name).message(2, (tensor) => writeTensor(tensor, output)),
    );
  }
  writer.message(2, (spec) => writeModelSpec(spec, { model, version, signature }));
  return writer.finish();
}

function writeModelSpec(
  writer: WireWriter,
  { model, version, signature }: Pick<PredictResponse, 'model' | 'version' | 'signature'>,
): void {
  writer.string(1, model);
  if (/^\d{1,18}$/.test(version)) writer.message(2, (value) => value.uint(1, BigInt(version)));
  else writer.string(4, version);
  if (signature !== '') writer.string(3, signature);
}

/** Elements are typed values, as those of TensorFlow Serving. */
function writeTensor(tensor: WireWriter, { name, dataType, shape, data }: NamedTensor): void {
  const dtype = DTYPES.get(dataType);
  if (dtype === undefined) throw new CubeError('UNSUPPORTED', `output ${name}: ${dataType}`);
  tensor.uint(1, dtype).message(2, (dims) => writeShape(dims, shape));
  const [, field] = DATATYPES[dtype]!;
  writeElements(tensor, field, { dataType, data });
}

/** @param shape -1 for a dynamic dimension */
function writeShape(writer: WireWriter, shape: readonly number[]): void {
  for (const size of shape) writer.message(2, (dim) => dim.uint(1, BigInt(size)));
}

function failInput(name: string, problem: string): never {
  fail(`input ${quoteInput(name)}: ${problem}`);
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
