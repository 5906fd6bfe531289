/** Writes checked messages in the wire format of Protocol Buffers. */
import {
  type ArrayType,
  isArrayType,
  type MessageField,
  type MessageType,
  type MessageValues,
  type NumericArray,
  type ScalarType,
} from './message-schema.ts';
import { checkMessage } from './message-values.ts';
import { WIRE_FIXED32, WIRE_FIXED64, WIRE_VARINT, WireWriter } from './wire.ts';

/** @throws CubeError INVALID_ARGUMENT naming the field whose value does not fit */
export function encodeMessage(type: MessageType, values: object): Uint8Array {
  const writer = new WireWriter();
  writeMessage(writer, type, checkMessage(type, values));
  return writer.finish();
}

function writeMessage(writer: WireWriter, { fields }: MessageType, values: MessageValues): void {
  for (const field of fields) {
    const { name, number, kind, type, hasPresence } = field;
    if (!Object.hasOwn(values, name)) continue;
    const value = values[name];
    if (kind === 'repeated') writeList(writer, field, value);
    else if (kind === 'map') writeMap(writer, field, value as ReadonlyMap<unknown, unknown>);
    else if (hasPresence || !isDefault(field, value)) writeField(writer, number, type, value);
  }
}

function writeList(writer: WireWriter, field: MessageField, value: unknown): void {
  const { number, type, isPacked } = field;
  const items = value as readonly unknown[] | NumericArray;
  if (items.length === 0) return;
  if (!isPacked) {
    for (const item of items) writeField(writer, number, type, item);
    return;
  }
  writer.message(number, (packed) => {
    if (isFixed(type) && isArrayType(type)) {
      const { buffer, byteOffset, byteLength } = items as NumericArray;
      packed.raw(new Uint8Array(buffer, byteOffset, byteLength));
      return;
    }
    for (const item of items) packed.varint(toVarint(type, item));
  });
}

function writeMap(
  writer: WireWriter,
  { number, type, keyType = 'string' }: MessageField,
  map: ReadonlyMap<unknown, unknown>,
): void {
  for (const [key, value] of map) {
    writer.message(number, (entry) => {
      writeField(entry, 1, keyType, key);
      writeField(entry, 2, type, value);
    });
  }
}

function writeField(
  writer: WireWriter,
  number: number,
  type: MessageField['type'],
  value: unknown,
): void {
  if (typeof type !== 'string' && type.kind === 'message') {
    writer.message(number, (inner) => writeMessage(inner, type, value as MessageValues));
  } else if (type === 'string') writer.string(number, value as string);
  else if (type === 'bytes') writer.bytes(number, value as Uint8Array);
  else if (isFixed(type)) {
    const bytes = toFixedBytes(type as ArrayType, value as number | bigint);
    writer.tag(number, bytes.length === 4 ? WIRE_FIXED32 : WIRE_FIXED64).raw(bytes);
  } else writer.tag(number, WIRE_VARINT).varint(toVarint(type, value));
}

function isFixed(type: MessageField['type']): boolean {
  return typeof type === 'string' && /^(float|double|s?fixed(32|64))$/.test(type);
}

function toFixedBytes(type: ArrayType, value: number | bigint): Uint8Array {
  const view = new DataView(new ArrayBuffer(type === 'float' || type.endsWith('32') ? 4 : 8));
  if (type === 'float') view.setFloat32(0, Number(value), true);
  else if (type === 'double') view.setFloat64(0, Number(value), true);
  else if (type === 'sfixed32') view.setInt32(0, Number(value), true);
  else if (type === 'fixed32') view.setUint32(0, Number(value), true);
  else if (type === 'sfixed64') view.setBigInt64(0, BigInt(value), true);
  else view.setBigUint64(0, BigInt(value), true);
  return new Uint8Array(view.buffer);
}

/** The number as a varint has it; negative ones have ten bytes. */
function toVarint(type: MessageField['type'], value: unknown): number | bigint {
  if (type === 'bool') return value === true ? 1 : 0;
  if (typeof type !== 'string') {
    const known = type.kind === 'enum' ? type.numbers.get(String(value)) : undefined;
    return toUnsigned(known ?? Number(value));
  }
  return toUnsigned(toZigzag(type, value as number | bigint));
}

function toZigzag(type: ScalarType, value: number | bigint): number | bigint {
  if (type === 'sint32') return ((Number(value) << 1) ^ (Number(value) >> 31)) >>> 0;
  if (type === 'sint64') return BigInt.asUintN(64, (BigInt(value) << 1n) ^ (BigInt(value) >> 63n));
  return value;
}

function toUnsigned(value: number | bigint): number | bigint {
  return typeof value === 'number' && value < 0 ? BigInt(value) : value;
}

function isDefault({ type, fallback }: MessageField, value: unknown): boolean {
  if (type === 'bytes') return (value as Uint8Array).length === 0;
  return value === fallback && !Object.is(value, -0);
}
