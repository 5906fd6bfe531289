/**
 * Reads protobuf's text format without a schema: `name: value`, `name { … }`, repeated fields or
 * `[a, b]`, adjacent strings joined, `,` and `;` optional, `#` comments. Strings may lack their
 * quotes where they look like a name or a path, as in Paddle Serving's examples. The result is a
 * tree of named values with their locations; the reader of each file defines their types
 * (`TextMessage`). Size, depth and number of values are limited.
 */
import { CubeError } from '../lib/core/errors.ts';

const TEXT_CHARS_MAX = 4 << 20;
const DEPTH_MAX = 64;
const VALUES_MAX = 100_000;

type TextScalar = { readonly kind: 'string' | 'word'; readonly text: string };

interface TextField {
  readonly name: string;
  readonly value: TextScalar | TextMessage;
  readonly offset: number;
}

/**
 * @param source name of the text in errors: a file name
 * @throws CubeError INVALID_ARGUMENT `source:line:column: …`
 */
export function parseTextFormat(text: string, source: string): TextMessage {
  if (text.length > TEXT_CHARS_MAX) {
    throw new CubeError('TOO_LARGE', `${source}: more than ${TEXT_CHARS_MAX} characters`);
  }
  return new Parser({ text, name: source }).parse();
}

interface Source {
  readonly text: string;
  readonly name: string;
}

function failAt({ text, name }: Source, offset: number, message: string): never {
  const before = text.slice(0, offset);
  const line = before.split('\n').length;
  const column = offset - before.lastIndexOf('\n');
  throw new CubeError('INVALID_ARGUMENT', `${name}:${line}:${column}: ${message}`);
}

/** One message: its fields in order. Errors of the accessors name the location. */
export class TextMessage {
  readonly #source: Source;
  readonly #entries: readonly TextField[];
  readonly #offset: number;

  constructor(source: Source, entries: readonly TextField[], offset: number) {
    this.#source = source;
    this.#entries = entries;
    this.#offset = offset;
  }

  /** file:line, for messages. */
  get location(): string {
    return this.getLocation(this.#offset);
  }

  /** The names of its fields, each once, in order. */
  get names(): string[] {
    return [...new Set(this.#entries.map(({ name }) => name))];
  }

  fail(message: string): never {
    return failAt(this.#source, this.#offset, message);
  }

  /** Fails with the location of a field, or of the message when it has no such field. */
  failField(name: string, message: string): never {
    return failAt(this.#source, this.#last(name)?.offset ?? this.#offset, message);
  }

  has(name: string): boolean {
    return this.#last(name) !== undefined;
  }

  /** The number of values of a field. */
  count(name: string): number {
    return this.#all(name).length;
  }

  /** The location of a field, or of the message when it has no such field. */
  getFieldLocation(name: string): string {
    return this.getLocation(this.#last(name)?.offset ?? this.#offset);
  }

  messages(name: string): TextMessage[] {
    return this.#all(name).map(({ value, offset }) => {
      if (value instanceof TextMessage) return value;
      return failAt(this.#source, offset, `${name}: expected { … }, got ${value.text}`);
    });
  }

  strings(name: string): string[] {
    return this.#all(name).map((entry) => this.#string(entry));
  }

  /** The value of a field; the last one when it is repeated, as in protobuf. */
  string(name: string): string | undefined {
    const entry = this.#last(name);
    return entry === undefined ? undefined : this.#string(entry);
  }

  integer(name: string, min: number, max: number): number | undefined {
    const entry = this.#last(name);
    return entry && this.#integer(entry, min, max);
  }

  /** Every value of a repeated field. */
  integers(name: string, min: number, max: number): number[] {
    return this.#all(name).map((entry) => this.#integer(entry, min, max));
  }

  boolean(name: string): boolean | undefined {
    const entry = this.#last(name);
    return entry && this.#boolean(entry);
  }

  booleans(name: string): boolean[] {
    return this.#all(name).map((entry) => this.#boolean(entry));
  }

  /** The name or number of an enum value. */
  enumValue(name: string): string | undefined {
    const entry = this.#last(name);
    return entry && readWord(this.#source, entry, 'a name', (word) => word);
  }

  /** Every name or number of a repeated field. */
  words(name: string): string[] {
    return this.#all(name).map((entry) => {
      return readWord(this.#source, entry, 'a name or a number', (word) => word);
    });
  }

  private getLocation(offset: number): string {
    const line = this.#source.text.slice(0, offset).split('\n').length;
    return `${this.#source.name}:${line}`;
  }

  #all(name: string): readonly TextField[] {
    return this.#entries.filter((entry) => entry.name === name);
  }

  #last(name: string): TextField | undefined {
    return this.#entries.findLast((entry) => entry.name === name);
  }

  #string({ name, value, offset }: TextField): string {
    if (!(value instanceof TextMessage) && (value.kind === 'string' || UNQUOTED.test(value.text)))
      return value.text;
    return failAt(this.#source, offset, `${name}: expected a string in quotes`);
  }

  #integer(entry: TextField, min: number, max: number): number {
    return readWord(this.#source, entry, `an integer in ${min}..${max}`, (word) => {
      const [, sign, digits = ''] = /^(-?)(\d{1,16}|0[xX][0-9a-fA-F]{1,12})$/.exec(word) ?? [];
      const value = sign === '-' ? -Number(digits) : Number(digits);
      return digits !== '' && value >= min && value <= max ? value : undefined;
    });
  }

  #boolean(entry: TextField): boolean {
    return readWord(this.#source, entry, 'true or false', (word) => {
      if (['true', 't', 'True', '1'].includes(word)) return true;
      return ['false', 'f', 'False', '0'].includes(word) ? false : undefined;
    });
  }
}

