/**
 * Reads users' own messages from the wire format of Protocol Buffers. Unknown fields are skipped,
 * as in every implementation; wrong wire types, invalid UTF-8, missing required fields and too deep
 * nesting are errors that name the field.
 */
import { CubeError } from '../lib/core/errors.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import {
  ARRAY_CLASSES,
  type ArrayType,
  createValues,
  type EnumType,
  FieldPath,
  isArrayType,
  joinNumbers,
  type MessageField,
  type MessageType,
  type MessageValues,
  type NumericArray,
  PATH_DEPTH_MAX,
  type ScalarType,
} from './message-schema.ts';
import {
  readVarintWords,
  WIRE_BYTES,
  WIRE_FIXED32,
  WIRE_FIXED64,
  WIRE_VARINT,
  WireReader,
} from './wire.ts';

/**
 * What a message may cost. A number costs 1, text and bytes 16, a message 16 and 2 for each field
 * of its type: hostile messages of a few bytes become large objects otherwise.
 */
export interface MessageLimits {
  readonly cost: number;
}

const HEAVY_COST = 16;

const textDecoder = new TextDecoder('utf-8', { fatal: true });

/** @throws CubeError INVALID_ARGUMENT naming the field, TOO_LARGE */
export function decodeMessage(
  type: MessageType,
  bytes: Uint8Array,
  limits: MessageLimits,
): MessageValues {
  const decoder = new MessageDecoder(limits.cost);
  return decoder.decode(type, bytes);
}

class MessageDecoder {
  readonly #path = new FieldPath();
  #costLeft: number;

  constructor(cost: number) {
    this.#costLeft = cost;
  }

  decode(type: MessageType, bytes: Uint8Array): MessageValues {
    const values = this.#create(type);
    try {
      this.#readInto(values, type, new WireReader(bytes));
    } catch (error) {
      const failure = CubeError.from(error);
      if (failure.code !== 'INVALID_ARGUMENT' && failure.code !== 'TOO_LARGE') throw error;
      const place = `${this.#path}`;
      const where = place === '' ? type.name : `${type.name}: ${place}`;
      throw new CubeError(failure.code, `${where}: ${failure.message}`);
    }
    return values;
  }

