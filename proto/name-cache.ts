/**
 * Names that repeat in every request (service, method, bundle, version, table) as strings, without decoding the
 * same bytes again and again. Bounded: a fixed number of places, each holding the last name that fell into it.
 */

const PLACES = 64;
const NAME_BYTES_MAX = 256;
const textDecoder = new TextDecoder('utf-8');

export class NameCache {
  readonly #bytes: (Uint8Array | undefined)[] = new Array(PLACES).fill(undefined);
  readonly #names: string[] = new Array(PLACES).fill('');

  /** The text of `bytes[start..end)`. */
  name(bytes: Uint8Array, start: number, end: number): string {
    const length = end - start;
    if (length === 0) return '';
    if (length > NAME_BYTES_MAX) return textDecoder.decode(bytes.subarray(start, end));
    const middle = bytes[start + (length >> 1)]!;
    const place = (bytes[end - 1]! + 7 * bytes[start]! + 13 * middle + 31 * length) & (PLACES - 1);
    const held = this.#bytes[place];
    if (held !== undefined && equals(held, bytes, start, length)) return this.#names[place]!;
    // Of a Buffer, slice() would be a view, and keep all that was read with it alive.
    const copy = Uint8Array.prototype.slice.call(bytes, start, end);
    const name = textDecoder.decode(copy);
    this.#bytes[place] = copy;
    this.#names[place] = name;
    return name;
  }
}

function equals(held: Uint8Array, bytes: Uint8Array, start: number, length: number): boolean {
  if (held.length !== length) return false;
  for (let i = 0; i < length; i++) {
    if (held[i] !== bytes[start + i]) return false;
  }
  return true;
}
