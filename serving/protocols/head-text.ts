/**
 * The text of a JSON head without what differs in requests of one shape: the sizes of binary data,
 * an id that is the first member, and blanks before the text, which align the data. It is read into
 * memory that is used again, so that comparing heads allocates nothing.
 */

/** Longer heads are parsed each time. */
export const HEAD_BYTES_MAX: number = 16 << 10;
const ID_BYTES_MAX = 128;
const ID_STARTS = [Buffer.from('{"id":"'), Buffer.from('{"id": "')];
const SIZE_NAME = Buffer.from('"binary_data_size"');
const SIZE_DIGITS_MAX = 9;
const [QUOTE, COMMA, BACKSLASH, COLON, SPACE, CLOSE, DELETE] = [
  0x22, 0x2c, 0x5c, 0x3a, 0x20, 0x7d, 0x7f,
];
const [ZERO, NINE] = [0x30, 0x39];
/** Stand for the values when a head is checked; no size of a body within the limits is so large. */
const MARKED_ID = 'id of another request';
const MARKED_SIZE = 2 ** 40;

/** The text of a head without what differs. */
export interface KeptText {
  readonly bytes: Buffer;
  /** Where sizes were cut out. */
  readonly cuts: readonly number[];
}

export class HeadText {
  hash = 0;
  /** The sizes of binary data, in the order of the text. */
  readonly sizes: number[] = [];
  readonly #cuts: number[] = [];
  readonly #kept: Buffer = Buffer.allocUnsafeSlow(HEAD_BYTES_MAX);
  #length = 0;
  /** After blanks. */
  #start = 0;
  #idStart = 0;
  /** At the quote after the id; at the start of the text when none is cut out. */
  #idEnd = 0;

