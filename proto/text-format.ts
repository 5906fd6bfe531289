/**
 * Protobuf's text format, read without its schema: `name: value`, `name { … }`, repetition by repetition or `[a, b]`, adjacent
 * strings joined, `,` and `;` optional, `#` comments. The result is a tree of named values, each with its place; what they
 * may be, the reader of each file decides (`TextMessage`). Hostile text is bounded: size, depth, number of values.
 */
import { CubeError } from '../lib/core/errors.ts';

const TEXT_CHARS_MAX = 4 << 20;
const DEPTH_MAX = 64;
const VALUES_MAX = 100_000;

type Scalar = { readonly kind: 'string' | 'word'; readonly text: string };

interface Entry {
  readonly name: string;
  readonly value: Scalar | TextMessage;
  readonly offset: number;
}

/** @param source what to call it in errors: a file name @throws CubeError INVALID_ARGUMENT `source:line:column: …` */
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

/** One message: its fields in order. Every accessor names the place of what is wrong. */
export class TextMessage {
  readonly #source: Source;
  readonly #entries: readonly Entry[];
  readonly #offset: number;

  constructor(source: Source, entries: readonly Entry[], offset: number) {
    this.#source = source;
    this.#entries = entries;
    this.#offset = offset;
  }

  /** file:line, for people. */
  get place(): string {
    return this.placeOf(this.#offset);
  }

  /** The names of its fields, each once, in order. */
  get names(): string[] {
    return [...new Set(this.#entries.map(({ name }) => name))];
  }

  fail(message: string): never {
    return failAt(this.#source, this.#offset, message);
  }

  /** The place of a field, or of the message when it is not there. */
  placeOfField(name: string): string {
    return this.placeOf(this.#last(name)?.offset ?? this.#offset);
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

  /** Of a field that comes several times, the last: as protobuf has it. */
  string(name: string): string | undefined {
    const entry = this.#last(name);
    return entry === undefined ? undefined : this.#string(entry);
  }

  integer(name: string, min: number, max: number): number | undefined {
    return this.#word(name, `an integer in ${min}..${max}`, (word) => {
      const value = Number(word);
      const isInteger = /^-?(\d{1,16}|0[xX][0-9a-fA-F]{1,12})$/.test(word);
      return isInteger && value >= min && value <= max ? value : undefined;
    });
  }

  boolean(name: string): boolean | undefined {
    return this.#word(name, 'true or false', (word) => {
      if (['true', 't', 'True', '1'].includes(word)) return true;
      return ['false', 'f', 'False', '0'].includes(word) ? false : undefined;
    });
  }

  /** An enum's name, or its number. */
  word(name: string): string | undefined {
    return this.#word(name, 'a name', (word) => word);
  }

  private placeOf(offset: number): string {
    const line = this.#source.text.slice(0, offset).split('\n').length;
    return `${this.#source.name}:${line}`;
  }

  #all(name: string): readonly Entry[] {
    return this.#entries.filter((entry) => entry.name === name);
  }

  #last(name: string): Entry | undefined {
    return this.#entries.findLast((entry) => entry.name === name);
  }

  #string({ name, value, offset }: Entry): string {
    if (!(value instanceof TextMessage) && value.kind === 'string') return value.text;
    return failAt(this.#source, offset, `${name}: expected a string in quotes`);
  }

  #word<T>(name: string, expected: string, read: (word: string) => T | undefined): T | undefined {
    const entry = this.#last(name);
    if (entry === undefined) return undefined;
    const { value, offset } = entry;
    const isWord = !(value instanceof TextMessage) && value.kind === 'word';
    const result = isWord ? read(value.text) : undefined;
    const got =
      value instanceof TextMessage ? 'a message' : JSON.stringify(value.text.slice(0, 60));
    return result ?? failAt(this.#source, offset, `${name}: expected ${expected}, got ${got}`);
  }
}

const BLANK = /(?:[ \t\r\n\f\v]|#[^\n]*)*/y;
const NAME = /[A-Za-z_][A-Za-z0-9_]*|\[[A-Za-z0-9_./-]{1,200}\]/y;
const WORD = /[-+]?[A-Za-z0-9_.]+(?:[eE][-+]\d+)?/y;
const STRING = /"((?:[^"\\\n]|\\[^\n])*)"|'((?:[^'\\\n]|\\[^\n])*)'/y;
const ESCAPE = /\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|[0-7]{1,3}|.)/g;
const ESCAPED: Readonly<Record<string, string>> = {
  ...{ n: '\n', t: '\t', r: '\r', a: '\x07', b: '\b', f: '\f', v: '\v' },
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

  /** @param close what ends the message; undefined: the text's end */
  #fields(close: string | undefined, depth: number): Entry[] {
    if (depth > DEPTH_MAX) this.#fail(`messages in messages, more than ${DEPTH_MAX} deep`);
    const entries: Entry[] = [];
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
      for (const value of this.#valuesOf(name, hasColon, depth))
        entries.push({ name, value, offset });
      this.#take(BLANK);
      if (!this.#skip(',')) this.#skip(';');
    }
  }

  #valuesOf(name: string, hasColon: boolean, depth: number): (Scalar | TextMessage)[] {
    if (!this.#skip('[')) return [this.#value(name, hasColon, depth)];
    const values: (Scalar | TextMessage)[] = [];
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

  #value(name: string, hasColon: boolean, depth: number): Scalar | TextMessage {
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
    const rest = this.#source.text.slice(this.#at, this.#at + 20).split('\n', 1)[0]!;
    return rest === '' ? ', got the end' : `, got ${JSON.stringify(rest)}`;
  }

  #fail(message: string): never {
    return failAt(this.#source, this.#at, message);
  }
}

function unquote(quoted: string): string {
  return quoted.slice(1, -1).replaceAll(ESCAPE, (_, code: string) => {
    if (/^[xu]./.test(code)) return String.fromCharCode(Number.parseInt(code.slice(1), 16));
    if (/^[0-7]/.test(code)) return String.fromCharCode(Number.parseInt(code, 8) & 255);
    return ESCAPED[code] ?? code;
  });
}
