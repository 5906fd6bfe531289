/**
 * Reads fields of parsed JSON. Errors name the location: `manifest.json: tables[2].dim: expected an
 * integer ≥ 1, got "x"`. Used for every document from outside. Readers of files and requests that
 * people write call `rejectUnknownFields`. Other readers ignore unknown fields, so that files of
 * newer writers stay readable.
 */
import { CubeError } from './errors.ts';
import { findRepeatedField, findStringEnd } from './json-scan.ts';
import { isLargeJson, parseJsonInSlices, type SlicedWork } from './json-slices.ts';
import { suggestNames } from './nearest-name.ts';
import { quoteInput, shortenInput } from './shown-input.ts';

/** Bytes of a location in an error; it may have names from the document. */
const PATH_BYTES_MAX = 120;

const EXACT_TEXT = 'a decimal string, because numbers above 2^53 are rounded';

/** Whether a value is an integer that JSON.parse may have rounded. */
function isRounded(value: unknown): boolean {
  return Number.isInteger(value) && !Number.isSafeInteger(value);
}

export class JsonReader {
  readonly #value: unknown;
  readonly #path: string;
  readonly #source: string;

  private constructor(value: unknown, source: string, path: string) {
    this.#value = value;
    this.#source = source;
    this.#path = path;
  }

  /**
   * @param source name of the document in errors: a file name or a URL
   * @param parse throws a SyntaxError when the text is not JSON
   */
  static parse(
    text: string,
    source: string,
    parse: (text: string) => unknown = JSON.parse,
  ): JsonReader {
    try {
      return new JsonReader(parse(text), source, '');
    } catch (error) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${source}: not JSON: ${(error as Error).message.replaceAll(/\s+/g, ' ')}`,
      );
    }
  }

  /**
   * Parses a file that people write.
   * @param parse throws a SyntaxError when the text is not JSON
   * @throws CubeError INVALID_ARGUMENT also for a field that an object has twice
   */
  static parseFile(
    text: string,
    source: string,
    parse: (text: string) => unknown = JSON.parse,
  ): JsonReader {
    const json = JsonReader.parse(text, source, parse);
    const repeated = findRepeatedField(text);
    if (repeated === undefined) return json;
    const path = shortenInput(repeated.path, PATH_BYTES_MAX);
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}: field ${path} is there twice, the second time in line ${repeated.line}; ` +
        'remove one',
    );
  }

  /**
   * Parses a large text in slices, a small one at once.
   * @param parse throws a SyntaxError when the text is not JSON
   */
  static *parseInSlices(
    text: string,
    source: string,
    parse: (text: string) => unknown = JSON.parse,
  ): SlicedWork<JsonReader> {
    if (!isLargeJson(text.length)) return JsonReader.parse(text, source, parse);
    return JsonReader.of(yield* parseJsonInSlices(text, source, parse), source);
  }

  static of(value: unknown, source: string): JsonReader {
    return new JsonReader(value, source, '');
  }

  get value(): unknown {
    return this.#value;
  }

  get isMissing(): boolean {
    return this.#value === undefined || this.#value === null;
  }

  fail(expected: string): never {
    const path = shortenInput(this.#path, PATH_BYTES_MAX);
    if (this.#value === undefined) {
      const name = path === '' ? 'the document' : `field ${path}`;
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${this.#source}: ${name} is missing; expected ${expected}`,
      );
    }
    const shown = shortenInput(describeValue(this.#value));
    const place = path === '' ? '' : `${path}: `;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}: ${place}expected ${expected}, got ${shown}`,
    );
  }

  field(name: string): JsonReader {
    const value = this.#value;
    if (typeof value !== 'object' || value === null || Array.isArray(value)) this.fail('an object');
    const inner = Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined;
    return this.#child(inner, this.#path === '' ? name : `${this.#path}.${name}`);
  }

  /** Reads a field with `read`; undefined when it is absent or null. */
  optional<T>(name: string, read: (field: JsonReader) => T): T | undefined {
    const inner = this.field(name);
    return inner.isMissing ? undefined : read(inner);
  }

  items(limits: { min?: number; max?: number } = {}): JsonReader[] {
    return this.list(limits).map((item, i) => this.#child(item, `${this.#path}[${i}]`));
  }

  /** One item of an array. */
  item(index: number): JsonReader {
    return this.#child(this.list()[index], `${this.#path}[${index}]`);
  }

  /** The raw values of an array. For long arrays: a reader per item is slow. */
  list(limits: { min?: number; max?: number } = {}): readonly unknown[] {
    const { min = 0, max = 1_000_000 } = limits;
    const value = this.#value;
    if (!Array.isArray(value)) this.fail('an array');
    if (value.length < min) this.fail(`an array of at least ${min} items`);
    if (value.length > max) this.fail(`an array of at most ${max} items`);
    return value;
  }

  entries(): [string, JsonReader][] {
    const value = this.#value;
    if (typeof value !== 'object' || value === null || Array.isArray(value)) this.fail('an object');
    return Object.keys(value).map((key) => [key, this.field(key)]);
  }

  /** @throws CubeError INVALID_ARGUMENT naming an unknown field and the nearest known name */
  rejectUnknownFields(known: Iterable<string>): void {
    const value = this.#value;
    if (typeof value !== 'object' || value === null || Array.isArray(value)) this.fail('an object');
    const names = known instanceof Set ? known : new Set(known);
    const name = Object.keys(value).find((one) => !names.has(one));
    if (name === undefined) return;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}: ${this.#describeUnknown(name, names)}`,
    );
  }

  /**
   * Describes the unknown fields of an object in a file of another system, which may have fields
   * that mean nothing here.
   */
  listUnknownFields(known: readonly string[]): string[] {
    return this.entries()
      .filter(([name]) => !known.includes(name))
      .map(([name]) => this.#describeUnknown(name, known));
  }

  #describeUnknown(name: string, known: Iterable<string>): string {
    const place = this.#path === '' ? '' : `${shortenInput(this.#path, PATH_BYTES_MAX)}: `;
    return `${place}unknown field ${quoteInput(name)} (${suggestNames(name, known)})`;
  }

  string(pattern?: RegExp, description?: string): string {
    const value = this.#value;
    if (typeof value !== 'string') this.fail(description ?? 'a string');
    if (pattern !== undefined && !pattern.test(value)) {
      this.fail(description ?? `a string like ${pattern.source}`);
    }
    return value;
  }

  /** As `string`, for a text that may be a secret: errors do not show it. */
  hiddenString(pattern: RegExp, description: string): string {
    const value = this.#value;
    if (typeof value === 'string' && pattern.test(value)) return value;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}: ${this.#path}: expected ${description}; the value is not shown`,
    );
  }

  choice<const T extends string>(choices: readonly T[]): T {
    const value = this.#value;
    if (!choices.includes(value as T)) this.fail(`one of ${choices.join(', ')}`);
    return value as T;
  }

  integer(min: number, max: number = Number.MAX_SAFE_INTEGER): number {
    const value = this.#value;
    if (!Number.isSafeInteger(value)) this.fail(`an integer ≥ ${min}`);
    if ((value as number) < min || (value as number) > max) {
      this.fail(`an integer in ${min}..${max}`);
    }
    return value as number;
  }

  number(): number {
    const value = this.#value;
    if (typeof value !== 'number' || !Number.isFinite(value)) this.fail('a finite number');
    return value;
  }

  boolean(): boolean {
    const value = this.#value;
    if (typeof value !== 'boolean') this.fail('true or false');
    return value;
  }

  /**
   * A u64 as a decimal string or an integer up to 2^53. An unsafe JSON number is refused, never
   * rounded.
   */
  u64(): bigint {
    const value = this.#value;
    if (typeof value === 'string' && /^\d{1,20}$/.test(value)) {
      const parsed = BigInt(value);
      if (parsed < 1n << 64n) return parsed;
    } else if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) {
      return BigInt(value);
    }
    this.fail(isRounded(value) ? EXACT_TEXT : 'an integer in 0..2^64 - 1');
  }

  /** An i64 as a decimal string or a safe integer; never rounded. */
  i64(): bigint {
    const value = this.#value;
    if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value);
    if (typeof value === 'string' && /^-?\d{1,19}$/.test(value)) {
      const parsed = BigInt(value);
      if (BigInt.asIntN(64, parsed) === parsed) return parsed;
    }
    this.fail(isRounded(value) ? EXACT_TEXT : 'an integer in -2^63..2^63 - 1');
  }

  #child(value: unknown, path: string): JsonReader {
    return new JsonReader(value, this.#source, path);
  }
}

