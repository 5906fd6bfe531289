/**
 * Protocol Buffers wire format: the primitives of every hand-written codec here. A reader copies
 * nothing and checks every length against the remaining bytes before it uses it. Source of the
 * format: the Protocol Buffers encoding guide.
 */
import { CubeError } from '../lib/core/errors.ts';

export const WIRE_VARINT = 0;
export const WIRE_FIXED64 = 1;
export const WIRE_BYTES = 2;
export const WIRE_FIXED32 = 5;

const textDecoder = new TextDecoder('utf-8');
const textEncoder = new TextEncoder();
/** Up to this many characters a loop writes ASCII text faster than an encoder. */
const SHORT_TEXT_CHARS = 64;

/**
 * A cursor over one message. Read a field with `next()`, then its value with the method of its wire
 * type:
 *
 *     while (reader.next()) {
 *       if (reader.field === 1) name = reader.string();
 *       else reader.skip();
 *     }
 */
export class WireReader {
  readonly bytes: Uint8Array;
  position: number;
  readonly end: number;
  field = 0;
  wireType = 0;
  /**
   * Position of the current field's tag. After skip(), fieldStart … position are the field's exact
   * bytes.
   */
  fieldStart = 0;

  constructor(bytes: Uint8Array, start = 0, end: number = bytes.length) {
    this.bytes = bytes;
    this.position = start;
    this.end = end;
  }

  /** Moves to the next field; false at the end of the message. */
  next(): boolean {
    if (this.position >= this.end) return false;
    this.fieldStart = this.position;
    const tag = this.uint32();
    this.field = tag >>> 3;
    this.wireType = tag & 7;
    if (this.field === 0) this.#fail('field number 0');
    return true;
  }

  /** Reads a varint as unsigned 32 bits; a negative int32 (ten bytes) gives its low 32 bits. */
  uint32(): number {
    let value = 0;
    for (let shift = 0; shift < 70; shift += 7) {
      if (this.position >= this.end) this.#fail('a varint runs past the end');
      const byte = this.bytes[this.position++]!;
      if (shift < 32) value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value >>> 0;
    }
    this.#fail('a varint of more than ten bytes');
  }

  int32(): number {
    return this.uint32() | 0;
  }

  uint64(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (this.position >= this.end) this.#fail('a varint runs past the end');
      const byte = this.bytes[this.position++]!;
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    this.#fail('a varint of more than ten bytes');
  }

  int64(): bigint {
    return BigInt.asIntN(64, this.uint64());
  }

  bool(): boolean {
    return this.uint64() !== 0n;
  }

  float32(): number {
    const at = this.#take(4);
    return new DataView(this.bytes.buffer, this.bytes.byteOffset + at, 4).getFloat32(0, true);
  }

  /** Reads a length-delimited value as a view. */
  view(): Uint8Array {
    const length = this.uint32();
    const at = this.#take(length);
    return this.bytes.subarray(at, at + length);
  }

  /** Returns a reader over a nested message and moves past it. */
  message(): WireReader {
    const length = this.uint32();
    const at = this.#take(length);
    return new WireReader(this.bytes, at, at + length);
  }

  string(): string {
    const length = this.uint32();
    const at = this.#take(length);
    return decodeText(this.bytes, at, at + length);
  }

  /** Reads a string that repeats in many messages. */
  name(names: NameCache): string {
    const length = this.uint32();
    const at = this.#take(length);
    return names.getName(this.bytes, at, at + length);
  }

  /** Skips the value of the current field. */
  skip(): void {
    if (this.wireType === WIRE_VARINT) this.skipVarint();
    else if (this.wireType === WIRE_FIXED64) this.#take(8);
    else if (this.wireType === WIRE_BYTES) this.#take(this.uint32());
    else if (this.wireType === WIRE_FIXED32) this.#take(4);
    else this.#fail(`unsupported wire type ${this.wireType}`);
  }

