/**
 * The elements of constant tensors: raw bytes, typed fields, or a file next to the model. Files are
 * read at positions, never whole.
 */

import { dirname, isAbsolute, join, sep } from 'node:path';
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { fileExists, isFolder, RandomAccessReader, realPath } from '../../../lib/platform/files.ts';
import { WIRE_BYTES, WIRE_FIXED32, WIRE_VARINT, WireReader } from '../../../proto/wire.ts';
import { countElements } from '../cut/table.ts';
import {
  ELEM_INT32,
  ELEM_INT64,
  getElementTypeName,
  type TensorData,
  type TensorProto,
} from './onnx-model.ts';

const RAW_DATA = 9;
const FLOAT_DATA = 4;
const INT32_DATA = 5;
const INT64_DATA = 7;
const DOUBLE_DATA = 10;
const ELEM_BYTES: Readonly<Record<number, number>> = {
  1: 4,
  2: 1,
  3: 1,
  4: 2,
  5: 2,
  6: 4,
  7: 8,
  9: 1,
  10: 2,
  11: 8,
  12: 4,
  13: 8,
  16: 2,
};

/** Bytes of one element; undefined for strings and packed types. */
export function getElementBytes(elemType: number): number | undefined {
  return ELEM_BYTES[elemType];
}

/** Collects the fields of one tensor that contain elements. */
export class TensorDataCollector {
  readonly #chunks = new Map<number, Uint8Array[]>();

  /** @returns false when the field contains no elements; the reader has then not moved */
  collect(reader: WireReader): boolean {
    const { field, wireType } = reader;
    const isPacked = wireType === WIRE_BYTES;
    if (field === RAW_DATA) reader.expect(WIRE_BYTES);
    else if (field === FLOAT_DATA && !isPacked) reader.expect(WIRE_FIXED32);
    else if ((field === INT32_DATA || field === INT64_DATA) && !isPacked) {
      reader.expect(WIRE_VARINT);
    } else if (![FLOAT_DATA, INT32_DATA, INT64_DATA, DOUBLE_DATA].includes(field)) return false;
    const start = reader.position;
    if (isPacked) this.#append(field, reader.view());
    else {
      reader.skip();
      this.#append(field, reader.bytes.subarray(start, reader.position));
    }
    return true;
  }

  getData(): TensorData | undefined {
    // raw_data is a single value: the last one wins.
    const raw = this.#chunks.get(RAW_DATA)?.at(-1);
    if (raw !== undefined) return { encoding: 'packed', pieces: [raw] };
    const packed = this.#chunks.get(FLOAT_DATA) ?? this.#chunks.get(DOUBLE_DATA);
    if (packed !== undefined) return { encoding: 'packed', pieces: packed };
    const varints = this.#chunks.get(INT64_DATA) ?? this.#chunks.get(INT32_DATA);
    return varints && { encoding: 'varints', pieces: varints };
  }

  #append(field: number, bytes: Uint8Array): void {
    const list = this.#chunks.get(field);
    if (list === undefined) this.#chunks.set(field, [bytes]);
    else list.push(bytes);
  }
}

/** Little-endian elements, readable at any position. */
export interface TensorDataReader {
  readonly length: number;
  readInto(target: Uint8Array, position: number): void;
}

/** Limits on integers in other files that are read at once: axes, offsets, maps. */
const INTEGERS_BYTES_MAX = 32 << 20;
const INTEGERS_TOTAL_BYTES_MAX = 256 << 20;

/** The files with the external data of a model; opened when needed. */
export class ExternalData {
  readonly #folder: string;
  readonly #files = new Map<string, RandomAccessReader>();
  #integersBytes = 0;

  /** @param model path of the model file */
  constructor(model: string) {
    this.#folder = dirname(model);
  }

  /** @throws CubeError UNSUPPORTED when outside the model's folder, CORRUPT when too short */
  open(tensor: TensorProto): TensorDataReader {
    const { external, name } = tensor;
    const itemBytes = getElementBytes(tensor.elemType);
    if (external === undefined || itemBytes === undefined) {
      throw new CubeError(
        'UNSUPPORTED',
        `${describeTensor(name)} of ${getElementTypeName(tensor.elemType)} is in another file, ` +
          'which is not supported for this type',
      );
    }
    const expected = getByteLength(tensor);
    const offset = readEntry(external, 'offset', name) ?? 0;
    const length = readEntry(external, 'length', name) ?? expected;
    if (length !== expected) throw wrongLengthError(tensor, `${expected} bytes`, length);
    const file = this.#file(external.get('location') ?? '', name);
    if (offset + length > file.bytes) {
      throw invalidModel(
        `${describeTensor(name)} is at bytes ${offset} to ${offset + length} of ` +
          `${file.path}, which has ${file.bytes}`,
      );
    }
    return {
      length,
      readInto: (target, position) => file.readInto(target, offset + position),
    };
  }

