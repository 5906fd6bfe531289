/**
 * Elements of tensors between raw little-endian bytes, as tensors have them in memory, and the
 * repeated fields of protobuf messages.
 */
import { CubeError } from '../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../lib/core/graph-signature.ts';
import { REQUEST_VALUES_MAX } from '../lib/core/limits.ts';
import type { Tensor } from '../lib/core/tensor.ts';
import {
  WIRE_BYTES,
  WIRE_FIXED32,
  WIRE_FIXED64,
  WIRE_VARINT,
  WireReader,
  type WireWriter,
} from './wire.ts';

const textEncoder = new TextEncoder();

/**
 * What a field of 32-bit integers may have for smaller elements. Protobuf has no smaller integers,
 * so that such a value can be too large; cutting it off would give a wrong one.
 */
const RANGES: Partial<Record<TensorType, readonly [min: number, max: number]>> = {
  BOOL: [0, 1],
  INT8: [-128, 127],
  UINT8: [0, 255],
  INT16: [-32_768, 32_767],
  UINT16: [0, 65_535],
  // Its bits.
  FP16: [0, 65_535],
};

/**
 * The values of protobuf fields as elements of a tensor.
 * @param pieces as `addElements` adds them
 * @throws CubeError INVALID_ARGUMENT for an integer that the type does not have
 */
export function toRawElements(pieces: readonly Uint8Array[], datatype: TensorType): Uint8Array {
  if (datatype === 'BYTES') return prefixLengths(pieces);
  const [first, second] = pieces;
  const isWhole = first !== undefined && second === undefined;
  const packed = isWhole ? first : concatenate(pieces);
  if (datatype === 'FP32' || datatype === 'FP64') return packed;
  checkRange(packed, datatype);
  return toFixedWidth(packed, TENSOR_TYPE_BYTES[datatype]);
}

/**
 * Adds the elements of a field to those of the same tensor. @throws CubeError TOO_LARGE for more
 * pieces than a hostile message may cost memory for
 */
export function addElements(pieces: Uint8Array[], reader: WireReader): void {
  if (pieces.length === REQUEST_VALUES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `over ${REQUEST_VALUES_MAX} values with a tag each: pack them, or send raw contents`,
    );
  }
  pieces.push(readElements(reader));
}

/** The bytes of a repeated field's elements: all of them when they are packed, else of one. */
function readElements(reader: WireReader): Uint8Array {
  const { wireType, position } = reader;
  if (wireType === WIRE_BYTES) return reader.view();
  if (![WIRE_VARINT, WIRE_FIXED32, WIRE_FIXED64].includes(wireType)) reader.expect(WIRE_BYTES);
  reader.skip();
  return reader.bytes.subarray(position, reader.position);
}

function checkRange(packed: Uint8Array, datatype: TensorType): void {
  const range = RANGES[datatype];
  if (range === undefined) return;
  const [min, max] = range;
  const reader = new WireReader(packed);
  while (reader.position < packed.length) {
    const value = reader.int32();
    if (value < min || value > max) {
      fail(`contents: expected an integer in ${min}..${max} for ${datatype}, got ${value}`);
    }
  }
}

function concatenate(pieces: readonly Uint8Array[]): Uint8Array {
  const whole = new Uint8Array(pieces.reduce((sum, { length }) => sum + length, 0));
  let at = 0;
  for (const piece of pieces) {
    whole.set(piece, at);
    at += piece.length;
  }
  return whole;
}

function prefixLengths(elements: readonly Uint8Array[]): Uint8Array {
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

/**
 * Converts varints to little-endian integers of `width` bytes; higher bytes are cut, as every
 * protobuf reader does.
 */
function toFixedWidth(packed: Uint8Array, width: number): Uint8Array {
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

/** Elements as raw contents: little-endian; strings with their lengths before them. */
export function encodeElements({ data }: Tensor): Uint8Array {
  if (data instanceof Uint8Array) return data;
  return prefixLengths(data.map((text) => textEncoder.encode(text)));
}

/** Writes elements as one packed field, texts as one field each. Nothing for no elements. */
export function writeElements(
  writer: WireWriter,
  field: number,
  { dataType, data }: Pick<Tensor, 'dataType' | 'data'>,
): void {
  if (!(data instanceof Uint8Array)) {
    for (const text of data) writer.string(field, text);
  } else if (data.length === 0) return;
  else if (dataType === 'FP32' || dataType === 'FP64') writer.bytes(field, data);
  else {
    writer.message(field, (packed) => {
      for (const value of readIntegers(data, dataType)) packed.varint(value);
    });
  }
}

/** Negative integers as 64-bit two's complement, as protobuf writes them. */
function* readIntegers(data: Uint8Array, dataType: TensorType): Generator<number | bigint> {
  const width = TENSOR_TYPE_BYTES[dataType];
  const isSigned = dataType.startsWith('INT');
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  for (let at = 0; at < data.length; at += width) {
    if (width === 8) yield readWide(view, at);
    else if (width === 4)
      yield toVarint(isSigned, view.getInt32(at, true), view.getUint32(at, true));
    else if (width === 2)
      yield toVarint(isSigned, view.getInt16(at, true), view.getUint16(at, true));
    else yield toVarint(isSigned, view.getInt8(at), view.getUint8(at));
  }
}

/** A number where that is exact, because bigints are slow. */
function readWide(view: DataView, at: number): number | bigint {
  const high = view.getUint32(at + 4, true);
  return high < 2 ** 21 ? high * 2 ** 32 + view.getUint32(at, true) : view.getBigUint64(at, true);
}

function toVarint(isSigned: boolean, signed: number, unsigned: number): number | bigint {
  return isSigned && signed < 0 ? BigInt(signed) : unsigned;
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