  /** @param length of the head, at most HEAD_BYTES_MAX */
  read(body: Uint8Array, length: number): void {
    const kept = this.#kept;
    this.sizes.length = 0;
    this.#cuts.length = 0;
    this.#findId(body, length);
    let hash = 1;
    let to = 0;
    for (let at = this.#start; at < length; at++) {
      if (at === this.#idStart && at < this.#idEnd) at = this.#idEnd;
      const byte = body[at]!;
      kept[to++] = byte;
      hash = Math.imul(hash ^ byte, 0x0100_0193);
      if (byte !== COLON || !isSizeName(body, at)) continue;
      const end = this.#readSize(body, at + 1, length);
      if (end > at + 1) this.#cuts.push(to);
      at = end - 1;
    }
    this.#length = to;
    this.hash = hash ^ (hash >>> 15);
  }

  /**
   * Reads a head that has this text, in less time than `read`, which gives the same sizes.
   * @returns false for a head with another text
   */
  readSame({ bytes, cuts }: KeptText, body: Uint8Array, length: number): boolean {
    this.sizes.length = 0;
    this.#findId(body, length);
    let from = this.#idStart - this.#start;
    if (from > 0 && bytes.compare(body, this.#start, this.#idStart, 0, from) !== 0) return false;
    let at = this.#idEnd;
    for (const cut of cuts) {
      const next = at + cut - from;
      if (next > length || bytes.compare(body, at, next, from, cut) !== 0) return false;
      at = this.#readSize(body, next, length);
      if (at === next) return false;
      from = cut;
    }
    if (at + bytes.length - from !== length) return false;
    return bytes.compare(body, at, length, from) === 0;
  }

  equals({ bytes }: KeptText): boolean {
    return bytes.length === this.#length && bytes.compare(this.#kept, 0, this.#length) === 0;
  }

  copy(): KeptText {
    return { bytes: Buffer.from(this.#kept.subarray(0, this.#length)), cuts: [...this.#cuts] };
  }

  /** The id that was cut out, if any. */
  readId(body: Uint8Array): string | undefined {
    if (!this.#hasId) return undefined;
    const { buffer, byteOffset } = body;
    return Buffer.from(buffer, byteOffset, this.#idEnd).toString('latin1', this.#idStart);
  }

  /**
   * Whether the values cut out are what a parser reads: with others in their places, the request
   * has these as its id and as the sizes of its inputs.
   */
  isUnambiguous(body: Uint8Array, length: number): boolean {
    const marked = new MarkedHead(this.#hasId);
    let from = 0;
    const idEnd = this.#idEnd;
    let text = '';
    const decode = (start: number, end: number): string =>
      Buffer.from(body.buffer, body.byteOffset + start, end - start).toString('utf8');
    if (this.#hasId) {
      text = decode(0, this.#idStart) + MARKED_ID;
      from = idEnd;
    }
    for (let at = from; at < length; at++) {
      if (body[at] !== COLON || !isSizeName(body, at)) continue;
      const end = findSizeEnd(body, at + 1, length);
      if (end < 0) continue;
      text += `${decode(from, at + 1)}${MARKED_SIZE + marked.sizeCount++}`;
      from = end;
      at = end - 1;
    }
    return marked.isRead(text + decode(from, length));
  }

  get #hasId(): boolean {
    return this.#idEnd > this.#start;
  }

  /** Finds an id that is the first member, is followed by another one and has no escapes. */
  #findId(body: Uint8Array, length: number): void {
    let first = 0;
    while (first < length && body[first] === SPACE) first++;
    this.#start = first;
    this.#idStart = first;
    this.#idEnd = first;
    const start = findIdStart(body, first);
    const limit = Math.min(length - 1, start + ID_BYTES_MAX);
    for (let at = start; start > first && at < limit; at++) {
      const byte = body[at]!;
      if (byte === QUOTE && body[at + 1] === COMMA) {
        this.#idStart = start;
        this.#idEnd = at;
      }
      if (byte === QUOTE || byte === BACKSLASH || byte < SPACE || byte >= DELETE) return;
    }
  }

  /** @returns the end of the size at `start`; `start` when there is none */
  #readSize(body: Uint8Array, start: number, length: number): number {
    const end = findSizeEnd(body, start, length);
    if (end < 0) return start;
    let size = 0;
    for (let at = start; at < end; at++) {
      if (body[at] !== SPACE) size = 10 * size + body[at]! - ZERO;
    }
    this.sizes.push(size);
    return end;
  }
}

/** A head with other values in the places of those that were cut out. */
class MarkedHead {
  sizeCount = 0;
  readonly #hasId: boolean;

  constructor(hasId: boolean) {
    this.#hasId = hasId;
  }

  /** @param text of the head */
  isRead(text: string): boolean {
    try {
      const { id, inputs } = JSON.parse(text);
      if (this.#hasId && id !== MARKED_ID) return false;
      if (inputs.length !== this.sizeCount) return false;
      return inputs.every(
        ({ parameters }: { parameters: { binary_data_size: unknown } }, i: number) =>
          parameters.binary_data_size === MARKED_SIZE + i,
      );
    } catch {
      return false;
    }
  }
}

/** @returns where an id begins that is the first member; `first` when there is none */
function findIdStart(body: Uint8Array, first: number): number {
  for (const start of ID_STARTS) {
    let at = 0;
    while (at < start.length && body[first + at] === start[at]) at++;
    if (at === start.length) return first + at;
  }
  return first;
}

/** Whether the name before the colon at `colon` is that of a size. */
function isSizeName(body: Uint8Array, colon: number): boolean {
  const start = colon - SIZE_NAME.length;
  // Most other names differ in their last letter.
  for (let i = SIZE_NAME.length - 2; i >= 0; i--) {
    if (body[start + i] !== SIZE_NAME[i]) return false;
  }
  return body[colon - 1] === QUOTE;
}

/** Finds the end of an integer, after at most one blank. @returns -1 for all other values */
function findSizeEnd(body: Uint8Array, start: number, length: number): number {
  const first = body[start] === SPACE ? start + 1 : start;
  let at = first;
  while (at < length && body[at]! >= ZERO && body[at]! <= NINE) at++;
  const digits = at - first;
  if (digits === 0 || digits > SIZE_DIGITS_MAX || at === length) return -1;
  if (digits > 1 && body[first] === ZERO) return -1;
  return body[at] === COMMA || body[at] === CLOSE ? at : -1;
}