function readWord<T>(
  source: Source,
  { name, value, offset }: TextField,
  expected: string,
  read: (word: string) => T | undefined,
): T {
  const isWord = !(value instanceof TextMessage) && value.kind === 'word';
  const result = isWord ? read(value.text) : undefined;
  if (result !== undefined) return result;
  const got = value instanceof TextMessage ? 'a message' : JSON.stringify(value.text.slice(0, 60));
  return failAt(source, offset, `${name}: expected ${expected}, got ${got}`);
}

const BLANK = /(?:[ \t\r\n\f\v]|#[^\n]*)*/y;
const NAME = /[A-Za-z_][A-Za-z0-9_]*|\[[A-Za-z0-9_./-]{1,200}\]/y;
const WORD = /[-+]?[A-Za-z0-9_./][A-Za-z0-9_./+-]*/y;
/** A value that is a string without quotes: a name or a path, not a number. */
const UNQUOTED = /^[A-Za-z_./]/;
const STRING = /"((?:[^"\\\n]|\\[^\n])*)"|'((?:[^'\\\n]|\\[^\n])*)'/y;
/** One escape, or successive ones of bytes: together they are UTF-8. */
const ESCAPE =
  /((?:\\(?:[xX][0-9a-fA-F]{1,2}|[0-7]{1,3}))+)|\\(u[0-9a-fA-F]{4}|U00[01][0-9a-fA-F]{5}|.)/g;
const BYTE_ESCAPE = /\\(?:[xX]([0-9a-fA-F]{1,2})|([0-7]{1,3}))/g;
const ESCAPED: Readonly<Record<string, string>> = {
  n: '\n',
  t: '\t',
  r: '\r',
  a: '\x07',
  b: '\b',
  f: '\f',
  v: '\v',
};

class Parser {
  readonly #source: Source;
  #at = 0;
  #values = 0;

  constructor(source: Source) {
    this.#source = source;
  }

