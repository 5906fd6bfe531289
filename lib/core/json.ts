/**
 * Reads fields of parsed JSON with errors that name the place: `manifest.json: tables[2].dim: expected an
 * integer ≥ 1, got "x"`. Used for every document that comes from outside. Unknown fields are ignored, so that
 * newer writers stay readable.
 */
import { CubeError } from './errors.ts';

export class JsonReader {
  readonly #value: unknown;
  readonly #path: string;
  readonly #source: string;

  private constructor(value: unknown, source: string, path: string) {
    this.#value = value;
    this.#source = source;
    this.#path = path;
  }

  /** @param source what to call the document in errors: a file name or a URL */
  static parse(text: string, source: string): JsonReader {
    try {
      return new JsonReader(JSON.parse(text), source, '');
    } catch (error) {
      throw new CubeError('INVALID_ARGUMENT', `${source}: not JSON: ${(error as Error).message}`);
    }
  }

  static of(value: unknown, source: string): JsonReader {
    return new JsonReader(value, source, '');
  }

  get value(): unknown {
    return this.#value;
  }

  get missing(): boolean {
    return this.#value === undefined || this.#value === null;
  }

  fail(expected: string): never {
    const got = describe(this.#value);
    const shown = got.length > 60 ? `${got.slice(0, 57)}...` : got;
    const place = this.#path === '' ? '' : `${this.#path}: `;
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

  /** The field read by `read`, or undefined when it is absent or null. */
  optional<T>(name: string, read: (field: JsonReader) => T): T | undefined {
    const inner = this.field(name);
    return inner.missing ? undefined : read(inner);
  }

  items(limits: { min?: number; max?: number } = {}): JsonReader[] {
    return this.list(limits).map((item, i) => this.#child(item, `${this.#path}[${i}]`));
  }

  /** An array's values as they are, for long ones: a reader for each is slow. */
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

  string(pattern?: RegExp, description?: string): string {
    const value = this.#value;
    if (typeof value !== 'string') this.fail(description ?? 'a string');
    if (pattern !== undefined && !pattern.test(value)) {
      this.fail(description ?? `a string like ${pattern.source}`);
    }
    return value;
  }

  oneOf<const T extends string>(choices: readonly T[]): T {
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

  /** A u64 as a decimal string or an integer ≤ 2^53; an unsafe JSON number is refused, never rounded. */
  u64(): bigint {
    const value = this.#value;
    if (typeof value === 'string' && /^\d{1,20}$/.test(value)) {
      const parsed = BigInt(value);
      if (parsed < 1n << 64n) return parsed;
    } else if (typeof value === 'number' && Number.isSafeInteger(value) && value >= 0) {
      return BigInt(value);
    }
    this.fail('an unsigned 64-bit integer (a decimal string, or a number up to 2^53)');
  }

  /** An i64 as a decimal string or a safe integer; never rounded. */
  i64(): bigint {
    const value = this.#value;
    if (typeof value === 'number' && Number.isSafeInteger(value)) return BigInt(value);
    if (typeof value === 'string' && /^-?\d{1,19}$/.test(value)) {
      const parsed = BigInt(value);
      if (BigInt.asIntN(64, parsed) === parsed) return parsed;
    }
    this.fail('a signed 64-bit integer (a decimal string, or a number up to 2^53)');
  }

  #child(value: unknown, path: string): JsonReader {
    return new JsonReader(value, this.#source, path);
  }
}

/** The value as JSON, unless it is nested deeper than the stack: JSON.parse reads what JSON.stringify cannot write. */
function describe(value: unknown): string {
  // JSON has no word for it: 1e999 is read as infinity.
  if (typeof value === 'number' && !Number.isFinite(value)) return String(value);
  try {
    return JSON.stringify(value) ?? 'nothing';
  } catch {
    return 'something nested too deeply';
  }
}
