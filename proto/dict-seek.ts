/**
 * Cube's `seek` (dict.proto), client side: encodes u64 words as brpc does (unpacked), and decodes
 * the values of a response as positions. No object per key.
 */
import { CubeError } from '../lib/core/errors.ts';
import { STATUS_MISS } from './dict.ts';
import type { OutputBuffer } from './output-buffer.ts';
import { WIRE_BYTES, WireReader } from './wire.ts';

const TAG_KEY = 0x08;
const TAG_VERSION_REQUIRED = 0x10;
const TAG_VALUE = 0x0a;
const TAG_STATUS = 0x08;
const TAG_BYTES = 0x12;
/** A tag and a varint of ten bytes. */
const KEY_BYTES_MAX = 11;

/**
 * Appends a DictRequest for the keys words[2·start] … words[2·end) that also requests the version.
 */
export function writeDictRequest(
  output: OutputBuffer,
  words: Uint32Array,
  start: number,
  end: number,
): void {
  let at = output.reserve((end - start) * KEY_BYTES_MAX + 2);
  const { bytes } = output;
  for (let i = start; i < end; i++) {
    let low = words[2 * i]!;
    let high = words[2 * i + 1]!;
    bytes[at++] = TAG_KEY;
    while (high !== 0 || low > 0x7f) {
      bytes[at++] = (low & 0x7f) | 0x80;
      low = ((low >>> 7) | (high << 25)) >>> 0;
      high >>>= 7;
    }
    bytes[at++] = low;
  }
  bytes[at++] = TAG_VERSION_REQUIRED;
  bytes[at++] = 1;
  output.truncate(at);
}

/** A response as positions in its bytes; the next `decode` overwrites them. */
export class DictResponse {
  /** The bytes that the positions refer to. */
  bytes: Uint8Array = new Uint8Array(0);
  count = 0;
  /** Value i is bytes[starts[i] … ends[i]). */
  starts: Uint32Array = new Uint32Array(0);
  ends: Uint32Array = new Uint32Array(0);
  /** 1: the table has the key. 0: it has not, and the value is empty. */
  hits: Uint8Array = new Uint8Array(0);
  /** Empty when the server does not state it. */
  version = '';

  /**
   * @param count number of requested keys
   * @throws CubeError INVALID_ARGUMENT when the bytes are not a DictResponse for that many keys
   */
  decode(bytes: Uint8Array, count: number): this {
    this.#reserve(count);
    this.bytes = bytes;
    this.count = count;
    this.version = '';
    const reader = new WireReader(bytes);
    let found = 0;
    while (reader.position < bytes.length) {
      if (bytes[reader.position] === TAG_VALUE) {
        reader.position++;
        const length = reader.uint32();
        const end = reader.position + length;
        if (end > bytes.length) failResponse('a value runs past the end');
        if (found === count) failResponse(`more than ${count} values`);
        this.#value(reader, end, found++);
        continue;
      }
      reader.next();
      if (reader.field === 2 && reader.wireType === WIRE_BYTES) this.version = reader.string();
      else reader.skip();
    }
    if (found !== count) failResponse(`${found} values for ${count} keys`);
    return this;
  }

  /** Reads one DictValue. Both fields are required. */
  #value(reader: WireReader, end: number, index: number): void {
    const { bytes } = this;
    let status = -1;
    let valueStart = -1;
    let valueEnd = -1;
    while (reader.position < end) {
      const tag = bytes[reader.position]!;
      if (tag === TAG_STATUS) {
        reader.position++;
        status = reader.uint32();
      } else if (tag === TAG_BYTES) {
        reader.position++;
        const length = reader.uint32();
        valueStart = reader.position;
        valueEnd = valueStart + length;
        if (valueEnd > end) failResponse('a value runs past its end');
        reader.position = valueEnd;
      } else {
        reader.next();
        reader.skip();
      }
    }
    if (reader.position !== end || status < 0 || valueStart < 0) failResponse('a value is damaged');
    if (status !== 0 && (status !== STATUS_MISS || valueStart !== valueEnd)) {
      failResponse(`status ${status} with ${valueEnd - valueStart} bytes`);
    }
    this.starts[index] = valueStart;
    this.ends[index] = valueEnd;
    this.hits[index] = status === 0 ? 1 : 0;
  }

  #reserve(count: number): void {
    if (this.starts.length >= count) return;
    const capacity = Math.max(count, 2 * this.starts.length);
    this.starts = new Uint32Array(capacity);
    this.ends = new Uint32Array(capacity);
    this.hits = new Uint8Array(capacity);
  }
}

function failResponse(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `dict response: ${what}`);
}
