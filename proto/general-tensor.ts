/**
 * Codec of a tensor of the general model service (general-model.proto): bytes to typed arrays and
 * back. A message is walked twice: once to count, so that no array grows and no memory is allocated
 * beyond the limits, and once to fill.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { TensorType } from '../lib/core/graph-signature.ts';
import type { NamedTensor } from '../lib/core/tensor.ts';
import { writeElements } from './tensor-elements.ts';
import {
  NameCache,
  readVarintWords,
  WIRE_BYTES,
  WIRE_FIXED32,
  WIRE_FIXED64,
  WIRE_VARINT,
  type WireReader,
  WireWriter,
} from './wire.ts';

/** Element types of tensors, by the numbers of the original protocol. */
export const ELEM_TYPE = {
  INT64: 0,
  FP32: 1,
  INT32: 2,
  FP64: 3,
  INT16: 4,
  FP16: 5,
  BF16: 6,
  UINT8: 7,
  INT8: 8,
  BOOL: 9,
  COMPLEX64: 10,
  COMPLEX128: 11,
  STRING: 20,
} as const;

/** Types of tensors that have an element type. */
export type GeneralTensorType = Exclude<TensorType, 'UINT16' | 'UINT32' | 'UINT64'>;

export const ELEM_TYPES: Readonly<Record<GeneralTensorType, number>> = {
  INT64: ELEM_TYPE.INT64,
  FP32: ELEM_TYPE.FP32,
  INT32: ELEM_TYPE.INT32,
  FP64: ELEM_TYPE.FP64,
  INT16: ELEM_TYPE.INT16,
  FP16: ELEM_TYPE.FP16,
  BF16: ELEM_TYPE.BF16,
  UINT8: ELEM_TYPE.UINT8,
  INT8: ELEM_TYPE.INT8,
  BOOL: ELEM_TYPE.BOOL,
  BYTES: ELEM_TYPE.STRING,
};

export interface GeneralTensor {
  readonly name: string;
  readonly aliasName: string;
  readonly elemType: number;
  readonly shape: readonly number[];
  readonly lod: Int32Array;
  /** int64_data as words, low before high. */
  readonly int64Words: Uint32Array;
  readonly float32: Float32Array;
  readonly int32: Int32Array;
  readonly float64: Float64Array;
  readonly uint32: Uint32Array;
  readonly bool: Uint8Array;
  readonly strings: readonly string[];
  /** tensor_content: a view of the message. */
  readonly content: Uint8Array;
}

/**
 * Limits of one message: number of tensors, and of integers, booleans, strings and dims of all its
 * tensors together. Packed floats need no more memory than their bytes.
 */
export interface GeneralModelLimits {
  readonly tensors: number;
  readonly values: number;
}

/** The remaining number of values of a message. */
export interface ValueBudget {
  values: number;
}

export const EMPTY_TENSOR: GeneralTensor = {
  name: '',
  aliasName: '',
  elemType: 0,
  shape: [],
  lod: new Int32Array(0),
  int64Words: new Uint32Array(0),
  float32: new Float32Array(0),
  int32: new Int32Array(0),
  float64: new Float64Array(0),
  uint32: new Uint32Array(0),
  bool: new Uint8Array(0),
  strings: [],
  content: new Uint8Array(0),
};

const INT64_DATA = 1;
const FLOAT_DATA = 2;
const INT_DATA = 3;
const FLOAT64_DATA = 4;
const UINT32_DATA = 5;
const BOOL_DATA = 6;
const STRING_DATA = 9;
const FIELD_ELEM_TYPE = 10;
const FIELD_SHAPE = 11;
const FIELD_LOD = 12;
const FIELD_NAME = 13;
const FIELD_ALIAS_NAME = 14;
const FIELD_CONTENT = 15;
const FIELD_MAX = 15;

/** The fields of values in responses; other types are in tensor_content. */
const VALUE_FIELDS: Readonly<Partial<Record<GeneralTensorType, number>>> = {
  INT64: INT64_DATA,
  FP32: FLOAT_DATA,
  INT32: INT_DATA,
  FP64: FLOAT64_DATA,
  BOOL: BOOL_DATA,
  BYTES: STRING_DATA,
};

/** Bytes per element of a field of fixed-width values; 0: varints. Index = field. */
const FIXED_BYTES: readonly number[] = [0, 0, 4, 0, 8];
const DIMS_MAX = 16;

type NumberArray = Uint32Array | Float32Array | Int32Array | Float64Array | Uint8Array;