  /** Skips a varint without making a BigInt: hostile messages are full of them. */
  skipVarint(): void {
    const limit = Math.min(this.end, this.position + 10);
    while (this.position < limit) {
      if (this.bytes[this.position++]! < 0x80) return;
    }
    this.#fail('a varint that runs past the end, or over ten bytes');
  }

  /** @throws CubeError unless the current field has this wire type */
  expect(wireType: number): void {
    if (this.wireType !== wireType) {
      this.#fail(`field ${this.field} has wire type ${this.wireType}, expected ${wireType}`);
    }
  }

  #take(length: number): number {
    if (length > this.end - this.position) {
      this.#fail(`a length of ${length} bytes with ${this.end - this.position} left`);
    }
    const at = this.position;
    this.position += length;
    return at;
  }

  #fail(what: string): never {
    throw new CubeError('INVALID_ARGUMENT', `protobuf: ${what} (at byte ${this.position})`);
  }
}

/** Decodes UTF-8. Names and features are mostly short and ASCII, for which a decoder is slow. */
function decodeText(bytes: Uint8Array, start: number, end: number): string {
  if (end - start <= SHORT_TEXT_CHARS && bytes instanceof Buffer && isAscii(bytes, start, end)) {
    return bytes.toString('latin1', start, end);
  }
  return textDecoder.decode(bytes.subarray(start, end));
}

function isAscii(bytes: Uint8Array, start: number, end: number): boolean {
  let seen = 0;
  for (let i = start; i < end; i++) seen |= bytes[i]!;
  return seen < 0x80;
}

/**
 * Reads a varint of up to ten bytes, without its tag, to words[to] (low) and words[to + 1] (high).
 * @returns the end, or -1 when it is malformed
 */
export function readVarintWords(
  bytes: Uint8Array,
  at: number,
  end: number,
  words: Uint32Array,
  to: number,
): number {
  let low = 0;
  let high = 0;
  for (let shift = 0; shift < 28; shift += 7) {
    if (at >= end) return -1;
    const byte = bytes[at++]!;
    low |= (byte & 0x7f) << shift;
    if (byte < 0x80) {
      words[to] = low;
      words[to + 1] = 0;
      return at;
    }
  }
  if (at >= end) return -1;
  let byte = bytes[at++]!;
  low |= byte << 28;
  high = (byte & 0x7f) >>> 4;
  for (let shift = 3; byte >= 0x80; shift += 7) {
    if (at >= end || shift > 31) return -1;
    byte = bytes[at++]!;
    high |= (byte & 0x7f) << shift;
  }
  words[to] = low;
  words[to + 1] = high;
  return at;
}

const SLAB_BYTES = 8 << 10;
let slab = new Uint8Array(SLAB_BYTES);
let slabUsed = 0;

/** Zeroed bytes; few of them are a view of a common buffer, as in lib/core/word-slab.ts. */
function allocate(byteCount: number): Uint8Array {
  if (byteCount > SLAB_BYTES / 8) return new Uint8Array(byteCount);
  if (slabUsed + byteCount > SLAB_BYTES) {
    slab = new Uint8Array(SLAB_BYTES);
    slabUsed = 0;
  }
  const bytes = slab.subarray(slabUsed, slabUsed + byteCount);
  slabUsed += byteCount;
  return bytes;
}

/**
 * Appends fields to a growing buffer. It writes default values too: callers omit them where proto3
 * does.
 */
export class WireWriter {
  #bytes: Uint8Array;
  #length = 0;

  constructor(capacity = 256) {
    this.#bytes = allocate(capacity);
  }

  tag(field: number, wireType: number): this {
    return this.varint((field << 3) | wireType);
  }

