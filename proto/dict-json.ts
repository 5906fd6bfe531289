/**
 * Reads a seek in JSON, `{"keys": [1, "2"], "version_required": true}`, from its bytes: a body may
 * have a million keys, which `JSON.parse` would turn into objects, rounded, without a pause. The
 * keys are read here; the rest, which is short, is left to `JSON.parse`.
 */
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';

/** Bytes read between two pauses: about a millisecond. */
const SLICE_BYTES = 128 << 10;
/** Maximum bytes of everything besides the keys. */
const REST_BYTES_MAX = 64 << 10;
const DIGITS_MAX = 20;
const SHOWN_BYTES = 40;
const QUOTE = 0x22;
const COMMA = 0x2c;
const COLON = 0x3a;
const BACKSLASH = 0x5c;
const OPEN_BRACKET = 0x5b;
const CLOSE_BRACKET = 0x5d;
const OPEN_BRACE = 0x7b;
const CLOSE_BRACE = 0x7d;
const KEYS_NAME: Uint8Array = new TextEncoder().encode('"keys"');
const decoder = new TextDecoder();

/** Receives the keys, in order. */
export interface KeySink {
  /** Begins again: the field may be repeated, and the last one counts. */
  clear(): void;
  add(low: number, high: number): void;
}

/** @returns the other fields; pauses by yielding. @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
export function* scanSeekJson(
  bytes: Uint8Array,
  source: string,
  sink: KeySink,
): Generator<undefined, { versionRequired: boolean }> {
  const scanner = new SeekScanner(bytes, source, sink);
  yield* scanner.run();
  const json = JsonReader.parse(scanner.takeRest(), source);
  const left = json.optional('keys', (field) => field.list().length) ?? 0;
  if (left > 0) json.field('keys').fail('the name without escapes');
  const versionRequired = json.optional('version_required', readBoolean) ?? false;
  return { versionRequired };
}

/** brpc answers 200 for the texts too. */
function readBoolean(field: JsonReader): boolean {
  if (field.value === 'true' || field.value === 'false') return field.value === 'true';
  return field.boolean();
}

class SeekScanner {
  readonly #bytes: Uint8Array;
  readonly #source: string;
  readonly #sink: KeySink;
  #at = 0;
  /** End of the last slice. */
  #sliceEnd = SLICE_BYTES;
  /** The text besides the keys. */
  #rest = '';
  #restFrom = 0;

  constructor(bytes: Uint8Array, source: string, sink: KeySink) {
    this.#bytes = bytes;
    this.#source = source;
    this.#sink = sink;
  }

  /** The document with every list of keys empty. */
  takeRest(): string {
    this.#appendRest(this.#bytes.length);
    return this.#rest;
  }

  *run(): Generator<undefined, void> {
    const bytes = this.#bytes;
    let depth = 0;
    while (this.#at < bytes.length) {
      const byte = bytes[this.#at]!;
      if (byte === QUOTE) {
        const isKeys = depth === 1 && this.#isKeysName();
        this.#skipString();
        if (isKeys && this.#findKeysStart()) yield* this.#readKeys();
      } else {
        if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++;
        else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) depth--;
        this.#at++;
      }
      if (this.#at - this.#restFrom > REST_BYTES_MAX) this.#failTooLarge();
    }
  }

  #isKeysName(): boolean {
    const at = this.#at;
    return KEYS_NAME.every((byte, i) => this.#bytes[at + i] === byte);
  }

  #skipString(): void {
    const bytes = this.#bytes;
    this.#at++;
    while (this.#at < bytes.length && bytes[this.#at] !== QUOTE) {
      this.#at += bytes[this.#at] === BACKSLASH ? 2 : 1;
    }
    this.#at++;
  }

  /** Moves into the list if a colon and a list follow. */
  #findKeysStart(): boolean {
    this.#skipSpace();
    if (this.#bytes[this.#at] !== COLON) return false;
    this.#at++;
    this.#skipSpace();
    if (this.#bytes[this.#at] !== OPEN_BRACKET) return false;
    this.#at++;
    return true;
  }

  *#readKeys(): Generator<undefined, void> {
    this.#appendRest(this.#at);
    this.#sink.clear();
    this.#skipSpace();
    const isEmpty = this.#bytes[this.#at] === CLOSE_BRACKET;
    for (let index = 0; !isEmpty; index++) {
      this.#readKey(index);
      this.#skipSpace();
      const next = this.#bytes[this.#at];
      if (next === CLOSE_BRACKET) break;
      if (next !== COMMA) this.#fail(`keys[${index}]`, 'a comma or the end of the list');
      this.#at++;
      this.#skipSpace();
      if (this.#at < this.#sliceEnd) continue;
      this.#sliceEnd = this.#at + SLICE_BYTES;
      yield undefined;
    }
    // The rest continues with the end of the list.
    this.#restFrom = this.#at;
    this.#at++;
  }

  /** Reads up to 20 digits, in quotes or not. */
  #readKey(index: number): void {
    const bytes = this.#bytes;
    const isQuoted = bytes[this.#at] === QUOTE;
    const start = isQuoted ? this.#at + 1 : this.#at;
    let at = start;
    let low = 0;
    let high = 0;
    for (; at < bytes.length; at++) {
      const digit = bytes[at]! - 0x30;
      if (digit < 0 || digit > 9) break;
      const product = low * 10 + digit;
      low = product >>> 0;
      high = high * 10 + (product - low) / 0x1_0000_0000;
    }
    const digits = at - start;
    // A number in JSON has no leading zero.
    const isNumber = digits > 0 && (isQuoted || digits === 1 || bytes[start] !== 0x30);
    const isEnded = isQuoted ? bytes[at] === QUOTE : isNumberEnd(bytes[at]);
    if (!isNumber || digits > DIGITS_MAX || high > 0xffff_ffff || !isEnded) {
      const expected = 'an integer in 0..2^64 - 1, as a number or a decimal string';
      this.#fail(`keys[${index}]`, expected);
    }
    this.#at = isQuoted ? at + 1 : at;
    this.#sink.add(low, high);
  }

  #skipSpace(): void {
    const bytes = this.#bytes;
    for (;;) {
      const byte = bytes[this.#at];
      if (byte !== 0x20 && byte !== 0x0a && byte !== 0x0d && byte !== 0x09) return;
      this.#at++;
    }
  }

  #appendRest(end: number): void {
    const bytes = this.#bytes.subarray(this.#restFrom, end);
    if (this.#rest.length + bytes.length > REST_BYTES_MAX) this.#failTooLarge();
    this.#rest += decoder.decode(bytes);
  }

  #fail(place: string, expected: string): never {
    const shown = decoder.decode(this.#bytes.subarray(this.#at, this.#at + SHOWN_BYTES));
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}: ${place}: expected ${expected}, got ${shown === '' ? 'the end' : shown}`,
    );
  }

  #failTooLarge(): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}: more than ${REST_BYTES_MAX} bytes besides the keys`,
    );
  }
}

/** Whether a number ends before this byte: it is neither a fraction nor an exponent. */
function isNumberEnd(byte: number | undefined): boolean {
  return (
    byte === COMMA ||
    byte === CLOSE_BRACKET ||
    byte === 0x20 ||
    byte === 0x0a ||
    byte === 0x0d ||
    byte === 0x09
  );
}