/** The arrays of a tensor without values, by field. Typed arrays cost too much to make in vain. */
const EMPTY_ARRAYS: readonly NumberArray[] = createEmptyArrays();
const tensorNames = new NameCache();
/** Scratch memory: tensors are decoded one after another. */
const counts = new Uint32Array(FIELD_MAX + 1);
const filled = new Uint32Array(FIELD_MAX + 1);
const varintWords = new Uint32Array(2);

function createEmptyArrays(): NumberArray[] {
  const { int64Words, float32, int32, float64, uint32, bool, lod } = EMPTY_TENSOR;
  const arrays: NumberArray[] = new Array(FIELD_MAX + 1).fill(lod);
  arrays[INT64_DATA] = int64Words;
  arrays[FLOAT_DATA] = float32;
  arrays[INT_DATA] = int32;
  arrays[FLOAT64_DATA] = float64;
  arrays[UINT32_DATA] = uint32;
  arrays[BOOL_DATA] = bool;
  return arrays;
}

/**
 * Reads the tensor that fills `reader`. @throws CubeError INVALID_ARGUMENT, TOO_LARGE over the
 * budget
 */
export function decodeTensor(reader: WireReader, budget: ValueBudget): GeneralTensor {
  const start = reader.position;
  countElements(reader, budget);
  reader.position = start;
  return new TensorReader().read(reader);
}

/** Counts the elements of each repeated field to `counts`. */
function countElements(reader: WireReader, budget: ValueBudget): void {
  counts.fill(0);
  while (reader.next()) {
    const { field } = reader;
    let count = 0;
    if (isRepeatedNumber(field) && reader.wireType === WIRE_BYTES) count = countPacked(reader);
    else {
      reader.skip();
      if (isRepeatedNumber(field) || field === STRING_DATA) count = 1;
    }
    if (count === 0) continue;
    counts[field]! += count;
    if (!(FIXED_BYTES[field]! > 0)) budget.values -= count;
    if (budget.values < 0) {
      throw new CubeError('TOO_LARGE', 'too many tensor values: send fewer rows per call');
    }
  }
  if (counts[FIELD_SHAPE]! > DIMS_MAX) {
    const dims = counts[FIELD_SHAPE];
    throw new CubeError('TOO_LARGE', `a shape of ${dims} dimensions, the limit is ${DIMS_MAX}`);
  }
}

function isRepeatedNumber(field: number): boolean {
  return (
    (field >= INT64_DATA && field <= BOOL_DATA) || field === FIELD_SHAPE || field === FIELD_LOD
  );
}

function countPacked(reader: WireReader): number {
  const { field, bytes } = reader;
  const { position, end } = reader.message();
  const width = FIXED_BYTES[field] ?? 0;
  if (width > 0) {
    if ((end - position) % width === 0) return (end - position) / width;
    throw malformedTensorError(`${end - position} bytes of values of ${width} bytes each`);
  }
  let count = 0;
  for (let at = position; at < end; at++) if (bytes[at]! < 0x80) count++;
  return count;
}

function malformedTensorError(what: string): CubeError {
  return new CubeError('INVALID_ARGUMENT', `protobuf: a tensor has ${what}`);
}

/** The second walk: fills arrays of the sizes in `counts`. */
class TensorReader {
  readonly #arrays: NumberArray[] = EMPTY_ARRAYS.slice();
  #strings: string[] | undefined;

  constructor() {
    filled.fill(0);
    for (let field = INT64_DATA; field <= FIELD_LOD; field++) {
      const count = counts[field]!;
      if (count > 0) this.#arrays[field] = allocate(field, count);
    }
  }

  read(reader: WireReader): GeneralTensor {
    let { name, aliasName, elemType, content } = EMPTY_TENSOR;
    while (reader.next()) {
      const { field } = reader;
      if (isRepeatedNumber(field)) this.#fill(reader);
      else if (field === STRING_DATA) this.#addString(readText(reader));
      else if (field === FIELD_ELEM_TYPE) elemType = reader.int32();
      else if (field === FIELD_NAME) name = readName(reader);
      else if (field === FIELD_ALIAS_NAME) aliasName = readName(reader);
      else if (field === FIELD_CONTENT) {
        reader.expect(WIRE_BYTES);
        content = reader.view();
      } else reader.skip();
    }
    return {
      name,
      aliasName,
      elemType,
      content,
      shape: Array.from(this.#arrays[FIELD_SHAPE] as Int32Array),
      lod: this.#arrays[FIELD_LOD] as Int32Array,
      int64Words: this.#arrays[INT64_DATA] as Uint32Array,
      float32: this.#arrays[FLOAT_DATA] as Float32Array,
      int32: this.#arrays[INT_DATA] as Int32Array,
      float64: this.#arrays[FLOAT64_DATA] as Float64Array,
      uint32: this.#arrays[UINT32_DATA] as Uint32Array,
      bool: this.#arrays[BOOL_DATA] as Uint8Array,
      strings: this.#strings ?? EMPTY_TENSOR.strings,
    };
  }

  #addString(text: string): void {
    this.#strings ??= [];
    this.#strings.push(text);
  }