  #create(type: MessageType): MessageValues {
    this.#spend(HEAVY_COST + 2 * type.fields.length);
    return createValues(type);
  }

  #readInto(values: MessageValues, type: MessageType, reader: WireReader): void {
    const lists = new Map<MessageField, NumberList>();
    const seen = type.fields.some(({ isRequired }) => isRequired) ? new Set<MessageField>() : null;
    while (reader.next()) {
      const field = type.byNumber.get(reader.field);
      if (field === undefined) {
        reader.skip();
        continue;
      }
      this.#enter(field.name);
      seen?.add(field);
      if (field.kind === 'map')
        this.#readEntry(values[field.name] as Map<unknown, unknown>, field, reader);
      else if (field.kind === 'repeated') this.#readItem(values, field, reader, lists);
      else this.#readSingle(values, type, field, reader);
      this.#path.pop();
    }
    for (const [{ name, type: itemType }, list] of lists) {
      values[name] = joinNumbers(values[name] as NumericArray, list.finish(itemType as ArrayType));
    }
    if (seen === null) return;
    for (const field of type.fields) {
      // A message that comes in several parts may have the field in an earlier one.
      if (!field.isRequired || seen.has(field) || Object.hasOwn(values, field.name)) continue;
      this.#enter(field.name);
      fail('the field is required');
    }
  }

  #readSingle(
    values: MessageValues,
    owner: MessageType,
    field: MessageField,
    reader: WireReader,
  ): void {
    const { name, type, oneof } = field;
    if (oneof !== undefined) {
      for (const other of owner.fields) {
        if (other.oneof === oneof && other !== field) delete values[other.name];
      }
    }
    // The parts of a message that comes several times are merged.
    const isPart = isMessage(type) && Object.hasOwn(values, name);
    values[name] = isPart
      ? this.#readMessage(type, reader, values[name] as MessageValues)
      : this.#readValue(type, reader);
  }

  #readItem(
    values: MessageValues,
    field: MessageField,
    reader: WireReader,
    lists: Map<MessageField, NumberList>,
  ): void {
    const { name, type } = field;
    if (isArrayType(type)) {
      const list = lists.get(field) ?? new NumberList(type);
      lists.set(field, list);
      this.#spend(list.read(reader));
      return;
    }
    const items = values[name] as unknown[];
    const isNumber = type === 'bool' || isEnum(type);
    if (isNumber && reader.wireType === WIRE_BYTES) {
      const packed = reader.message();
      while (packed.position < packed.end) {
        this.#spend(1);
        items.push(toScalar(type, readVarint(packed)));
      }
      return;
    }
    this.#enter(items.length);
    items.push(this.#readValue(type, reader));
    this.#path.pop();
  }

  #readEntry(map: Map<unknown, unknown>, field: MessageField, reader: WireReader): void {
    const { type, keyType = 'string' } = field;
    this.#spend(HEAVY_COST);
    reader.expect(WIRE_BYTES);
    const entry = reader.message();
    let key: unknown = getDefault(keyType);
    let value: unknown;
    while (entry.next()) {
      if (entry.field === 1) key = this.#readValue(keyType, entry);
      else if (entry.field === 2) value = this.#readValue(type, entry);
      else entry.skip();
    }
    map.set(key, value ?? (isMessage(type) ? this.#create(type) : getDefault(type)));
  }

  #readValue(type: MessageField['type'], reader: WireReader): unknown {
    if (isMessage(type)) return this.#readMessage(type, reader, this.#create(type));
    if (type === 'string' || type === 'bytes') {
      this.#spend(HEAVY_COST);
      reader.expect(WIRE_BYTES);
      const bytes = reader.view();
      return type === 'bytes' ? Uint8Array.prototype.slice.call(bytes) : decodeText(bytes);
    }
    this.#spend(1);
    if (type === 'bool' || isEnum(type)) {
      reader.expect(WIRE_VARINT);
      return toScalar(type, readVarint(reader));
    }
    const list = new NumberList(type, 1);
    list.read(reader, false);
    return list.finish(type)[0];
  }

  #readMessage(type: MessageType, reader: WireReader, values: MessageValues): MessageValues {
    reader.expect(WIRE_BYTES);
    this.#readInto(values, type, reader.message());
    return values;
  }

  #enter(part: string | number): void {
    this.#path.push(part);
    if (this.#path.depth > PATH_DEPTH_MAX) fail(`nested more than ${PATH_DEPTH_MAX} levels deep`);
  }

  #spend(cost: number): void {
    this.#costLeft -= cost;
    if (this.#costLeft >= 0) return;
    throw new CubeError('TOO_LARGE', 'the message has too many values; send smaller messages');
  }
}

/** How many words of 32 bits an item takes, and its wire type. */
const LAYOUTS: Readonly<Record<ArrayType, { readonly words: 1 | 2; readonly wire: number }>> = {
  double: { words: 2, wire: WIRE_FIXED64 },
  float: { words: 1, wire: WIRE_FIXED32 },
  int32: { words: 2, wire: WIRE_VARINT },
  sint32: { words: 2, wire: WIRE_VARINT },
  uint32: { words: 2, wire: WIRE_VARINT },
  int64: { words: 2, wire: WIRE_VARINT },
  sint64: { words: 2, wire: WIRE_VARINT },
  uint64: { words: 2, wire: WIRE_VARINT },
  fixed32: { words: 1, wire: WIRE_FIXED32 },
  sfixed32: { words: 1, wire: WIRE_FIXED32 },
  fixed64: { words: 2, wire: WIRE_FIXED64 },
  sfixed64: { words: 2, wire: WIRE_FIXED64 },
};

/** The items of a repeated number as they are on the wire, packed or one by one. */
class NumberList {
  readonly #wire: number;
  readonly #itemWords: 1 | 2;
  #words: Uint32Array<ArrayBuffer>;
  #length = 0;

  constructor(type: ArrayType, capacity = 16) {
    const { words, wire } = LAYOUTS[type];
    this.#itemWords = words;
    this.#wire = wire;
    this.#words = new Uint32Array(words * capacity);
  }

