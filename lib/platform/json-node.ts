/** Reads a value of a JSON document by the methods of YamlNode. Errors name source and path. */
import { CubeError } from '../core/errors.ts';
import { suggestNames } from '../core/nearest-name.ts';

export class JsonNode {
  readonly #value: unknown;
  readonly #path: string;
  readonly #source: string;

  constructor(value: unknown, path: string, source: string) {
    this.#value = value;
    this.#path = path;
    this.#source = source;
  }

  fail(text: string): never {
    throw new CubeError('INVALID_ARGUMENT', `${this.#source}: ${this.#path}: ${text}`);
  }

  fields(known: readonly string[]): ReadonlyMap<string, JsonNode> {
    const fields = this.entries();
    for (const [name, field] of fields) {
      if (!known.includes(name)) field.fail(`unknown field (${suggestNames(name, known)})`);
    }
    return fields;
  }

  entries(): ReadonlyMap<string, JsonNode> {
    const value = this.#value;
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      return this.fail('expected an object');
    }
    return new Map(
      Object.entries(value).map(([name, field]) => [name, this.#child(field, `.${name}`)]),
    );
  }

  items(): readonly JsonNode[] {
    if (!Array.isArray(this.#value)) return this.fail('expected a list');
    return this.#value.map((item, i) => this.#child(item, `[${i}]`));
  }

  /** As `string`, but the text may be empty. */
  text(): string {
    return this.#value === '' ? '' : this.string();
  }

  /** A number counts as a string: versions often look like numbers. */
  string(): string {
    const value = this.#value;
    if (typeof value === 'number' && Number.isSafeInteger(value)) return String(value);
    return typeof value === 'string' && value !== '' ? value : this.fail('expected a string');
  }

  number(): number {
    return typeof this.#value === 'number' ? this.#value : this.fail('expected a number');
  }

  #child(value: unknown, name: string): JsonNode {
    return new JsonNode(value, `${this.#path}${name}`, this.#source);
  }
}