  /** Appends a number in 0 … 2^53, or a bigint (as unsigned 64 bits), as a varint without tag. */
  varint(value: number | bigint): this {
    this.#reserve(10);
    if (typeof value === 'number') {
      while (value > 0x7f) {
        this.#bytes[this.#length++] = (value % 0x80) | 0x80;
        value = Math.floor(value / 0x80);
      }
      this.#bytes[this.#length++] = value;
      return this;
    }
    let rest = BigInt.asUintN(64, value);
    while (rest > 0x7fn) {
      this.#bytes[this.#length++] = Number(rest & 0x7fn) | 0x80;
      rest >>= 7n;
    }
    this.#bytes[this.#length++] = Number(rest);
    return this;
  }

  uint(field: number, value: number | bigint): this {
    return this.tag(field, WIRE_VARINT).varint(value);
  }

  bytes(field: number, value: Uint8Array): this {
    return this.tag(field, WIRE_BYTES).varint(value.length).raw(value);
  }

  string(field: number, value: string): this {
    if (value.length <= SHORT_TEXT_CHARS && this.#shortText(field, value)) return this;
    return this.bytes(field, textEncoder.encode(value));
  }

  /** Names and features are mostly ASCII. @returns false, with nothing written, for other text */
  #shortText(field: number, value: string): boolean {
    const start = this.#length;
    const { length } = value;
    this.tag(field, WIRE_BYTES).varint(length).#reserve(length);
    const bytes = this.#bytes;
    let at = this.#length;
    let seen = 0;
    for (let i = 0; i < length; i++) {
      const unit = value.charCodeAt(i);
      seen |= unit;
      bytes[at++] = unit;
    }
    this.#length = seen < 0x80 ? at : start;
    return seen < 0x80;
  }

  message(field: number, write: (writer: WireWriter) => void): this {
    const inner = new WireWriter();
    write(inner);
    return this.bytes(field, inner.finish());
  }

  raw(value: Uint8Array): this {
    this.#reserve(value.length);
    this.#bytes.set(value, this.#length);
    this.#length += value.length;
    return this;
  }

  get length(): number {
    return this.#length;
  }

  /** The bytes written so far: a view that becomes stale with the next write. */
  finish(): Uint8Array {
    return this.#bytes.subarray(0, this.#length);
  }

  #reserve(more: number): void {
    const needed = this.#length + more;
    if (needed <= this.#bytes.length) return;
    const grown = new Uint8Array(Math.max(needed, this.#bytes.length * 2));
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
  }
}

const ENTRIES = 256;
const NAME_BYTES_MAX = 256;

/**
 * Strings of names that repeat in every request (service, method, bundle, version, table), without
 * decoding the same bytes again. Bounded: a fixed number of entries, each with the last name that
 * fell into it.
 */
export class NameCache {
  readonly #bytes: (Uint8Array | undefined)[] = new Array(ENTRIES).fill(undefined);
  readonly #names: string[] = new Array(ENTRIES).fill('');

  /** The text of `bytes[start..end)`. */
  getName(bytes: Uint8Array, start: number, end: number): string {
    const length = end - start;
    if (length === 0) return '';
    if (length > NAME_BYTES_MAX) return textDecoder.decode(bytes.subarray(start, end));
    const middle = bytes[start + (length >> 1)]!;
    const entry = (bytes[end - 1]! + 7 * bytes[start]! + 13 * middle + 31 * length) & (ENTRIES - 1);
    const cached = this.#bytes[entry];
    if (cached !== undefined && equals(cached, bytes, start, length)) return this.#names[entry]!;
    // slice() of a Buffer would be a view that keeps the whole read buffer alive.
    const copy = Uint8Array.prototype.slice.call(bytes, start, end);
    const name = textDecoder.decode(copy);
    this.#bytes[entry] = copy;
    this.#names[entry] = name;
    return name;
  }
}

function equals(cached: Uint8Array, bytes: Uint8Array, start: number, length: number): boolean {
  if (cached.length !== length) return false;
  for (let i = 0; i < length; i++) {
    if (cached[i] !== bytes[start + i]) return false;
  }
  return true;
}
