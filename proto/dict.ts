/**
 * Cube's `seek` (dict.proto), server side: decodes keys from protobuf or JSON straight to u64
 * words, and encodes rows straight to the response. No object, string or BigInt per key on the
 * protobuf path. The bytes are equal to those of brpc, field for field.
 */
import { CubeError } from '../lib/core/errors.ts';
import { scanSeekJson } from './dict-json.ts';
import type { OutputBuffer } from './output-buffer.ts';
import { readVarintWords, WireReader } from './wire.ts';

export const DICT_SERVICE = 'rec.mcube.DictService';
export const DICT_METHOD = 'seek';
export const STATUS_MISS = 0xffff_ffff;

const TAG_KEY = 0x08;
const TAG_PACKED_KEYS = 0x0a;
const TAG_VERSION_REQUIRED = 0x10;
const TAG_VERSION = 0x12;
/** A missing key: {status: 4294967295, value: ""}. */
const MISS_VALUE: Uint8Array = Uint8Array.of(0x0a, 8, 0x08, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x12, 0);
/** Rows up to this size are copied word by word, which is faster than `set(subarray)`. */
const WORD_COPY_BYTES_MAX = 256;

/** A request decoded into buffers that the next `decode` overwrites. */
export class DictRequest {
  /** 2 · count words: low, high. */
  keys: Uint32Array;
  /** The memory of `keys` as bytes: u64 little-endian. */
  keyBytes: Uint8Array;
  count = 0;
  versionRequired = false;
  readonly #keysMax: number;

  constructor(keysMax: number) {
    this.#keysMax = keysMax;
    this.keys = new Uint32Array(2 * Math.min(keysMax, 1024));
    this.keyBytes = new Uint8Array(this.keys.buffer);
  }

  /**
   * @throws CubeError INVALID_ARGUMENT when the bytes are not a DictRequest, TOO_LARGE for too many
   * keys
   */
  decode(bytes: Uint8Array, start: number, end: number): this {
    this.count = 0;
    this.versionRequired = false;
    let at = start;
    while (at < end) {
      const tag = bytes[at]!;
      if (tag === TAG_KEY) at = this.#decodeUnpacked(bytes, at, end);
      else if (tag === TAG_PACKED_KEYS) at = this.#decodePacked(bytes, at, end);
      else at = this.#decodeOther(bytes, at, end);
    }
    return this;
  }

  /**
   * Decodes `{"keys": [1, "2"], "version_required": true}`, with pauses; keys of up to 2^64 - 1 are
   * exact in both forms.
   * @param source name of the document in errors
   */
  *decodeJson(bytes: Uint8Array, source: string): Generator<undefined, this> {
    this.count = 0;
    const sink = {
      clear: (): void => {
        this.count = 0;
      },
      add: (low: number, high: number): void => this.#add(low, high),
    };
    const { versionRequired } = yield* scanSeekJson(bytes, source, sink);
    this.versionRequired = versionRequired;
    return this;
  }

  #add(low: number, high: number): void {
    if (2 * this.count === this.keys.length) this.#reserve(2 * this.count);
    if (2 * this.count === this.keys.length) this.#tooMany();
    this.keys[2 * this.count] = low;
    this.keys[2 * this.count + 1] = high;
    this.count++;
  }

  /** Decodes a run of keys, each with its own tag, as brpc sends them. */
  #decodeUnpacked(bytes: Uint8Array, start: number, end: number): number {
    this.#reserve(this.count + ((end - start) >> 1));
    const words = this.keys;
    const room = words.length >> 1;
    let count = this.count;
    let at = start;
    while (at < end && bytes[at] === TAG_KEY) {
      if (count === room) this.#tooMany();
      at = readVarintWords(bytes, at + 1, end, words, 2 * count);
      if (at < 0) failMalformedKey();
      count++;
    }
    this.count = count;
    return at;
  }

  #decodePacked(bytes: Uint8Array, start: number, end: number): number {
    const reader = new WireReader(bytes, start, end);
    reader.next();
    const inner = reader.message();
    this.#reserve(this.count + (inner.end - inner.position));
    const words = this.keys;
    const room = words.length >> 1;
    let count = this.count;
    let at = inner.position;
    while (at < inner.end) {
      if (count === room) this.#tooMany();
      at = readVarintWords(bytes, at, inner.end, words, 2 * count);
      if (at < 0) failMalformedKey();
      count++;
    }
    this.count = count;
    return inner.end;
  }

  #decodeOther(bytes: Uint8Array, start: number, end: number): number {
    const reader = new WireReader(bytes, start, end);
    reader.next();
    if (bytes[start] === TAG_VERSION_REQUIRED) this.versionRequired = reader.bool();
    else reader.skip();
    return reader.position;
  }

  /** Makes room for `count` keys, up to the limit; a request that fills it has too many. */
  #reserve(count: number): void {
    const needed = Math.min(count, this.#keysMax);
    if (2 * needed <= this.keys.length) return;
    const grown = new Uint32Array(2 * Math.min(this.#keysMax, Math.max(needed, this.keys.length)));
    grown.set(this.keys);
    this.keys = grown;
    this.keyBytes = new Uint8Array(grown.buffer);
  }

  #tooMany(): never {
    throw new CubeError('TOO_LARGE', `a seek has at most ${this.#keysMax} keys; split the call`);
  }
}

