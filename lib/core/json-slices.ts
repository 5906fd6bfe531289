/**
 * Parses large JSON in slices, so that other requests are answered in between. `JSON.parse` cannot
 * be interrupted, but the elements of a large array can be parsed a group at a time. Values that
 * are not large go to `JSON.parse` as they are, so the result is the same.
 */
import { CubeError } from './errors.ts';

/** Work that yields between its slices; the last value is its result. */
export type SlicedWork<T> = Generator<void, T, void>;

/** Characters of a slice: some 0.5 ms. */
const SLICE_CHARS = 64 << 10;
/** Large values nested more deeply are parsed at once. */
const DEPTH_MAX = 8;

const QUOTE = 0x22;
const BACKSLASH = 0x5c;
const COMMA = 0x2c;
const COLON = 0x3a;
const OPEN_LIST = 0x5b;
const CLOSE_LIST = 0x5d;
const OPEN_OBJECT = 0x7b;
const CLOSE_OBJECT = 0x7d;

/** Whether a text of this many characters is parsed in more than one slice. */
export function isLargeJson(charCount: number): boolean {
  return charCount > SLICE_CHARS;
}

/** Runs all slices at once. */
export function runAtOnce<T>(work: SlicedWork<T>): T {
  for (;;) {
    const step = work.next();
    if (step.done === true) return step.value;
  }
}

/**
 * @param parse parses a slice; throws a SyntaxError when it is not JSON
 * @throws CubeError INVALID_ARGUMENT `<source>: not JSON: …`
 */
export function* parseJsonInSlices(
  text: string,
  source: string,
  parse: (text: string) => unknown = JSON.parse,
): SlicedWork<unknown> {
  const parser = new SlicedParser(text, source, parse);
  const value = yield* parser.parseValue(0);
  parser.expectEnd();
  return value;
}

class SlicedParser {
  readonly #text: string;
  readonly #source: string;
  readonly #parseSlice: (text: string) => unknown;
  #at = 0;

  constructor(text: string, source: string, parse: (text: string) => unknown) {
    this.#text = text;
    this.#source = source;
    this.#parseSlice = parse;
  }

  /** Parses the value at the current position, up to the end of it. */
  *parseValue(depth: number): SlicedWork<unknown> {
    this.#skipSpace();
    const limit = depth < DEPTH_MAX ? SLICE_CHARS : Number.POSITIVE_INFINITY;
    const end = this.#findEnd(this.#at, this.#at + limit);
    if (end >= 0) {
      const start = this.#at;
      this.#at = end;
      return this.#parse(this.#text.slice(start, end), start);
    }
    // A long string, number or word is parsed at once.
    const first = this.#text.charCodeAt(this.#at);
    if (first === OPEN_LIST) return yield* this.#parseList(depth + 1);
    return yield* this.#parseObject(depth + 1);
  }

  expectEnd(): void {
    this.#skipSpace();
    if (this.#at < this.#text.length) this.#fail(this.#at, 'the text goes on after the value');
  }

  *#parseList(depth: number): SlicedWork<unknown[]> {
    const text = this.#text;
    const items: unknown[] = [];
    this.#at++;
    for (;;) {
      const start = this.#at;
      const end = this.#findGroupEnd(start);
      if (end > start) {
        for (const item of this.#parse(`[${text.slice(start, end)}]`, start) as unknown[]) {
          items.push(item);
        }
        this.#at = end;
      } else {
        items.push(yield* this.parseValue(depth));
        this.#skipSpace();
      }
      yield;
      const next = text.charCodeAt(this.#at);
      if (next === CLOSE_LIST) break;
      if (next !== COMMA) this.#fail(this.#at, 'expected "," or "]"');
      this.#at++;
    }
    this.#at++;
    return items;
  }

  *#parseObject(depth: number): SlicedWork<object> {
    const text = this.#text;
    const object = {};
    this.#at++;
    for (;;) {
      this.#skipSpace();
      const start = this.#at;
      if (text.charCodeAt(start) !== QUOTE) this.#fail(start, 'expected a name in double quotes');
      this.#at = this.#findEnd(start, Number.POSITIVE_INFINITY);
      const name = this.#parse(text.slice(start, this.#at), start) as string;
      this.#skipSpace();
      if (text.charCodeAt(this.#at) !== COLON) this.#fail(this.#at, 'expected ":"');
      this.#at++;
      const value = yield* this.parseValue(depth);
      // As JSON.parse does: an own property also for the name __proto__.
      const property = { value, writable: true, enumerable: true, configurable: true };
      Object.defineProperty(object, name, property);
      this.#skipSpace();
      const next = text.charCodeAt(this.#at);
      if (next === CLOSE_OBJECT) break;
      if (next !== COMMA) this.#fail(this.#at, 'expected "," or "}"');
      this.#at++;
    }
    this.#at++;
    return object;
  }

  /**
   * The end of the last item that ends within a slice from `start` on: at the comma or the bracket
   * after it. `start` when the first item is longer than a slice.
   */
  #findGroupEnd(start: number): number {
    const text = this.#text;
    const limit = Math.min(text.length, start + SLICE_CHARS);
    let end = start;
    let depth = 0;
    for (let at = start; at < limit; at++) {
      const code = text.charCodeAt(at);
      if (code === QUOTE) {
        at = this.#findStringEnd(at) - 1;
      } else if (code === OPEN_LIST || code === OPEN_OBJECT) depth++;
      else if (code === CLOSE_LIST || code === CLOSE_OBJECT) {
        if (depth === 0) return at;
        depth--;
      } else if (code === COMMA && depth === 0) end = at;
    }
    return end;
  }

  /**
   * The end of the value at `start`. @returns -1 when a list or an object does not end before
   * `limit`
   */
  #findEnd(start: number, limit: number): number {
    const text = this.#text;
    let depth = 0;
    for (let at = start; at < text.length; at++) {
      if (at >= limit && depth > 0) return -1;
      const code = text.charCodeAt(at);
      if (code === QUOTE) {
        at = this.#findStringEnd(at) - 1;
        if (depth === 0) return at + 1;
      } else if (code === OPEN_LIST || code === OPEN_OBJECT) depth++;
      else if (code === CLOSE_LIST || code === CLOSE_OBJECT) {
        // Without a value before it, the bracket is the end of an empty text.
        if (depth === 0) return at;
        depth--;
        if (depth === 0) return at + 1;
      } else if (depth === 0 && (code === COMMA || code === COLON || isSpace(code))) return at;
    }
    return text.length;
  }

  #findStringEnd(start: number): number {
    const text = this.#text;
    for (let at = text.indexOf('"', start + 1); at >= 0; at = text.indexOf('"', at + 1)) {
      let slashes = 0;
      while (text.charCodeAt(at - 1 - slashes) === BACKSLASH) slashes++;
      if (slashes % 2 === 0) return at + 1;
    }
    return text.length;
  }

  #skipSpace(): void {
    while (isSpace(this.#text.charCodeAt(this.#at))) this.#at++;
  }

  /** @param start where `json` begins in the text, for the error */
  #parse(json: string, start: number): unknown {
    try {
      return this.#parseSlice(json);
    } catch (error) {
      return this.#fail(start, (error as Error).message);
    }
  }

  #fail(at: number, problem: string): never {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}: not JSON: from character ${at} on: ${problem}`,
    );
  }
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09;
}