  /** @returns the elements of an integer tensor; undefined for other types and above the limits */
  loadIntegers(tensor: TensorProto): TensorData | undefined {
    if (tensor.elemType !== ELEM_INT32 && tensor.elemType !== ELEM_INT64) return undefined;
    const length = getByteLength(tensor);
    if (length > INTEGERS_BYTES_MAX) return undefined;
    this.#integersBytes += length;
    if (this.#integersBytes > INTEGERS_TOTAL_BYTES_MAX) return undefined;
    const source = this.open(tensor);
    const bytes = new Uint8Array(length);
    source.readInto(bytes, 0);
    return { encoding: 'packed', pieces: [bytes] };
  }

  /** Size of the opened files: the bytes of the model outside its own file. */
  get bytes(): number {
    return [...this.#files.values()].reduce((sum, file) => sum + file.bytes, 0);
  }

  close(): void {
    for (const file of this.#files.values()) file.close();
    this.#files.clear();
  }

  #file(location: string, tensor: string): RandomAccessReader {
    const open = this.#files.get(location);
    if (open !== undefined) return open;
    const leaves = isAbsolute(location) || location.split(/[\\/]/).includes('..');
    const path = join(this.#folder, location);
    if (!leaves && (!fileExists(path) || isFolder(path) || location === '')) {
      throw invalidModel(
        `${describeTensor(tensor)} is in the file ${JSON.stringify(location)}, which is ` +
          'missing; copy it next to the model',
      );
    }
    if (leaves || !realPath(path).startsWith(`${realPath(this.#folder)}${sep}`)) {
      throw new CubeError(
        'UNSUPPORTED',
        `cannot prune this model: ${describeTensor(tensor)} is in ` +
          `${JSON.stringify(location)}, outside the model's folder; move it there`,
      );
    }
    const file = new RandomAccessReader(path);
    this.#files.set(location, file);
    return file;
  }
}

function describeTensor(tensor: string): string {
  return `tensor ${JSON.stringify(tensor)}`;
}

function invalidModel(what: string): CubeError {
  return new CubeError('CORRUPT', `not a valid ONNX model: ${what}`);
}

function readEntry(
  external: ReadonlyMap<string, string>,
  key: string,
  tensor: string,
): number | undefined {
  const value = external.get(key);
  if (value === undefined) return undefined;
  if (/^\d{1,15}$/.test(value)) return Number(value);
  throw invalidModel(
    `the ${key} of ${describeTensor(tensor)} is ${JSON.stringify(value.slice(0, 40))}`,
  );
}

/** @throws CubeError CORRUPT for a dim below zero or too large */
export function checkDim(dim: bigint, tensor: string): number {
  if (dim >= 0n && dim <= BigInt(Number.MAX_SAFE_INTEGER)) return Number(dim);
  throw new CubeError('CORRUPT', `${describeTensor(tensor)} has a dim of ${dim}`);
}

export function countTensorElements({ dims }: TensorProto): number {
  return countElements(dims);
}

function getByteLength(tensor: TensorProto): number {
  return countTensorElements(tensor) * (getElementBytes(tensor.elemType) ?? 1);
}

function wrongLengthError(tensor: TensorProto, expected: string, found: number): CubeError {
  const shape = `[${tensor.dims.join(', ')}]`;
  return invalidModel(
    `${describeTensor(tensor.name)} of shape ${shape} needs ${expected}, it has ${found}`,
  );
}

/** The elements of a tensor. @throws CubeError CORRUPT when they do not fill its dims */
export function openTensor(tensor: TensorProto, external: ExternalData): TensorDataReader {
  if (tensor.external !== undefined) return external.open(tensor);
  const expected = getByteLength(tensor);
  const bytes = readInlineBytes(tensor, expected);
  if (bytes.length !== expected) throw wrongLengthError(tensor, `${expected} bytes`, bytes.length);
  return {
    length: expected,
    readInto: (target, position) => target.set(bytes.subarray(position, position + target.length)),
  };
}

function readInlineBytes({ data, elemType }: TensorProto, expected: number): Uint8Array {
  const pieces = data?.pieces ?? [];
  const itemBytes = getElementBytes(elemType);
  if (data?.encoding === 'varints' && itemBytes !== undefined) {
    return decodeVarints(pieces, itemBytes, expected);
  }
  const [first, ...others] = pieces;
  if (first !== undefined && others.length === 0) return first;
  const bytes = new Uint8Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
  let at = 0;
  for (const piece of pieces) {
    bytes.set(piece, at);
    at += piece.length;
  }
  return bytes;
}

/** int32_data holds one element of up to 32 bits in each varint, int64_data one of 64. */
function decodeVarints(
  pieces: readonly Uint8Array[],
  itemBytes: number,
  expected: number,
): Uint8Array {
  const most = pieces.reduce((sum, piece) => sum + piece.length, 0) * itemBytes;
  const bytes = new Uint8Array(Math.min(most, expected + itemBytes) + 8);
  const view = new DataView(bytes.buffer);
  let at = 0;
  for (const piece of pieces) {
    const reader = new WireReader(piece);
    for (; reader.position < reader.end && at <= expected; at += itemBytes) {
      if (itemBytes === 8) view.setBigInt64(at, reader.int64(), true);
      else view.setUint32(at, reader.uint32(), true);
    }
  }
  return bytes.subarray(0, at);
}

/**
 * @returns undefined when the tensor is not int32 or int64, or has more than `countMax` elements
 */
export function readIntegers(tensor: TensorProto, countMax: number): BigInt64Array | undefined {
  const { elemType, data } = tensor;
  if (elemType !== ELEM_INT32 && elemType !== ELEM_INT64) return undefined;
  if (tensor.external !== undefined && data === undefined) return undefined;
  const count = countTensorElements(tensor);
  if (count > countMax) return undefined;
  const itemBytes = requireDefined(getElementBytes(elemType), 'the size of an element');
  const bytes = readInlineBytes(tensor, count * itemBytes);
  if (bytes.length !== count * itemBytes) {
    throw wrongLengthError(tensor, `${count} elements`, Math.floor(bytes.length / itemBytes));
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return BigInt64Array.from({ length: count }, (_, i) =>
    itemBytes === 4 ? BigInt(view.getInt32(4 * i, true)) : view.getBigInt64(8 * i, true),
  );
}