  /** Reads the value of the current field. @returns the number of its items */
  read(reader: WireReader, mayBePacked = true): number {
    if (mayBePacked && reader.wireType === WIRE_BYTES) return this.#readPacked(reader.view());
    reader.expect(this.#wire);
    const start = reader.position;
    reader.skip();
    this.#append(reader.bytes.subarray(start, reader.position), 1);
    return 1;
  }

  #readPacked(bytes: Uint8Array): number {
    let count = 0;
    if (this.#wire === WIRE_VARINT) {
      for (let at = 0; at < bytes.length; at++) if (bytes[at]! < 0x80) count++;
      const last = bytes.at(-1);
      if (last !== undefined && last >= 0x80) fail('a varint runs past the end');
    } else {
      count = bytes.length / (4 * this.#itemWords);
      if (!Number.isInteger(count)) fail(`${bytes.length} packed bytes are no whole numbers`);
    }
    this.#append(bytes, count);
    return count;
  }

  #append(bytes: Uint8Array, count: number): void {
    const start = this.#itemWords * this.#length;
    this.#reserve(start + this.#itemWords * count);
    this.#length += count;
    if (this.#wire !== WIRE_VARINT) {
      new Uint8Array(this.#words.buffer).set(bytes, 4 * start);
      return;
    }
    let at = 0;
    for (let i = 0; i < count; i++) {
      at = readVarintWords(bytes, at, bytes.length, this.#words, start + 2 * i);
      if (at < 0) fail('a varint of more than ten bytes');
    }
  }

  #reserve(words: number): void {
    if (words <= this.#words.length) return;
    const grown = new Uint32Array(Math.max(words, 2 * this.#words.length));
    grown.set(this.#words);
    this.#words = grown;
  }

  finish(type: ArrayType): NumericArray {
    const words = this.#words;
    const count = this.#length;
    if (this.#wire !== WIRE_VARINT) return new ARRAY_CLASSES[type](words.buffer, 0, count);
    if (ARRAY_CLASSES[type].BYTES_PER_ELEMENT === 4) {
      const numbers = new ARRAY_CLASSES[type](count);
      const isZigzag = type === 'sint32';
      for (let i = 0; i < count; i++) {
        const low = words[2 * i]!;
        numbers[i] = isZigzag ? (low >>> 1) ^ -(low & 1) : low;
      }
      return numbers;
    }
    if (type === 'sint64') {
      for (let i = 0; i < 2 * count; i += 2) {
        const [low, high] = [words[i]!, words[i + 1]!];
        const sign = -(low & 1);
        words[i] = ((low >>> 1) | (high << 31)) ^ sign;
        words[i + 1] = (high >>> 1) ^ sign;
      }
    }
    return new ARRAY_CLASSES[type](words.buffer, 0, count);
  }
}

/** The low 32 bits of a varint, and whether another bit is set. */
interface Varint {
  readonly low: number;
  readonly high: number;
}

const scratch = new Uint32Array(2);

function readVarint(reader: WireReader): Varint {
  const end = readVarintWords(reader.bytes, reader.position, reader.end, scratch, 0);
  if (end < 0) fail('a varint that runs past the end, or over ten bytes');
  reader.position = end;
  return { low: scratch[0] ?? 0, high: scratch[1] ?? 0 };
}

function toScalar(type: 'bool' | EnumType, { low, high }: Varint): boolean | string | number {
  if (type === 'bool') return low !== 0 || high !== 0;
  return type.names.get(low | 0) ?? low | 0;
}

function decodeText(bytes: Uint8Array): string {
  try {
    return textDecoder.decode(bytes);
  } catch {
    fail(`the text ${quoteInput(new TextDecoder().decode(bytes.subarray(0, 64)))} is not UTF-8`);
  }
}

function getDefault(type: ScalarType | EnumType): unknown {
  if (typeof type !== 'string') return type.names.get(0) ?? [...type.numbers.keys()][0];
  if (type === 'string') return '';
  if (type === 'bytes') return new Uint8Array(0);
  if (type === 'bool') return false;
  return new ARRAY_CLASSES[type](1)[0];
}

function isMessage(type: MessageField['type']): type is MessageType {
  return typeof type !== 'string' && type.kind === 'message';
}

function isEnum(type: MessageField['type']): type is EnumType {
  return typeof type !== 'string' && type.kind === 'enum';
}

function fail(problem: string): never {
  throw new CubeError('INVALID_ARGUMENT', problem);
}