  /** Reads one element with its own tag, or a packed run of them. */
  #fill(reader: WireReader): void {
    const { field, wireType, bytes } = reader;
    const width = FIXED_BYTES[field] ?? 0;
    let at = reader.position;
    if (wireType === WIRE_BYTES) {
      const run = reader.message();
      at = run.position;
    } else {
      reader.expect(getWireType(width));
      reader.skip();
    }
    const end = reader.position;
    if (width > 0) this.#fillFixed(bytes, { field, at, end, width });
    else this.#fillVarints(bytes, { field, at, end });
  }

  #fillFixed(
    bytes: Uint8Array,
    { field, at, end, width }: { field: number; at: number; end: number; width: number },
  ): void {
    const array = this.#arrays[field]!;
    const view = new DataView(bytes.buffer, bytes.byteOffset + at, end - at);
    let to = filled[field]!;
    for (let from = 0; from < end - at; from += width, to++) {
      array[to] = width === 4 ? view.getFloat32(from, true) : view.getFloat64(from, true);
    }
    filled[field] = to;
  }

  #fillVarints(
    bytes: Uint8Array,
    { field, at, end }: { field: number; at: number; end: number },
  ): void {
    const array = this.#arrays[field]!;
    const words = field === INT64_DATA ? (array as Uint32Array) : varintWords;
    let to = filled[field]!;
    while (at < end) {
      at = readVarintWords(bytes, at, end, words, field === INT64_DATA ? 2 * to : 0);
      if (at < 0) throw malformedTensorError('a value that is not a varint');
      if (field === BOOL_DATA) array[to] = words[0]! | words[1]! ? 1 : 0;
      else if (field !== INT64_DATA) array[to] = words[0]!;
      to++;
    }
    filled[field] = to;
  }
}

/** The memory of `count` values of a field. Strings are not in it. */
function allocate(field: number, count: number): NumberArray {
  if (field === INT64_DATA) return new Uint32Array(2 * count);
  if (field === FLOAT_DATA) return new Float32Array(count);
  if (field === FLOAT64_DATA) return new Float64Array(count);
  if (field === UINT32_DATA) return new Uint32Array(count);
  if (field === BOOL_DATA) return new Uint8Array(count);
  return field === STRING_DATA ? EMPTY_TENSOR.bool : new Int32Array(count);
}

function getWireType(width: number): number {
  if (width === 0) return WIRE_VARINT;
  return width === 4 ? WIRE_FIXED32 : WIRE_FIXED64;
}

function readName(reader: WireReader): string {
  reader.expect(WIRE_BYTES);
  return reader.name(tensorNames);
}

function readText(reader: WireReader): string {
  reader.expect(WIRE_BYTES);
  return reader.string();
}

/** A tensor of a response. `data` of BOOL is bytes of 0 and 1. */
export interface OutputTensor extends NamedTensor {
  readonly dataType: GeneralTensorType;
  readonly aliasName: string;
  /** Offsets of the rows of a tensor of variable length. Default: none. */
  readonly lod?: ArrayLike<number> | undefined;
}

/** Appends the fields of a response's tensor; default values are omitted, as in proto3. */
export function encodeTensor(writer: WireWriter, tensor: OutputTensor): void {
  const { dataType, data, shape, name, aliasName } = tensor;
  const field = VALUE_FIELDS[dataType] ?? FIELD_CONTENT;
  if (field !== FIELD_CONTENT) writeElements(writer, field, tensor);
  const elemType = ELEM_TYPES[dataType];
  if (elemType !== 0) writer.uint(FIELD_ELEM_TYPE, elemType);
  writePacked(writer, FIELD_SHAPE, shape);
  if (tensor.lod !== undefined) writePacked(writer, FIELD_LOD, tensor.lod);
  if (name !== '') writer.string(FIELD_NAME, name);
  if (aliasName !== '') writer.string(FIELD_ALIAS_NAME, aliasName);
  if (field === FIELD_CONTENT && data.length > 0) writer.bytes(field, data as Uint8Array);
}

/** @param values ≥ 0 */
export function writePacked(writer: WireWriter, field: number, values: ArrayLike<number>): void {
  if (values.length === 0) return;
  const run = new WireWriter(16 * values.length);
  for (let i = 0; i < values.length; i++) run.varint(values[i]!);
  writer.bytes(field, run.finish());
}