/**
 * The value as JSON. JSON.parse reads values nested so deeply that JSON.stringify cannot write
 * them.
 */
function describeValue(value: unknown): string {
  // JSON.parse reads 1e999 as infinity, which JSON cannot express.
  if (typeof value === 'number' && !Number.isFinite(value)) return String(value);
  try {
    return JSON.stringify(value) ?? 'nothing';
  } catch {
    return 'something nested too deeply';
  }
}

const QUOTE = 0x22;
const MINUS = 0x2d;
/** Integers of up to this many digits are exact as a double; longer ones become strings. */
const EXACT_DIGITS = 15;

/**
 * Quotes integers too long for a double, as the JSON of Protocol Buffers allows 64-bit integers, so
 * that JSON.parse cannot round them. The rest of the text is unchanged.
 */
export function quoteLongIntegers(text: string): string {
  let quoted = '';
  let copied = 0;
  let at = 0;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === QUOTE) at = findStringEnd(text, at);
    else if (isDigit(code)) {
      const end = findDigitsEnd(text, at);
      const start = text.charCodeAt(at - 1) === MINUS ? at - 1 : at;
      if (end - at > EXACT_DIGITS && isWholeNumber(text, start, end)) {
        quoted += `${text.slice(copied, start)}"${text.slice(start, end)}"`;
        copied = end;
      }
      at = end;
    } else at++;
  }
  return copied === 0 ? text : quoted + text.slice(copied);
}

function findDigitsEnd(text: string, start: number): number {
  let at = start;
  while (at < text.length && isDigit(text.charCodeAt(at))) at++;
  return at;
}

function isDigit(code: number): boolean {
  return code >= 0x30 && code <= 0x39;
}

/**
 * True for digits, with an optional minus, that are a whole integer: no fraction, exponent or
 * leading zero.
 */
function isWholeNumber(text: string, start: number, end: number): boolean {
  const before = text.charAt(start - 1);
  const after = text.charAt(end);
  const first = text.charCodeAt(start) === MINUS ? start + 1 : start;
  return (
    text.charAt(first) !== '0' && !'-+.eE'.includes(before || ' ') && !'.eE'.includes(after || ' ')
  );
}