  parse(): TextMessage {
    const entries = this.#fields(undefined, 0);
    return new TextMessage(this.#source, entries, 0);
  }

  /** @param close the closing bracket of the message; undefined: the end of the text */
  #fields(close: string | undefined, depth: number): TextField[] {
    if (depth > DEPTH_MAX) this.#fail(`messages are nested more than ${DEPTH_MAX} deep`);
    const entries: TextField[] = [];
    const opened = this.#at;
    for (;;) {
      this.#take(BLANK);
      if (this.#at >= this.#source.text.length) {
        if (close === undefined) return entries;
        failAt(this.#source, Math.max(opened - 1, 0), `this { is never closed by ${close}`);
      }
      if (close !== undefined && this.#skip(close)) return entries;
      const offset = this.#at;
      const name = this.#take(NAME) ?? this.#fail(`expected a field's name${this.#seen()}`);
      this.#take(BLANK);
      const hasColon = this.#skip(':');
      this.#take(BLANK);
      for (const value of this.#readValues(name, hasColon, depth))
        entries.push({ name, value, offset });
      this.#take(BLANK);
      if (!this.#skip(',')) this.#skip(';');
    }
  }

  #readValues(name: string, hasColon: boolean, depth: number): (TextScalar | TextMessage)[] {
    if (!this.#skip('[')) return [this.#value(name, hasColon, depth)];
    const values: (TextScalar | TextMessage)[] = [];
    this.#take(BLANK);
    while (!this.#skip(']')) {
      if (values.length > 0) {
        if (!this.#skip(',')) this.#fail(`${name}: expected , or ]${this.#seen()}`);
        this.#take(BLANK);
      }
      values.push(this.#value(name, true, depth));
      this.#take(BLANK);
    }
    return values;
  }

  #value(name: string, hasColon: boolean, depth: number): TextScalar | TextMessage {
    if (++this.#values > VALUES_MAX) this.#fail(`more than ${VALUES_MAX} values`);
    const offset = this.#at;
    const close = this.#skip('{') ? '}' : this.#skip('<') ? '>' : undefined;
    if (close !== undefined) {
      return new TextMessage(this.#source, this.#fields(close, depth + 1), offset);
    }
    if (!hasColon) this.#fail(`${name}: expected ":" or "{"${this.#seen()}`);
    const first = this.#take(STRING);
    if (first === undefined) {
      const text = this.#take(WORD) ?? this.#fail(`${name}: expected a value${this.#seen()}`);
      return { kind: 'word', text };
    }
    const parts = [unquote(first)];
    for (;;) {
      this.#take(BLANK);
      const next = this.#take(STRING);
      if (next === undefined) return { kind: 'string', text: parts.join('') };
      parts.push(unquote(next));
    }
  }

  #take(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const found = pattern.exec(this.#source.text)?.[0];
    this.#at += found?.length ?? 0;
    return found;
  }

  #skip(character: string): boolean {
    if (this.#source.text[this.#at] !== character) return false;
    this.#at++;
    return true;
  }

  #seen(): string {
    const [rest = ''] = this.#source.text.slice(this.#at, this.#at + 20).split('\n', 1);
    return rest === '' ? ', got the end' : `, got ${JSON.stringify(rest)}`;
  }

  #fail(message: string): never {
    return failAt(this.#source, this.#at, message);
  }
}

function unquote(quoted: string): string {
  return quoted.slice(1, -1).replaceAll(ESCAPE, (_, bytes?: string, code = '') => {
    if (bytes !== undefined) return decodeBytes(bytes);
    if (/^[uU]./.test(code)) return fromCodePoint(Number.parseInt(code.slice(1), 16));
    return ESCAPED[code] ?? code;
  });
}

function decodeBytes(escapes: string): string {
  const bytes = [...escapes.matchAll(BYTE_ESCAPE)].map(([, hex, octal]) =>
    hex === undefined ? Number.parseInt(octal ?? '', 8) & 255 : Number.parseInt(hex, 16),
  );
  return new TextDecoder().decode(Uint8Array.from(bytes));
}

function fromCodePoint(code: number): string {
  return code <= 0x10_ffff ? String.fromCodePoint(code) : '\ufffd';
}
