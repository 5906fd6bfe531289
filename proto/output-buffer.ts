/**
 * A growing byte buffer that collects responses or requests for one write to a socket. Callers
 * reserve space, then write at absolute positions. `bytes` and `view` change identity when the
 * buffer grows: read them again after every `reserve`.
 */

const textEncoder = new TextEncoder();

export class OutputBuffer {
  bytes: Uint8Array;
  view: DataView;
  length = 0;
  readonly #allocate: (byteCount: number) => Uint8Array;

  /**
   * @param allocate allocates uninitialised memory where the runtime has a faster way than `new
   * Uint8Array`
   */
  constructor(
    capacity = 4096,
    allocate: (byteCount: number) => Uint8Array = (byteCount) => new Uint8Array(byteCount),
  ) {
    this.#allocate = allocate;
    this.bytes = allocate(capacity);
    this.view = createView(this.bytes);
  }

  /** Reserves `byteCount` bytes, which are not initialised. @returns their position */
  reserve(byteCount: number): number {
    const at = this.length;
    this.length = at + byteCount;
    if (this.length > this.bytes.length) this.#grow(at);
    return at;
  }

  /** Drops all bytes after `length`: unused reserved bytes, or a message that failed half-way. */
  truncate(length: number): void {
    this.length = length;
  }

  append(bytes: Uint8Array): void {
    const at = this.reserve(bytes.length);
    this.bytes.set(bytes, at);
  }

  appendByte(byte: number): void {
    const at = this.reserve(1);
    this.bytes[at] = byte;
  }

  /**
   * Appends a short range of `source`: a loop is faster than `set(subarray)` for tags, ids and
   * names.
   */
  appendRange(source: Uint8Array, start: number, end: number): void {
    let at = this.reserve(end - start);
    const bytes = this.bytes;
    for (let i = start; i < end; i++) bytes[at++] = source[i]!;
  }

  /** Appends a number in 0 … 2^53 as a protobuf varint. */
  appendVarint(value: number): void {
    let at = this.reserve(8);
    const bytes = this.bytes;
    while (value > 0x7f) {
      bytes[at++] = (value % 0x80) | 0x80;
      value = Math.floor(value / 0x80);
    }
    bytes[at++] = value;
    this.length = at;
  }

  /** Appends a protobuf tag byte (fields 1 … 15), the length in UTF-8, and the text. */
  appendString(tag: number, text: string): void {
    this.appendByte(tag);
    const bytes = textEncoder.encode(text);
    this.appendVarint(bytes.length);
    this.append(bytes);
  }

  writtenBytes(): Uint8Array {
    return this.bytes.subarray(0, this.length);
  }

  #grow(used: number): void {
    const grown = this.#allocate(Math.max(this.length, this.bytes.length * 2));
    grown.set(this.bytes.subarray(0, used));
    this.bytes = grown;
    this.view = createView(grown);
  }
}

function createView(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Bytes of a number in 0 … 2^53 as a varint. */
export function varintBytes(value: number): number {
  let count = 1;
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 0x80)) count++;
  return count;
}
