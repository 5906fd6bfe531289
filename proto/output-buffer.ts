/**
 * A growing byte buffer that responses and requests are written into one after another and that leaves with one
 * write to the socket. Callers reserve space, then write at absolute positions: `bytes` and `view` change identity
 * when the buffer grows, so read them again after every `reserve`.
 */

const textEncoder = new TextEncoder();

export class OutputBuffer {
  bytes: Uint8Array;
  view: DataView;
  length = 0;
  readonly #allocate: (byteCount: number) => Uint8Array;

  /** @param allocate makes uninitialised memory where the runtime has a faster way than `new Uint8Array` */
  constructor(
    capacity = 4096,
    allocate: (byteCount: number) => Uint8Array = (byteCount) => new Uint8Array(byteCount),
  ) {
    this.#allocate = allocate;
    this.bytes = allocate(capacity);
    this.view = viewOf(this.bytes);
  }

  /** Makes room for `byteCount` more bytes and returns where they begin; the bytes themselves are unset. */
  reserve(byteCount: number): number {
    const at = this.length;
    this.length = at + byteCount;
    if (this.length > this.bytes.length) this.#grow(at);
    return at;
  }

  /** Gives back what `reserve` took beyond `length`, or forgets a message that failed half-way. */
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

  /** A short run of `source`: a loop beats `set(subarray)` at the sizes of tags, ids and names. */
  appendRange(source: Uint8Array, start: number, end: number): void {
    let at = this.reserve(end - start);
    const bytes = this.bytes;
    for (let i = start; i < end; i++) bytes[at++] = source[i]!;
  }

  /** A number in 0 … 2^53 as a protobuf varint. */
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

  /** A protobuf tag byte (fields 1 … 15), the UTF-8 length, the text. */
  appendString(tag: number, text: string): void {
    this.appendByte(tag);
    const bytes = textEncoder.encode(text);
    this.appendVarint(bytes.length);
    this.append(bytes);
  }

  written(): Uint8Array {
    return this.bytes.subarray(0, this.length);
  }

  #grow(used: number): void {
    const grown = this.#allocate(Math.max(this.length, this.bytes.length * 2));
    grown.set(this.bytes.subarray(0, used));
    this.bytes = grown;
    this.view = viewOf(grown);
  }
}

function viewOf(bytes: Uint8Array): DataView {
  return new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}

/** Bytes of a number in 0 … 2^53 as a varint. */
export function varintBytes(value: number): number {
  let count = 1;
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 0x80)) count++;
  return count;
}