function failMalformedKey(): never {
  throw new CubeError('INVALID_ARGUMENT', 'a key is not a varint');
}

/** Appends the version of a response, after its values. */
export function appendDictVersion(output: OutputBuffer, version: string): void {
  output.appendString(TAG_VERSION, version);
}

/** Maximum bytes of the values of `count` keys that are all hits. */
export function dictRowsBytesMax(count: number, rowBytes: number): number {
  return count * (rowBytes + 16);
}

/** The bytes before the row of every hit of a table: tag, length, status 0, tag, length. */
export function encodeDictHitPrefix(rowBytes: number): Uint8Array {
  const value = [0x08, 0, 0x12, ...varint(rowBytes)];
  return Uint8Array.from([0x0a, ...varint(value.length + rowBytes), ...value]);
}

function varint(value: number): number[] {
  const bytes: number[] = [];
  for (; value > 0x7f; value = Math.floor(value / 0x80)) bytes.push((value % 0x80) | 0x80);
  return [...bytes, value];
}

export interface DictRows {
  readonly count: number;
  readonly rowBytes: number;
  /** By `encodeDictHitPrefix(rowBytes)`, made once per table. */
  readonly hitPrefix: Uint8Array;
  /** count · rowBytes bytes; 4-byte aligned. */
  readonly rows: Uint8Array;
  readonly rowWords: Int32Array;
  /** Bit i: key i was found. */
  readonly found: Uint8Array;
}

/** Writes the rows of `source` at `at`, where dictRowsBytesMax bytes are free. @returns the end */
export function writeDictRows(
  target: Uint8Array,
  view: DataView,
  at: number,
  source: DictRows,
): number {
  const { count, rowBytes, hitPrefix, found } = source;
  const byWords = (rowBytes & 3) === 0 && rowBytes <= WORD_COPY_BYTES_MAX;
  const wordsPerRow = rowBytes >> 2;
  for (let i = 0; i < count; i++) {
    if ((found[i >> 3]! & (1 << (i & 7))) === 0) {
      for (let j = 0; j < MISS_VALUE.length; j++) target[at++] = MISS_VALUE[j]!;
      continue;
    }
    for (let j = 0; j < hitPrefix.length; j++) target[at++] = hitPrefix[j]!;
    if (byWords) copyWords(view, at, source.rowWords, i * wordsPerRow, wordsPerRow);
    else target.set(source.rows.subarray(i * rowBytes, (i + 1) * rowBytes), at);
    at += rowBytes;
  }
  return at;
}

export interface DictBlobs {
  readonly count: number;
  /** The values one after another; a missing key has no bytes. */
  readonly values: Uint8Array;
  readonly lengths: Uint32Array;
  readonly found: Uint8Array;
}

/** Maximum bytes of values of any length. @param valuesBytes sum of their lengths */
export function dictBlobsBytesMax(count: number, valuesBytes: number): number {
  return valuesBytes + 16 * count;
}

/** Writes values of any length at `at`, where dictBlobsBytesMax bytes are free. @returns the end */
export function writeDictBlobs(target: Uint8Array, at: number, source: DictBlobs): number {
  const { count, values, lengths, found } = source;
  let from = 0;
  for (let i = 0; i < count; i++) {
    if ((found[i >> 3]! & (1 << (i & 7))) === 0) {
      for (let j = 0; j < MISS_VALUE.length; j++) target[at++] = MISS_VALUE[j]!;
      continue;
    }
    const length = lengths[i]!;
    target[at] = 0x0a;
    at = writeVarint(target, at + 1, 3 + varintBytes(length) + length);
    target[at] = 0x08;
    target[at + 1] = 0;
    target[at + 2] = 0x12;
    at = writeVarint(target, at + 3, length);
    target.set(values.subarray(from, from + length), at);
    from += length;
    at += length;
  }
  return at;
}

/** @param value below 2^31. @returns the end */
function writeVarint(target: Uint8Array, at: number, value: number): number {
  for (; value > 0x7f; value >>>= 7) target[at++] = (value & 0x7f) | 0x80;
  target[at] = value;
  return at + 1;
}

function varintBytes(value: number): number {
  let bytes = 1;
  for (; value > 0x7f; value >>>= 7) bytes++;
  return bytes;
}

function copyWords(
  view: DataView,
  at: number,
  words: Int32Array,
  from: number,
  count: number,
): void {
  for (let i = 0; i < count; i++) view.setInt32(at + 4 * i, words[from + i]!, true);
}
